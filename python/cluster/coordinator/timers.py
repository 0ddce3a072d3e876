"""Timers that are called by name, each at most once.

Owns their handles. Runs on the event loop; a crash forgets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


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
