"""Which member of a group gets which partitions: `range` and `roundrobin`, as in the Java client and
librdkafka.

Pure. The leader of a group assigns for all members, and any client may be the leader, so all clients must
compute the same result. Sources: the Java classes RangeAssignor and RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle

Assignment = dict[str, list[tuple[str, int]]]
"""Member id -> (topic, partition) pairs."""


@dataclass(frozen=True)
class Member:
    """A member as an assignor sees it."""

    id: str
    topics: frozenset[str]
    instance: str | None = None
    owned: tuple[tuple[str, int], ...] = field(default=())

    @property
    def order(self) -> tuple[bool, str]:
        """Static members come first, by instance id: a restart with a new member id changes nothing."""
        return (self.instance is None, self.instance if self.instance is not None else self.id)


def assign_range(members: list[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Each topic's partitions in runs: the first members get one more when the count does not divide."""
    assignment: Assignment = {member.id: [] for member in members}
    for topic in sorted(partition_counts):
        sharing = sorted(
            (member for member in members if topic in member.topics), key=lambda member: member.order
        )
        if not sharing:
            continue
        each, extra = divmod(partition_counts[topic], len(sharing))
        start = 0
        for index, member in enumerate(sharing):
            end = start + each + (1 if index < extra else 0)
            assignment[member.id].extend((topic, partition) for partition in range(start, end))
            start = end
    return assignment


def assign_roundrobin(members: list[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """All partitions of all topics go to the members in turn; members without the topic are skipped."""
    assignment: Assignment = {member.id: [] for member in members}
    ordered = sorted(members, key=lambda member: member.order)
    wanted = {topic for member in members for topic in member.topics}
    cycled = cycle(ordered)
    for topic in sorted(wanted & partition_counts.keys()):
        for partition in range(partition_counts[topic]):
            member = next(cycled)
            while topic not in member.topics:
                member = next(cycled)
            assignment[member.id].append((topic, partition))
    return assignment


ASSIGNORS: dict[str, Callable[[list[Member], Mapping[str, int]], Assignment]] = {
    "range": assign_range,
    "roundrobin": assign_roundrobin,
}
"""By the name that members agree on in JoinGroup."""
