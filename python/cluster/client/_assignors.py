"""Which member of a group gets which partitions: `range`, `roundrobin` and `cooperative-sticky`, as in the
Java client and librdkafka.

Pure. The leader of a group assigns for all members, and any client may be the leader. With range and
roundrobin all clients compute the same result; a sticky one depends on what members have. Sources: the Java
classes RangeAssignor, RoundRobinAssignor and CooperativeStickyAssignor, KIP-429.
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
    """The partitions it keeps while it joins: only cooperative members have any."""
    generation: int = -1
    """The generation in which it got them."""

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


def assign_cooperative_sticky(members: list[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Members keep what they have, as far as the loads stay balanced.

    A partition that moves is left out while its present owner still has it. The owner sees that, gives it up
    and joins again, and then the partition goes to its new owner.
    """
    assignment = _claimed(members, partition_counts)
    by_id = {member.id: member for member in members}
    taken = {found for partitions in assignment.values() for found in partitions}
    for topic in sorted(partition_counts):
        sharing = [member for member in members if topic in member.topics]
        for partition in range(partition_counts[topic]):
            if sharing and (topic, partition) not in taken:
                least = min(sharing, key=lambda member: (len(assignment[member.id]), member.order))
                assignment[least.id].append((topic, partition))
    while _move_one(assignment, by_id):
        pass
    owned = {found for member in members for found in member.owned}
    return {
        name: [found for found in partitions if found not in owned or found in by_id[name].owned]
        for name, partitions in assignment.items()
    }


def _claimed(members: list[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """What each member keeps at first. Of two that claim a partition the later generation's has it; of two of
    the same generation neither.
    """
    claims: dict[tuple[str, int], list[Member]] = {}
    for member in members:
        for topic, partition in member.owned:
            if topic in member.topics and partition < partition_counts.get(topic, 0):
                claims.setdefault((topic, partition), []).append(member)
    assignment: Assignment = {member.id: [] for member in members}
    for found, claiming in sorted(claims.items()):
        newest = max(member.generation for member in claiming)
        holders = [member for member in claiming if member.generation == newest]
        if len(holders) == 1:
            assignment[holders[0].id].append(found)
    return assignment


def _move_one(assignment: Assignment, by_id: Mapping[str, Member]) -> bool:
    """Moves a partition from a member to one that has at least two less; whether there was one to move."""
    ordered = sorted(assignment, key=lambda name: (len(assignment[name]), by_id[name].order))
    for taker in ordered:
        for giver in reversed(ordered):
            if len(assignment[giver]) < len(assignment[taker]) + 2:
                break
            # The last ones were added last: what the giver had before, it keeps.
            for index in range(len(assignment[giver]) - 1, -1, -1):
                if assignment[giver][index][0] in by_id[taker].topics:
                    assignment[taker].append(assignment[giver].pop(index))
                    return True
    return False


ASSIGNORS: dict[str, Callable[[list[Member], Mapping[str, int]], Assignment]] = {
    "range": assign_range,
    "roundrobin": assign_roundrobin,
    "cooperative-sticky": assign_cooperative_sticky,
}
"""By the name that members agree on in JoinGroup."""
