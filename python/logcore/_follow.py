"""`Log.follow_async`: the event loop watches a descriptor, and a thread of its pool reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from logcore import _native

LOOK_AGAIN = 0.5
"""Seconds between two looks at the log without a notification: not every file system notifies of changes."""


async def follow_async(
    log: _native.Log, offset: int, timeout: float | None, max_bytes: int, isolation_level: str
) -> AsyncIterator[_native.Record]:
    """Yields the records from `offset` on; ends after `timeout` seconds without one, never if None."""
    watch = _native.Watch(log)
    changed = asyncio.Event()

    def wake() -> None:
        watch.clear()
        changed.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(watch.fileno(), wake)
    try:
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            # Cleared before looking, so that a change in between wakes the wait below.
            changed.clear()
            if await asyncio.to_thread(watch.has_more, offset, isolation_level):
                records, offset = await asyncio.to_thread(
                    log.read_records, offset, max_bytes, isolation_level
                )
                for record in records:
                    yield record
                if records and timeout is not None:
                    deadline = loop.time() + timeout
            elif deadline is not None and loop.time() >= deadline:
                return
            else:
                await _wait(changed, deadline)
    finally:
        loop.remove_reader(watch.fileno())


async def _wait(changed: asyncio.Event, deadline: float | None) -> None:
    left = LOOK_AGAIN
    if deadline is not None:
        left = min(left, max(0.0, deadline - asyncio.get_running_loop().time()))
    try:
        async with asyncio.timeout(left):
            await changed.wait()
    except TimeoutError:
        return
