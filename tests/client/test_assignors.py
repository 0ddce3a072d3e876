"""If these fail, members of a group disagree with what Java and librdkafka members compute: partitions are
left out or read twice.
"""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from cluster.client._assignors import (
    ASSIGNORS,
    Assignment,
    Member,
    assign_cooperative_sticky,
    assign_range,
    assign_roundrobin,
)

names = st.text(string.ascii_lowercase, min_size=1, max_size=3)
groups = st.dictionaries(names, st.frozensets(names, min_size=1, max_size=4), min_size=1, max_size=6)


@given(groups, st.dictionaries(names, st.integers(1, 12), max_size=5), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_exactly_one_member_that_wants_it(
    subscriptions: dict[str, frozenset[str]], counts: dict[str, int], assignor: str
) -> None:
    members = [Member(name, topics) for name, topics in subscriptions.items()]
    assignment = ASSIGNORS[assignor](members, counts)
    assert assignment.keys() == subscriptions.keys()
    given_out = [(member, *found) for member, partitions in assignment.items() for found in partitions]
    assert all(topic in subscriptions[member] for member, topic, _ in given_out)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    expected = [
        (topic, partition) for topic in sorted(wanted & counts.keys()) for partition in range(counts[topic])
    ]
    assert sorted((topic, partition) for _, topic, partition in given_out) == expected


def test_range_gives_the_first_members_one_more() -> None:
    members = [Member("c1", frozenset({"a", "b"})), Member("c0", frozenset({"a", "b"}))]
    assert assign_range(members, {"a": 3, "b": 3}) == {
        "c0": [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
        "c1": [("a", 2), ("b", 2)],
    }


def test_roundrobin_deals_across_topics() -> None:
    members = [Member("c0", frozenset({"a", "b"})), Member("c1", frozenset({"a", "b"}))]
    assert assign_roundrobin(members, {"a": 3, "b": 3}) == {
        "c0": [("a", 0), ("a", 2), ("b", 1)],
        "c1": [("a", 1), ("b", 0), ("b", 2)],
    }


def test_roundrobin_skips_members_without_the_topic() -> None:
    members = [
        Member("c0", frozenset({"t0"})),
        Member("c1", frozenset({"t0", "t1"})),
        Member("c2", frozenset({"t0", "t1", "t2"})),
    ]
    assert assign_roundrobin(members, {"t0": 1, "t1": 2, "t2": 3}) == {
        "c0": [("t0", 0)],
        "c1": [("t1", 0)],
        "c2": [("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)],
    }


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = [
        Member("a", frozenset({"t"})),
        Member("z", frozenset({"t"}), "i1"),
        Member("b", frozenset({"t"}), "i2"),
    ]
    assert assign_range(members, {"t": 3}) == {"z": [("t", 0)], "b": [("t", 1)], "a": [("t", 2)]}


def joined(
    subscriptions: dict[str, frozenset[str]], counts: dict[str, int], before: Assignment, generation: int
) -> Assignment:
    """The next assignment of members that keep what they have."""
    members = [
        Member(
            name, topics, owned=tuple(before.get(name, ())), generation=generation if name in before else -1
        )
        for name, topics in subscriptions.items()
    ]
    return assign_cooperative_sticky(members, counts)


@given(groups, groups, st.dictionaries(names, st.integers(1, 12), max_size=5))
def test_a_partition_moves_only_after_its_owner_gave_it_up(
    old: dict[str, frozenset[str]], new: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    before = joined(old, counts, {}, 0)
    between = joined(new, counts, before, 1)
    for name, partitions in between.items():
        for found in partitions:
            assert not any(found in before.get(other, ()) for other in new if other != name)
    after = joined(new, counts, between, 2)
    given_out = sorted(found for partitions in after.values() for found in partitions)
    wanted = {topic for topics in new.values() for topic in topics}
    assert given_out == sorted(
        (topic, partition) for topic in wanted & counts.keys() for partition in range(counts[topic])
    )
    # It is stable: a third round changes nothing.
    again = joined(new, counts, after, 3)
    assert {name: set(found) for name, found in again.items()} == {
        name: set(found) for name, found in after.items()
    }


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 20))
def test_sticky_loads_are_balanced_with_the_fewest_moves(old: int, new: int, count: int) -> None:
    topics, counts = frozenset({"t"}), {"t": count} if count else {}
    before = joined({f"c{n}": topics for n in range(old)}, counts, {}, 0)
    subscriptions = {f"c{n}": topics for n in range(new)}
    between = joined(subscriptions, counts, before, 1)
    after = joined(subscriptions, counts, between, 2)
    loads = [len(found) for found in after.values()]
    assert max(loads) - min(loads) <= 1
    kept = sum(len(set(before.get(name, ())) & set(found)) for name, found in after.items())
    least, more = divmod(count, new)
    if new >= old:
        # Nobody gives up more than what is above the new loads.
        assert kept == least * old + min(more, sum(len(found) > least for found in before.values()))
    else:
        assert kept == sum(len(before[name]) for name in subscriptions)


def test_a_claim_of_an_older_generation_does_not_count() -> None:
    topics = frozenset({"t"})
    members = [
        Member("a", topics, owned=(("t", 0), ("t", 1)), generation=1),
        Member("b", topics, owned=(("t", 0),), generation=2),
    ]
    assert assign_cooperative_sticky(members, {"t": 2}) == {"a": [("t", 1)], "b": [("t", 0)]}
