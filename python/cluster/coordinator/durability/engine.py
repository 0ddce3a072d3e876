"""The transaction log's store: an embedded log of :mod:`logcore`.

Owns how commands become records; the only module of the coordinator that knows the log engine. Called from
the server's writer thread, and for appends on its event loop, which a thread of the engine's tells when they are on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import logcore

from ..errors import CoordinatorError, DataDirectoryError, DiskFullError
from ..protocol.jute import IDENTITIES_BYTES_MAX, MAX_BUFFER
from .log_place import FULL, UNUSABLE

_OVERHEAD = 64 << 10
"""More than a command's own fields and the engine's batch around it take."""


class EngineLog:
    """A :class:`.log.RecordLog` on the log engine."""

    def __init__(self, path: Path, request_bytes_max: int = MAX_BUFFER) -> None:
        largest = request_bytes_max + IDENTITIES_BYTES_MAX + _OVERHEAD
        self._log = logcore.open(path, max_message_bytes=largest, retention_ms=-1)
        self._appender: logcore.Appender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: Callable[[Exception | None], None] | None = None

    def append_soon(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> bool:
        loop = asyncio.get_running_loop()
        try:
            if self._appender is None:
                self._appender = logcore.Appender(self._log)
            if self._loop is not loop:
                self._loop = loop
                loop.add_reader(self._appender, self._look, self._appender)
            if self._appender.append_or_begin(records):
                return True
        except Exception as error:
            loop.call_soon(done, _failure(error))
        else:
            self._done = done
        return False

    def _look(self, appender: logcore.Appender) -> None:
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
            # Everything is on disk, but for a note that it was closed: the next open looks through the log.
            if not _is_full(error):
                raise


def _is_full(error: Exception) -> bool:
    """Whether there was no room, and nothing is broken: what leaves a log unfit for appends is an OfflineError from then on."""
    return isinstance(error, logcore.LogIOError) and error.errno in FULL


def _failure(error: Exception) -> Exception:
    return DiskFullError(str(error)) if _is_full(error) else error


def open_engine_log(path: Path, request_bytes_max: int = MAX_BUFFER) -> EngineLog:
    """Opens a log, made if missing, for commands of requests of at most so many bytes; a torn tail is cut. Raises
    CoordinatorError, of damage to what was on disk, too: DataDirectoryError where it may not be written to, DiskFullError for want
    of room."""
    try:
        return EngineLog(path, request_bytes_max)
    except logcore.LogError as error:
        kind = CoordinatorError
        if isinstance(error, logcore.LogIOError):
            kind = DiskFullError if error.errno in FULL else kind
            kind = DataDirectoryError if error.errno in UNUSABLE else kind
        advice = (
            ": what was answered is not all there any more. Restore a backup, or let the server join its ensemble anew; "
            f"`logcore repair {path}` tells what could be kept, and without the file `flushed` a log that is only shorter is opened"
            if isinstance(error, logcore.CorruptLogError)
            else ""
        )
        raise kind(f"the coordinator's transaction log {path} cannot be opened: {error}{advice}") from error
