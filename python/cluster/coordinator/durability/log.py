"""Durability: the transaction log on the log engine, snapshots, and recovery from both.

Owns the data directory::

    .lock                 held while a server runs on the directory
    log.<zxid>/           one embedded log, or a link to it (:mod:`.log_place`); its records are commands (:mod:`.machine`), the
                          first has this zxid
    snapshot.<zxid>       state after the transaction with this zxid (:mod:`.snapshot`)

(zxids as 16 hex digits.) A snapshot begins a new log, so purging is removing whole logs. The newest snapshots
stay, three or more, with every log since the oldest of them, so that one unreadable snapshot loses nothing.

A crash at any point leaves: a torn tail in the newest log (the engine cuts it at open; nobody was
answered), an unfinished ``snapshot.*.tmp`` (removed), a snapshot whose new log is not there yet (made at
open), or old files half purged (purged again). Recovery reads the newest whole snapshot and applies what
the logs hold beyond it; zxids must follow one another, a gap stops the start.

:meth:`TransactionLog.recover` runs before service, or :meth:`TransactionLog.read` without one; then ``roll`` and ``close`` are called
from one writer thread, ``save``, ``begin_snapshot`` and ``keep`` from any one thread and ``append_soon`` on the event loop, each append
after the one before.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ..clock import Clock, SystemClock
from ..errors import CoordinatorError, DataDirectoryError, JuteError
from ..state.machine import Machine, State, decode_command
from . import collector, log_place
from .engine import open_engine_log
from .snapshot import NAME_PREFIX, SnapshotFile, read_snapshot, snapshot_path, sync_directory, write_snapshot

LOG_PREFIX = "log."
SNAPSHOTS_RETAINED = 3
"""ZooKeeper's smallest ``autopurge.snapRetainCount``, and its default."""

_CLOCK = SystemClock()
_logger = logging.getLogger(__name__)


class RecordLog(Protocol):
    """What is asked of a log of byte strings; :mod:`._engine` is the one in use."""

    def append_soon(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> bool:
        """Appends in order and does not wait. True if a power cut cannot lose them any more; otherwise ``done`` is called on the
        running event loop when it cannot, with what failed or None: a DiskFullError if the same may be appended again. One at
        a time."""

    def records(self) -> Iterator[bytes]:
        """Every whole record, oldest first."""

    def close(self) -> None: ...


class TransactionLog:
    """Logs and snapshots of one data directory."""

    def __init__(
        self,
        directory: Path,
        open_log: Callable[[Path], RecordLog] = open_engine_log,
        snapshots_retained: int = SNAPSHOTS_RETAINED,
        log_dir: Path | None = None,
        clock: Clock = _CLOCK,
    ) -> None:
        """Takes the directory, made if missing; logs are in ``log_dir``, if there is one. Raises CoordinatorError when another server
        has the directory."""
        self._directory = directory
        self._open_log = open_log
        self._retained = snapshots_retained
        self._log_dir = log_dir
        self._clock = clock
        self._log: RecordLog | None = None
        self.snapshot_ms = self.replay_ms = 0
        """How long the recovery took to read the snapshot, and what the logs hold beyond it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryError.of(directory, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise CoordinatorError(
                f"the coordinator's data directory {directory} is in use by another process; "
                "stop that one or name another directory"
            ) from error

    def recover(self) -> tuple[Machine, int]:
        """The machine as of the last durable transaction, and how many transactions its snapshot is behind.
        Opens the log for appending. Raises CoordinatorError when transactions are missing."""
        for leftover in self._directory.glob(f"{NAME_PREFIX}*.tmp"):
            leftover.unlink()
        log_place.settle([path for _first_zxid, path in self._logs()], self._log_dir)
        unlinked = self._unlinked()
        machine, behind = self._load(self._logs(), unlinked)
        for _first_zxid, place in unlinked:
            log_place.link(self._directory / place.name, place)
        if self._log is None:
            self.roll(machine.last_zxid + 1)
        return machine, behind

    def read(self) -> Machine:
        """What :meth:`recover` would give. Changes nothing that was answered: opening a log that was not closed cuts a torn tail, and
        makes its indexes and marks anew. Raises CoordinatorError as that does."""
        logs = [(first_zxid, log_place.find(path, self._log_dir)) for first_zxid, path in self._logs()]
        try:
            return self._load(logs, self._unlinked())[0]
        finally:
            self.close_log()

    def _load(
        self, known: Sequence[tuple[int, Path]], unlinked: Sequence[tuple[int, Path]]
    ) -> tuple[Machine, int]:
        """The newest snapshot with what these logs hold beyond it. Leaves the log open that goes on behind it, if there is one."""
        with collector.spared():
            machine, behind = self._load_all([*known, *unlinked], len(known))
            collector.keep(len(machine.tree))
            return machine, behind

    def _load_all(self, logs: Sequence[tuple[int, Path]], known: int) -> tuple[Machine, int]:
        began_ms = self._clock.monotonic_ms()
        machine = self._newest_snapshot()
        snapshot_zxid, loaded_ms = machine.last_zxid, self._clock.monotonic_ms()
        for position, (first_zxid, path) in enumerate(logs):
            is_last = position + 1 == len(logs)
            if not is_last and logs[position + 1][0] <= snapshot_zxid + 1:
                continue  # the snapshot holds all of it
            if position >= known and first_zxid != machine.last_zxid + 1:
                raise DataDirectoryError(
                    f"{path} is noted to be a log of {self._directory}, and does not go on where that ends, at {machine.last_zxid:#x}: "
                    "restore both from one backup, or move it away if it is of another life of this server"
                )
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
                f"{snapshot_path(self._directory, newest)} cannot be read, and the logs end at {machine.last_zxid:#x}: restore the "
                f"logs and snapshots of {self._directory} from one backup"
            )
        return machine, machine.last_zxid - snapshot_zxid

    def append_soon(self, commands: Sequence[bytes], done: Callable[[Exception | None], None]) -> bool:
        """Makes commands durable, and does not wait. True if they are already; otherwise ``done`` is called on the event loop, as
        this is, with what failed or None. Unless that is a DiskFullError the log must not be used again."""
        assert self._log is not None, "append comes after recover"
        return self._log.append_soon(commands, done)

    def roll(self, first_zxid: int) -> None:
        """Begins a new log, whose first command will be ``first_zxid``. After a DiskFullError it may be called again."""
        if self._log is not None:
            previous, self._log = self._log, None
            previous.close()
        path = self._directory / f"{LOG_PREFIX}{first_zxid:016x}"
        log_place.prepare(path, self._log_dir)
        self._log = self._open_log(path)
        sync_directory(self._directory)

    def begin_snapshot(self, zxid: int) -> SnapshotFile:
        """A file for the snapshot of the state with this zxid. Raises OSError."""
        return SnapshotFile(self._directory, zxid)

    def keep(self, file: SnapshotFile) -> Path:
        """Finishes a snapshot, then removes what it makes superfluous. Raises OSError; nothing is lost by that."""
        path = file.finish()
        self._purge()
        return path

    def save(self, state: State) -> None:
        """Writes a snapshot at once, then removes what it makes superfluous. Raises OSError; nothing is lost by that."""
        write_snapshot(self._directory, state)
        self._purge()

    def _purge(self) -> None:
        snapshots = self._snapshots()
        for zxid in snapshots[: -self._retained]:
            snapshot_path(self._directory, zxid).unlink(missing_ok=True)
        oldest = snapshots[-self._retained :][0]
        logs = self._logs()
        if len(snapshots) < self._retained:
            return  # the very first log still stands in for the snapshots there are not yet
        for (_first, path), (next_first, _next_path) in itertools.pairwise(logs):
            if next_first <= oldest + 1:
                log_place.remove(path)

    def close_log(self) -> None:
        """Closes the log; the directory stays taken. Safe to call twice."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def close(self) -> None:
        """Closes the log and gives the directory back. Safe to call twice."""
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
        """Applies what the machine does not have yet; returns the log's last zxid, 0 when it is empty."""
        last_zxid = 0
        for record in log.records():
            try:
                command = decode_command(record)
            except JuteError as error:
                raise CoordinatorError(f"{path} holds a record that is no transaction: {error}") from error
            last_zxid = command.zxid
            if command.zxid <= machine.last_zxid:
                continue
            if command.zxid != machine.last_zxid + 1:
                raise CoordinatorError(
                    f"transactions {machine.last_zxid + 1:#x} to {command.zxid - 1:#x} are missing "
                    f"before {path}; restore the logs and snapshots of {self._directory} from one backup"
                )
            machine.apply(command)
        return last_zxid

    def _snapshots(self) -> list[int]:
        return [zxid for zxid, _path in _numbered(self._directory, NAME_PREFIX)]

    def _logs(self) -> list[tuple[int, Path]]:
        return _numbered(self._directory, LOG_PREFIX)

    def _unlinked(self) -> list[tuple[int, Path]]:
        """The logs in ``dataLogDir`` that this server made after all that it knows of: ``dataDir`` is from a backup, and they are not.
        Raises DataDirectoryError where it knows of none before them: it may have begun anew."""
        if self._log_dir is None or not self._log_dir.is_dir():
            return []
        logs = self._logs()
        newest = logs[-1][0] if logs else 0
        later = [
            (first_zxid, place)
            for first_zxid, place in _numbered(self._log_dir, LOG_PREFIX)
            if first_zxid > newest and log_place.is_unlinked(self._directory / place.name, place)
        ]
        if later and not logs:
            raise DataDirectoryError(
                f"{self._directory} has no logs, and {later[0][1]} is noted to be one of it: restore {self._directory} from a backup, or, "
                f"to begin with what it has, move away what is in {self._log_dir}"
            )
        return later


def _numbered(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """Entries named ``prefix`` plus a zxid, oldest first; others are not ours."""
    found = []
    for path in directory.iterdir():
        digits = path.name.removeprefix(prefix)
        if path.name.startswith(prefix) and len(digits) == 16:
            try:
                found.append((int(digits, 16), path))
            except ValueError:
                continue
    return sorted(found)
