"""The data that a server by itself left, where a member of an ensemble starts: the ensemble's first state.

Owns the way of such data from its files to the quorum's first snapshot, and where the files are afterwards::

    <dataDir>/snapshot.*, log.*     of a server by itself (:mod:`.log`)
    <dataDir>/quorum/               of a member (:mod:`._quorum`)
    <dataDir>/standalone.<zxid>/    the former, once the latter has it: whole, so that a server by itself starts on it
    <dataDir>/standalone.tmp/       some of it, on its way there

The files are only read until the quorum has the state on disk as its own, which one renaming decides; then they are moved. A
crash before leaves them to whichever kind of server starts next, a crash after it to the next start as a member, which moves the
rest. No server by itself can use them meanwhile. All calls block, on one thread at a time.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ..durability import log_place
from ..durability.directories import KEPT_PREFIX, MOVING, files_alone, has_member, is_there, require_whole
from ..durability.log import LOG_PREFIX, TransactionLog
from ..durability.snapshot import sync_directory
from ..errors import CoordinatorError
from ..state.machine import Machine
from ..state.members import Member
from .agreed import Agreed
from .quorum import FIRST_STATE, SnapshotSink
from .snapshot import walk

_ZXID_MAX = (1 << 62) - 1
"""As many zxids are left for the ensemble."""
_DISK_PAUSE_SECONDS = 0.01

_logger = logging.getLogger(__name__)


class OwnData:
    """What is in a ``dataDir`` besides a member's files, with its logs in ``dataLogDir`` if there is one. ``members`` are those of the
    ensemble that may begin with it."""

    def __init__(self, data_dir: Path, members: tuple[Member, ...], log_dir: Path | None = None) -> None:
        self._data_dir = data_dir
        self._log_dir = log_dir
        self._members = members
        self._log: TransactionLog | None = None

    def take(self) -> bool:
        """Whether there is any. Then no server by itself can use it until :meth:`release`. Raises CoordinatorError when one does, or
        when an ensemble may have to begin with it, and its logs are not there."""
        if not is_there(self._data_dir):
            return False
        self._log = TransactionLog(self._data_dir, log_dir=self._log_dir)
        try:
            if not has_member(self._data_dir):
                for path in self._logs():
                    log_place.find(path, self._log_dir)
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Safe to repeat."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def give(self, sink: SnapshotSink, time_ms: int) -> None:
        """Writes it to the quorum's first snapshot. ``time_ms`` is the ensemble's first. Raises CoordinatorError when it cannot be
        read, QuorumError when the quorum stops."""
        assert self._log is not None, "take comes before give"
        require_whole(self._data_dir)
        log_place.settle(self._logs(), self._log_dir)
        machine = self._log.read()
        for piece in walk(first_agreed(machine, self._members, time_ms)):
            keeps_up = sink.write(piece)
            while not keeps_up:
                time.sleep(_DISK_PAUSE_SECONDS)
                keeps_up = sink.write(b"")
        sink.finish()

    def _logs(self) -> list[Path]:
        return [path for path in files_alone(self._data_dir) if path.name.startswith(LOG_PREFIX)]

    def put_away(self) -> None:
        """Moves the files to where nobody takes them for the member's, and tells the operator: also when that fails, for the next
        start moves them. Does nothing when there are none."""
        moving = self._data_dir / MOVING
        try:
            files = files_alone(self._data_dir)
            if files or moving.exists():
                moving.mkdir(exist_ok=True)
                for path in files:
                    path.rename(moving / path.name)
                sync_directory(moving)
                kept = self._kept(moving)
                moving.rename(kept)
                sync_directory(self._data_dir)
                for path in files_alone(kept):
                    log_place.moved(path)
                _logger.warning(
                    "the data that this server had by itself is the ensemble's; its files are in %s and can be removed",
                    kept,
                )
        except OSError as error:
            _logger.error(
                "the ensemble has the data that this server had by itself, and its files cannot be moved from %s to %s: %s",
                self._data_dir,
                moving,
                error,
            )
        finally:
            self.release()

    def _kept(self, moving: Path) -> Path:
        """A name that is free, by the newest zxid that a file's has."""
        newest = max((path.name[-16:] for path in files_alone(moving)), default="0" * 16)
        kept, number = self._data_dir / f"{KEPT_PREFIX}{newest}", 1
        while kept.exists():
            number += 1
            kept = self._data_dir / f"{KEPT_PREFIX}{newest}.{number}"
        return kept


def first_agreed(machine: Machine, members: tuple[Member, ...], time_ms: int) -> Agreed:
    """The state that an ensemble begins with: what a server by itself had, and the members' configuration, which is one
    transaction more. Raises CoordinatorError when no zxids are left."""
    if machine.last_zxid > _ZXID_MAX:
        raise CoordinatorError(
            f"the last zxid of this server's data is {machine.last_zxid:#x}: too few are left"
        )
    agreed = Agreed(machine)
    agreed.begin_with_state(FIRST_STATE, time_ms, [each for each in members if not each.observer])
    return agreed
