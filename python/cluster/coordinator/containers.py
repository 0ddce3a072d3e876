"""When containers and nodes with a TTL are deleted (``ContainerManager``).

Owns the timer; what has lapsed is the tree's to say, and a deletion is a write like any other, so that every
server and every restart deletes the same. A round deletes one node after the other, not more in a minute than
is set. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .settings.server import Settings


class ContainerKeeper:
    """Looks for what has lapsed, every ``container_check_interval_ms``."""

    def __init__(
        self, settings: Settings, lapsed: Callable[[], list[str]], delete: Callable[[str], None]
    ) -> None:
        self._interval = settings.container_check_interval_ms / 1000
        self._pause = 60 / settings.container_max_per_minute
        self._lapsed = lapsed
        self._delete = delete
        self._due: deque[str] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._again(self._interval)

    def stop(self) -> None:
        """No deletion begins any more. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Begins a round; the timer does, and tests."""
        if not self._due:
            self._due.extend(self._lapsed())
        self._next()

    def _next(self) -> None:
        if self._due:
            self._delete(self._due.popleft())
            self._again(self._pause, self._next)
        else:
            self._again(self._interval)

    def _again(self, delay: float, what: Callable[[], None] | None = None) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(delay, what or self.look)
