"""Waiting until everything that was agreed on before is applied: what ``sync`` does.

Owns who waits. All who ask in one turn of the loop wait for one barrier of the quorum; one that is refused, for nobody leads, is
asked for again. Runs on the event loop; a crash forgets who waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..clock import Timers
from .quorum import Quorum, QuorumFullError

PAUSE = 0.05
"""Seconds until a barrier that was refused is asked for again."""


class Barriers:
    """``guard`` runs what this turn of the loop asks."""

    def __init__(self, guard: Callable[[Callable[[], None]], None], timers: Timers) -> None:
        self._guard = guard
        self._timers = timers
        self._quorum: Quorum | None = None
        self._unasked: list[Callable[[], None]] = []
        self._asked: dict[int, list[Callable[[], None]]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._unasked) + sum(map(len, self._asked.values()))

    def open(self, quorum: Quorum) -> None:
        """Barriers are asked for there from here on."""
        self._quorum = quorum

    def wait(self, answer: Callable[[], None]) -> None:
        """Calls ``answer`` once everything is applied that was agreed on before this call."""
        if not self._unasked:
            asyncio.get_running_loop().call_soon(self._guard, self._ask)
        self._unasked.append(answer)

    def told(self, number: int, ok: bool) -> None:
        """The quorum's event."""
        answers = self._asked.pop(number, [])
        if ok:
            for answer in answers:
                answer()
        elif answers:
            if not self._unasked:
                self._timers.later("barrier", PAUSE, self._ask)
            self._unasked += answers

    def _ask(self) -> None:
        if self._quorum is None or not self._unasked:
            return
        try:
            number = self._quorum.read_barrier()
        except QuorumFullError:
            self._timers.later("barrier", PAUSE, self._ask)
            return
        self._asked[number], self._unasked = self._unasked, []
