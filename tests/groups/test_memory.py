"""What members bring, are called and are assigned, and their groups keep.

If one failed, clients that join with much and go would fill the memory until their timeouts, which they choose; or those would
keep everybody else out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from cluster.errors import NONE, CoordinatorNotAvailable, MemberIdRequired
from cluster.groups import CommittedOffset, GroupCoordinator, GroupLimits, Join, Leaving, Sync
from cluster.groups.group import Group, GroupState
from cluster.groups.machine import GroupMachine
from cluster.groups.messages import JoinResult, Respond, StoredGroup, StoredMember, Write
from cluster.model import TopicPartition

from .test_stalls import NoLog

LITTLE, MUCH, MOST = 2_000, 60_000, 150_000


class Groups:
    """A machine whose members are answered at once."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        limits = GroupLimits(initial_delay_ms=0, members_bytes_max=MOST)
        self.machine = GroupMachine(limits, lambda: str(next(numbers)))

    def join(
        self,
        group: str,
        size: int,
        member: str = "",
        known_id_required: bool = False,
        client: str = "c",
        instance: str | None = None,
    ) -> JoinResult:
        """The answer to a member that is alone in its group."""
        request = Join(
            group,
            member,
            instance,
            client,
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

    def sync(self, group: str, joined: JoinResult, size: int) -> int:
        """The error for the leader, who decides on so much for itself."""
        request = Sync(group, joined.generation, joined.member, assignments={joined.member: bytes(size)})
        actions = self.machine.sync(1, request, 0)
        if isinstance(actions[0], Write):
            actions = self.machine.stored(actions[0].id, NONE, 0)
        [answer] = actions
        assert isinstance(answer, Respond)
        return answer.result.error

    def until_refused(self, join: Callable[[int], JoinResult]) -> list[JoinResult]:
        """Those who are let in before the first that is not; far more than there may be come."""
        results = [join(number) for number in range(2 * MOST // LITTLE)]
        let_in = [result for result in results if result.error != CoordinatorNotAvailable.code]
        assert results[: len(let_in)] == let_in, "who brings as much is let in after another was refused"
        assert len(let_in) < len(results)
        assert self.machine.held.bytes <= 2 * MOST
        return let_in


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


def test_what_all_members_are_assigned_is_bounded() -> None:
    groups = Groups()
    joined = {name: groups.join(name, 0) for name in "abc"}
    assert [groups.sync(name, joined[name], MUCH) for name in "ab"] == [NONE, NONE]
    held = groups.machine.held.bytes
    assert groups.sync("c", joined["c"], MUCH) == CoordinatorNotAvailable.code
    assert groups.machine.groups["c"].state is GroupState.COMPLETING
    assert groups.machine.held.bytes == held
    assert groups.join("d", MUCH).error == CoordinatorNotAvailable.code
    groups.machine.leave("a", [Leaving(joined["a"].member)], 0)
    assert groups.sync("c", joined["c"], MUCH) == NONE


def test_who_is_assigned_little_has_it_whatever_the_others_have() -> None:
    groups = Groups()
    [*_, joined] = [groups.join(name, 0) for name in "abc"]
    for name in "de":
        assert groups.join(name, MUCH).error == NONE
    assert groups.sync("c", joined, 10_000) == NONE


def test_a_new_decision_takes_the_place_of_the_one_before() -> None:
    groups = Groups()
    joined = groups.join("a", 0)
    for generation in range(10):
        assert groups.sync("a", joined, MUCH) == NONE
        joined = groups.join("a", 2 * (generation % 2), joined.member)
        assert joined.error == NONE
    assert groups.sync("a", joined, 2 * MOST) == CoordinatorNotAvailable.code


def test_those_who_bring_little_are_bounded_by_twice_as_much() -> None:
    groups = Groups()
    let_in = groups.until_refused(lambda number: groups.join(f"g{number}", LITTLE))
    assert groups.machine.held.bytes > 2 * MOST - 3 * LITTLE
    assert groups.join("g0", LITTLE, let_in[0].member).error == NONE
    groups.machine.leave("g0", [Leaving(let_in[0].member)], 0)
    assert groups.join("new", LITTLE).error == NONE


@pytest.mark.parametrize("known_id_required", [False, True], ids=["members", "ids given out"])
def test_ids_are_counted(known_id_required: bool) -> None:
    groups = Groups()
    long = "c" * 10_000
    let_in = groups.until_refused(
        lambda number: groups.join("g" * number, 0, known_id_required=known_id_required, client=long)
    )
    assert 0 < len(let_in) <= 2 * MOST // len(long)
    groups.machine.advance(20_000)
    assert groups.machine.held.bytes == 0
    assert groups.join("g", MUCH).error == NONE


def test_a_static_member_that_comes_back_takes_its_own_place() -> None:
    groups = Groups()
    for name in "ab":
        assert groups.join(name, MUCH, instance="i").error == NONE
    assert groups.join("c", MUCH, instance="i").error == CoordinatorNotAvailable.code
    held = groups.machine.held.bytes
    assert groups.join("a", MUCH, instance="i").error == NONE
    assert abs(groups.machine.held.bytes - held) < 10, "but for the length of its new id"


def test_groups_that_are_loaded_and_deleted_are_counted() -> None:
    machine = Groups().machine
    member = StoredMember("m", "i", "c", "/h", 1, 1, bytes(100), bytes(50))
    for _ in range(2):
        machine.load_group(StoredGroup("g", "consumer", 1, "range", "m", 0, (member,)), "g")
        assert machine.held.bytes == machine.groups["g"].members["m"].held_bytes > 150
    machine.load_offset("g", TopicPartition("t", 0), CommittedOffset(1))
    machine.load_group(None, "g")
    assert machine.held.bytes == 0
    groups = Groups()
    assert groups.join("g", 0, known_id_required=True).error == MemberIdRequired.code
    assert groups.machine.held.bytes > 0
    assert groups.machine.delete("g", 0)[0] == NONE
    assert groups.machine.held.bytes == 0


class Unwalked(dict[str, Group]):
    """Groups that may be looked up and not gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a join goes through all groups")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_nobody_goes_through_all_groups_to_let_one_member_in() -> None:
    groups = Groups()
    groups.machine.groups = Unwalked()
    joined = groups.join("a", MUCH)
    assert groups.sync("a", joined, MUCH) == NONE
    assert groups.join("b", MUCH).error == CoordinatorNotAvailable.code


def test_the_log_says_once_a_minute_why_members_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    now = 1_000_000

    async def refused(coordinator: GroupCoordinator, joined: JoinResult) -> None:
        caplog.clear()
        much = bytes(MOST)
        sync = Sync("a", joined.generation, joined.member, assignments={joined.member: much})
        for _ in range(3):
            assert (await coordinator.sync(sync)).error == CoordinatorNotAvailable.code
            assert (await coordinator.join(alone("b", much))).error == CoordinatorNotAvailable.code
        said = [record.message for record in caplog.records if "is refused" in record.message]
        assert [line[:8] for line in said] == ["group a:"]

    async def run() -> None:
        nonlocal now
        limits = GroupLimits(initial_delay_ms=0, members_bytes_max=MOST)
        coordinator = GroupCoordinator(limits, NoLog(), 600_000)
        coordinator._clock.now = lambda: now  # type: ignore[method-assign]
        coordinator.start()
        await coordinator.loaded()
        joined = await coordinator.join(alone("a", b""))
        await refused(coordinator, joined)
        now += 60_000
        await refused(coordinator, joined)
        await coordinator.stop()

    asyncio.run(run())


def alone(group: str, data: bytes) -> Join:
    """A member that nobody waits for."""
    return Join(group, "", None, "c", "/127.0.0.1", 20_000, 10_000, "consumer", (("range", data),))
