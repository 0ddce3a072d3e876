"""The uniform assignor. Source: UniformAssignor, UniformHomogeneousAssignmentBuilder,
UniformHeterogeneousAssignmentBuilder (group-coordinator).

Balance comes before stickiness. If all members read the same topics, the sizes of their assignments differ by
at most one. Otherwise no single partition could move to a member that has two partitions fewer. Members keep
the partitions of the previous target as far as the balance allows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from cluster.groups.assignors.spec import Assignment, MemberSpec, read_the_same
from cluster.model import TopicId

_Partition = tuple[TopicId, int]


class UniformAssignor:
    """`uniform`."""

    name = "uniform"

    def assign(
        self, members: Mapping[str, MemberSpec], partitions: Mapping[TopicId, int]
    ) -> dict[str, Assignment]:
        """Each member's partitions."""
        if not members:
            return {}
        if read_the_same(members):
            return _assign_equal(members, partitions)
        return _Different(members, partitions).assign()


def _kept(
    members: Mapping[str, MemberSpec], partitions: Mapping[TopicId, int]
) -> Iterator[tuple[str, list[_Partition]]]:
    """The partitions of each member's previous target that it still reads and no member before it has."""
    taken: set[_Partition] = set()
    for member, spec in members.items():
        kept = [
            (topic, number)
            for topic, numbers in spec.target.items()
            if topic in spec.topics
            for number in numbers
            if number < partitions[topic] and (topic, number) not in taken
        ]
        taken.update(kept)
        yield member, kept


def _assign_equal(
    members: Mapping[str, MemberSpec], partitions: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    topics = next(iter(members.values())).topics
    total = sum(partitions[topic] for topic in topics)
    quota, extras = divmod(total, len(members))
    owned: dict[str, list[_Partition]] = {}
    taken: set[_Partition] = set()
    for member, kept in _kept(members, partitions):
        # A member keeps its extra partition while there are extras left.
        has_extra = len(kept) > quota and extras > 0
        extras -= has_extra
        if len(kept) > quota + has_extra:
            kept = sorted(kept)[: quota + has_extra]
        owned[member] = kept
        taken.update(kept)
    free = (
        (topic, number)
        for topic in sorted(topics)
        for number in range(partitions[topic])
        if (topic, number) not in taken
    )
    found: dict[str, Assignment] = {}
    for member, kept in owned.items():
        size = quota
        if len(kept) <= quota and extras > 0:
            size, extras = quota + 1, extras - 1
        before = members[member].target
        if size <= len(kept) == sum(map(len, before.values())):
            # Of many members few change.
            found[member] = before
        else:
            kept.extend(next(free) for _ in range(size - len(kept)))
            found[member] = _by_topic(kept)
    return found


def _by_topic(partitions: Iterable[_Partition]) -> Assignment:
    found: dict[TopicId, set[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


class _Different:
    """The assignment of a group whose members read different topics."""

    def __init__(self, members: Mapping[str, MemberSpec], partitions: Mapping[TopicId, int]) -> None:
        self._partitions = partitions
        self._readers: dict[TopicId, list[str]] = {}
        for member, spec in members.items():
            for topic in spec.topics:
                self._readers.setdefault(topic, []).append(member)
        # Topics with few readers first: their partitions have the least choice.
        self._topics = sorted(self._readers, key=lambda topic: (len(self._readers[topic]), topic))
        self._owners: dict[TopicId, dict[int, str]] = {topic: {} for topic in self._topics}
        self._size: dict[str, int] = {}
        for member, kept in _kept(members, partitions):
            self._size[member] = len(kept)
            for topic, number in kept:
                self._owners[topic][number] = member

    def assign(self) -> dict[str, Assignment]:
        """Assigns what is free, then moves single partitions until no move helps."""
        for topic in self._topics:
            self._assign_free(topic)
        # Each move lowers the sum of the squares of the sizes, so this ends.
        while sum(map(self._balance, self._topics)):
            pass
        found: dict[str, list[_Partition]] = {member: [] for member in self._size}
        for topic, owners in self._owners.items():
            for number, member in owners.items():
                found[member].append((topic, number))
        return {member: _by_topic(partitions) for member, partitions in found.items()}

    def _assign_free(self, topic: TopicId) -> None:
        owners = self._owners[topic]
        free = [number for number in range(self._partitions[topic]) if number not in owners]
        if not free:
            return
        smallest = [(self._size[member], index) for index, member in enumerate(self._readers[topic])]
        heapq.heapify(smallest)
        for number in free:
            size, index = smallest[0]
            member = owners[number] = self._readers[topic][index]
            self._size[member] = size + 1
            heapq.heapreplace(smallest, (size + 1, index))

    def _balance(self, topic: TopicId) -> bool:
        """Moves partitions of the topic from its largest owners to its smallest readers. Returns whether it
        moved any.
        """
        numbers: dict[str, list[int]] = {}
        for number, member in self._owners[topic].items():
            numbers.setdefault(member, []).append(number)
        moved = False
        while numbers:
            smallest = min(self._readers[topic], key=self._size.__getitem__)
            largest = max(numbers, key=self._size.__getitem__)
            if self._size[largest] - self._size[smallest] < 2:
                break
            number = numbers[largest].pop()
            if not numbers[largest]:
                del numbers[largest]
            self._owners[topic][number] = smallest
            numbers.setdefault(smallest, []).append(number)
            self._size[largest] -= 1
            self._size[smallest] += 1
            moved = True
        return moved
