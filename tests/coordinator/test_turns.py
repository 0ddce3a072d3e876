"""A snapshot is written in turns on the event loop: the longer others had the loop, the larger the next turn.

If these fail, a snapshot under load is not finished before the load ends, and a start after a crash applies a
long log; or a snapshot keeps the loop from its clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from cluster.coordinator import Settings
from cluster.coordinator.clock import Timers
from cluster.coordinator.durability.snapshot import PAUSE_SECONDS, SnapshotFile, turn_of, write_in_turns
from cluster.coordinator.ensemble import saving
from cluster.coordinator.ensemble.agreed import Agreed
from cluster.coordinator.ensemble.quorum import Quorum
from cluster.coordinator.ensemble.saving import SLOW_DISK_PAUSE_SECONDS, Saving
from cluster.coordinator.replication import Service

T = TypeVar("T")

SLICES = 200
BUSY_MS = 10


@pytest.mark.parametrize(("milliseconds", "slices"), [(-5, 1), (0, 1), (1, 4), (20, 80), (5000, 128)])
def test_a_turn_has_slices_for_every_millisecond_within_bounds(milliseconds: int, slices: int) -> None:
    assert len(list(turn_of(iter([b"x"] * 200), milliseconds))) == slices


def test_a_turn_ends_with_the_slice_that_makes_it_large() -> None:
    large = iter([b"x" * 1_400_000] * 9)
    assert [sum(map(len, turn_of(large, 5000))) for _ in range(6)] == [2_800_000] * 4 + [1_400_000, 0]


# If this failed, a slow disk would stop an idle loop for tens of milliseconds.
@pytest.mark.timeout(60)
def test_a_slow_disk_does_not_make_turns_larger(tmp_path: Path) -> None:
    turns: list[int] = []

    class Slow(SnapshotFile):
        def write(self, piece: bytes) -> None:
            turns.append(len(piece))
            time.sleep(0.05)
            super().write(piece)

    def pieces() -> Generator[bytes, None, None]:
        yield from [b"x" * 10] * 20

    def make() -> SnapshotFile:
        return Slow(tmp_path, 7)

    asyncio.run(write_in_turns(make, pieces(), SnapshotFile.finish, None, lambda: False))
    assert sum(turns) == 200
    # The loop is idle, so most turns have one slice.
    assert sorted(turns)[len(turns) // 2] == 10, turns


class _InlineExecutor(Executor):
    """Runs calls in the calling thread; another thread would wait for the busy loop to release the GIL."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@pytest.mark.timeout(60)
def test_a_busy_loops_snapshot_is_written_in_few_turns(tmp_path: Path) -> None:
    closed: list[int] = []

    def pieces() -> Generator[bytes, None, None]:
        made = 0
        try:
            for made in range(SLICES):
                yield made.to_bytes(2, "big")
        finally:
            closed.append(made)

    async def written() -> tuple[Path, int]:
        writing = asyncio.ensure_future(
            write_in_turns(
                lambda: SnapshotFile(tmp_path, 7),
                pieces(),
                SnapshotFile.finish,
                _InlineExecutor(),
                lambda: False,
            )
        )
        turns = 0
        while not writing.done():
            until = time.thread_time() + BUSY_MS / 1000
            while time.thread_time() < until:
                pass
            turns += 1
            await asyncio.sleep(0)
        return writing.result(), turns

    path, turns = asyncio.run(written())
    assert path.read_bytes()[:-4] == b"".join(each.to_bytes(2, "big") for each in range(SLICES))
    assert closed == [SLICES - 1]
    # For each 40 slices a turn to write and a turn to wait, and some at the begin and the end.
    assert turns <= 2 * SLICES // (4 * BUSY_MS) + 10


class _Clock:
    def __init__(self) -> None:
        self.now = 0

    def monotonic_ms(self) -> int:
        return self.now

    wall_ms = monotonic_ms


class _Timers:
    def __init__(self) -> None:
        self.due: list[float] = []

    def later(self, name: str, seconds: float, call: object) -> None:
        self.due.append(seconds)

    def cancel(self, name: str) -> None:
        pass


class _Sink:
    def __init__(self) -> None:
        self.pieces = 0
        self.finished = False
        self.keeps_up = True

    def write(self, data: bytes) -> bool:
        self.pieces += 1
        return self.keeps_up

    def finish(self) -> None:
        self.finished = True

    def abort(self) -> None:
        raise AssertionError("the snapshot was aborted without a failure")


class _Quorum:
    def __init__(self) -> None:
        self.sink = _Sink()

    def snapshot_begin(self, index: int) -> _Sink:
        return self.sink


class _Service:
    settings = Settings(snapshot_transactions=1)

    def __init__(self) -> None:
        self.clock = _Clock()


def test_a_members_turns_follow_the_loop_and_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "walk", lambda agreed: (bytes([each]) for each in range(150)))
    service, timers, quorum = _Service(), _Timers(), _Quorum()
    taking = Saving(cast(Service, service), cast(Timers, timers), random.Random(1))
    sink = quorum.sink
    taking.applied(1, cast(Quorum, quorum), Agreed())
    assert (sink.pieces, timers.due) == (1, [PAUSE_SECONDS])
    service.clock.now += 2  # an idle loop; timers come a little late
    taking._write_turn()
    assert (sink.pieces, timers.due[-1]) == (2, PAUSE_SECONDS)
    service.clock.now += 10
    taking._write_turn()
    assert (sink.pieces, timers.due[-1]) == (42, PAUSE_SECONDS)
    service.clock.now += 3
    taking._write_turn()
    assert (sink.pieces, timers.due[-1]) == (54, PAUSE_SECONDS)
    service.clock.now += 7
    taking._write_turn()
    assert (sink.pieces, timers.due[-1]) == (82, PAUSE_SECONDS)
    sink.keeps_up = False
    service.clock.now += 20
    taking._write_turn()
    assert (sink.pieces, timers.due[-1]) == (83, SLOW_DISK_PAUSE_SECONDS)
    sink.keeps_up = True
    service.clock.now += 1000
    taking._write_turn()
    taking._write_turn()
    assert (sink.pieces, sink.finished, len(timers.due)) == (150, True, 7)
