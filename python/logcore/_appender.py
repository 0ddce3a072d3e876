"""`Appender`: durable appends from an event loop, which learns of their end through a descriptor."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from logcore import _native
from logcore._log import Log
from logcore._records import RecordLike


class Appender:
    """Appends to a log and flushes it in a thread of its own, one call's records at a time.

    For an event loop that must not wait for a disk. `begin` passes records to the thread. The descriptor
    becomes readable once they are on disk or have failed, and `finish` says which. The thread never needs the
    GIL, so it costs less than a Python thread. A context manager: leaving the block closes it.

    >>> import logcore, select, tempfile
    >>> with logcore.open(tempfile.mkdtemp()) as log, logcore.Appender(log) as appender:
    ...     appender.begin([b"a", b"b"])
    ...     _ = select.select([appender], [], [], 60)
    ...     appender.finish(), [record.value for record in log]
    (True, [b'a', b'b'])
    """

    __slots__ = ("_native",)

    def __init__(self, log: Log) -> None:
        """Raises LogClosedError in a process that did not open the log, LogIOError when no descriptor is
        left.
        """
        self._native = _native.Appender(log._native)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, records: Iterable[RecordLike]) -> None:
        """Passes records to the thread, and does not wait; see `Log.append_records` for what a record may be.

        Raises LogClosedError when the appender is closed, RuntimeError while the last call's records are not
        finished, ValueError when there are none; nothing was passed then.
        """
        self._native.begin(records)

    def finish(self) -> bool:
        """True once after the records of a `begin` are on disk, False while they are not.

        Raises what `Log.append_records` and `Log.flush` raise, if the append failed.
        """
        return self._native.finish()

    def fileno(self) -> int:
        """A descriptor that is readable when `finish` has a result."""
        return self._native.fileno()

    def close(self) -> None:
        """Waits until the append that was begun is done, and ends the thread. Safe to repeat. The log stays
        open.
        """
        self._native.close()
