"""Partitions in log directories: the plan's catalog, and the tasks that read segment files.

Read-only. Brokers may write the same directories; records appended after the plan are not read. Of several
directories, those of one cluster's brokers, each partition is read once, from a replica that has what the
task reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

import logcore
from logcore.columns import (
    PartitionScan,
    partition_covers,
    partition_offset_for_timestamp,
    partition_offsets,
    partition_splits,
    partition_topic_id,
)
from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import Bounds, Key, OffsetRange, cut_evenly, say_lost

logger = logging.getLogger("pyspark_logcore")

# The cluster's own topics: read only when they are named.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})


@dataclass(frozen=True)
class DirectoryLog:
    """Log directories, data directories of `logcore start`, or one partition's directory. Pickled into tasks,
    so it has the paths only; files are opened when they are read.
    """

    paths: tuple[str, ...]
    isolation: str
    may_lose: bool = False
    """Whether a task leaves out records that were deleted after the plan (failOnDataLoss=false)."""

    @contextmanager
    def catalog(self) -> Iterator[DirectoryLog]:
        """The catalog for the plan."""
        yield self

    def partitions(self, choice: TopicChoice) -> list[Key]:
        found = self._found()
        chosen = sorted(key for key in found if choice.wants(*key))
        if choice.everything:
            chosen = [key for key in chosen if key[0] not in _INTERNAL]
        for topic, partition in choice.required():
            if not any(topic == key[0] and partition in (None, key[1]) for key in chosen):
                what = f"topic {topic!r}" if partition is None else f"partition {topic}-{partition}"
                there = ", ".join(sorted({key[0] for key in found})) or "no topic at all"
                raise ValueError(f"{what} is not in {self._where()}; there is {there}")
        return chosen

    def bounds(self, partitions: Sequence[Key]) -> dict[Key, Bounds]:
        return {key: self._best(*key)[1] for key in partitions}

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        return partition_offset_for_timestamp(self._best(topic, partition)[0], timestamp)

    def stored_bytes(self, partitions: Sequence[Key]) -> dict[Key, int]:
        return {
            key: sum(segment.stat().st_size for segment in self._best(*key)[0].glob("*.log"))
            for key in partitions
        }

    def cut(self, one: OffsetRange, parts: int) -> list[int]:
        """By bytes, at entries of the index; evenly where the index has too few."""
        directory = None if parts == 1 else self.directory_with(one, [])
        if directory is not None:
            ranges = partition_splits(directory, parts, one.start, one.end)
            if len(ranges) == parts:
                return [one.start, *(end for _, end in ranges)]
        return cut_evenly(one, parts)

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches. The extension reads, checks and decodes."""
        problems: list[str] = []
        directory = self.directory_with(task, problems)
        if directory is None and self.may_lose:
            earliest = self._best(task.topic, task.partition)[1].earliest
            if earliest > task.start:
                say_lost(task, task.start, earliest)
                rest = replace(task, start=min(earliest, task.end))
                return self.read(rest, columns) if rest.size else iter(())
        if directory is None:
            raise ValueError(
                f"offsets [{task.start}, {task.end}) of {task.topic}-{task.partition} cannot be read from "
                f"{self._where()}: {'; '.join(problems)}"
            )
        return self.scan(directory, task, columns)

    def scan(self, directory: Path, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows of a replica that has them."""
        scan = PartitionScan(
            directory,
            task.topic,
            task.partition,
            columns,
            task.start,
            task.end,
            isolation_level=self.isolation,
        )
        for batch in scan:
            yield pa.record_batch(batch)

    def directory_with(self, task: OffsetRange, problems: list[str]) -> Path | None:
        """The first directory that certainly has the task's records. None, and why in `problems`, if there is
        none.
        """
        for path in self.paths:
            directory = _replica(path, task.topic, task.partition)
            if directory is None:
                problems.append(f"{path} has no such partition")
                continue
            try:
                if task.topic_id and partition_topic_id(directory) not in (None, task.topic_id):
                    problems.append(f"{directory} is of another topic of this name, which was deleted")
                    continue
                if partition_covers(directory, task.start, task.end, task.leader_epoch, self.isolation):
                    return directory
                start, end = partition_offsets(directory, self.isolation)
                problems.append(f"{directory} has the offsets [{start}, {end})")
            except (logcore.LogError, OSError) as error:
                problems.append(str(error))
        return None

    def _best(self, topic: str, partition: int) -> tuple[Path, Bounds]:
        """The replica that may be read furthest."""
        places = (_replica(path, topic, partition) for path in self.paths)
        replicas = [place for place in places if place is not None]
        if not replicas:
            raise ValueError(f"partition {topic}-{partition} is not in {self._where()}")
        found: list[tuple[Path, Bounds]] = []
        for one in replicas:
            _, log_end = partition_offsets(one)
            found.append((one, Bounds(*partition_offsets(one, self.isolation), log_end=log_end)))
        return max(found, key=lambda one: one[1].latest)

    def _where(self) -> str:
        return ", ".join(self.paths)

    def _found(self) -> set[Key]:
        found: set[Key] = set()
        missing = []
        for path in self.paths:
            try:
                found |= logcore.find_logs(path).keys()
            except logcore.LogNotFoundError as error:
                missing.append(str(error))
        if len(missing) == len(self.paths):
            raise ValueError(f"{'; '.join(missing)} (on the machine that plans the query)")
        for problem in missing:
            logger.warning("%s", problem)
        if not found:
            raise ValueError(
                f"{self._where()} holds no partition: it has no directory <topic>-<partition> with segment "
                "files"
            )
        return found


def _replica(path: str, topic: str, partition: int) -> Path | None:
    usual = logcore.log_directory(path) / f"{topic}-{partition}"
    if usual.is_dir():
        return usual
    try:
        return logcore.find_logs(path).get((topic, partition))
    except logcore.LogNotFoundError:
        return None
