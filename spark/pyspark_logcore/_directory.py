"""Partitions in a log directory: the plan's catalog, and the tasks that read segment files.

Read-only. A broker may write the same directory; records appended after the plan are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import logcore
from logcore.columns import PartitionScan, partition_offset_for_timestamp, partition_offsets
from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import OffsetRange

# The cluster's own topics: read only when they are named.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})


@dataclass(frozen=True)
class DirectoryLog:
    """A log directory, the data directory of `logcore start`, or one partition's directory. Pickled into
    tasks, so it has the path only; files are opened when they are read.
    """

    path: str

    @contextmanager
    def catalog(self) -> Iterator[DirectoryLog]:
        """The catalog for the plan."""
        yield self

    def partitions(self, choice: TopicChoice) -> list[tuple[str, int]]:
        found = self._found()
        chosen = sorted(key for key in found if choice.wants(*key))
        if choice.everything:
            chosen = [key for key in chosen if key[0] not in _INTERNAL]
        for topic, partition in choice.required():
            if not any(topic == key[0] and partition in (None, key[1]) for key in chosen):
                what = f"topic {topic!r}" if partition is None else f"partition {topic}-{partition}"
                there = ", ".join(sorted({key[0] for key in found})) or "no topic at all"
                raise ValueError(f"{what} is not in {self.path}; there is {there}")
        return chosen

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return partition_offsets(self._directory(topic, partition))

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        return partition_offset_for_timestamp(self._directory(topic, partition), timestamp)

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches. The extension reads, checks and decodes."""
        scan = PartitionScan(
            self._directory(task.topic, task.partition),
            task.topic,
            task.partition,
            columns,
            task.start,
            task.end,
        )
        for batch in scan:
            yield pa.record_batch(batch)

    def _found(self) -> dict[tuple[str, int], Path]:
        try:
            found = logcore.find_logs(self.path)
        except logcore.LogNotFoundError as error:
            raise ValueError(f"{error} (on the machine that plans the query)") from None
        if not found:
            raise ValueError(
                f"{self.path} holds no partition: it has no directory <topic>-<partition> with segment files"
            )
        return found

    def _directory(self, topic: str, partition: int) -> Path:
        usual = logcore.log_directory(self.path) / f"{topic}-{partition}"
        if usual.is_dir():
            return usual
        return logcore.find_logs(self.path)[topic, partition]
