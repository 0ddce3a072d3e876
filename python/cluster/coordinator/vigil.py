"""Staying awake for a request that is likely to come at once.

A process that sleeps is woken tens of microseconds after its socket has bytes, as long as a small request takes; on a virtual machine
the processor itself has to be woken, and whoever sends pays for it. So an event loop whose last waits were all that short, for one
client or two, looks for :data:`VIGIL_SECONDS` before it sleeps, and others may have the processor between two looks. One look too
long, for want of requests or of processors, and it sleeps as others do until the next :data:`QUICK` short waits. Many clients find it
awake anyhow, and on the same machine they need the processor themselves. What a broker's network threads do (``vigil.rs``).
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Callable

VIGIL_SECONDS = 100e-6
QUICK = 8
"""Short waits one after the other. A server whose clients take their time has them seldom."""
PARTIES = 2
"""Descriptors that are waited for in turn: a client's and, in an ensemble, the quorum's; or two clients'."""

Ready = list[tuple[selectors.SelectorKey, int]]


class VigilSelector(selectors.DefaultSelector):
    """A selector for one event loop. ``now`` is in seconds, ``give_way`` lets others have the processor."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, give_way: Callable[[], None] = os.sched_yield
    ) -> None:
        super().__init__()
        self._now = now
        self._give_way = give_way
        self._quick = 0
        self._parties: set[int] = set()
        """Descriptors of the short waits that are counted."""
        self.found = 0
        """Descriptors that the last look found ready."""

    def select(self, timeout: float | None = None) -> Ready:
        """As the selector of the system."""
        look = super().select
        if timeout is not None and timeout <= VIGIL_SECONDS:
            ready = look(timeout)
            self.found = len(ready)
            return ready
        now = self._now
        until = now() + VIGIL_SECONDS
        if self._quick < QUICK:
            return self._count(look(timeout), now() <= until)
        while not (ready := look(0)):
            self._give_way()
            if now() > until:
                return self._count(look(timeout), False)
        return self._count(ready, True)

    def _count(self, ready: Ready, is_quick: bool) -> Ready:
        self.found = len(ready)
        for key, _events in ready:
            self._parties.add(key.fd)
        if is_quick and len(self._parties) <= PARTIES:
            self._quick += 1
        else:
            self._quick = 0
            self._parties.clear()
        return ready


class VigilLoop(asyncio.SelectorEventLoop):
    """An event loop that stays awake, and can tell whether one descriptor alone was ready in this turn."""

    def __init__(self) -> None:
        self.vigil = VigilSelector()
        super().__init__(self.vigil)


def event_loop() -> asyncio.AbstractEventLoop:
    """An event loop that stays awake."""
    return VigilLoop()


def is_alone() -> bool:
    """Whether nothing came in this turn of the running loop but what is looked at: there is nobody to wait for. False where that is
    not known."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, VigilLoop) and loop.vigil.found == 1
