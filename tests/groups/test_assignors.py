"""The counts of members that have each assignor.

If one failed, a join of many names would block the event loop for up to half a minute, or a group would
choose an assignor that some of its members do not have.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Set

from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import NONE, InconsistentGroupProtocol
from cluster.groups import GroupLimits, Join, Leaving
from cluster.groups.classic.group import Group, GroupState, Member
from cluster.groups.messages import JoinResult, Protocols, StoredGroup, StoredMember
from cluster.groups.partition import PartitionGroups
from cluster.state_topics import Respond

NAMES = "abcd"


def member(number: int, names: list[str], instance: str | None = None) -> Member:
    protocols = tuple((name, b"") for name in names)
    return Member(f"m{number}", instance, "c", "/127.0.0.1", 1, 1, "consumer", protocols)


def counted(group: Group) -> Counter[str]:
    """The counts, computed from the members."""
    return Counter(name for one in group.members.values() for name in {name for name, _ in one.protocols})


def test_counts_stay_right_through_joins_updates_and_leaves() -> None:
    for seed in range(200):
        chance, group = random.Random(seed), Group("g")
        for number in range(60):
            names = chance.choices(NAMES, k=chance.randint(1, 6))
            known = list(group.members)
            what = chance.choice(["add", "add", "bring", "remove", "replace"]) if known else "add"
            old = chance.choice(known) if known else ""
            if what == "add":
                group.add(member(number, names, f"i{number}"))
            elif what == "bring":
                group.set_protocols(group.members[old], tuple((name, b"") for name in names))
            elif what == "remove":
                group.remove(old)
            else:
                group.replace_static(group.members[old].instance_id or "", old, f"m{number}")
            right = counted(group)
            assert group.supported == right, f"seed {seed}"
            assert 0 not in group.supported.values(), f"seed {seed}"
            common = {name for name, count in right.items() if count == len(group.members)}
            assert group.candidates() == common, f"seed {seed}"
            for name in NAMES:
                assert group.supports("", ((name, b""),)) is False
                group.state = GroupState.STABLE
                expected = name in common or not group.members
                assert group.supports("consumer", ((name, b""),)) is expected, f"seed {seed}"
                group.state = GroupState.EMPTY


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8), st.lists(st.sampled_from(NAMES), min_size=1))
def test_a_name_that_a_member_has_twice_counts_once(first: list[str], second: list[str]) -> None:
    group = Group("g")
    group.add(member(1, first))
    group.add(member(2, second))
    assert group.supported == counted(group)
    group.remove("m1")
    assert group.candidates() == set(second)


def test_loaded_members_are_counted() -> None:
    machine = PartitionGroups(GroupLimits(), lambda: "id")
    stored = StoredMember("m", None, "c", "/h", 1, 1, b"", b"")
    for _ in range(2):
        machine.classic.load(StoredGroup("g", "consumer", 1, "range", "m", 0, (stored,)), "g")
        assert machine.table.groups["g"].supported == {"range": 1}


class Watched(tuple[tuple[str, bytes], ...]):
    """Assignors that count their iterations."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.passes += 1
        return super().__iter__()


def test_a_join_iterates_over_its_own_names_only() -> None:
    numbers = itertools.count(1)
    machine = PartitionGroups(GroupLimits(), lambda: str(next(numbers)))
    there = Watched((f"a{number}", b"") for number in range(2000))
    assert join(machine, there) == []
    before = there.passes
    other = tuple((f"b{number}", b"") for number in range(1000))
    assert [result.error for result in join(machine, other)] == [InconsistentGroupProtocol.code]
    assert join(machine, (*other, ("a1999", b""))) == []
    assert there.passes == before


def join(machine: PartitionGroups, protocols: Protocols) -> list[JoinResult]:
    """The results for a new member, which waits if there are none."""
    request = Join("g", "", None, "c", "/127.0.0.1", 20_000, 10_000, "consumer", protocols)
    results = [action.result for action in machine.join(1, request, 0) if isinstance(action, Respond)]
    return [result for result in results if isinstance(result, JoinResult)]


class Names(Set[str]):
    """Names that may be looked up but not iterated over."""

    def __contains__(self, name: object) -> bool:
        return name == "b"

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a vote goes through all candidates")

    def __len__(self) -> int:
        return 1


def test_a_vote_looks_up_its_own_names_only() -> None:
    assert member(1, ["a", "b"]).vote(Names()) == "b"


def test_a_member_may_join_after_all_others_left_during_the_initial_delay() -> None:
    """As in Kafka, whose count of a name is 0 then, like the number of members."""
    numbers = itertools.count(1)
    machine = PartitionGroups(GroupLimits(), lambda: str(next(numbers)))
    assert join(machine, (("range", b""),)) == []
    group = machine.table.groups["g"]
    machine.leave("g", [Leaving(next(iter(group.members)))], 0)
    assert (group.state, len(group.members)) == (GroupState.PREPARING, 0)
    assert join(machine, (("sticky", b""),)) == []
    actions = [*machine.advance(3_000), *machine.advance(6_000)]
    [answer] = [action for action in actions if isinstance(action, Respond)]
    assert isinstance(answer.result, JoinResult)
    assert (answer.result.error, answer.result.protocol) == (NONE, "sticky")
