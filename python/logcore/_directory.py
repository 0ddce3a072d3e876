"""`open_dir` and `LogDirectory`: the logs of a log directory (one of a broker's `log.dirs`) as a mapping.

May be used from any thread. After a crash, opening recovers every log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from logcore import _native
from logcore._log import CleanerStats, Log
from logcore._paths import log_directory, partition_directories
from logcore._tools import Finding, Progress, verify

_CODES = {name: code for code, name, *_ in _native.kafka_errors()}

Settings: TypeAlias = Mapping[str, int | str | bool]


def open_dir(
    path: str | os.PathLike[str],
    *,
    readonly: bool = False,
    compression: str = "none",
    broker_id: int | None = None,
    topics: Mapping[str, Settings] | None = None,
    **config: int | str | bool,
) -> LogDirectory:
    """Opens a log directory, which has a directory `<topic>-<partition>` for each log; it is created when
    missing.

    `path` may be the data directory of `logcore start` (see `logcore.log_directory`).

    One opening in one process may write at a time. A broker counts, Apache Kafka's too; it can serve the
    directory once this is closed. With `readonly` no lock is taken and nothing is written, so it works beside
    a process that writes. After a crash every log is recovered, several at a time. `LogDirectory.failures`
    has those that cannot be recovered. A directory `<topic>-<partition>` with files that are not a log's is
    not touched.

    `config` are Kafka's topic settings with underscores, for all topics; `topics` are settings for single
    topics. The defaults are those of `logcore.open`: no record is deleted because of its age unless
    `retention_ms` says so. `compression` is as in `logcore.open`. `broker_id` is the id in `meta.properties`.
    If it is None, the id that is there is kept, and a new directory gets 0.

    Raises LockedError, LogConfigError, CorruptLogError (another broker's directory), LogIOError, ValueError
    (compression); LogNotFoundError for the directory of a single log, and with `readonly` when there is none.

    >>> import logcore, tempfile
    >>> path = tempfile.mkdtemp()
    >>> with logcore.open_dir(path, topics={"flights": {"retention_ms": 3_600_000}}) as directory:
    ...     _ = directory.create("flights", 0).append(b"departed")
    ...     _ = directory.create("flights", 1)
    ...     list(directory), directory["flights", 0].end_offset
    ([('flights', 0), ('flights', 1)], 1)
    >>> with logcore.open_dir(path, readonly=True) as directory:
    ...     [record.value for record in directory["flights", 0].records()]
    [b'departed']
    """
    if readonly:
        return LogDirectory(_Reader(log_directory(path), compression))
    settings = {topic: dict(values) for topic, values in (topics or {}).items()}
    return LogDirectory(_native.LogDir(log_directory(path), broker_id, compression, config, settings))


class LogDirectory(Mapping[tuple[str, int], Log]):
    """The logs of a log directory by topic and partition; made by `logcore.open_dir`. Safe to use from
    several threads.

    A context manager: leaving the block closes it, which closes every log in it and writes the checkpoints. A
    directory that is not closed is recovered at the next opening. `close` of one of its logs only flushes.

    A directory equals only itself, unlike other mappings.
    """

    __slots__ = ("_native",)
    # Mapping compares contents, which would open every log.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, native: _Directory) -> None:
        self._native = native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = "readonly" if self.readonly else "writable"
        return f"<logcore.LogDirectory {str(self.path)!r} {mode}>"

    def __getitem__(self, key: tuple[str, int]) -> Log:
        if not isinstance(key, tuple) or len(key) != 2:
            raise KeyError(key)
        native = self._native.get(*key)
        if native is None:
            raise KeyError(key)
        return Log(native)

    def __contains__(self, key: object) -> bool:
        return key in self._native.partitions()

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._native.partitions())

    def __len__(self) -> int:
        return len(self._native.partitions())

    def create(self, topic: str, partition: int = 0, **config: int | str | bool) -> Log:
        """Creates an empty log. Settings in `config` override those that the directory was opened with.

        Raises LogExistsError, LogConfigError (also for a topic's name), ReadOnlyError, LogClosedError,
        LogIOError.

        >>> import logcore, tempfile
        >>> with logcore.open_dir(tempfile.mkdtemp()) as directory:
        ...     directory.create("flights", 3, segment_bytes=1 << 20).path.name
        'flights-3'
        """
        return Log(self._native.create(topic, partition, config))

    def delete(self, topic: str, partition: int = 0) -> None:
        """Deletes a log. Existing `Log` objects for it raise LogClosedError from then on. `maintain` removes
        its files after `file_delete_delay_ms`, or `close` does.

        Raises LogNotFoundError, ReadOnlyError, LogClosedError, LogIOError.

        >>> import logcore, tempfile
        >>> with logcore.open_dir(tempfile.mkdtemp()) as directory:
        ...     log = directory.create("flights")
        ...     directory.delete("flights")
        ...     len(directory), log.path.exists()
        (0, False)
        """
        self._native.delete(topic, partition)

    def maintain(self) -> None:
        """Calls `Log.maintain` of every log, then `checkpoint`. Call it from time to time, for example every
        minute; and `compact`, if there are compacted logs.

        Raises ReadOnlyError, LogClosedError, LogIOError. If one log fails, the others are still maintained.
        """
        self._native.maintain()

    def compact(self) -> dict[tuple[str, int], CleanerStats]:
        """Calls `Log.compact` of every compacted log (`cleanup_policy`), one after the other; returns what
        each did.

        Raises ReadOnlyError, CorruptLogError, LogClosedError, LogIOError, OfflineError; the logs after the
        one that failed were not compacted.

        >>> import logcore, tempfile
        >>> topics = {"state": {"cleanup_policy": "compact"}}
        >>> with logcore.open_dir(tempfile.mkdtemp(), topics=topics) as directory:
        ...     _ = directory.create("flights").append(b"departed")
        ...     state = directory.create("state")
        ...     _ = state.append_records([(b"UA1", b"departed"), (b"UA1", b"landed")])
        ...     state.roll()
        ...     {key: stats.records_written for key, stats in directory.compact().items()}
        {('state', 0): 1}
        """
        if isinstance(self._native, _Reader):
            raise self._native.read_only()
        compacted = {key: log for key, log in self.items() if log._native.compacted}
        return {key: log.compact() for key, log in compacted.items()}

    def verify(self, *, threads: int = 0, progress: Progress | None = None) -> list[Finding]:
        """`logcore.verify` of the directory. Appends may go on meanwhile. For `logcore.repair`, close it
        first.
        """
        return verify(self.path, threads=threads, progress=progress)

    def checkpoint(self) -> None:
        """Writes to disk where each log begins and up to where it is flushed, so that recovery has less to
        do.

        Raises ReadOnlyError, LogClosedError, LogIOError.
        """
        self._native.checkpoint()

    @property
    def failures(self) -> list[tuple[Path, str]]:
        """Directories of logs that could not be opened, and why. Their files are unchanged."""
        return self._native.failures

    @property
    def path(self) -> Path:
        """The directory."""
        return self._native.path

    @property
    def readonly(self) -> bool:
        """Whether it was opened for reading only."""
        return isinstance(self._native, _Reader)

    def close(self) -> None:
        """Closes every log, writes the checkpoints, and marks the directory as cleanly closed. Closing again
        does nothing, nor does closing in a forked child.

        Raises LogIOError if a log could not be flushed. The others are still closed.
        """
        self._native.close()


class _Directory(Protocol):
    """What a LogDirectory calls: the extension's `LogDir`, or a `_Reader`."""

    def partitions(self) -> list[tuple[str, int]]: ...
    def get(self, topic: str, partition: int) -> _native.Log | None: ...
    def create(self, topic: str, partition: int, config: dict[str, int | str | bool]) -> _native.Log: ...
    def delete(self, topic: str, partition: int) -> None: ...
    def checkpoint(self) -> None: ...
    def maintain(self) -> None: ...
    def close(self) -> None: ...
    @property
    def failures(self) -> list[tuple[Path, str]]: ...
    @property
    def path(self) -> Path: ...


class _Reader:
    """A directory opened read-only, which another process may be writing. Logs are opened at their first
    use.
    """

    def __init__(self, path: Path, compression: str) -> None:
        if not path.is_dir():
            raise _native.LogNotFoundError(f"there is no log at {path}")
        self.path = path.resolve()
        self.failures: list[tuple[Path, str]] = []
        self._compression = compression
        self._opened: dict[tuple[str, int], _native.Log] = {}
        self._closed = False
        self._lock = threading.Lock()

    def partitions(self) -> list[tuple[str, int]]:
        return sorted(partition_directories(self.path))

    def get(self, topic: str, partition: int) -> _native.Log | None:
        key = (topic, partition)
        with self._lock:
            if self._closed:
                error = _native.LogClosedError(f"the directory {self.path} is closed")
                error.code = _CODES["NOT_LEADER_OR_FOLLOWER"]
                raise error
            directory = partition_directories(self.path).get(key)
            if directory is None:
                # It was deleted. A later directory of this name is another log.
                self._opened.pop(key, None)
                return None
            if key not in self._opened:
                self._opened[key] = _native.Log(directory, False, True, self._compression, {})
            return self._opened[key]

    def create(self, topic: str, partition: int, config: dict[str, int | str | bool]) -> _native.Log:
        raise self.read_only()

    def delete(self, topic: str, partition: int) -> None:
        raise self.read_only()

    def checkpoint(self) -> None:
        raise self.read_only()

    def maintain(self) -> None:
        raise self.read_only()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for log in self._opened.values():
                log.close()

    def read_only(self) -> _native.ReadOnlyError:
        error = _native.ReadOnlyError(f"the directory {self.path} was opened read-only")
        error.code = _CODES["POLICY_VIOLATION"]
        return error
