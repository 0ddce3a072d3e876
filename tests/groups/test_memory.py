"""What members bring and their groups keep.

If one failed, clients that join with much and go would fill the memory until their timeouts, which they choose; or those would
keep everybody else out.
"""

from __future__ import annotations

import itertools

from cluster.errors import NONE, CoordinatorNotAvailable, MemberIdRequired
from cluster.groups import GroupLimits, Join, Leaving
from cluster.groups.machine import GroupMachine
from cluster.groups.messages import JoinResult, Respond

MUCH, MOST = 60_000, 150_000


class Groups:
    """A machine whose members are answered at once."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        limits = GroupLimits(initial_delay_ms=0, subscriptions_bytes_max=MOST)
        self.machine = GroupMachine(limits, lambda: str(next(numbers)))

    def join(self, group: str, size: int, member: str = "", known_id_required: bool = False) -> JoinResult:
        """The answer to a member that is alone in its group."""
        request = Join(
            group,
            member,
            None,
            "c",
            "/127.0.0.1",
            20_000,
            10_000,
            "consumer",
            (("range", bytes(size // 2)), ("roundrobin", bytes(size // 2))),
            known_id_required,
            False,
        )
        [answer] = [*self.machine.join(1, request, 0), *self.machine.advance(0)]
        assert isinstance(answer, Respond)
        assert isinstance(answer.result, JoinResult)
        return answer.result


def test_what_all_members_bring_is_bounded() -> None:
    groups = Groups()
    first, second = groups.join("a", MUCH), groups.join("b", MUCH)
    assert (first.error, second.error) == (NONE, NONE)
    refused = groups.join("c", MUCH)
    assert refused.error == CoordinatorNotAvailable.code
    assert list(groups.machine.groups) == ["a", "b"]
    # Not an id either, with which it could only be refused again.
    assert groups.join("c", MUCH, known_id_required=True).error == CoordinatorNotAvailable.code
    groups.machine.leave("a", [Leaving(first.member)], 0)
    assert groups.join("c", MUCH).error == NONE


def test_who_brings_little_is_let_in_whatever_the_others_have() -> None:
    groups = Groups()
    for name in ("a", "b"):
        assert groups.join(name, MUCH).error == NONE
    for number in range(10):
        assert groups.join(f"little {number}", 10_000).error == NONE
    assert groups.join("new", 10_000, known_id_required=True).error == MemberIdRequired.code


def test_who_is_in_may_join_again_with_as_much_and_not_with_more() -> None:
    groups = Groups()
    [first, _] = [groups.join(name, MUCH) for name in ("a", "b")]
    for number in range(10):
        assert groups.join(f"little {number}", 10_000).error == NONE
    assert groups.join("a", MUCH, first.member).error == NONE
    assert groups.join("a", MUCH + 2, first.member).error == CoordinatorNotAvailable.code


def test_members_that_are_silent_give_it_back() -> None:
    groups = Groups()
    for name in ("a", "b"):
        assert groups.join(name, MUCH).error == NONE
    groups.machine.advance(20_000)
    assert groups.join("c", MUCH).error == NONE
