"""Busy polling: an event loop that looks for the next request for a while before it sleeps.

A process that sleeps gets its socket's bytes tens of microseconds late, as long as a small request takes. On
a virtual machine the processor itself has to be woken. So a loop whose last waits were all short, for one
client or two, looks for :data:`POLL_SECONDS` before it sleeps, and lets other threads run between two looks.
After one look that takes too long the loop sleeps again, until the next :data:`SHORT_WAITS` short waits. A
loop with many clients hardly ever sleeps, and on one machine the clients need the processor. The broker's
network threads do the same.

Without it a request of a single client takes a third longer on an idle machine with two processors, which is
more than with ZooKeeper (bench/results/coordinator-missed.md). Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Callable

POLL_SECONDS = 100e-6
SHORT_WAITS = 8
"""Consecutive short waits. A server whose clients take their time has them seldom."""
DESCRIPTORS_MAX = 2
"""Descriptors in these waits: a client's and, in an ensemble, the quorum's; or two clients'."""

Ready = list[tuple[selectors.SelectorKey, int]]


class BusyPollSelector(selectors.DefaultSelector):
    """A selector for one event loop. ``now`` is in seconds, ``give_way`` lets other threads run."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, give_way: Callable[[], None] = os.sched_yield
    ) -> None:
        super().__init__()
        self._now = now
        self._give_way = give_way
        self._short_waits = 0
        self._descriptors: set[int] = set()
        """Those of the short waits that are counted."""

    def select(self, timeout: float | None = None) -> Ready:
        look = super().select
        if timeout is not None and timeout <= POLL_SECONDS:
            return look(timeout)
        now = self._now
        until = now() + POLL_SECONDS
        if self._short_waits < SHORT_WAITS:
            return self._count(look(timeout), now() <= until)
        while not (ready := look(0)):
            self._give_way()
            if now() > until:
                return self._count(look(timeout), False)
        return self._count(ready, True)

    def _count(self, ready: Ready, is_short: bool) -> Ready:
        for key, _events in ready:
            self._descriptors.add(key.fd)
        if is_short and len(self._descriptors) <= DESCRIPTORS_MAX:
            self._short_waits += 1
        else:
            self._short_waits = 0
            self._descriptors.clear()
        return ready


def event_loop() -> asyncio.AbstractEventLoop:
    """Returns a new event loop with busy polling."""
    return asyncio.SelectorEventLoop(BusyPollSelector())
