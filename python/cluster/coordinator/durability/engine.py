"""The transaction log's storage: an embedded log of :mod:`logcore`.

Owns how commands become records. No other module of the coordinator's single server knows the log engine.
Opened, read and closed on the server's writer thread; appends are begun on its event loop. A thread of the
engine writes and flushes them, and wakes the loop through a descriptor. A crash loses only appends that were
not reported as done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import logcore

from ..errors import (
    DISK_FULL_ERRNOS,
    UNUSABLE_ERRNOS,
    CoordinatorError,
    DataDirectoryError,
    DiskFullError,
)
from ..protocol.jute import IDENTITIES_BYTES_MAX, MAX_BUFFER

_OVERHEAD_BYTES = 64 << 10
"""More than a command's own fields and the engine's batch header take."""


class EngineLog:
    """A :class:`.log.RecordLog` on the log engine."""

    def __init__(self, path: Path, request_bytes_max: int = MAX_BUFFER) -> None:
        largest = request_bytes_max + IDENTITIES_BYTES_MAX + _OVERHEAD_BYTES
        self._log = logcore.open(path, max_message_bytes=largest, retention_ms=-1)
        self._appender: logcore.Appender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: Callable[[Exception | None], None] | None = None

    def append(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._appender is None:
                self._appender = logcore.Appender(self._log)
            if self._loop is not loop:
                self._loop = loop
                loop.add_reader(self._appender, self._finish, self._appender)
            self._appender.begin(records)
        except Exception as error:
            loop.call_soon(done, _failure(error))
        else:
            self._done = done

    def _finish(self, appender: logcore.Appender) -> None:
        failed: Exception | None = None
        try:
            if not appender.finish():
                return
        except Exception as error:
            failed = _failure(error)
        done, self._done = self._done, None
        if done is not None:
            done(failed)

    def records(self) -> Iterator[bytes]:
        return (record.value or b"" for record in self._log.records())

    def close(self) -> None:
        if self._appender is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._loop.remove_reader, self._appender)
            self._appender.close()
        try:
            self._log.close()
        except logcore.LogIOError as error:
            # Every record is on disk. Only the mark of a clean close is missing, so the next open reads the
            # whole log.
            if not _is_full(error):
                raise


def _is_full(error: Exception) -> bool:
    """Whether only the disk was full. A log that takes no more appends raises an OfflineError instead."""
    return isinstance(error, logcore.LogIOError) and error.errno in DISK_FULL_ERRNOS


def _failure(error: Exception) -> Exception:
    return DiskFullError(str(error)) if _is_full(error) else error


def open_engine_log(path: Path, request_bytes_max: int = MAX_BUFFER) -> EngineLog:
    """Opens a log, or makes it, for commands of requests of at most so many bytes. Cuts a torn tail.

    Raises:
        CoordinatorError: the log cannot be opened, or data on disk is damaged.
        DataDirectoryError: the path cannot be used.
        DiskFullError: the disk is full.
    """
    try:
        return EngineLog(path, request_bytes_max)
    except logcore.LogError as error:
        kind = CoordinatorError
        if isinstance(error, logcore.LogIOError):
            kind = DiskFullError if error.errno in DISK_FULL_ERRNOS else kind
            kind = DataDirectoryError if error.errno in UNUSABLE_ERRNOS else kind
        advice = (
            "; the log is damaged or too short, so answered transactions may be missing. Restore a backup, "
            f"or let the server join its ensemble again. `logcore repair {path}` shows what can be kept. A "
            "log that is only too short opens once its file `flushed` is removed"
            if isinstance(error, logcore.CorruptLogError)
            else ""
        )
        raise kind(f"the coordinator's transaction log {path} cannot be opened: {error}{advice}") from error
