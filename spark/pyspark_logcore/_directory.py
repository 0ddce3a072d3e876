"""Partitions as segment files: the catalogue of a log directory, and the tasks that read it.

Read-only, and fine beside a broker that writes the same directory: what is appended after the plan is not
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from logcore.columns import PartitionScan, partition_offset_for_timestamp, partition_offsets
from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import OffsetRange

# Kafka names a partition's directory `<topic>-<partition>`; those being deleted or moved end in another word.
_PARTITION_DIR = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]+)")

# Where `logcore start` puts the logs below its data directory.
LOGS_INSIDE = "kafka-logs"

# The cluster's own topics: read when named, not when everything is.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})


@dataclass(frozen=True)
class DirectoryLog:
    """A log directory, or a single partition's directory. Holds its path only; files are opened while
    reading.
    """

    path: str

    @contextmanager
    def catalog(self) -> Iterator[DirectoryLog]:
        """What the plan asks."""
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
        """Yields the task's rows as Arrow batches; the extension reads, checks and decodes."""
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
        root = self._root()
        if not root.is_dir():
            problem = "is a file, not a directory" if root.exists() else "does not exist"
            raise ValueError(f"log directory {self.path} {problem} (on the machine that plans the query)")
        if any(root.glob("*.log")) and (one := _PARTITION_DIR.fullmatch(root.resolve().name)):
            return {(one["topic"], int(one["partition"])): root}
        found: dict[tuple[str, int], Path] = {}
        for entry in root.iterdir():
            match = _PARTITION_DIR.fullmatch(entry.name)
            if match and any(entry.glob("*.log")):
                found[match["topic"], int(match["partition"])] = entry
        if not found:
            raise ValueError(
                f"{self.path} holds no partition: no directory <topic>-<partition> with segment files"
            )
        return found

    def _root(self) -> Path:
        inside = Path(self.path) / LOGS_INSIDE
        return inside if inside.is_dir() else Path(self.path)

    def _directory(self, topic: str, partition: int) -> str:
        inside = self._root() / f"{topic}-{partition}"
        return str(inside if inside.is_dir() else self.path)
