"""The transaction log and the snapshots of a standalone server, and recovery from both.

Owns ``log.<zxid>/`` and ``snapshot.<zxid>`` (:mod:`.directories` has the whole layout; zxids are 16
hexadecimal digits). A log's records are commands (:mod:`cluster.coordinator.state.machine`), and its first
command has the zxid in its name. A snapshot is the state after the transaction with its zxid. Each snapshot
begins a new log, so purging removes whole logs. The three newest snapshots or more stay, with every log since
the oldest of them, so one unreadable snapshot loses nothing.

Recovery reads the newest whole snapshot and applies what the logs hold after it. Zxids must be consecutive: a
gap stops the start. A crash leaves one of these:

* a torn tail in the newest log. No client got an answer for it, and the engine cuts it at the next open;
* an unfinished ``snapshot.*.tmp``, which the next start removes;
* a snapshot without its new log, which the next start makes;
* old files that are half purged, which the next snapshot purges again.

:meth:`TransactionLog.recover` runs before service, or :meth:`TransactionLog.read` where there is none. After
that ``roll`` and ``close`` are called on one writer thread, ``save``, ``begin_snapshot`` and ``keep`` on any
one thread, and ``append`` on the event loop, one at a time.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ..clock import Clock, SystemClock
from ..errors import CoordinatorError, DataDirectoryError, JuteError, directory_error
from ..state.machine import Machine, State, decode_command
from . import collector
from .directories import LOCK_FILE, LOG_PREFIX, Directories
from .engine import open_engine_log
from .snapshot import (
    SNAPSHOT_PREFIX,
    SnapshotFile,
    read_snapshot,
    snapshot_path,
    sync_directory,
    write_snapshot,
)

SNAPSHOTS_RETAINED = 3
"""ZooKeeper's smallest ``autopurge.snapRetainCount``, and its default."""

_CLOCK = SystemClock()
_logger = logging.getLogger(__name__)


class RecordLog(Protocol):
    """What :class:`TransactionLog` needs of a log of byte strings.

    :class:`.engine.EngineLog` is the real one.
    """

    def append(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        """Appends in order, without waiting. One append at a time.

        ``done`` is called on the running event loop: with None once a power cut cannot lose the records, else
        with the error. After a DiskFullError the same records may be appended again.
        """

    def records(self) -> Iterator[bytes]:
        """Every whole record, oldest first."""

    def close(self) -> None: ...


class TransactionLog:
    """The logs and snapshots of one server."""

    def __init__(
        self,
        directory: Path,
        open_log: Callable[[Path], RecordLog] = open_engine_log,
        snapshots_retained: int = SNAPSHOTS_RETAINED,
        log_dir: Path | None = None,
        clock: Clock = _CLOCK,
    ) -> None:
        """Locks ``directory``, which is made if missing. ``log_dir`` is the ``dataLogDir``, if there is one.

        Raises CoordinatorError if another server has the directory.
        """
        self._directory = directory
        self.directories = Directories.of(directory, log_dir)
        self._open_log = open_log
        self._retained = snapshots_retained
        self._clock = clock
        self._log: RecordLog | None = None
        self.snapshot_ms = self.replay_ms = 0
        """How long the recovery took to read the snapshot, and to apply the logs."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryError.of(directory, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise CoordinatorError(
                f"the coordinator's data directory {directory} is in use by another process; stop that one "
                "or name another directory"
            ) from error

    def recover(self) -> tuple[Machine, int]:
        """Returns the machine as of the last durable transaction, and how many transactions its snapshot
        lacks.

        Opens the log for appends. Raises CoordinatorError if transactions are missing.
        """
        self.directories.pair()
        for leftover in self._directory.glob(f"{SNAPSHOT_PREFIX}*.tmp"):
            leftover.unlink()
        machine, behind = self._load()
        if self._log is None:
            self.roll(machine.last_zxid + 1)
        return machine, behind

    def read(self) -> Machine:
        """Returns the machine that :meth:`recover` would, without opening the log for appends.

        The only change on disk is the engine's: a log that was not closed loses its torn tail and gets new
        indexes. Raises CoordinatorError as :meth:`recover` does.
        """
        self.directories.require_pair()
        try:
            return self._load()[0]
        finally:
            self.close_log()

    def _load(self) -> tuple[Machine, int]:
        """Applies the logs to the newest snapshot, and leaves the last log open if it can be appended to."""
        with collector.spared():
            machine, behind = self._load_all(self._logs())
            collector.keep(len(machine.tree))
            return machine, behind

    def _load_all(self, logs: Sequence[tuple[int, Path]]) -> tuple[Machine, int]:
        began_ms = self._clock.monotonic_ms()
        machine = self._newest_snapshot()
        snapshot_zxid, loaded_ms = machine.last_zxid, self._clock.monotonic_ms()
        for position, (first_zxid, path) in enumerate(logs):
            is_last = position + 1 == len(logs)
            if not is_last and logs[position + 1][0] <= snapshot_zxid + 1:
                continue  # the snapshot has all of it
            log = self._open_log(path)
            try:
                last_zxid = self._replay(machine, log, path)
            except BaseException:
                log.close()
                raise
            if is_last and (last_zxid or first_zxid - 1) == machine.last_zxid:
                self._log = log
            else:
                log.close()
        self.snapshot_ms, self.replay_ms = loaded_ms - began_ms, self._clock.monotonic_ms() - loaded_ms
        newest = max(self._snapshots(), default=0)
        if machine.last_zxid < newest:
            self.close_log()
            raise CoordinatorError(
                f"{snapshot_path(self._directory, newest)} cannot be read, and the logs end at "
                f"{machine.last_zxid:#x}: restore the logs and snapshots of {self._directory} from one backup"
            )
        return machine, machine.last_zxid - snapshot_zxid

    def append(self, commands: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        """Makes commands durable, as :meth:`RecordLog.append` says. After an error other than DiskFullError
        the log must not be used again."""
        assert self._log is not None, "append comes after recover"
        self._log.append(commands, done)

    def roll(self, first_zxid: int) -> None:
        """Begins a new log, whose first command will be ``first_zxid``.

        After a DiskFullError it may be called again.
        """
        if self._log is not None:
            previous, self._log = self._log, None
            previous.close()
        logs = self.directories.logs
        self._log = self._open_log(logs / f"{LOG_PREFIX}{first_zxid:016x}")
        sync_directory(logs)

    def begin_snapshot(self, zxid: int) -> SnapshotFile:
        """Returns a file for the snapshot of the state with this zxid. Raises OSError."""
        return SnapshotFile(self._directory, zxid)

    def keep(self, file: SnapshotFile) -> Path:
        """Finishes a snapshot, then removes older files. Raises OSError, which loses nothing."""
        path = file.finish()
        self._purge()
        return path

    def save(self, state: State) -> None:
        """Writes a snapshot, then removes older files. Raises OSError, which loses nothing."""
        write_snapshot(self._directory, state)
        self._purge()

    def _purge(self) -> None:
        snapshots = self._snapshots()
        for zxid in snapshots[: -self._retained]:
            snapshot_path(self._directory, zxid).unlink(missing_ok=True)
        oldest = snapshots[-self._retained :][0]
        if len(snapshots) < self._retained:
            return  # until there are enough snapshots, the first log takes the place of the missing ones
        for (_first, path), (next_first, _next_path) in itertools.pairwise(self._logs()):
            if next_first <= oldest + 1:
                shutil.rmtree(path, ignore_errors=True)

    def close_log(self) -> None:
        """Closes the log and keeps the lock of the directory. Safe to call twice."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def close(self) -> None:
        """Closes the log and releases the directory. Safe to call twice."""
        self.close_log()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _newest_snapshot(self) -> Machine:
        for zxid in reversed(self._snapshots()):
            path = snapshot_path(self._directory, zxid)
            try:
                return Machine(read_snapshot(path))
            except (CoordinatorError, OSError, ValueError) as error:
                _logger.warning("skipping an unreadable snapshot: %s: %s", path, error)
        return Machine()

    def _replay(self, machine: Machine, log: RecordLog, path: Path) -> int:
        """Applies the commands that the machine lacks. Returns the log's last zxid, 0 if it is empty."""
        last_zxid = 0
        for record in log.records():
            try:
                command = decode_command(record)
            except JuteError as error:
                raise CoordinatorError(f"{path} holds a record that is not a transaction: {error}") from error
            last_zxid = command.zxid
            if command.zxid <= machine.last_zxid:
                continue
            if command.zxid != machine.last_zxid + 1:
                raise CoordinatorError(
                    f"transactions {machine.last_zxid + 1:#x} to {command.zxid - 1:#x} are missing before "
                    f"{path}; restore the logs and snapshots of {self._directory} from one backup"
                )
            machine.apply(command)
        return last_zxid

    def _snapshots(self) -> list[int]:
        return [zxid for zxid, _path in _numbered(self._directory, SNAPSHOT_PREFIX)]

    def _logs(self) -> list[tuple[int, Path]]:
        logs = self.directories.logs
        with directory_error(f"the logs in {logs} cannot be listed"):
            return _numbered(logs, LOG_PREFIX) if logs.exists() else []


def _numbered(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """The entries named ``prefix`` plus a zxid, oldest first."""
    found = []
    for path in directory.iterdir():
        digits = path.name.removeprefix(prefix)
        if path.name.startswith(prefix) and len(digits) == 16:
            try:
                found.append((int(digits, 16), path))
            except ValueError:
                continue
    return sorted(found)
