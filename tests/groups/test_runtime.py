"""The runtime of coordinators with machines that fail.

If one failed, an error in one partition's machine would silently end the sessions' timers of all groups.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest

from cluster.errors import CoordinatorLoadInProgress, NotCoordinator
from cluster.state_topics import Batch, Clock, Coordinators, Entry, Marker, Write


class _Machine:
    """A machine with one timer, due at once, which fails in partition 0."""

    def __init__(self, partition: int, fired: asyncio.Event) -> None:
        self._partition = partition
        self._fired = fired
        self._deadline: int | None = None

    def load(self, entries: Iterable[Entry | Marker]) -> int:
        raise ZeroDivisionError("a record that nobody foresaw")

    def loaded(self, now: int) -> Iterable[object]:
        self._deadline = now
        return ()

    def unload(self) -> None:
        pass

    def stored(self, write: int, error: int, now: int) -> Iterable[object]:
        return ()

    def next_deadline(self) -> int | None:
        return self._deadline

    def advance(self, now: int, most: int | None = None) -> Iterable[object]:
        if self._partition == 0:
            raise ZeroDivisionError("a state that nobody foresaw")
        self._deadline = None
        self._fired.set()
        return ()

    def postpone(self, by_ms: int) -> None:
        pass


class _Rules:
    topic = "states"
    what = "things"

    def __init__(self, fired: asyncio.Event) -> None:
        self._fired = fired

    def machine(self, partition: int, epoch: int) -> _Machine:
        return _Machine(partition, self._fired)

    def batch(self, write: Write) -> Batch:
        return Batch([])

    def timeout_ms(self, write: Write) -> int:
        return 1000

    def subject(self, write: Write) -> str:
        return "a thing"

    def code(self, write: Write, code: int) -> int:
        return code

    def carry_out(self, partition: int, action: Any) -> None:
        pass


class _Log:
    """A log of one record."""

    def partitions(self, topic: str) -> int | None:
        return 2

    def append(self, topic: str, partition: int, batch: Batch, now_ms: int, timeout_ms: int) -> None:
        return None

    async def read(self, topic: str, partition: int) -> AsyncIterator[Sequence[Entry | Marker]]:
        yield [Entry(b"", b"")]


@pytest.mark.timeout(60)
def test_a_timer_that_fails_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        fired = asyncio.Event()
        coordinators: Coordinators[_Machine, Write] = Coordinators(_Rules(fired), _Log(), Clock())
        coordinators.led(0, 1, new=True)
        coordinators.led(1, 1, new=True)
        await fired.wait()
        await coordinators.stop()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == ["a timer of the things of partition 0 failed"]


@pytest.mark.timeout(60)
def test_a_load_that_fails_is_logged_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise ListGroups and ListTransactions would answer for ever that the broker loads."""

    async def run() -> None:
        coordinators: Coordinators[_Machine, Write] = Coordinators(_Rules(asyncio.Event()), _Log(), Clock())
        coordinators.led(0, 1)
        await coordinators.loaded()
        assert not coordinators.is_loaded(0)
        assert not coordinators.loading
        key = next(key for key in map(str, itertools.count()) if coordinators.partition_of(key) == 0)
        assert coordinators.status(key) == NotCoordinator.code
        coordinators.led(0, 2)
        assert coordinators.status(key) == CoordinatorLoadInProgress.code, "the next election loads it again"
        await coordinators.stop()

    asyncio.run(run())
    (record,) = caplog.records
    assert record.message == "the things of states-0 could not be loaded; give another broker the partition"
