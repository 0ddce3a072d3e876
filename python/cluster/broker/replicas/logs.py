"""The part of the data plane that a broker's replica manager commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Replica = tuple[int, str | None, Sequence[str]]
"""The id of a broker that holds a partition, its rack, and the names of its listeners."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """One partition of this broker, as the data plane needs it."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    leader_id: int
    """The partition is served here if this is the broker's own id. Otherwise it follows that broker."""
    config: dict[str, str]
    """The topic's own settings."""
    new: bool = True
    """New to the cluster. While a log directory is offline, only new partitions are created."""
    replicas: Sequence[Replica] = ()
    """All replicas. If it is empty, the leader is the only one."""
    isr: Sequence[int] = ()
    """The ids of the replicas that are in sync."""
    partition_epoch: int = -1
    """The version of the ISR: of the partition's state in the coordinator."""


class Logs(Protocol):
    """The data plane. Its methods may block and run in threads, except where they say that they do not."""

    def create_partition(self, spec: PartitionSpec) -> None:
        """Opens or creates a partition's log, or gives an open one its new leader, epoch and replicas."""

    def partitions_left(self) -> int:
        """How many more logs can be created before the limit of open files or of mappings is near."""

    def stop_partition(self, topic: str, partition: int, delete: bool) -> None:
        """Stops serving a partition, and deletes its log if `delete`. Without such a log it does nothing."""

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        """Applies settings to the logs of a topic.

        Without any it raises an error whose `code` is UNKNOWN_TOPIC_OR_PARTITION.
        """

    def set_brokers(self, brokers: list[tuple[int, str, int]]) -> None:
        """Sets id, host and port at which followers reach the live brokers. Does not block."""

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        """Sets the number of the topic's partitions and this broker's offline ones. Does not block."""

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted. Does not block."""
