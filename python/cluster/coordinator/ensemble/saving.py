"""When a member takes snapshots, and how they get to the quorum without stopping anybody (``SyncRequestProcessor``).

Owns the walk that is under way. Some slices are written, for some part of the time since the last were, then others have their turn;
where a few wait for this member it is one slice, unless the loop is busy, and where nobody does others may run between them. While the disk is slower than that the walk waits for it. A member that is to stop takes one first, if that makes its next start
shorter. Runs on the event loop; a crash leaves nothing of a snapshot that was not finished.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Generator
from typing import NamedTuple

from ..clock import Timers
from ..durability.snapshot import PAUSE_SECONDS, turn_of
from ..replication import Service
from .agreed import Agreed
from .quorum import Quorum, QuorumFullError, SnapshotSink
from .snapshot import walk

PAUSE_FOR_DISK = 0.05
"""Seconds between two slices, while the disk is slower."""
_FEW = 16
"""So many wait for an answer sooner; more wait for many answers."""
_ON_TIME_MS = 4
"""No later than so long after the last turn does a loop that is not busy begin the next: its timer is late by a millisecond or two."""
_AT_LEISURE_MS = 5
"""So long a turn takes at most, and a slice of others', in which they may run."""

_logger = logging.getLogger(__name__)


class _Walk(NamedTuple):
    entry: int
    sink: SnapshotSink
    pieces: Generator[bytes, None, None]
    zxid: int
    began_ms: int


class Saving:
    """Takes a snapshot after so many transactions that members do not all do it at once. ``waiting`` says how many wait for what this
    member does."""

    def __init__(
        self, service: Service, timers: Timers, chance: random.Random, waiting: Callable[[], int]
    ) -> None:
        self._service = service
        self._timers = timers
        self._chance = chance
        self._waiting = waiting
        self._walk: _Walk | None = None
        self._finishing: _Walk | None = None
        self._went_on_ms = 0
        """When the last turn at writing ended."""
        self._awaited: asyncio.Future[None] | None = None
        """Who stops once what is under way has come to its end."""
        self._begin_counting()
        self.last: tuple[int, int] | None = None
        """Zxid of the newest, and its time in seconds of the epoch."""

    def applied(self, transactions: int, quorum: Quorum, agreed: Agreed) -> None:
        """So many more are applied, and the quorum was told so: begins a snapshot if it is time."""
        self._since += transactions
        if self._since < self._fewest or self._is_under_way:
            return
        tree = agreed.machine.tree
        most = self._service.settings.transactions_until_snapshot(len(tree), tree.data_size())
        if self._since >= self._share * most:
            self._begin(quorum, agreed)

    def before_stop(self, quorum: Quorum, agreed: Agreed) -> asyncio.Future[None]:
        """Has what is under way ended in a hurry; if nothing is, begins a snapshot if the next start would take longer without it.
        Returns what is done once there is none under way."""
        if self._awaited is not None:
            return self._awaited
        self._awaited = asyncio.get_running_loop().create_future()
        tree = agreed.machine.tree
        settings = self._service.settings
        if self._walk is not None:
            self._timers.later("walk", 0, self._go_on)
        elif self._finishing is None:
            if settings.is_snapshot_due_at_stop(self._since, len(tree), tree.data_size()):
                self._begin(quorum, agreed)
            else:
                self._ended()
        return self._awaited

    def told(self, index: int, error: str | None) -> None:
        """The quorum's event: a snapshot is on disk, or is not, for which it need not be at its end."""
        clock = self._service.clock
        if self._walk is not None and self._walk.entry == index and error is not None:
            self.abandon()
        elif self._finishing is not None and self._finishing.entry == index:
            finished, self._finishing = self._finishing, None
            self._service.metrics.add("snapshottime", clock.monotonic_ms() - finished.began_ms)
            if error is None and (self.last is None or self.last[0] <= finished.zxid):
                self.last = finished.zxid, clock.wall_ms() // 1000
        else:
            return
        if error is not None:
            self._failed(error)
        self._ended()

    def installed(self, zxid: int) -> None:
        """The state is that of a snapshot."""
        self._begin_counting()
        self.last = zxid, self._service.clock.wall_ms() // 1000

    def abandon(self) -> None:
        """What is under way comes to nothing, unless the quorum has all of it. Safe to repeat."""
        self._timers.cancel("walk")
        if self._walk is not None:
            abandoned, self._walk = self._walk, None
            abandoned.pieces.close()
            abandoned.sink.abort()
        self._ended()

    @property
    def _is_under_way(self) -> bool:
        return self._walk is not None or self._finishing is not None

    def _begin(self, quorum: Quorum, agreed: Agreed) -> None:
        self._begin_counting()
        sink = quorum.snapshot_begin(agreed.index)
        now = self._service.clock.monotonic_ms()
        self._walk = _Walk(agreed.index, sink, walk(agreed), agreed.machine.last_zxid, now)
        self._went_on_ms = now
        self._go_on()

    def _ended(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _begin_counting(self) -> None:
        self._since = 0
        self._share = (1 + self._chance.random()) / 2
        self._fewest = self._share * self._service.settings.fewest_until_snapshot

    def _go_on(self) -> None:
        """Writes some slices."""
        if self._walk is None:
            return
        began_ms = self._service.clock.monotonic_ms()
        since_ms = began_ms - self._went_on_ms
        pause = PAUSE_SECONDS if self._awaited is None else 0
        waiting = self._waiting()
        is_short = 0 < waiting <= _FEW and since_ms <= _ON_TIME_MS and self._awaited is None
        is_over = True
        try:
            for piece in turn_of(self._walk.pieces, 0 if is_short else max(since_ms, 1)):
                is_over = False
                if not self._walk.sink.write(piece):
                    pause = PAUSE_FOR_DISK
                    break
                if waiting == 0:
                    # It may be whom a client of another member waits for.
                    os.sched_yield()
                    if self._service.clock.monotonic_ms() - began_ms >= _AT_LEISURE_MS:
                        break
            if is_over:
                self._walk.sink.finish()
                self._finishing, self._walk = self._walk, None
                return
        except QuorumFullError as error:
            self.abandon()
            self._failed(str(error))
            return
        self._went_on_ms = self._service.clock.monotonic_ms()
        self._timers.later("walk", pause, self._go_on)

    def _failed(self, error: str) -> None:
        self._service.metrics.count("snapshot_error_count")
        _logger.error("no snapshot was taken: %s; the log keeps everything", error)
