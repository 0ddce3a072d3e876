"""Groups of very many members.

If one failed, a crowd that leaves, falls silent or joins again would keep the event loop for a time that grows with its square,
and all others would wait for the last of it.
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
from cluster.groups.driver import _TIMERS_AT_ONCE
from cluster.groups.group import GroupState, Member
from cluster.groups.machine import GroupMachine
from cluster.groups.messages import Action, Respond, StoredGroup, StoredMember

from .test_stalls import NoLog

MANY = 1_000
SESSION_MS = 10_000
WALKS = 8
"""So often all members may be gone through, however many come or go; a rebalance does it some times."""


class Walked(OrderedDict[str, Member]):
    """Members, and how many of them were looked at by those who go through them."""

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


class Crowd:
    """A stable group of many members."""

    def __init__(self, instances: bool = False) -> None:
        numbers = itertools.count(1)
        self.tokens = itertools.count(1)
        self.machine = GroupMachine(GroupLimits(), lambda: str(next(numbers)))
        self.machine.load_group(stored(SESSION_MS, instances), "g")
        self.machine.loaded(0)
        self.group = self.machine.groups["g"]
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


def leave(crowd: Crowd) -> None:
    for name in crowd.names:
        assert crowd.machine.leave("g", [Leaving(name)], 0)[0].members == (NONE,)
    assert crowd.group.state is GroupState.EMPTY


def leave_at_once(crowd: Crowd) -> None:
    result, _ = crowd.machine.leave("g", [Leaving("", f"i {name}") for name in crowd.names], 0)
    assert set(result.members) == {NONE}
    assert crowd.group.state is GroupState.EMPTY


def fall_silent(crowd: Crowd) -> None:
    crowd.machine.advance(SESSION_MS)
    assert crowd.group.state is GroupState.EMPTY


def join_again(crowd: Crowd) -> None:
    answers = [answer for name in crowd.names for answer in crowd.join(name, None, 0)]
    assert len(answers) == MANY
    assert crowd.group.state is GroupState.COMPLETING


def join_again_and_leave(crowd: Crowd) -> None:
    for name in crowd.names[1:]:
        assert crowd.join(name, None, 0) == []
    for name in reversed(crowd.names[1:]):
        crowd.machine.leave("g", [Leaving(name)], 0)
    assert crowd.group.state is GroupState.PREPARING
    crowd.machine.leave("g", [Leaving(crowd.names[0])], 0)
    assert crowd.group.state is GroupState.EMPTY


def come(crowd: Crowd) -> None:
    answers = [answer for number in range(MANY) for answer in crowd.join("", f"new {number}", 0)]
    assert answers == []
    assert len(crowd.group.members) == 2 * MANY


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
def test_who_comes_or_goes_looks_at_no_other_member(
    scenario: Callable[[Crowd], None], instances: bool
) -> None:
    crowd = Crowd(instances)
    scenario(crowd)
    assert 0 < Walked.steps <= WALKS * MANY


def test_others_have_their_turns_while_a_crowd_is_thrown_out() -> None:
    async def run() -> list[int]:
        coordinator = GroupCoordinator(GroupLimits(), NoLog(), 600_000)
        coordinator.start()
        await coordinator.loaded()
        machine, loop = coordinator.machine, asyncio.get_running_loop()
        machine.load_group(stored(1), "g")
        coordinator._do(machine.loaded(coordinator.now()))
        left, empty = [MANY], asyncio.Event()

        def turn() -> None:
            group = machine.groups["g"]
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


def test_a_crowd_in_turns_goes_as_it_does_at_once() -> None:
    """Its joins are answered in the same order, and the same is written."""

    def gone(most: int | None) -> tuple[list[int], list[StoredGroup | None]]:
        crowd = Crowd()
        for name in crowd.names[::3]:
            crowd.join(name, None, 0)
        actions: list[Action] = []
        while (now := crowd.machine.next_deadline()) is not None:
            actions += crowd.machine.advance(now, most)
        answered = [action.token for action in actions if isinstance(action, Respond)]
        return answered, [action.stored for action in actions if not isinstance(action, Respond)]

    at_once = gone(None)
    assert len(at_once[0]) == len(range(0, MANY, 3))
    assert gone(7) == at_once


def test_a_member_that_is_removed_waits_in_no_join() -> None:
    crowd = Crowd()
    for name in crowd.names[:2]:
        crowd.join(name, None, 0)
    member = crowd.group.remove(crowd.names[0])
    assert member is not None
    assert member.join_token is None
    assert crowd.group.awaiting_join == 1
    crowd.group.end()
    assert crowd.group.awaiting_join == 0
