"""The metadata cache: the brokers, topics, leaders and the controller that clients see.

The controller's driver publishes a topic once its partitions are open and withdraws it before they close, so
clients never see a partition that does not answer. Lives on the event loop; other threads may call only
`snapshot`. Not persistent: the start builds it from the znodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.model import NO_BROKER, NO_TOPIC_ID, BrokerId, BrokerInfo, TopicId, TopicInfo


class MetadataCache:
    """The published view."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.controller_id: BrokerId = NO_BROKER
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[TopicId, str] = {}

    def topic(self, name: str) -> TopicInfo | None:
        """The published topic of that name."""
        return self._topics.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        """The name of the topic with that id."""
        return self._names.get(topic_id)

    def topics(self) -> Iterable[TopicInfo]:
        """Every published topic, in no particular order."""
        return self._topics.values()

    def snapshot(self) -> list[TopicInfo]:
        """The published topics. Any thread may call it, because a topic is never changed, only replaced."""
        return list(self._topics.values())

    def names(self) -> Iterable[str]:
        """The names of the published topics."""
        return self._topics.keys()

    def publish(self, topic: TopicInfo) -> None:
        """Publishes a topic or its new state."""
        self.withdraw(topic.name)
        self._topics[topic.name] = topic
        if topic.id != NO_TOPIC_ID:
            self._names[topic.id] = topic.name

    def withdraw(self, name: str) -> None:
        """Withdraws a topic if it is published."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.id, None)
