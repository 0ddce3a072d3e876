"""The bulk load: rows straight into a log directory that no broker has open, `df.write` with `path`.

Each task writes its rows as logs of its own below `.load-<job>` in the directory. When all tasks are done,
the driver appends these to the partitions, whose batches get their offsets then. So the rows of a partition
are in the order of the tasks, and of a task's rows. A failed or repeated task leaves nothing behind.

The executors and the driver need the same directory. A driver that is lost leaves `.load-<job>` behind, and
if it was in the last step, the partitions with a part of the rows; offsets are never given twice.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import logcore
from cluster.client.batches import partitions_of_rows
from pyspark_logcore._options import local_path, positive
from pyspark_logcore._plan import Key
from pyspark_logcore._sink import OF_SPARK, check_columns, task_context

logger = logging.getLogger("pyspark_logcore")

_KNOWN = ("path", "topic", "partitions", "compression")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_RECORD = ("key", "value", "headers", "timestamp")
_PIECE = 8 << 20
"""Bytes that are copied at a time."""
_BATCH = 1 << 20
"""Bytes of a batch, unless a single row is larger."""
_LARGEST = 256 << 20
"""Bytes of the largest row. No broker is asked, so none of its limits counts."""


@dataclass(frozen=True)
class LoadOptions:
    """The user's options."""

    path: str
    topic: str | None
    partitions: int | None
    compression: str


@dataclass(frozen=True)
class Loaded(WriterCommitMessage):
    """The logs that one task wrote."""

    task: int
    logs: dict[Key, str]
    """The directory of each."""


def bulk_writer(given: Mapping[str, str], schema: StructType) -> DataSourceArrowWriter:
    """The writer of a bulk load. Raises ValueError for a bad option or column."""
    return BulkWriter(_parse(given, schema), uuid.uuid4().hex[:12])


class BulkWriter(DataSourceArrowWriter):
    """See the module."""

    def __init__(self, options: LoadOptions, job: str) -> None:
        self._options = options
        self._directory = logcore.log_directory(options.path)
        self._staging = self._directory / f".load-{job}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = task_context()
        home = self._staging / f"{task.partitionId()}-{task.taskAttemptId()}"
        home.mkdir(parents=True)
        logs: dict[Key, logcore.Log] = {}
        places: dict[Key, str] = {}
        count_of = functools.cache(self._count)
        try:
            for number, batch in enumerate(iterator):
                for key, rows in self._by_partition(batch, number, count_of):
                    if key not in logs:
                        # Numbered: a topic's name is only known to be one when the partition is made.
                        places[key] = str(home / str(len(logs)))
                        logs[key] = logcore.open(
                            places[key], compression=self._options.compression, max_message_bytes=_LARGEST
                        )
                    logs[key].append_table(rows, batch_bytes=_BATCH)
        finally:
            for log in logs.values():
                log.close()
        return Loaded(task.partitionId(), places)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self._join([one for one in messages if isinstance(one, Loaded)])
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)

    def _join(self, found: list[Loaded]) -> None:
        """Appends what the tasks wrote to the partitions. Those of a new topic are all made, and first."""
        found.sort(key=lambda one: one.task)
        keys = sorted({key for one in found for key in one.logs})
        counts = {topic: self._count(topic) for topic, _ in keys}
        with (
            logcore.open_dir(self._directory, max_message_bytes=_LARGEST) as directory,
            ThreadPoolExecutor(os.cpu_count(), "logcore-load") as threads,
        ):
            for topic, count in counts.items():
                for partition in range(count):
                    if (topic, partition) not in directory:
                        directory.create(topic, partition)

            def join(key: Key) -> None:
                for one in found:
                    if key in one.logs:
                        _copy(Path(one.logs[key]), directory[key])

            for _ in threads.map(join, keys):
                pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)

    def _by_partition(
        self, batch: pa.RecordBatch, number: int, count_of: Callable[[str], int]
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """The rows of each partition, in their order. Rows without a key and a partition go to one partition
        together, the next batch's to the next.
        """
        for topic, rows in self._by_topic(batch):
            count = count_of(topic)
            chosen = pa.array(partitions_of_rows(rows, count, number % count))
            record = rows.select([name for name in _RECORD if name in rows.schema.names])
            for partition in pc.unique(chosen).to_pylist():
                if not 0 <= partition < count:
                    raise ValueError(
                        f"a row names the partition {partition} of {topic}, which has {count}; set the "
                        "option partitions"
                    )
                yield (topic, partition), record.filter(pc.equal(chosen, partition))

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        topics = batch.column("topic")
        for topic in pc.unique(topics).to_pylist():
            if topic is None:
                raise ValueError("a row names no topic: set the option topic, or fill the column topic")
            yield topic, batch.filter(pc.equal(topics, topic))

    def _count(self, topic: str) -> int:
        """A topic's partitions: those that are there, or as many as the option says. Raises ValueError when
        the option says something else, or some are elsewhere.
        """
        asked = self._options.partitions
        there: list[int] = []
        if self._directory.is_dir():
            there = sorted(key[1] for key in logcore.find_logs(self._directory) if key[0] == topic)
        if not there:
            return asked or 1
        count = there[-1] + 1
        if len(there) != count:
            raise ValueError(
                f"{self._directory} has the partitions {', '.join(map(str, there))} of {topic} only: rows "
                "are loaded into a directory that has all partitions of their topic"
            )
        if asked not in (None, count):
            raise ValueError(
                f"{topic} has {count} partitions in {self._directory}, and the option partitions says "
                f"{asked}: leave the option out"
            )
        return count


def _copy(source: Path, log: logcore.Log) -> None:
    """Appends the batches of a task's log as they are; they get their offsets."""
    with logcore.open(source, readonly=True) as staged:
        for batches in staged.follow_batches(0, timeout=0, max_bytes=_PIECE):
            log.append_batches(batches)


def _parse(given: Mapping[str, str], schema: StructType) -> LoadOptions:
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(name for name in options if name not in _KNOWN and name not in OF_SPARK)
    if any(name.startswith("kafka.") for name in unknown):
        raise ValueError("set a path to load a directory, or kafka.* options to write to brokers, not both")
    if unknown:
        raise ValueError(
            f"unknown option {', '.join(map(repr, unknown))} for a bulk load; the options are "
            f"{', '.join(_KNOWN)}"
        )
    topic = options.get("topic")
    check_columns(schema, topic)
    compression = options.get("compression", "none").strip().lower()
    if compression not in _CODECS:
        raise ValueError(f"option 'compression' must be one of {', '.join(_CODECS)}, not {compression!r}")
    return LoadOptions(local_path(options["path"]), topic, positive(options, "partitions"), compression)
