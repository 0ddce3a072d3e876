"""The server-side assignors, on random groups.

If one failed, a partition would be read by nobody or by two members, members would have unequal shares, or
partitions would move without need at each change of a group.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.groups.assignors import ASSIGNORS, Assignment, MemberSpec, RangeAssignor, UniformAssignor
from cluster.model import TopicId

TOPICS = [TopicId(bytes([number]) * 16) for number in range(4)]
Members = dict[str, MemberSpec]

partition_counts = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
subscriptions = st.frozensets(st.sampled_from(TOPICS), min_size=1)
alike = st.builds(
    lambda topics, count: {f"m{n}": MemberSpec(None, topics) for n in range(count)},
    subscriptions,
    st.integers(1, 6),
)
unlike = st.lists(subscriptions, min_size=1, max_size=6).map(
    lambda each: {f"m{n}": MemberSpec(None, topics) for n, topics in enumerate(each)}
)


def check(members: Members, partitions: dict[TopicId, int], found: dict[str, Assignment]) -> None:
    """Each partition that is read has one owner, which reads it."""
    assert found.keys() == members.keys()
    owned = [(topic, n) for each in found.values() for topic, numbers in each.items() for n in numbers]
    read = frozenset().union(*(spec.topics for spec in members.values()))
    assert sorted(owned) == sorted((topic, n) for topic in read for n in range(partitions[topic]))
    for member, assignment in found.items():
        assert assignment.keys() <= members[member].topics
        assert all(assignment.values())


def sizes(found: dict[str, Assignment]) -> list[int]:
    return [sum(map(len, each.values())) for each in found.values()]


def keeping(members: Members, found: dict[str, Assignment]) -> Members:
    """The members, with their targets."""
    return {
        member: MemberSpec(spec.instance, spec.topics, found.get(member, {}))
        for member, spec in members.items()
    }


def moved(before: dict[str, Assignment], after: dict[str, Assignment]) -> int:
    """How many partitions another member had before."""
    owner = {
        (t, n): member for member, each in before.items() for t, numbers in each.items() for n in numbers
    }
    return sum(
        owner.get((t, n), member) != member
        for member, each in after.items()
        for t, numbers in each.items()
        for n in numbers
    )


@given(members=st.one_of(alike, unlike), partitions=partition_counts, name=st.sampled_from(list(ASSIGNORS)))
def test_each_partition_has_one_owner(members: Members, partitions: dict[TopicId, int], name: str) -> None:
    assignor = ASSIGNORS[name]
    found = assignor.assign(members, partitions)
    check(members, partitions, found)
    again = assignor.assign(keeping(members, found), partitions)
    assert again == found, "nothing moves if nothing changed"


@given(members=alike, partitions=partition_counts, joins=st.integers(0, 3), leaves=st.integers(0, 3))
def test_uniform_is_balanced_and_moves_as_little_as_that_needs(
    members: Members, partitions: dict[TopicId, int], joins: int, leaves: int
) -> None:
    topics = next(iter(members.values())).topics
    before = UniformAssignor().assign(members, partitions)
    assert max(sizes(before)) - min(sizes(before)) <= 1
    kept = dict(list(keeping(members, before).items())[leaves:])
    changed = kept | {f"n{n}": MemberSpec(None, topics) for n in range(joins)}
    if not changed:
        return
    after = UniformAssignor().assign(changed, partitions)
    check(changed, partitions, after)
    assert max(sizes(after)) - min(sizes(after)) <= 1
    stayed = {member: before[member] for member in kept}
    quota, extras = divmod(sum(partitions[topic] for topic in topics), len(changed))
    # A member may keep its share; as many members as there are extras may keep one more.
    over = sorted((max(size - quota, 0) for size in sizes(stayed)), reverse=True)
    assert moved(stayed, after) == sum(over) - sum(1 for excess in over[:extras] if excess > 0)


@given(members=unlike, partitions=partition_counts)
def test_uniform_leaves_no_move_that_helps(members: Members, partitions: dict[TopicId, int]) -> None:
    found = UniformAssignor().assign(members, partitions)
    size = dict(zip(found, sizes(found), strict=True))
    for member, assignment in found.items():
        for topic in assignment:
            for other, spec in members.items():
                assert topic not in spec.topics or size[member] - size[other] < 2


def test_range_gives_members_the_same_ranges_of_each_topic() -> None:
    topics = frozenset(TOPICS[:2])
    members = {"z": MemberSpec("a", topics), "a": MemberSpec(None, topics), "b": MemberSpec(None, topics)}
    found = RangeAssignor().assign(members, dict.fromkeys(TOPICS, 7))
    ranges = {"z": {0, 1, 2}, "a": {3, 4}, "b": {5, 6}}
    assert found == {member: dict.fromkeys(topics, numbers) for member, numbers in ranges.items()}
