"""The range assignor. Source: RangeAssignor (group-coordinator).

Each topic is cut into one contiguous range for each member that reads it; the first members get one partition
more if they do not divide evenly. Members have the same order in each topic, so topics with equally many
partitions are co-partitioned. Static members come first, in the order of their instance ids, so they keep
their ranges when they come back under other member ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cluster.groups.assignors.spec import Assignment, MemberSpec
from cluster.model import TopicId


class RangeAssignor:
    """`range`."""

    name = "range"

    def assign(
        self, members: Mapping[str, MemberSpec], partitions: Mapping[TopicId, int]
    ) -> dict[str, Assignment]:
        """Each member's ranges."""
        readers = Counter(topic for spec in members.values() for topic in spec.topics)
        position = dict.fromkeys(readers, 0)
        found: dict[str, Assignment] = {}
        for member in sorted(members, key=lambda name: _order(name, members[name])):
            assignment: dict[TopicId, frozenset[int]] = {}
            for topic in members[member].topics:
                index = position[topic]
                position[topic] += 1
                quota, extra = divmod(partitions[topic], readers[topic])
                start = index * quota + min(index, extra)
                end = start + quota + (index < extra)
                if start < end:
                    assignment[topic] = frozenset(range(start, end))
            found[member] = assignment
        return found


def _order(member: str, spec: MemberSpec) -> tuple[bool, str]:
    return (True, member) if spec.instance is None else (False, spec.instance)
