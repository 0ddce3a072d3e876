"""Logs of __consumer_offsets for tests of the coordinator, and its sweep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from cluster.groups.messages import Action
from cluster.groups.partition import PartitionGroups
from cluster.state_topics import Batch, Entry, Marker


class NoLog:
    """A log that accepts everything and is empty."""

    def partitions(self, topic: str) -> int:
        return 1

    def append(self, topic: str, partition: int, batch: Batch, now_ms: int, timeout_ms: int) -> None:
        pass

    async def read(self, topic: str, partition: int) -> AsyncIterator[Sequence[Entry | Marker]]:
        return
        yield


def expire_all(machine: PartitionGroups, now: int) -> list[Action]:
    """What the coordinator does every `offsets.retention.check.interval.ms`."""
    return [action for group in machine.group_ids(now) for action in machine.expire_group(group, now)]
