"""The deletion of expired containers and nodes with a TTL (``ContainerManager``).

Owns the timer. The tree knows which nodes have expired. A deletion is a write like any other, so every server
and every restart deletes the same nodes. Nodes are deleted one at a time, at most so many a minute as is set.
Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .settings.server import Settings


class ContainerKeeper:
    """Looks for expired nodes every ``container_check_interval_ms``."""

    def __init__(
        self, settings: Settings, expired: Callable[[], list[str]], delete: Callable[[str], None]
    ) -> None:
        self._interval = settings.container_check_interval_ms / 1000
        self._pause = 60 / settings.container_max_per_minute
        self._expired = expired
        self._delete = delete
        self._due: deque[str] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._again(self._interval)

    def stop(self) -> None:
        """Stops to delete. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Looks for expired nodes. Called by the timer, and by tests."""
        if not self._due:
            self._due.extend(self._expired())
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
