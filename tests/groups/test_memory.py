"""The memory of members' protocols, ids and assignments, and of their groups.

If one failed, clients that join with large subscriptions and go could fill the memory until their timeouts,
which they choose, or they would keep all others out.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    UnknownMemberId,
)
from cluster.groups import Commit, CommittedOffset, GroupCoordinator, GroupLimits, Join, Leaving, Sync
from cluster.groups.classic.group import Group, GroupState, Member
from cluster.groups.memory import group_bytes
from cluster.groups.messages import JoinResult, StoredGroup, StoredMember, Write
from cluster.groups.partition import PartitionGroups
from cluster.model import TopicPartition
from cluster.state_topics import Respond
from tests.groups.logs import expire_all

from .logs import NoLog

LITTLE, MUCH, MOST = 2_000, 60_000, 150_000
ITEM = TopicPartition("t", 0)


class Groups:
    """A machine whose members are answered at once."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        limits = GroupLimits(initial_delay_ms=0, members_bytes_max=MOST)
        self.machine = PartitionGroups(limits, lambda: str(next(numbers)))

    def join(
        self,
        group: str,
        size: int,
        member: str = "",
        known_id_required: bool = False,
        client: str = "c",
        instance: str | None = None,
        session_ms: int = 10_000,
        protocol_type: str = "consumer",
    ) -> JoinResult:
        """The result for a member that is alone in its group."""
        request = Join(
            group,
            member,
            instance,
            client,
            "/127.0.0.1",
            20_000,
            session_ms,
            protocol_type,
            (("range", bytes(size // 2)), ("roundrobin", bytes(size // 2))),
            known_id_required,
            False,
        )
        [answer] = [*self.machine.join(1, request, 0), *self.machine.advance(0)]
        assert isinstance(answer, Respond)
        assert isinstance(answer.result, JoinResult)
        return answer.result

    def sync(self, group: str, joined: JoinResult, size: int) -> int:
        """The error for a leader that assigns so many bytes to itself."""
        request = Sync(group, joined.generation, joined.member, assignments={joined.member: bytes(size)})
        actions = self.machine.sync(1, request, 0)
        if isinstance(actions[0], Write):
            actions = self.machine.stored(actions[0].id, NONE, 0)
        [answer] = actions
        assert isinstance(answer, Respond)
        return answer.result.error

    def leave(self, group: str, member: str) -> None:
        """Removes a member, and carries out the writes."""
        for action in self.machine.leave(group, [Leaving(member)], 0)[1]:
            assert isinstance(action, Write)
            assert self.machine.stored(action.id, NONE, 0) == []

    def commit(self, group: str, metadata: str = "", write_error: int = NONE) -> None:
        """OffsetCommit without a member."""
        kept = CommittedOffset(1, metadata=metadata)
        for action in self.machine.commit(1, Commit(group, -1, "", None, {ITEM: kept}), 0):
            if isinstance(action, Write):
                self.machine.stored(action.id, write_error, 0)

    def nothing_is_left(self) -> bool:
        machine = self.machine
        return not machine.table.groups and not machine.memory.bytes and not machine.table.timers._queued

    def until_refused(self, join: Callable[[int], JoinResult]) -> list[JoinResult]:
        """The members that are accepted before the first one that is not. Far more may come."""
        results = [join(number) for number in range(2 * MOST // LITTLE)]
        let_in = [result for result in results if result.error != CoordinatorNotAvailable.code]
        assert results[: len(let_in)] == let_in, (
            "a member of the same size is accepted after another was refused"
        )
        assert len(let_in) < len(results)
        assert self.machine.memory.bytes <= 2 * MOST
        return let_in


def test_the_memory_of_all_members_is_bounded() -> None:
    groups = Groups()
    first, second = groups.join("a", MUCH), groups.join("b", MUCH)
    assert (first.error, second.error) == (NONE, NONE)
    refused = groups.join("c", MUCH)
    assert refused.error == CoordinatorNotAvailable.code
    assert list(groups.machine.table.groups) == ["a", "b"]
    # It gets no id either, with which it could only be refused again.
    assert groups.join("c", MUCH, known_id_required=True).error == CoordinatorNotAvailable.code
    groups.machine.leave("a", [Leaving(first.member)], 0)
    assert groups.join("c", MUCH).error == NONE


def test_small_members_are_accepted_whatever_the_others_hold() -> None:
    groups = Groups()
    for name in ("a", "b"):
        assert groups.join(name, MUCH).error == NONE
    for number in range(10):
        assert groups.join(f"little {number}", 10_000).error == NONE
    assert groups.join("new", 10_000, known_id_required=True).error == MemberIdRequired.code


def test_a_member_may_join_again_with_as_much_and_not_with_more() -> None:
    groups = Groups()
    [first, _] = [groups.join(name, MUCH) for name in ("a", "b")]
    for number in range(10):
        assert groups.join(f"little {number}", 10_000).error == NONE
    assert groups.join("a", MUCH, first.member).error == NONE
    assert groups.join("a", MUCH + 2, first.member).error == CoordinatorNotAvailable.code


def test_members_whose_sessions_end_free_their_memory() -> None:
    groups = Groups()
    for name in ("a", "b"):
        assert groups.join(name, MUCH).error == NONE
    groups.machine.advance(20_000)
    assert groups.join("c", MUCH).error == NONE


def test_the_memory_of_all_assignments_is_bounded() -> None:
    groups = Groups()
    joined = {name: groups.join(name, 0) for name in "abc"}
    assert [groups.sync(name, joined[name], MUCH) for name in "ab"] == [NONE, NONE]
    held = groups.machine.memory.bytes
    assert groups.sync("c", joined["c"], MUCH) == CoordinatorNotAvailable.code
    assert groups.machine.table.groups["c"].state is GroupState.COMPLETING
    assert groups.machine.memory.bytes == held
    assert groups.join("d", MUCH).error == CoordinatorNotAvailable.code
    groups.machine.leave("a", [Leaving(joined["a"].member)], 0)
    assert groups.sync("c", joined["c"], MUCH) == NONE


def test_small_assignments_are_accepted_whatever_the_others_hold() -> None:
    groups = Groups()
    [*_, joined] = [groups.join(name, 0) for name in "abc"]
    for name in "de":
        assert groups.join(name, MUCH).error == NONE
    assert groups.sync("c", joined, 10_000) == NONE


def test_a_new_assignment_replaces_the_one_before() -> None:
    groups = Groups()
    joined = groups.join("a", 0)
    for generation in range(10):
        assert groups.sync("a", joined, MUCH) == NONE
        joined = groups.join("a", 2 * (generation % 2), joined.member)
        assert joined.error == NONE
    assert groups.sync("a", joined, 2 * MOST) == CoordinatorNotAvailable.code


def test_small_members_are_bounded_by_twice_the_limit() -> None:
    groups = Groups()
    let_in = groups.until_refused(lambda number: groups.join(f"g{number}", LITTLE))
    assert groups.machine.memory.bytes > 2 * MOST - 3 * LITTLE
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
    expire_all(groups.machine, 20_000)
    assert groups.machine.memory.bytes == 0
    assert groups.join("g", MUCH).error == NONE


def test_a_static_member_that_comes_back_replaces_itself() -> None:
    groups = Groups()
    for name in "ab":
        assert groups.join(name, MUCH, instance="i").error == NONE
    assert groups.join("c", MUCH, instance="i").error == CoordinatorNotAvailable.code
    held = groups.machine.memory.bytes
    assert groups.join("a", MUCH, instance="i").error == NONE
    assert abs(groups.machine.memory.bytes - held) < 10, "except the length of its new id"


def test_loaded_and_deleted_groups_are_counted() -> None:
    machine = Groups().machine
    member = StoredMember("m", "i", "c", "/h", 1, 1, bytes(100), bytes(50))
    for _ in range(2):
        machine.classic.load(StoredGroup("g", "consumer", 1, "range", "m", 0, (member,)), "g")
        assert machine.memory.bytes == group_bytes("g") + machine.table.groups["g"].members["m"].memory_bytes
    machine.offsets.load("g", TopicPartition("t", 0), CommittedOffset(1))
    machine.classic.load(None, "g")
    assert machine.memory.bytes == 0
    groups = Groups()
    assert groups.join("g", 0, known_id_required=True).error == MemberIdRequired.code
    assert groups.machine.memory.bytes > 0
    assert groups.machine.delete("g")[0] == NONE
    assert groups.machine.memory.bytes == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["who leaves", "who is silent"])
def test_nothing_is_left_of_a_generated_id(leaves: bool) -> None:
    groups = Groups()
    for number in range(10):
        given = groups.join(f"g{number}", 0, known_id_required=True)
        assert given.error == MemberIdRequired.code
        if leaves:
            groups.leave(f"g{number}", given.member)
    groups.machine.advance(10_000)
    assert groups.nothing_is_left()


def test_nothing_is_left_of_a_join_that_is_refused() -> None:
    groups = Groups()
    assert groups.join("g", 0, session_ms=1).error == InvalidSessionTimeout.code
    assert groups.join("g", 0, protocol_type="").error == InconsistentGroupProtocol.code
    assert groups.join("g", 0, member="stranger").error == UnknownMemberId.code
    assert groups.nothing_is_left()


def test_a_group_with_a_generated_id_stays_while_others_are_refused() -> None:
    groups = Groups()
    given = groups.join("g", 0, known_id_required=True)
    assert groups.join("g", 0, protocol_type="").error == InconsistentGroupProtocol.code
    groups.commit("g", "m" * 5_000)
    assert groups.join("g", 0, given.member).error == NONE


def test_nothing_is_left_of_a_refused_commit() -> None:
    groups = Groups()
    groups.commit("g", "m" * 5_000)
    assert groups.nothing_is_left()
    groups.commit("g", write_error=CoordinatorNotAvailable.code)
    assert groups.nothing_is_left()
    assert groups.machine.commit(1, Commit("g", -1, "", None, {}), 0)
    assert groups.nothing_is_left()


def test_a_group_stays_while_its_commit_is_written() -> None:
    groups = Groups()
    given = groups.join("g", 0, known_id_required=True)
    [write] = groups.machine.commit(1, Commit("g", -1, "", None, {ITEM: CommittedOffset(1)}), 0)
    assert isinstance(write, Write)
    groups.leave("g", given.member)
    groups.machine.stored(write.id, NONE, 0)
    assert groups.machine.committed("g") == {ITEM: CommittedOffset(1)}


def test_groups_without_offsets_are_counted() -> None:
    groups = Groups()
    held, own = groups.machine.memory, group_bytes("g")
    joined = groups.join("g", 0)
    with_member = held.bytes
    groups.leave("g", joined.member)
    assert held.bytes == own < with_member
    groups.commit("g", write_error=CoordinatorNotAvailable.code)
    assert held.bytes == own
    [write] = groups.machine.commit(1, Commit("g", -1, "", None, {ITEM: CommittedOffset(1)}), 0)
    assert held.bytes == 0
    assert isinstance(write, Write)
    groups.machine.stored(write.id, NONE, 0)
    assert held.bytes == 0
    joined = groups.join("g", 0)
    assert held.bytes == with_member - own
    groups.machine.topics_deleted(["t"])
    assert held.bytes == with_member
    groups.leave("g", joined.member)
    expire_all(groups.machine, 0)
    assert groups.nothing_is_left()


def test_groups_with_offsets_refuse_no_member() -> None:
    groups = Groups()
    for number in range(MOST // 100):
        groups.commit(f"g{number}")
        groups.machine.offsets.load(f"loaded {number}", ITEM, CommittedOffset(1))
    assert groups.join("new", MUCH).error == NONE


def test_groups_whose_members_left_are_bounded_until_they_expire() -> None:
    groups = Groups()

    def come_and_go(number: int) -> JoinResult:
        joined = groups.join(f"g{number}", 0)
        groups.leave(f"g{number}", joined.member)
        return joined

    groups.until_refused(come_and_go)
    expire_all(groups.machine, 0)
    assert groups.nothing_is_left()
    assert groups.join("g", MUCH).error == NONE


def test_nothing_is_left_of_a_group_that_ends_during_a_rebalance() -> None:
    groups = Groups()
    joined = groups.join("g", 0)
    groups.machine.heartbeat("g", joined.generation, joined.member, None, 0)
    groups.join("g", 0, known_id_required=True)
    groups.machine.classic.load(None, "g")
    assert groups.nothing_is_left()


def test_a_tombstone_leaves_no_group_while_the_log_is_read() -> None:
    groups = Groups()
    groups.machine.offsets.load("g", ITEM, CommittedOffset(1))
    groups.machine.offsets.load("g", ITEM, None)
    assert groups.nothing_is_left()


def test_a_stored_group_without_a_generation_is_not_loaded() -> None:
    groups = Groups()
    for name in "gh":
        groups.machine.classic.load(StoredGroup(name, "consumer", 0, None, None, -1, ()), name)
    groups.machine.offsets.load("h", ITEM, CommittedOffset(1))
    groups.machine.loaded(0)
    assert list(groups.machine.table.groups) == ["h"]
    groups.machine.topics_deleted(["t"])
    assert groups.nothing_is_left()


@pytest.mark.parametrize("stays", ["the group", "an id", "a member", "a static member"])
def test_the_real_memory_is_at_most_the_counted_memory(stays: str) -> None:
    groups = Groups()
    groups.machine.memory.bytes_max = sys.maxsize
    instance = stays == "a static member"

    def come(number: int) -> None:
        name = f"{number:0>100}"
        group, client = f"group {name}", f"client {name}"
        joined = groups.join(group, 0, "", stays == "an id", client, f"instance {name}" if instance else None)
        if stays != "an id":
            assert groups.sync(group, joined, 0) == NONE
        if stays == "the group":
            groups.leave(group, joined.member)

    come(0)
    gc.collect()
    tracemalloc.start()
    try:
        taken, held = tracemalloc.get_traced_memory()[0], groups.machine.memory.bytes
        for number in range(1, 501):
            come(number)
        taken = tracemalloc.get_traced_memory()[0] - taken
        held = groups.machine.memory.bytes - held
    finally:
        tracemalloc.stop()
    assert held / 3 < taken <= held


def test_a_group_frees_memory_when_its_many_members_have_left() -> None:
    groups = Groups()
    groups.machine.memory.bytes_max = sys.maxsize
    groups.join("g", 0)
    group = groups.machine.table.groups["g"]
    names = [f"member {number}" for number in range(1_000)]
    own = (("range", b""),)
    for name in names:
        protocols = (*own, (name, b""))
        group.add(Member(name, name, "c", "/h", 1, 1, "consumer", protocols))
        group.await_member(f"pending {name}", 1)
    sizes = [sys.getsizeof(table) for table in (group.members, group.static, group.supported, group.pending)]
    for name in names:
        group.remove(name)
        group.remove(f"pending {name}")
    left = [sys.getsizeof(table) for table in (group.members, group.static, group.supported, group.pending)]
    assert all(after < before / 20 for before, after in zip(sizes, left, strict=True))
    assert group.supported == {"range": 1, "roundrobin": 1}
    assert len(group.members) == 1


class Unwalked(dict[str, Group]):
    """Groups that may be looked up but not iterated over."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a join goes through all groups")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_a_join_does_not_iterate_over_all_groups() -> None:
    groups = Groups()
    groups.machine.table.groups = Unwalked()
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
        coordinator.partitions.led(0, 0, new=True)
        joined = await coordinator.join(alone("a", b""))
        await refused(coordinator, joined)
        now += 60_000
        await refused(coordinator, joined)
        await coordinator.stop()

    asyncio.run(run())


def alone(group: str, data: bytes) -> Join:
    """A member without a waiting request."""
    return Join(group, "", None, "c", "/127.0.0.1", 20_000, 10_000, "consumer", (("range", data),))
