"""Time slices: how long one request may keep the event loop or the interpreter before others run.

A request can name hundreds of thousands of topics or partitions. A loop over them calls
`TimeSlice.yield_if_over` after each one, and other requests run in between. Only one such loop continues at a
time. State that others may change can be different after each call. Lives on the event loop;
`release_interpreter` is for threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

_SLICE_SECONDS = 0.005
"""Short enough that no client notices, long enough that switching costs little."""

_THREAD_PARTS_MIN = 1000
"""Work on more parts takes longer than a slice, and runs in a thread."""

_SLEEP_SECONDS = 1e-5

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

T = TypeVar("T")


class TimeSlice:
    """The slice of one loop."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    async def yield_if_over(self) -> None:
        """Lets other tasks run if the slice is over, and begins the next slice."""
        if time.monotonic() - self._begun < _SLICE_SECONDS:
            return
        async with _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await asyncio.sleep(0)
        self._begun = time.monotonic()


def release_interpreter(index: int) -> None:
    """Lets other threads run: sleeps briefly after every 1,000 parts of a thread's work.

    Without the sleep, the thread would take the interpreter again before the waiting threads are awake.
    """
    if index % _THREAD_PARTS_MIN == _THREAD_PARTS_MIN - 1:
        time.sleep(_SLEEP_SECONDS)


async def in_thread_if_long(parts: int, compute: Callable[[], T]) -> T:
    """Runs `compute`, which works on about `parts` parts: in a thread if they are many, else here."""
    return await asyncio.to_thread(compute) if parts > _THREAD_PARTS_MIN else compute()
