"""Kafka's log as a library: open a directory, append, fetch, look up by offset and by time; no server needed.

>>> import logcore, tempfile
>>> directory = tempfile.mkdtemp()
>>> with logcore.open(directory) as log:
...     first = log.append(b"departed", key=b"UA", timestamp=1_357_034_400_000)
...     first, last = log.append_records([(b"AA", b"departed"), (b"B6", b"cancelled")])
...     [record.value for record in log.records()]
[b'departed', b'departed', b'cancelled']

`open_dir` opens many logs at once, as a broker has them; `Log.follow` waits for more; `Log.scan` and
`Log.append_table` speak Arrow; an `Appender` appends beside an event loop. Whatever reads can leave out what is not committed
(`isolation_level="read_committed"`). `Log.maintain` applies retention, `Log.compact` compacts, `Log.truncate` and
`Log.delete_records` shorten a log at its end and at its front; `verify` and `repair` are for directories.

The files are Apache Kafka's: a directory written here can be put among a broker's, and a partition of a
broker's can be read here, also while the broker writes it (`readonly=True`).

Errors::

    LogError                     anything below; `code` is Kafka's error code
    ├── LogNotFoundError         there is no log at this path
    ├── LogExistsError           what was to be created is there
    ├── LockedError              another process, or another opening, writes the log
    ├── LogConfigError           an unknown setting, or a bad value
    ├── LogClosedError           the log was closed
    ├── ReadOnlyError            a change of a log opened with `readonly=True`
    ├── OffsetOutOfRangeError    an offset before the log's start or after its end
    ├── InvalidRecordError       records or batches that are not allowed or damaged
    ├── RecordTooLargeError      a batch larger than `max_message_bytes`
    ├── ProducerStateError       a batch of an idempotent producer out of its order
    ├── CorruptLogError          the files hold bytes they cannot hold
    ├── LogIOError               the operating system refused
    └── OfflineError             a write failed before; open the log anew
"""

from logcore._appender import Appender
from logcore._directory import LogDirectory, open_dir
from logcore._log import (
    AbortedTransaction,
    ArrowTable,
    IsolationLevel,
    Log,
    RecordLike,
    build_batch,
    open,
    parse_batches,
)
from logcore._native import (
    CleanerStats,
    CorruptLogError,
    Finding,
    InvalidRecordError,
    LockedError,
    LogClosedError,
    LogConfigError,
    LogError,
    LogExistsError,
    LogIOError,
    LogNotFoundError,
    OfflineError,
    OffsetOutOfRangeError,
    ProducerStateError,
    ReadOnlyError,
    Record,
    RecordTooLargeError,
    RepairAction,
    Repaired,
    __version__,
)
from logcore._tools import repair, verify

__all__ = [
    "AbortedTransaction",
    "Appender",
    "ArrowTable",
    "CleanerStats",
    "CorruptLogError",
    "Finding",
    "InvalidRecordError",
    "IsolationLevel",
    "LockedError",
    "Log",
    "LogClosedError",
    "LogConfigError",
    "LogDirectory",
    "LogError",
    "LogExistsError",
    "LogIOError",
    "LogNotFoundError",
    "OfflineError",
    "OffsetOutOfRangeError",
    "ProducerStateError",
    "ReadOnlyError",
    "Record",
    "RecordLike",
    "RecordTooLargeError",
    "RepairAction",
    "Repaired",
    "__version__",
    "build_batch",
    "open",
    "open_dir",
    "parse_batches",
    "repair",
    "verify",
]
