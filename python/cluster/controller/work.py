"""The controller's queue: one task takes one piece of work after the other, an event or a command of a
handler.

A command on many topics runs in slices with other work in between; only one such command runs at a time. A
command whose caller is gone does not begin. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from cluster.controller.zookeeper import ConnectionLostError, ZooKeeper
from cluster.errors import NotController, RequestTimedOut
from cluster.time_slice import TimeSlice

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_WEIGHT = 512
"""Topics and partitions in one slice of a command."""


class WorkQueue:
    """The queue and its task."""

    def __init__(self, zk: ZooKeeper, on_uncertain: Callable[[], None]) -> None:
        """`on_uncertain` is called after a command whose result a lost connection hides."""
        self._zk = zk
        self._on_uncertain = on_uncertain
        self._work: OrderedDict[object, Callable[[], Awaitable[None]]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._long = asyncio.Lock()
        """Held by the running command on many topics."""
        self._begun: set[asyncio.Task[None]] = set()
        self._pending: set[str] = set()
        self._worker: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._work)

    def start(self) -> None:
        """Starts the task."""
        self._worker = asyncio.create_task(self._run(), name="controller")

    async def stop(self) -> None:
        """Ends the task."""
        tasks = [*self._begun] if self._worker is None else [*self._begun, self._worker]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        time_slice = TimeSlice()
        while True:
            await time_slice.yield_if_over()
            while not self._work:
                self._arrived.clear()
                await self._arrived.wait()
            _, work = self._work.popitem(last=False)
            try:
                await work()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("a piece of work of the controller failed; the next one follows")

    def _queue(self, work: Callable[[], Awaitable[None]]) -> object:
        """Queues `work` and returns its key in the queue."""
        key = object()
        self._work[key] = work
        self._arrived.set()
        return key

    def event(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Queues `work` unless an event of that name is queued. It is repeated after a lost connection."""
        if name in self._pending:
            return
        self._pending.add(name)

        async def run() -> None:
            self._pending.discard(name)
            try:
                await work()
            except ConnectionLostError:
                await self._zk.wait_connected()
                self.event(name, work)
            except NotController:
                log.info("the work %r is left to the new controller", name)

        self._queue(run)

    async def command(
        self, work: Callable[[], Awaitable[T]], on_begin: Callable[[], None] = lambda: None
    ) -> T:
        """Queues `work` and waits for its result. Cancelled before `work` begins, it does not begin."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            on_begin()
            try:
                result = await work()
            except ConnectionLostError:
                self._on_uncertain()
                if not outcome.done():
                    outcome.set_exception(
                        RequestTimedOut("The coordinator did not answer; the change may have been made.")
                    )
            except Exception as error:
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(result)

        key = self._queue(run)
        try:
            return await outcome
        finally:
            self._work.pop(key, None)

    async def in_slices(
        self, items: Sequence[T], weight: Callable[[T], int], work: Callable[[Sequence[T]], Awaitable[None]]
    ) -> None:
        """Does `work` on slices of the items. Cancelled before the first slice begins, it does nothing; after
        that, all.
        """
        begun = asyncio.Event()

        async def do() -> None:
            end = _slice_end(items, 0, weight)
            async with self._long if end < len(items) else nullcontext():
                await self.command(partial(work, items[:end]), begun.set)
                while end < len(items):
                    start, end = end, _slice_end(items, end, weight)
                    await self.command(partial(work, items[start:end]))

        task = asyncio.create_task(do())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        # Reads the exception: after a cancellation the task is not awaited.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not begun.is_set():
                task.cancel()
            raise


def _slice_end(items: Sequence[T], start: int, weight: Callable[[T], int]) -> int:
    """The end of the slice that begins at `start`. A slice has at least one item."""
    weighed = 0
    for index in range(start, len(items)):
        weighed += 1 + max(0, weight(items[index]))
        if weighed > SLICE_WEIGHT and index > start:
            return index
    return len(items)
