"""What is due when, of members that move their deadlines all the time.

A deadline that moves to a later time costs nothing: what is queued for the earlier one looks again once that is
over, and goes back in. Times of what is forgotten, or due sooner by now, stay in the heap until there are more of
them than of others; their names do not. So memory is proportional to what is queued, and a heartbeat leaves the
heap alone. Pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

Due = tuple[str, str, str]
"""Group, kind (session, pending, join, sync), and the member where it is about one."""

_STALE_MIN = 64
"""So many stale times are not worth a rebuild."""


class Timers:
    """At most one deadline for each thing."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """Deadlines, each with a number of its own."""
        self._queued: dict[Due, tuple[int, int]] = {}
        self._numbered: dict[int, Due] = {}
        self._numbers = itertools.count()

    def next(self) -> int | None:
        """When `over` is to be called next; it may be that nothing is due then."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, due: Due, deadline: int) -> None:
        """To be looked at then, or sooner if it is queued for a sooner time."""
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

    def cancel(self, due: Due) -> None:
        """Forgets what is due of a thing, if anything is."""
        queued = self._queued.pop(due, None)
        if queued is not None:
            del self._numbered[queued[1]]
            self._drop_stale()

    def over(self, now: int, current: Callable[[Due], int | None], most: int | None = None) -> Iterator[Due]:
        """Each thing whose deadline is over, as it is asked for; `current` knows where deadlines are by now. No more than
        `most` are looked at, those that go back in too.
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
