"""When a member takes snapshots, and how they are written to the quorum without stopping the event loop
(``SyncRequestProcessor``).

Owns the snapshot that is being written. The event loop writes some slices, then does other work, then writes
the next ones: one slice while the loop is idle, more for each millisecond that it was busy. While the disk is
slower, the writing pauses. Runs on the event loop. A crash leaves nothing of an unfinished snapshot.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Generator
from typing import NamedTuple

from ..clock import Timers
from ..durability.snapshot import PAUSE_SECONDS, turn_of
from ..replication import Service
from .agreed import Agreed
from .quorum import Quorum, QuorumFullError, SnapshotSink
from .snapshot import walk

SLOW_DISK_PAUSE_SECONDS = 0.05
_IDLE_LOOP_MS = 2
"""An idle loop begins the next turn within this time: the pause, and a timer that is a little late."""

_logger = logging.getLogger(__name__)


class _Walk(NamedTuple):
    """A snapshot that is being written: of the state after ``entry``."""

    entry: int
    sink: SnapshotSink
    pieces: Generator[bytes, None, None]
    zxid: int
    began_ms: int


class Saving:
    """Takes a snapshot after a number of transactions that differs from member to member, so that they do
    not all do it at once."""

    def __init__(self, service: Service, timers: Timers, chance: random.Random) -> None:
        self._service = service
        self._timers = timers
        self._chance = chance
        self._walk: _Walk | None = None
        self._finishing: _Walk | None = None
        """All of it is written, and it is not known to be on disk yet."""
        self._last_turn_ms = 0
        self._restart_count()
        self.last: tuple[int, int] | None = None
        """The zxid of the newest snapshot, and its time in seconds since 1970."""

    def applied(self, transactions: int, quorum: Quorum, agreed: Agreed) -> None:
        """So many more transactions are applied, and the quorum knows it: begins a snapshot if one is due."""
        self._since += transactions
        if self._since < self._fewest or self._walk is not None or self._finishing is not None:
            return
        tree = agreed.machine.tree
        most = self._service.settings.transactions_until_snapshot(len(tree), tree.data_size())
        if self._since >= self._share * most:
            self._begin(quorum, agreed)

    def reported(self, index: int, error: str | None) -> None:
        """The quorum's event ``snapshot``: it is on disk, or it failed, which may come before its end is
        written."""
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

    def installed(self, zxid: int) -> None:
        """The member's state was replaced by a snapshot's."""
        self._restart_count()
        self.last = zxid, self._service.clock.wall_ms() // 1000

    def abandon(self) -> None:
        """Stops writing, unless the quorum has all of the snapshot. Safe to repeat."""
        self._timers.cancel("walk")
        if self._walk is not None:
            abandoned, self._walk = self._walk, None
            abandoned.pieces.close()
            abandoned.sink.abort()

    def _begin(self, quorum: Quorum, agreed: Agreed) -> None:
        self._restart_count()
        sink = quorum.snapshot_begin(agreed.index)
        now = self._service.clock.monotonic_ms()
        self._walk = _Walk(agreed.index, sink, walk(agreed), agreed.machine.last_zxid, now)
        self._last_turn_ms = now
        self._write_turn()

    def _restart_count(self) -> None:
        self._since = 0
        self._share = (1 + self._chance.random()) / 2
        self._fewest = self._share * self._service.settings.fewest_until_snapshot

    def _write_turn(self) -> None:
        if self._walk is None:
            return
        since_ms = self._service.clock.monotonic_ms() - self._last_turn_ms
        pause = PAUSE_SECONDS
        is_over = True
        try:
            for piece in turn_of(self._walk.pieces, 0 if since_ms <= _IDLE_LOOP_MS else since_ms):
                is_over = False
                if not self._walk.sink.write(piece):
                    pause = SLOW_DISK_PAUSE_SECONDS
                    break
            if is_over:
                self._walk.sink.finish()
                self._finishing, self._walk = self._walk, None
                return
        except QuorumFullError as error:
            self.abandon()
            self._failed(str(error))
            return
        self._last_turn_ms = self._service.clock.monotonic_ms()
        self._timers.later("walk", pause, self._write_turn)

    def _failed(self, error: str) -> None:
        self._service.metrics.count("snapshot_error_count")
        _logger.error("no snapshot was taken: %s; the log keeps everything", error)
