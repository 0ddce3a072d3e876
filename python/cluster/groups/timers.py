"""Timers whose deadlines often move to a later time.

Moving a deadline to a later time costs nothing: the queued entry checks the deadline when it expires, and is
queued again. Entries of cancelled timers, and of those with an earlier deadline since, stay in the heap until
they are the majority. So the memory is proportional to the number of timers, and a heartbeat does not touch
the heap. Pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

TimerKey = tuple[str, str, str]
"""Group, kind (session, pending, join, sync), and the member for the first two kinds."""

_STALE_MIN = 64
"""With so few stale entries the heap is not rebuilt."""


class Timers:
    """At most one timer for each key."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """Deadlines, each with a unique number."""
        self._queued: dict[TimerKey, tuple[int, int]] = {}
        self._numbered: dict[int, TimerKey] = {}
        self._numbers = itertools.count()

    def next(self) -> int | None:
        """When `over` must be called next. No timer may be due then."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, due: TimerKey, deadline: int) -> None:
        """Queues a timer for `deadline`, unless it is queued for an earlier time."""
        queued = self._queued.get(due)
        if queued is not None:
            if queued[0] <= deadline:
                return
            del self._numbered[queued[1]]
        number = next(self._numbers)
        self._numbered[number] = due
        self._queued[due] = (deadline, number)
        heapq.heappush(self._heap, (deadline, number))
        self._drop_stale()

    def cancel(self, due: TimerKey) -> None:
        """Removes a timer if there is one."""
        queued = self._queued.pop(due, None)
        if queued is not None:
            del self._numbered[queued[1]]
            self._drop_stale()

    def over(
        self, now: int, current: Callable[[TimerKey], int | None], most: int | None = None
    ) -> Iterator[TimerKey]:
        """Yields each timer whose deadline is over. `current` returns a timer's current deadline.

        It checks at most `most` timers, with those that are queued again.
        """
        looks = itertools.count() if most is None else range(most)
        for _ in looks:
            if not self._heap or self._heap[0][0] > now:
                return
            _, number = heapq.heappop(self._heap)
            due = self._numbered.pop(number, None)
            if due is None:
                continue
            del self._queued[due]
            deadline = current(due)
            if deadline is None:
                continue
            if deadline <= now:
                yield due
            else:
                self.schedule(due, deadline)

    def _drop_stale(self) -> None:
        stale = len(self._heap) - len(self._queued)
        if stale > max(len(self._queued), _STALE_MIN):
            self._heap = list(self._queued.values())
            heapq.heapify(self._heap)
