"""The group coordinator on an event loop that stands still for a while, or with clients that do not wait.

If one failed, a broker that stood still would remove live members whose heartbeats wait to be read, or keep
dead ones for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cluster.errors import NONE, UnknownMemberId
from cluster.groups import GroupCoordinator, GroupLimits, Join, Sync
from tests.groups.logs import NoLog

SESSION_MS = 10_000


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps, as after a process was stopped."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


Script = Callable[[SkippingLoop, GroupCoordinator, str], Awaitable[None]]


def play(script: Script) -> None:
    """Runs `script` with a group of one member."""
    loop = SkippingLoop()

    async def run() -> None:
        coordinator = GroupCoordinator(GroupLimits(initial_delay_ms=0), NoLog(), 600_000)
        coordinator._clock.now = lambda: int(loop.time() * 1000)  # type: ignore[method-assign]
        coordinator.start()
        coordinator.partitions.led(0, 0, new=True)
        member = await joined(coordinator)
        await script(loop, coordinator, member)
        await coordinator.stop()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())


def seen(owner: object, name: str) -> asyncio.Event:
    """An event that is set once the owner's method was called."""
    called, method = asyncio.Event(), getattr(type(owner), name)

    def call(*arguments: object) -> object:
        result = method(owner, *arguments)
        called.set()
        return result

    setattr(owner, name, call)
    return called


async def joined(coordinator: GroupCoordinator) -> str:
    protocols = (("range", b""),)
    result = await coordinator.join(
        Join("g", "", None, "c", "/127.0.0.1", SESSION_MS, SESSION_MS, "consumer", protocols, False, False)
    )
    synced = await coordinator.sync(
        Sync("g", result.generation, result.member, None, assignments={result.member: b"x"})
    )
    assert (result.error, synced.error) == (NONE, NONE)
    return result.member


def test_a_member_whose_heartbeat_waits_behind_a_stall_stays() -> None:
    async def script(loop: SkippingLoop, coordinator: GroupCoordinator, member: str) -> None:
        for _ in range(3):
            served = seen(coordinator.partitions.machine("g"), "advance")
            loop.skipped += 2.5 * SESSION_MS / 1000
            # The timer runs before requests that were read at the same time.
            await served.wait()
            assert coordinator.heartbeat("g", 1, member, None) == NONE

    play(script)


def test_a_silent_member_on_a_running_loop_is_removed() -> None:
    async def script(loop: SkippingLoop, coordinator: GroupCoordinator, member: str) -> None:
        out = seen(coordinator.partitions.machine("g").classic.members, "_drop")

        def tick() -> None:
            loop.skipped += SESSION_MS / 1000 / 100
            if not out.is_set():
                loop.call_soon(tick)

        loop.skipped += 2.5 * SESSION_MS / 1000
        loop.call_soon(tick)
        await out.wait()
        assert coordinator.heartbeat("g", 1, member, None) == UnknownMemberId.code

    play(script)


def test_a_member_whose_connection_ended_does_not_delay_the_join() -> None:
    """As in Kafka, a member whose connection ended during a join stays until its session ends; its response
    is dropped.
    """

    async def script(loop: SkippingLoop, coordinator: GroupCoordinator, member: str) -> None:
        asked = seen(coordinator.partitions.machine("g"), "join")
        other = asyncio.ensure_future(joined(coordinator))
        await asked.wait()
        assert len(coordinator.partitions._partitions[0].waiting) == 1
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert not coordinator.partitions._partitions[0].waiting
        again = Join(
            "g",
            member,
            None,
            "c",
            "/127.0.0.1",
            SESSION_MS,
            SESSION_MS,
            "consumer",
            (("range", b""),),
            False,
            False,
        )
        result = await coordinator.join(again)
        assert (result.error, result.generation, len(result.members)) == (NONE, 2, 2)
        assert not coordinator.partitions._partitions[0].waiting

    play(script)
