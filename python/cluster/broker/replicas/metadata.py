"""The metadata cache: the brokers, topics, leaders and the controller that clients see.

The controller's UpdateMetadata requests fill it. A broker that starts answers clients once it has opened
its partitions too, so clients never see a partition that does not answer. Lives on the event loop; other
threads may call only `snapshot`. Not persistent: the controller sends everything to a broker that starts.
Source: ZkMetadataCache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster.controller.requests import LEADER_DURING_DELETE, endpoint_of
from cluster.model import (
    NO_BROKER,
    NO_TOPIC_ID,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicId,
    TopicInfo,
)
from cluster.peer import Body


class MetadataCache:
    """What clients see."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.controller_id: BrokerId = NO_BROKER
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[TopicId, str] = {}
        self.topics_version = 0
        """It grows with each topic that appears, goes or gets partitions."""
        self._controller_changed: Callable[[], None] | None = None

    def on_controller_change(self, callback: Callable[[], None]) -> None:
        """Sets the function that is called after another broker became the controller."""
        self._controller_changed = callback

    def set_controller(self, controller: BrokerId) -> None:
        """The broker whose UpdateMetadata request came last."""
        before, self.controller_id = self.controller_id, controller
        if controller != before and self._controller_changed is not None:
            self._controller_changed()

    def topic(self, name: str) -> TopicInfo | None:
        """The published topic of that name."""
        return self._topics.get(name)

    def partitions(self, name: str) -> int | None:
        """How many partitions a topic has; None if there is no such topic."""
        topic = self.topic(name)
        return None if topic is None else len(topic.assignment)

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

    def set_brokers(self, brokers: Iterable[Body]) -> bool:
        """The live brokers of an UpdateMetadata request. Returns whether they changed."""
        found = {
            BrokerId(item["id"]): BrokerInfo(
                BrokerId(item["id"]), tuple(map(endpoint_of, item["endpoints"])), item["rack"]
            )
            for item in brokers
        }
        changed = found != self.brokers
        self.brokers = found
        return changed

    def update(self, name: str, topic_id: TopicId, partitions: Iterable[Body]) -> TopicInfo | None:
        """Some partitions of a topic. Returns the topic, or None if it has no partition left."""
        known = self._topics.get(name)
        if known is None or known.id != topic_id:
            known = TopicInfo(name, topic_id, {})
        assignment, states, offline = dict(known.assignment), dict(known.partitions), dict(known.offline)
        for item in partitions:
            number = item["partition_index"]
            if item["leader"] == LEADER_DURING_DELETE or not item["replicas"]:
                assignment.pop(number, None)
                states.pop(number, None)
                offline.pop(number, None)
                continue
            assignment[number] = Replicas(tuple(map(BrokerId, item["replicas"])))
            states[number] = PartitionState(
                BrokerId(item["leader"]),
                LeaderEpoch(item["leader_epoch"]),
                tuple(map(BrokerId, item["isr"])),
                ControllerEpoch(item["controller_epoch"]),
                item["zk_version"],
            )
            offline[number] = tuple(map(BrokerId, item["offline_replicas"]))
        before = self._topics.get(name)
        if before is not None and before.id != topic_id:
            self._names.pop(before.id, None)
        if not assignment:
            self.forget(name)
            return None
        if before is None or before.id != topic_id or len(before.assignment) != len(assignment):
            self.topics_version += 1
        topic = self._topics[name] = TopicInfo(name, topic_id, assignment, states, offline=offline)
        if topic_id != NO_TOPIC_ID:
            self._names[topic_id] = name
        return topic

    def forget(self, name: str) -> None:
        """The topic is gone."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            self.topics_version += 1
            self._names.pop(topic.id, None)
