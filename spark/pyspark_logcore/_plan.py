"""The plan of a batch read: which offsets of which partitions are read, and how they are split into tasks.

Runs once a query, in Spark's planning process. It does no I/O itself: a `Catalog` reads the files or asks the
brokers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from pyspark.sql.datasource import InputPartition

from pyspark_logcore._filters import Wanted
from pyspark_logcore._limits import EARLIEST, LATEST, Kind, Limit
from pyspark_logcore._options import SourceOptions, TopicChoice

logger = logging.getLogger("pyspark_logcore")


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """One task: the offsets [start, end) of a partition. It is pickled into the task, so it has nothing
    else.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int = -1
    """The leader's latest epoch when it declared `end` readable; -1 when no broker was asked."""
    topic_id: bytes = b""
    """The topic's id at the brokers; empty when they have none or were not asked."""

    @property
    def size(self) -> int:
        return self.end - self.start


class Bounds(NamedTuple):
    """What a reader may read of a partition."""

    earliest: int
    latest: int
    """The offset after the last record: the high watermark, or with read_committed the last stable offset."""
    leader_epoch: int = -1
    """The leader's latest epoch; -1 when no broker was asked."""
    log_end: int = -1
    """Of a directory, the offset after the last record, replicated or not; -1 at brokers."""
    topic_id: bytes = b""
    """The topic's id at the brokers; empty when they have none or were not asked."""


Key: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Catalog(Protocol):
    """Answers the plan's questions about partitions."""

    def partitions(self, choice: TopicChoice) -> list[Key]:
        """The chosen partitions, sorted. Raises ValueError when a named one does not exist."""
        ...

    def bounds(self, partitions: Sequence[Key]) -> dict[Key, Bounds]:
        """What may be read of each of these partitions."""
        ...

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The offset of the first record at or after `timestamp` (ms), None when there is none."""
        ...

    def stored_bytes(self, partitions: Sequence[Key]) -> dict[Key, int]:
        """The size of each partition on disk."""
        ...

    def cut(self, one: OffsetRange, parts: int) -> list[int]:
        """Offsets that cut a range into at most so many parts of about the same size, its ends included."""
        ...


def plan(options: SourceOptions, catalog: Catalog, wanted: Wanted | None = None) -> list[OffsetRange]:
    """Turns the limits into ranges of offsets and splits these into tasks.

    Left out are empty ranges, and what has no row that is wanted (default: all are).
    """
    wanted = Wanted() if wanted is None else wanted
    starting, ending = options.starting(stream=False), options.ending()
    partitions = catalog.partitions(options.choice)
    starting.check_covers(partitions)
    ending.check_covers(partitions)
    partitions = [key for key in partitions if wanted.has(*key)]
    bounds = catalog.bounds(partitions)
    ranges = []
    for key in partitions:
        one = _resolve(options, (starting, ending), catalog, key, bounds[key])
        start, end = wanted.within(one.start, one.end, partial(catalog.offset_at, *key))
        if start < end:
            ranges.append(replace(one, start=start, end=end))
    return split(ranges, options.min_partitions, options.max_records, catalog.cut)


def offset_of(limit: Limit, catalog: Catalog, key: Key, bounds: Bounds) -> int | None:
    """The offset that a limit stands for; None when no record is at or after its time."""
    number = limit.of(*key)
    if limit.kind is Kind.TIMESTAMP:
        return catalog.offset_at(*key, number)
    return {EARLIEST: bounds.earliest, LATEST: bounds.latest}.get(number, number)


def start_of(options: SourceOptions, starting: Limit, catalog: Catalog, key: Key, bounds: Bounds) -> int:
    """The offset that a read starts at. Raises ValueError when its time is too late, unless the option
    startingOffsetsByTimestampStrategy allows that.
    """
    start = offset_of(starting, catalog, key, bounds)
    if start is not None:
        return start
    if not options.latest_when_too_late:
        topic, partition = key
        raise ValueError(
            f"no record of {topic}-{partition} is at or after {starting.of(topic, partition)} "
            f"(option {starting.option!r}); set startingOffsetsByTimestampStrategy to latest "
            "to read no record of it"
        )
    return bounds.latest


def _resolve(
    options: SourceOptions, limits: tuple[Limit, Limit], catalog: Catalog, key: Key, bounds: Bounds
) -> OffsetRange:
    starting, ending = limits
    topic, partition = key
    earliest, latest = bounds.earliest, bounds.latest
    start = start_of(options, starting, catalog, key, bounds)
    end = offset_of(ending, catalog, key, bounds)
    if end is None:
        end = latest
    for limit, offset in ((starting, start), (ending, end)):
        if options.fail_on_data_loss and not earliest <= offset <= latest:
            raise ValueError(
                f"offset {offset} of {topic}-{partition} (option {limit.option!r}) is not in the log, "
                f"which has [{earliest}, {latest}); set failOnDataLoss to false to read those that exist"
            )
    if options.fail_on_data_loss and start > end:
        raise ValueError(
            f"{topic}-{partition}: the start {start} (option {starting.option!r}) is after "
            f"the end {end} (option {ending.option!r})"
        )
    start, end = max(start, earliest), min(end, latest)
    return OffsetRange(topic, partition, start, end, bounds.leader_epoch, bounds.topic_id)


def say_lost(task: OffsetRange, offset: int, earliest: int) -> None:
    """Logs that a task with failOnDataLoss=false goes on behind records that are gone."""
    logger.warning(
        "offsets [%d, %d) of %s-%d were deleted after the plan was made; the records behind them are read",
        offset,
        min(earliest, task.end),
        task.topic,
        task.partition,
    )


def cut_evenly(one: OffsetRange, parts: int) -> list[int]:
    """Parts with equally many offsets."""
    return [one.start + one.size * index // parts for index in range(parts + 1)]


def split(
    ranges: list[OffsetRange],
    min_partitions: int | None,
    max_records: int | None,
    cut: Callable[[OffsetRange, int], list[int]] = cut_evenly,
) -> list[OffsetRange]:
    """Splits ranges into tasks.

    Without the two options, each range is one task. With `min_partitions` and fewer ranges than that, a range
    gets its share of that many tasks, in proportion to its number of offsets, and `cut` cuts it. With
    `max_records`, a task has at most so many offsets, and the parts of a range have equally many. A cut may
    fall inside a batch.
    """
    total = sum(one.size for one in ranges)
    tasks: list[OffsetRange] = []
    for one in ranges:
        parts = 1
        if min_partitions is not None and len(ranges) < min_partitions:
            parts = min(max(parts, round(one.size * min_partitions / total)), one.size)
        fewest = 1 if max_records is None else -(-one.size // max_records)
        edges = cut_evenly(one, max(parts, fewest)) if fewest > 1 else cut(one, parts)
        tasks += [replace(one, start=low, end=high) for low, high in itertools.pairwise(edges)]
    return tasks
