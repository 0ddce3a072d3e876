"""Partitions that are both at brokers and in log directories: brokers say what may be read, files are read
where they have it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from pyspark_logcore._directory import DirectoryLog
from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import Bounds, Catalog, Key, OffsetRange
from pyspark_logcore._wire import BrokerLog

logger = logging.getLogger("pyspark_logcore")


@dataclass(frozen=True)
class MixedLog:
    """`access=auto` with a path and brokers, and `access=files` with both."""

    files: DirectoryLog
    brokers: BrokerLog
    only_files: bool

    @contextmanager
    def catalog(self) -> Iterator[_MixedCatalog]:
        """The catalog for the plan."""
        with self.brokers.catalog() as brokers:
            yield _MixedCatalog(self.files, brokers)

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches, from files or else from the partition's leader."""
        if self.only_files:
            return self.files.read(task, columns)
        problems: list[str] = []
        directory = self.files.directory_with(task, problems)
        if directory is not None:
            return self.files.scan(directory, task, columns)
        name = f"{task.topic}-{task.partition}"
        logger.info(
            "offsets [%d, %d) of %s are read from the brokers: %s",
            task.start,
            task.end,
            name,
            "; ".join(problems),
        )
        return self.brokers.read(task, columns)


@dataclass(frozen=True)
class _MixedCatalog:
    """What the brokers say, and cuts by bytes where the files are here."""

    files: DirectoryLog
    brokers: Catalog

    def partitions(self, choice: TopicChoice) -> list[Key]:
        return self.brokers.partitions(choice)

    def bounds(self, partitions: Sequence[Key]) -> dict[Key, Bounds]:
        return self.brokers.bounds(partitions)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        return self.brokers.offset_at(topic, partition, timestamp)

    def stored_bytes(self, partitions: Sequence[Key]) -> dict[Key, int]:
        return self.brokers.stored_bytes(partitions)

    def cut(self, one: OffsetRange, parts: int) -> list[int]:
        return self.files.cut(one, parts)
