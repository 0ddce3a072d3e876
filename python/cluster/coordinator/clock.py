"""The clocks and timers of the server. Tests bring their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Two clocks, both in milliseconds."""

    def wall_ms(self) -> int:
        """Since 1970. For the times of znodes."""

    def monotonic_ms(self) -> int:
        """Never goes back. For the end of sessions."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class Timers:
    """Timers with names, on the event loop. ``guard`` runs a call that is due, and handles what it raises."""

    def __init__(self, guard: Callable[[Callable[[], None]], None]) -> None:
        self._guard = guard
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ended = False

    def later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        """Calls once, later. Replaces the timer of the same name."""
        self.cancel(name)
        if not self._ended:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._due, name, call)

    def cancel(self, name: str) -> None:
        """Cancels a timer. Safe to repeat."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def end(self) -> None:
        """Cancels all timers, and sets no more. Safe to repeat."""
        self._ended = True
        for name in list(self._timers):
            self.cancel(name)

    def _due(self, name: str, call: Callable[[], None]) -> None:
        del self._timers[name]
        self._guard(call)
