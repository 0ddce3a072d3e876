"""Who leads a partition, and where other brokers reach it: for what this broker sends to leaders.

Lives on the event loop.
"""

from __future__ import annotations

from cluster.broker.replicas import MetadataCache
from cluster.model import TRANSACTION_STATE_TOPIC, TopicPartition
from cluster.transactions import Leader


class MetadataLeaders:
    """The leaders in the metadata cache."""

    def __init__(self, metadata: MetadataCache, listener: str) -> None:
        """`listener`: the listener of brokers for each other."""
        self._metadata = metadata
        self._listener = listener

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        """The leader and its endpoint; None if there is none now."""
        topic = self._metadata.topic(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        info = None if state is None else self._metadata.brokers.get(state.leader)
        endpoint = None if info is None else info.endpoint(self._listener)
        return None if info is None or endpoint is None else Leader(info.id, endpoint)

    def is_gone(self, partition: TopicPartition) -> bool:
        """The partition was deleted. A cache without __transaction_state is not filled yet."""
        filled = self._metadata.topic(TRANSACTION_STATE_TOPIC) is not None
        topic = self._metadata.topic(partition.topic)
        return filled and (topic is None or partition.partition not in topic.assignment)
