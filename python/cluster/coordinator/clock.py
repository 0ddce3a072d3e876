"""Time, as the server takes it; tests bring their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Two clocks, both in milliseconds."""

    def wall_ms(self) -> int:
        """Since the epoch: goes into znodes."""

    def monotonic_ms(self) -> int:
        """Never goes back: decides when sessions expire."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class Timers:
    """``guard`` runs what is due, and has to deal with what it raises."""

    def __init__(self, guard: Callable[[Callable[[], None]], None]) -> None:
        self._guard = guard
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ended = False

    def later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        """Calls once, later; a timer of the same name gives way."""
        self.cancel(name)
        if not self._ended:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._due, name, call)

    def cancel(self, name: str) -> None:
        """It is not called. Safe to repeat."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def end(self) -> None:
        """None is called any more, nor set. Safe to repeat."""
        self._ended = True
        for name in list(self._timers):
            self.cancel(name)

    def _due(self, name: str, call: Callable[[], None]) -> None:
        del self._timers[name]
        self._guard(call)
