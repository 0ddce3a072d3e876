"""Kafka's log as a library: open a directory, append, fetch, look up by offset and by time; no server needed.

>>> import logcore, tempfile
>>> directory = tempfile.mkdtemp()
>>> with logcore.open(directory) as log:
...     first = log.append(b"departed", key=b"UA", timestamp=1_357_034_400_000)
...     first, last = log.append_records([(b"AA", b"departed"), (b"B6", b"cancelled")])
...     [record.value for record in log.records()]
[b'departed', b'departed', b'cancelled']

- `open_dir` opens many logs at once, in a log directory as a broker has it.
- `Log.follow` waits for more records. An `Appender` appends without blocking an event loop.
- `Log.scan` and `Log.append_table` read and write Arrow.
- With `isolation_level="read_committed"` readers leave out records that are not committed.
- `Log.maintain` applies retention, `Log.compact` compacts. `Log.truncate` shortens a log at its end,
  `Log.delete_records` at its front.
- `verify` and `repair` check and mend directories. They, `open_dir` and `find_logs` also take the data
  directory of `logcore start`: `log_directory` finds the logs in it.

The files are Apache Kafka's. A directory written here can be put among a broker's, and a broker's partition
can be read here, also while the broker writes it (`readonly=True`).

What the functions return (`Record`, `Finding`, `CleanerStats` and so on) can be compared, hashed, copied and
pickled. `Log`, `LogDirectory` and `Appender` stand for open files and cannot be pickled.

Errors::

    LogError                     the base of all below; `code` is Kafka's error code
    ├── LogNotFoundError         there is no log at this path
    ├── LogExistsError           the log to be created exists already
    ├── LockedError              another process, or another opening, writes the log
    ├── LogConfigError           an unknown setting, or a bad value
    ├── LogClosedError           the log was closed
    ├── ReadOnlyError            a change to a log opened with `readonly=True`
    ├── OffsetOutOfRangeError    an offset before the log's start or after its end
    ├── InvalidRecordError       a record or batch that is damaged or not allowed
    ├── RecordTooLargeError      a batch larger than `max_message_bytes`
    ├── ProducerStateError       a batch of an idempotent producer out of its order
    ├── CorruptLogError          a file of the log is damaged
    ├── LogIOError               the operating system refused; `errno` is its number or None
    └── OfflineError             a write failed before; open the log anew
"""

from logcore._appender import Appender
from logcore._directory import LogDirectory, open_dir
from logcore._log import AbortedTransaction, ArrowTable, CleanerStats, IsolationLevel, Log, open
from logcore._native import (
    CorruptLogError,
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
    __version__,
)
from logcore._paths import find_logs, log_directory
from logcore._records import RecordLike, build_batch, parse_batches
from logcore._tools import Finding, RepairAction, Repaired, repair, verify

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
    "find_logs",
    "log_directory",
    "open",
    "open_dir",
    "parse_batches",
    "repair",
    "verify",
]
