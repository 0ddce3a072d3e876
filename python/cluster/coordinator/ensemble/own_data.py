"""The data of a standalone server that starts as a member of an ensemble: the ensemble's first state.

Owns the way of that data into the quorum's first snapshot, and what happens to its files afterwards
(:mod:`cluster.coordinator.durability.directories` has the layout). The files are only read until the quorum
has the state on disk as its own, which one rename decides. Then they are moved to ``standalone.<zxid>``, on
which a standalone server can still start.

A crash before that rename leaves the files for the next start, alone or as a member. A crash after it leaves
them for the next start as a member, which moves the rest. All calls block, on one thread at a time.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from ..durability.directories import ID_FILE, KEPT_PREFIX, MOVING, Directories, standalone_files
from ..durability.log import TransactionLog
from ..durability.snapshot import sync_directory
from ..errors import CoordinatorError
from ..state.machine import Machine
from ..state.members import Member
from .agreed import Agreed
from .quorum import FIRST_STATE, SnapshotSink
from .snapshot import walk

_ZXID_MAX = (1 << 62) - 1
"""Leaves enough zxids for the ensemble."""
_SLOW_DISK_PAUSE_SECONDS = 0.01

_logger = logging.getLogger(__name__)


class OwnData:
    """The data in ``dataDir`` and ``dataLogDir`` besides a member's.

    ``members`` are those of the ensemble that may begin with it.
    """

    def __init__(self, data_dir: Path, members: tuple[Member, ...], log_dir: Path | None = None) -> None:
        self.directories = Directories.of(data_dir, log_dir)
        self._members = members
        self._log: TransactionLog | None = None

    def take(self) -> bool:
        """Returns whether there is any, and locks it until :meth:`release`.

        Raises CoordinatorError if another server has it, or if an ensemble may begin with it and its logs are
        not there.
        """
        if not self.directories.has_standalone_data():
            return False
        self._log = TransactionLog(self.directories.data, log_dir=self.directories.logs)
        try:
            if not self.directories.has_member_data():
                self.directories.require_pair()
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
        """Writes the data to the quorum's first snapshot. ``time_ms`` is the ensemble's first time.

        Raises CoordinatorError if the data cannot be read, QuorumError if the quorum stops.
        """
        assert self._log is not None, "take comes before give"
        self.directories.require_whole()
        machine = self._log.read()
        for piece in walk(first_agreed(machine, self._members, time_ms)):
            keeps_up = sink.write(piece)
            while not keeps_up:
                time.sleep(_SLOW_DISK_PAUSE_SECONDS)
                keeps_up = sink.write(b"")
        sink.finish()

    def put_away(self) -> None:
        """Moves the files away, so that no start takes them again, and tells the operator. Does nothing if
        there are none.

        If that fails the next start tries again.
        """
        data, logs = self.directories
        try:
            moved = [_move(directory) for directory in dict.fromkeys((logs, data))]
            if any(moved):
                kept = data / self._kept_name()
                for directory in dict.fromkeys((logs, data)):
                    if (directory / MOVING).exists():
                        (directory / MOVING).rename(directory / kept.name)
                        sync_directory(directory)
                _logger.warning(
                    "the ensemble has taken over the data that this server had as a standalone one; its "
                    "files are in %s and can be removed",
                    " and ".join(str(directory / kept.name) for directory in dict.fromkeys((data, logs))),
                )
        except OSError as error:
            _logger.error(
                "the ensemble has taken over the data that this server had as a standalone one, and the "
                "files in %s cannot be moved: %s",
                data,
                error,
            )
        finally:
            self.release()

    def _kept_name(self) -> str:
        """A free name, with the newest zxid of the files' names."""
        both = tuple(self.directories)
        newest = max(
            (path.name[-16:] for directory in both for path in standalone_files(directory / MOVING)),
            default="0" * 16,
        )
        name, number = f"{KEPT_PREFIX}{newest}", 1
        while any((directory / name).exists() for directory in both):
            number += 1
            name = f"{KEPT_PREFIX}{newest}.{number}"
        return name


def _move(directory: Path) -> bool:
    """Moves the files into ``standalone.tmp``. Returns whether that has any. Raises OSError."""
    files, moving = standalone_files(directory), directory / MOVING
    if files:
        moving.mkdir(exist_ok=True)
        for path in files:
            path.rename(moving / path.name)
        if (directory / ID_FILE).exists():  # the two moved directories belong together, too
            shutil.copyfile(directory / ID_FILE, moving / ID_FILE)
        sync_directory(moving)
    return moving.exists()


def first_agreed(machine: Machine, members: tuple[Member, ...], time_ms: int) -> Agreed:
    """Returns the state that an ensemble begins with: the server's state, and one transaction more, the
    configuration.

    Raises CoordinatorError if too few zxids are left.
    """
    if machine.last_zxid > _ZXID_MAX:
        raise CoordinatorError(
            f"the last zxid of this server's data is {machine.last_zxid:#x}: too few are left"
        )
    agreed = Agreed(machine)
    agreed.begin_with_state(FIRST_STATE, time_ms, [each for each in members if not each.observer])
    return agreed
