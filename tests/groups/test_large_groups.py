"""Groups of very many members.

If one failed, many members that leave, fall silent or join again would block the event loop for a time that
grows with the square of their number.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.errors import NONE
from cluster.groups import GroupCoordinator, GroupLimits, Join, Leaving
from cluster.groups.classic.group import GroupState, Member
from cluster.groups.messages import Action, StoredGroup, StoredMember
from cluster.groups.partition import PartitionGroups
from cluster.state_topics import Respond
from cluster.state_topics.runtime import _TIMERS_AT_ONCE

from .logs import NoLog

MANY = 1_000
SESSION_MS = 10_000
WALKS = 8
"""The number of times that all members may be iterated over, however many come or go. A rebalance does it a
few times.
"""


class Walked(OrderedDict[str, Member]):
    """Members, with a count of how many of them were iterated over."""

    steps = 0

    def _walk(self, found: Any) -> Iterator[Any]:
        for each in found:
            Walked.steps += 1
            yield each

    def __iter__(self) -> Iterator[str]:
        return self._walk(super().__iter__())

    def values(self) -> Any:
        return self._walk(super().values())

    def items(self) -> Any:
        return self._walk(super().items())


class LargeGroup:
    """A stable group of many members."""

    def __init__(self, instances: bool = False) -> None:
        numbers = itertools.count(1)
        self.tokens = itertools.count(1)
        self.machine = PartitionGroups(GroupLimits(), lambda: str(next(numbers)))
        self.machine.classic.load(stored(SESSION_MS, instances), "g")
        self.machine.loaded(0)
        self.group = self.machine.table.groups["g"]
        self.names = list(self.group.members)
        self.group.members = Walked(self.group.members)
        Walked.steps = 0

    def join(self, member: str, instance: str | None, now: int) -> list[Action]:
        protocols = (("range", b"other"),)
        request = Join("g", member, instance, "c", "/h", 60_000, SESSION_MS, "consumer", protocols)
        return self.machine.join(next(self.tokens), request, now)


def stored(session_ms: int, instances: bool = False) -> StoredGroup:
    names = [f"m{number}" for number in range(MANY)]
    members = tuple(
        StoredMember(name, f"i {name}" if instances else None, "c", "/h", 60_000, session_ms, b"", b"")
        for name in names
    )
    return StoredGroup("g", "consumer", 1, "range", names[0], 0, members)


def leave(large: LargeGroup) -> None:
    for name in large.names:
        assert large.machine.leave("g", [Leaving(name)], 0)[0].members == (NONE,)
    assert large.group.state is GroupState.EMPTY


def leave_at_once(large: LargeGroup) -> None:
    result, _ = large.machine.leave("g", [Leaving("", f"i {name}") for name in large.names], 0)
    assert set(result.members) == {NONE}
    assert large.group.state is GroupState.EMPTY


def fall_silent(large: LargeGroup) -> None:
    large.machine.advance(SESSION_MS)
    assert large.group.state is GroupState.EMPTY


def join_again(large: LargeGroup) -> None:
    answers = [answer for name in large.names for answer in large.join(name, None, 0)]
    assert len(answers) == MANY
    assert large.group.state is GroupState.COMPLETING


def join_again_and_leave(large: LargeGroup) -> None:
    for name in large.names[1:]:
        assert large.join(name, None, 0) == []
    for name in reversed(large.names[1:]):
        large.machine.leave("g", [Leaving(name)], 0)
    assert large.group.state is GroupState.PREPARING
    large.machine.leave("g", [Leaving(large.names[0])], 0)
    assert large.group.state is GroupState.EMPTY


def come(large: LargeGroup) -> None:
    answers = [answer for number in range(MANY) for answer in large.join("", f"new {number}", 0)]
    assert answers == []
    assert len(large.group.members) == 2 * MANY


@pytest.mark.parametrize(
    ("scenario", "instances"),
    [
        (leave, False),
        (leave_at_once, True),
        (fall_silent, False),
        (join_again, False),
        (join_again_and_leave, False),
        (come, False),
    ],
)
def test_a_member_that_joins_or_leaves_iterates_over_no_other(
    scenario: Callable[[LargeGroup], None], instances: bool
) -> None:
    large = LargeGroup(instances)
    scenario(large)
    assert 0 < Walked.steps <= WALKS * MANY


def test_other_work_runs_while_many_sessions_end() -> None:
    async def run() -> list[int]:
        coordinator = GroupCoordinator(GroupLimits(), NoLog(), 600_000)
        coordinator.start()
        coordinator.partitions.led(0, 0, new=True)
        machine, loop = coordinator.partitions.machine("g"), asyncio.get_running_loop()
        machine.classic.load(stored(1), "g")
        coordinator.partitions.do_in_all(PartitionGroups.loaded)
        left, empty = [MANY], asyncio.Event()

        def turn() -> None:
            group = machine.table.groups["g"]
            left.append(len(group.members))
            if group.state is GroupState.EMPTY:
                empty.set()
            else:
                loop.call_soon(turn)

        loop.call_soon(turn)
        await empty.wait()
        await coordinator.stop()
        return left

    left = asyncio.run(run())
    assert max(before - after for before, after in itertools.pairwise(left)) == _TIMERS_AT_ONCE
    assert left[-1] == 0


def test_sessions_that_end_in_steps_give_the_same_result_as_at_once() -> None:
    """Joins are answered in the same order, and the same records are written."""

    def gone(most: int | None) -> tuple[list[int], list[StoredGroup | None]]:
        large = LargeGroup()
        for name in large.names[::3]:
            large.join(name, None, 0)
        actions: list[Action] = []
        while (now := large.machine.next_deadline()) is not None:
            actions += large.machine.advance(now, most)
        answered = [action.token for action in actions if isinstance(action, Respond)]
        return answered, [action.stored for action in actions if not isinstance(action, Respond)]

    at_once = gone(None)
    assert len(at_once[0]) == len(range(0, MANY, 3))
    assert gone(7) == at_once


def test_a_removed_member_waits_in_no_join() -> None:
    large = LargeGroup()
    for name in large.names[:2]:
        large.join(name, None, 0)
    member = large.group.remove(large.names[0])
    assert member is not None
    assert member.join_token is None
    assert large.group.awaiting_join == 1
    large.group.end()
    assert large.group.awaiting_join == 0
