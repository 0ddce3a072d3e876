"""`logcore.open` and `Log`: one partition's log as a Python object.

The extension does the work, without the GIL; these methods only convert and document. They may be called from
any thread. A log that a crash left open is recovered when it is opened again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self, TypeAlias

from logcore import _native
from logcore._native import Record
from logcore._paths import topic_and_partition
from logcore._records import Headers, RecordLike
from logcore._tools import Finding, Progress, verify

if TYPE_CHECKING:
    from typing_extensions import Buffer

FETCH_BYTES = 1 << 20

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of a scan, which are those of Spark's Kafka source."""

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Kafka's `isolation.level`: a reader sees all records, or only committed ones (before the last stable
offset, and not of aborted transactions)."""


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted.

    Readers of committed records leave out the producer's records from `first_offset` up to the abort marker
    at `last_offset`.
    """

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class CleanerStats:
    """What a compaction did, as Kafka's cleaner counts it. All zero but the offsets when there was nothing to
    compact.
    """

    first_dirty_offset: int
    """The compaction began at this offset."""
    clean_until_offset: int
    """Offsets before this one are clean now."""
    bytes_read: int
    """Of all segments up to `clean_until_offset`; so is `records_read`."""
    bytes_written: int
    """Of the segments that replace them; so is `records_written`."""
    records_read: int
    records_written: int
    segments_before: int
    segments_after: int
    elapsed: timedelta


class ArrowStream(Protocol):
    """A table or a reader of record batches of any Arrow library."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowBatch(Protocol):
    """A record batch of any Arrow library."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


ArrowTable: TypeAlias = "ArrowStream | ArrowBatch"
"""What `Log.append_table` takes: any object with Arrow's PyCapsule protocol."""


def open(
    path: str | os.PathLike[str],
    create: bool = True,
    *,
    readonly: bool = False,
    compression: str = "none",
    **config: int | str | bool,
) -> Log:
    """Opens the log in the directory `path`, which holds one partition.

    One opening in one process may write at a time; a broker that serves the directory counts. With `readonly`
    no lock is taken and nothing is written, so it works beside a writer. After a crash, opening checks the
    batches that were not known to be on disk, and cuts off the first that is not whole and all after it
    (`Log.truncated_bytes`).

    `create` makes the directory when it is missing. `compression` is for `append` and `append_records`: none,
    gzip, snappy, lz4 or zstd. `config` are Kafka's topic settings with underscores: `segment_bytes`,
    `max_message_bytes`, `index_interval_bytes`, `flush_messages`, `message_timestamp_type`, ... Sizes are
    bytes, times are milliseconds. The defaults are Kafka's, except for `retention_ms`: it is -1, so no record
    is deleted because of its age. A broker that opens the directory later uses its own settings; Kafka's
    default is a week.

    Raises LogNotFoundError (also for a log directory, and for a directory with other files and no log),
    LockedError, LogConfigError, CorruptLogError, LogIOError, ValueError (compression).

    >>> import logcore, tempfile
    >>> log = logcore.open(tempfile.mkdtemp() + "/events", segment_bytes=1 << 20, compression="zstd")
    >>> log.append(b"first")
    0
    >>> logcore.open(log.path)
    Traceback (most recent call last):
        ...
    logcore.LockedError: ... is in use by another process or another opening; stop that first
    >>> logcore.open(log.path, readonly=True).end_offset
    1
    >>> log.close()
    >>> logcore.open(tempfile.mkdtemp() + "/none", create=False)
    Traceback (most recent call last):
        ...
    logcore.LogNotFoundError: there is no log at ...
    """
    return Log(_native.Log(path, create, readonly, compression, config))


class Log:
    """A log in one directory; made by `logcore.open`. Safe to use from several threads.

    A context manager: leaving the block closes it. A log that is not closed is recovered at the next opening.
    A forked child may read the log; only the process that opened it may write or close it.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.Log) -> None:
        self._native = native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = "readonly" if self.readonly else "writable"
        return f"<logcore.Log {str(self.path)!r} {mode}>"

    def __iter__(self) -> Iterator[Record]:
        """`records()`: all records that are in the log now.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append_records([b"a", b"b"])
        ...     [record.value for record in log]
        [b'a', b'b']
        """
        return self.records()

    def append(
        self,
        value: Buffer | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Appends one record, as a batch of its own, and returns its offset.

        Each call is a write: use `append_records` for more than a few records. `headers` are pairs of a name
        and bytes or None, or a dict; `timestamp` is in milliseconds since 1970 UTC, the present time if None
        or -1.

        When this returns, the operating system has the record; `flush` brings it to disk.

        Raises ReadOnlyError, RecordTooLargeError, LogClosedError, LogIOError, OfflineError, ValueError
        (timestamp).

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     log.append(b"departed", key=b"UA", headers={"from": b"EWR"}, timestamp=1357034400000)
        ...     next(log.records())
        0
        Record(offset=0, timestamp=1357034400000, key=b'UA', value=b'departed', headers=(('from', b'EWR'),))
        """
        return self._native.append_record(value, key, headers, timestamp)

    def append_records(self, records: Iterable[RecordLike]) -> tuple[int, int]:
        """Appends records in as few batches as `max_message_bytes` allows; returns first and last offset.

        See `RecordLike` for what a record may be. All are checked before the first is appended: if one is
        bad, none is appended. Raises ValueError when there are none, otherwise as `append` does.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     log.append_records([b"value only", (b"key", b"value"), (b"key", None, [("h", b"x")], 1)])
        (0, 2)
        """
        return self._native.append_records(records)

    def append_batches(self, batches: Buffer) -> tuple[int, int]:
        """Appends whole record batches (format v2), for example from `build_batch`; returns first and last
        offset.

        Their offsets are replaced. A batch of an idempotent producer that the log has already is not written
        again; the offsets it has are returned.

        Raises InvalidRecordError, RecordTooLargeError, ProducerStateError, and as `append` does.

        >>> import logcore, tempfile
        >>> batch = logcore.build_batch([b"a", b"b"], compression="zstd")
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     log.append_batches(batch), log.append_batches(batch + batch)
        ((0, 1), (2, 5))
        """
        return self._native.append_batches(batches)

    def append_table(
        self,
        table: ArrowTable,
        *,
        compression: str | None = None,
        level: int | None = None,
        batch_bytes: int | None = None,
    ) -> tuple[int, int]:
        """Appends the rows of an Arrow table or record batch; returns first and last offset.

        `table` is any object with Arrow's PyCapsule protocol: a pyarrow or polars table, a reader of record
        batches, a `logcore.columns` scan. Its columns:

        - `key` and `value`, at least one of them: binary or string;
        - `timestamp`: a timestamp, or int64 of milliseconds; not before 1970; null stands for the present;
        - `headers`: a list of structs of key and value, or a map.

        The other columns of a scan (topic, partition, offset, timestampType) are ignored; unknown ones are
        refused.

        All rows are encoded and checked before the first is appended: if one is bad, none is appended. A
        table larger than a segment (`segment_bytes`) is appended in several pieces. Append a large stream
        batch by batch.

        `compression` is the log's if None; `level` is as in `build_batch`. A batch has at most `batch_bytes`
        bytes, `max_message_bytes` if None, unless a single row is larger.

        Raises ValueError (columns, rows, level), TypeError (types), RecordTooLargeError, and as `append`
        does.

        >>> import logcore, pyarrow, tempfile
        >>> table = pyarrow.table({"key": ["UA", None], "value": [b"departed", b"landed"]})
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     log.append_table(table, compression="zstd")
        ...     [(record.key, record.value) for record in log.records()]
        (0, 1)
        [(b'UA', b'departed'), (None, b'landed')]
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     log.append_table(pyarrow.table({"valeu": [b"departed"]}))
        Traceback (most recent call last):
            ...
        ValueError: there is no column "valeu"; the columns are key, value, topic, partition, ...
        """
        return self._native.append_table(table, compression, level, batch_bytes)

    def fetch(
        self,
        offset: int,
        max_bytes: int = FETCH_BYTES,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> memoryview:
        """Whole batches from the one with `offset` on, at most `max_bytes` unless the first alone is larger.

        A read-only view of the bytes as the file has them. It is empty at the end of the log. The first batch
        may begin before `offset`. Decode it with `parse_batches` or `logcore.columns.decode_batches`.

        With `read_committed` it ends at the last stable offset. As in Kafka's Fetch response, the batches of
        aborted transactions are still in it: pass the result of `aborted_transactions` to the decoder.

        Raises OffsetOutOfRangeError, CorruptLogError, LogClosedError, LogIOError, ValueError (isolation
        level).

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     first, last = log.append_records([b"a", b"b"])
        ...     [record.value for record in logcore.parse_batches(log.fetch(0))], len(log.fetch(2))
        ([b'a', b'b'], 0)
        """
        return self._native.fetch(offset, max_bytes, isolation_level)

    def records(
        self,
        offset: int | None = None,
        end: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Iterator[Record]:
        """The records from `offset` (the log's start if None) up to `end` (excluded; the log's end if None).

        The log's end is taken when this is called. With `read_committed` the last stable offset is the end,
        and records of aborted transactions are left out. Checksums are verified. Offsets may skip, because
        compaction removes records and control records are left out.

        Raises OffsetOutOfRangeError, CorruptLogError, LogClosedError, LogIOError, ValueError (isolation
        level).

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     first, last = log.append_records([b"a", b"b", b"c"])
        ...     [(record.offset, record.value) for record in log.records(1)]
        [(1, b'b'), (2, b'c')]
        """
        first, last = self.start_offset, self.end_offset
        start = first if offset is None else offset
        if not first <= start <= last:
            self.fetch(start, 0)  # raises OffsetOutOfRangeError
        readable = self._native.readable_end(isolation_level)
        return self._records(start, readable if end is None else end, isolation_level)

    def _records(self, offset: int, end: int, isolation_level: IsolationLevel) -> Iterator[Record]:
        while offset < end:
            records, following = self._native.read_records(offset, FETCH_BYTES, isolation_level)
            if following <= offset:
                return
            offset = following
            if offset <= end:
                yield from records
            else:
                yield from (record for record in records if record.offset < end)

    def follow(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Iterator[Record]:
        """The records from `offset` on (those appended from now on if None); waits for more at the end.

        Ends when `timeout` seconds passed without a record; never if None. Appends through this object, in
        any thread, wake it at once. So do another process's appends, if the log was opened with
        `readonly=True`. Ctrl-C interrupts it. With `read_committed` a transaction's records come once it is
        committed.

        Raises OffsetOutOfRangeError, also when retention deleted the next record; CorruptLogError;
        LogClosedError when the log is closed meanwhile; LogIOError; ValueError (isolation level, a timeout
        that is nan).

        >>> import logcore, tempfile, threading
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     threading.Thread(target=log.append, args=(b"departed",)).start()
        ...     for record in log.follow(0):
        ...         print(record.value)
        ...         if record.value == b"landed":
        ...             break
        ...         _ = log.append(b"landed")
        b'departed'
        b'landed'
        """
        end = self._native.readable_end(isolation_level)
        start = end if offset is None else offset
        return self._follow(_native.Watch(self._native), start, _seconds(timeout), isolation_level)

    def _follow(
        self, watch: _native.Watch, offset: int, timeout: float | None, isolation_level: IsolationLevel
    ) -> Iterator[Record]:
        left, since = timeout, time.monotonic()
        while watch.wait(offset, left, isolation_level):
            records, offset = self._native.read_records(offset, FETCH_BYTES, isolation_level)
            yield from records
            if records:
                left, since = timeout, time.monotonic()
            elif timeout is not None:
                # Only markers or aborted records were read: the timeout goes on.
                left = max(0.0, timeout - (time.monotonic() - since))

    def follow_batches(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        max_bytes: int = FETCH_BYTES,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Iterator[memoryview]:
        """As `follow`, but yields whole batches as `fetch` returns them, for programs that send them on.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     batch = logcore.build_batch([b"departed"])
        ...     _ = log.append_batches(batch)
        ...     [len(view) == len(batch) for view in log.follow_batches(0, timeout=0)]
        [True]
        """
        end = self._native.readable_end(isolation_level)
        start = end if offset is None else offset
        return self._follow_batches(
            _native.Watch(self._native), start, _seconds(timeout), max_bytes, isolation_level
        )

    def _follow_batches(
        self,
        watch: _native.Watch,
        offset: int,
        timeout: float | None,
        max_bytes: int,
        isolation_level: IsolationLevel,
    ) -> Iterator[memoryview]:
        while watch.wait(offset, timeout, isolation_level):
            view, offset = self._native.fetch_next(offset, max_bytes, isolation_level)
            yield view

    def follow_async(
        self,
        offset: int | None = None,
        timeout: float | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> AsyncIterator[Record]:
        """`follow` for `async for`: waits on a descriptor and reads in a thread, so the event loop is not
        blocked.

        >>> import asyncio, logcore, tempfile
        >>> async def first_two(log):
        ...     found = []
        ...     async for record in log.follow_async(0, timeout=60):
        ...         found.append(record.value)
        ...         if len(found) == 2:
        ...             return found
        ...         log.append(b"landed")
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append(b"departed")
        ...     asyncio.run(first_two(log))
        [b'departed', b'landed']
        """
        # Imported here: other programs need not load asyncio.
        from logcore._follow import follow_async

        end = self._native.readable_end(isolation_level)
        start = end if offset is None else offset
        return follow_async(self._native, start, _seconds(timeout), FETCH_BYTES, isolation_level)

    def scan(
        self,
        columns: Sequence[str] = COLUMNS,
        offset: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        batch_rows: int = 65_536,
        batch_bytes: int = 4 << 20,
        aborted: Sequence[tuple[int, int, int | None]] = (),
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> _native.PartitionScan:
        """The records as Arrow: an iterator of record batches, and a stream for `pyarrow.table` and the like.

        Only the named `columns` are built, in this order; `logcore.columns` describes them. A record is read
        if its offset is from `offset` (the log's start if None) up to `end` (excluded; the log's end if
        None), and its time from `start_time` up to `end_time` (excluded; milliseconds since 1970 UTC). A
        batch has at most `batch_rows` rows, and at most `batch_bytes` bytes of keys, values and headers
        unless one record is larger.

        Control records are left out. So are those of the `aborted` transactions, each of which is a producer
        id, the offset of its first record, and that of its abort marker (None if not known). With
        `read_committed` the scan ends at the present last stable offset and leaves out the transactions that
        the log knows as aborted.

        The columns topic and partition come from the directory's name, as in `flights-3`; another name is the
        topic.

        Raises ValueError (columns, ranges), OffsetOutOfRangeError; CorruptLogError and LogIOError on the way.

        >>> import logcore, pyarrow, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append_records([(b"UA", b"departed", None, 1000), (b"B6", b"landed", None, 2000)])
        ...     pyarrow.table(log.scan(["offset", "value"], start_time=1500)).to_pylist()
        [{'offset': 1, 'value': b'landed'}]
        """
        topic, partition = topic_and_partition(self.path)
        return _native.PartitionScan(
            self._native,
            topic,
            partition,
            columns,
            self.start_offset if offset is None else offset,
            end,
            batch_rows,
            start_time=start_time,
            end_time=end_time,
            batch_bytes=batch_bytes,
            aborted=aborted,
            isolation_level=isolation_level,
        )

    def splits(self, parts: int, offset: int | None = None, end: int | None = None) -> list[tuple[int, int]]:
        """Splits the log into at most `parts` ranges of offsets of about the same number of bytes.

        For readers that work side by side, each with `records(*part)` or `scan(columns, *part)`. A range
        begins where the offset index has an entry, which is about every `index_interval_bytes` of log.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     for _ in range(100):
        ...         _ = log.append_records([b"x" * 500] * 10)
        ...     parts = log.splits(4)
        ...     len(parts), parts[0][0], parts[-1][1]
        (4, 0, 1000)
        """
        return _native.partition_splits(self._native, parts, offset, end)

    def index_position(self, offset: int) -> tuple[int, int]:
        """Where to look for `offset`: its segment's base offset, and a position in that segment's file.

        The batch with `offset` is at that position or behind it, at most about `index_interval_bytes` away.
        The file is `<base offset, 20 digits>.log`. Only the index is read.

        Raises OffsetOutOfRangeError, LogClosedError.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     for _ in range(100):
        ...         _ = log.append(b"x" * 1000)
        ...     base, position = log.index_position(99)
        ...     base, position > 90_000, log.index_position(0)
        (0, True, (0, 0))
        """
        return self._native.index_position(offset)

    def offset_for_time(
        self, timestamp: int, *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> int | None:
        """The offset of the first record at or after `timestamp` (ms since 1970 UTC); None if there is none.

        With `read_committed`, also None when that record is not before the last stable offset.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append_records([(None, b"a", None, 1000), (None, b"b", None, 2000)])
        ...     log.offset_for_time(1001), log.offset_for_time(2001)
        (1, None)
        """
        return self._native.offset_for_time(timestamp, isolation_level)

    def aborted_transactions(
        self, offset: int | None = None, end: int | None = None
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records from `offset` (the log's start if None) up to `end` (the last
        stable offset if None), in the order of their markers.

        For decoding what `fetch` returned: `parse_batches(view, aborted=...)`,
        `logcore.columns.decode_batches(..., aborted=...)`.

        Raises OffsetOutOfRangeError before the log's start, CorruptLogError, LogClosedError, LogIOError.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append(b"without a transaction")
        ...     log.aborted_transactions(), log.last_stable_offset
        ([], 1)
        """
        start = self.start_offset if offset is None else offset
        stop = self.last_stable_offset if end is None else end
        return [AbortedTransaction(*entry) for entry in self._native.aborted_transactions(start, stop)]

    @property
    def start_offset(self) -> int:
        """The offset of the first record."""
        return self._native.start_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next record. A read-only log sees its writer's appends."""
        return self._native.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Every transaction that began before this offset is committed or aborted; the end if none is
        open.
        """
        return self._native.readable_end("read_committed")

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._native.size_bytes

    @property
    def truncated_bytes(self) -> int:
        """How many bytes were cut off when the log was opened, because they were not a whole batch."""
        return self._native.truncated_bytes

    @property
    def path(self) -> Path:
        """The directory."""
        return self._native.path

    @property
    def readonly(self) -> bool:
        """Whether it was opened for reading only."""
        return self._native.readonly

    def maintain(self) -> None:
        """Deletes old segments (`retention_ms`, `retention_bytes`) and their files, flushes (`flush_ms`),
        forgets idle producers. None of this happens by itself: call it from time to time.

        Raises ReadOnlyError, LogClosedError, LogIOError, OfflineError.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp(), segment_bytes=2000, retention_bytes=5000) as log:
        ...     for _ in range(20):
        ...         _ = log.append(b"x" * 1000)
        ...     log.maintain()
        ...     log.start_offset, log.end_offset
        (15, 20)
        """
        self._native.maintain()

    def delete_records(self, before_offset: int) -> int:
        """Deletes the records before `before_offset`, all if -1, and returns the log's new start.

        As Kafka's DeleteRecords: the start moves at once and is written to disk; the next `maintain` removes
        the segments before it. An offset before the start changes nothing. A log that is only compacted
        (`cleanup_policy="compact"`) refuses.

        Raises OffsetOutOfRangeError after the end, LogConfigError, ReadOnlyError, LogClosedError, LogIOError,
        OfflineError.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append_records([b"a", b"b", b"c"])
        ...     log.delete_records(2), [record.value for record in log.records()]
        (2, [b'c'])
        """
        return self._native.delete_records(before_offset)

    def truncate(self, offset: int) -> int:
        """Cuts off the log's end from `offset` on, and returns the new end, which is the next record's
        offset.

        Only whole batches are cut off: if `offset` is inside a batch, the log ends before that batch. An
        offset at or after the end changes nothing. One before the log's start leaves an empty log that
        continues at that offset. Later records get the offsets that were cut off, so readers that have read
        beyond the new end must start again.

        Raises OffsetOutOfRangeError for a negative offset, ReadOnlyError, LogClosedError, LogIOError,
        OfflineError.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = [log.append(value) for value in (b"a", b"b", b"c")]
        ...     log.truncate(1), log.append(b"other"), [record.value for record in log.records()]
        (1, 1, [b'a', b'other'])
        """
        return self._native.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all records; the log begins anew at `offset`, which is the next record's.

        Raises as `truncate` does.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append(b"a")
        ...     log.truncate_fully_and_start_at(100)
        ...     log.start_offset, log.append(b"b")
        (100, 100)
        """
        self._native.truncate_fully_and_start_at(offset)

    def roll(self) -> None:
        """Ends the active segment and begins a new one, unless it is empty.

        The log also does this by itself, as Kafka's (`segment_bytes`, `segment_ms`). `compact` and retention
        leave the active segment alone: roll before them if they are to process the newest records.

        Raises ReadOnlyError, LogClosedError, LogIOError, OfflineError.
        """
        self._native.roll()

    def compact(self) -> CleanerStats:
        """Compacts the log now: of each key only the last record stays, at its offset.

        `cleanup_policy` must be `"compact"` or `"compact,delete"`, because compaction removes records without
        a key. It does not touch the active segment, open transactions, and records younger than
        `min_compaction_lag_ms`; `roll` first to have the newest records compacted too. Tombstones (value
        None) are removed by the first compaction that comes `delete_retention_ms` after the one that first
        saw them. Ctrl-C ends a compaction; the segments compacted by then stay so. Readers are not disturbed.

        Raises LogConfigError, ReadOnlyError, CorruptLogError, LogClosedError, LogIOError, OfflineError.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp(), cleanup_policy="compact") as log:
        ...     _ = log.append_records([(b"UA1", b"departed"), (b"B6", b"departed"), (b"UA1", b"landed")])
        ...     log.roll()
        ...     stats = log.compact()
        ...     stats.records_read, stats.records_written, stats.clean_until_offset
        ...     [(record.offset, record.value) for record in log.records()]
        (3, 2, 3)
        [(1, b'departed'), (2, b'landed')]
        """
        return CleanerStats(*self._native.compact())

    def verify(self, *, threads: int = 0, progress: Progress | None = None) -> list[Finding]:
        """`logcore.verify` of the log's directory. Appends may go on meanwhile. For `logcore.repair`, close
        the log first.

        >>> import logcore, tempfile
        >>> with logcore.open(tempfile.mkdtemp()) as log:
        ...     _ = log.append(b"departed")
        ...     log.verify()
        []
        """
        return verify(self.path, threads=threads, progress=progress)

    def flush(self) -> None:
        """Brings everything appended to disk. Raises LogIOError; the log is offline then."""
        self._native.flush()

    def close(self) -> None:
        """Flushes and closes. Closing again does nothing, nor does closing in a forked child. Views from
        `fetch` stay valid."""
        self._native.close()


def _seconds(timeout: float | None) -> float | None:
    """The timeout of `follow` and its kin. A timeout of nan would never pass."""
    if timeout is not None and math.isnan(timeout):
        raise ValueError("a timeout is a number of seconds, not nan")
    return timeout
