"""Durable appends beside an event loop, which is told of them by a descriptor."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from logcore import _native
from logcore._log import Log, RecordLike


class Appender:
    """Appends to a log and flushes it in a thread of its own, one call's records at a time.

    For an event loop that must not wait for a disk: `begin` hands records over, the descriptor becomes readable once they
    are on disk or could not be brought there, and `finish` says which. The thread never needs the GIL, so it costs
    a program less than a thread of Python's. A context manager: leaving the block closes it.

    >>> import logcore, select, tempfile
    >>> with logcore.open(tempfile.mkdtemp()) as log, logcore.Appender(log) as appender:
    ...     appender.begin([b"a", b"b"])
    ...     _ = select.select([appender], [], [], 60)
    ...     appender.finish(), [record.value for record in log]
    (True, [b'a', b'b'])
    """

    __slots__ = ("_native",)

    def __init__(self, log: Log) -> None:
        """Raises LogClosedError in a process that did not open the log, LogIOError when there is no descriptor left."""
        self._native = _native.Appender(log._native)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, records: Iterable[RecordLike]) -> None:
        """Hands records over, and does not wait; see `Log.append_records` for what a record may be.

        Raises LogClosedError when the appender is closed, RuntimeError while the records before are not finished, ValueError
        when there are none; nothing is handed over then.
        """
        self._native.begin(records)

    def append_or_begin(self, records: Iterable[RecordLike]) -> bool:
        """True if the records are on disk, and there is nothing to finish; False if they are handed over, as by `begin`.

        At most 16 KiB are appended by the caller, where the last appends took no longer than a thread takes to be woken and to
        wake another: in a file system in memory, or on a disk that keeps what it was given through a power cut. A disk that
        is slow once has to be quick again for a while first.

        Raises what `begin` raises, and what `Log.append_records` and `Log.flush` raise.
        """
        return self._native.begin(records, may_finish=True)

    def finish(self) -> bool:
        """True once after the records of a `begin` are on disk, False while they are not.

        Raises what `Log.append_records` and `Log.flush` raise when they could not be appended or brought to disk.
        """
        return self._native.finish()

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to finish."""
        return self._native.fileno()

    def close(self) -> None:
        """Returns once what was begun is done and the thread has ended. Safe to repeat. The log stays open."""
        self._native.close()
