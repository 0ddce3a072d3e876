"""Waiting until everything that was agreed on before is applied: what ``sync`` does.

Owns the callbacks that wait. All requests of one turn of the loop share one barrier of the quorum. A barrier
that is refused, because there is no leader, is requested again. Runs on the event loop; a crash forgets the
callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..clock import Timers
from .quorum import Quorum, QuorumFullError

RETRY_SECONDS = 0.05


class Barriers:
    """``guard`` runs a call and handles what it raises."""

    def __init__(self, guard: Callable[[Callable[[], None]], None], timers: Timers) -> None:
        self._guard = guard
        self._timers = timers
        self._quorum: Quorum | None = None
        self._new: list[Callable[[], None]] = []
        self._requested: dict[int, list[Callable[[], None]]] = {}

    def __len__(self) -> int:
        """The number of callbacks that wait."""
        return len(self._new) + sum(map(len, self._requested.values()))

    def open(self, quorum: Quorum) -> None:
        """Begins to request barriers of the quorum."""
        self._quorum = quorum

    def wait(self, answer: Callable[[], None]) -> None:
        """Calls ``answer`` once everything is applied that was agreed on before this call."""
        if not self._new:
            asyncio.get_running_loop().call_soon(self._guard, self._request)
        self._new.append(answer)

    def reported(self, number: int, ok: bool) -> None:
        """The quorum's event ``barrier``."""
        answers = self._requested.pop(number, [])
        if ok:
            for answer in answers:
                answer()
        elif answers:
            if not self._new:
                self._timers.later("barrier", RETRY_SECONDS, self._request)
            self._new += answers

    def _request(self) -> None:
        if self._quorum is None or not self._new:
            return
        try:
            number = self._quorum.read_barrier()
        except QuorumFullError:
            self._timers.later("barrier", RETRY_SECONDS, self._request)
            return
        self._requested[number], self._new = self._new, []
