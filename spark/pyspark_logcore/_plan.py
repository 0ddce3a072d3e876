"""The plan of a read: which offsets of which partitions are read, and how they are split into tasks.

Runs once a query, in Spark's planning process. It does no I/O itself: a `Catalog` reads the files or asks the
brokers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from pyspark_logcore._limits import EARLIEST, LATEST, Kind, Limit
from pyspark_logcore._options import SourceOptions, TopicChoice


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """One task: the offsets [start, end) of a partition. It is pickled into the task, so it has nothing
    else.
    """

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Catalog(Protocol):
    """Answers the plan's questions about partitions."""

    def partitions(self, choice: TopicChoice) -> list[tuple[str, int]]:
        """The chosen partitions, sorted. Raises ValueError when a named one does not exist."""
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The earliest offset, and the offset after the last record."""
        ...

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The offset of the first record at or after `timestamp` (ms), None when there is none."""
        ...


def plan(options: SourceOptions, catalog: Catalog) -> list[OffsetRange]:
    """Turns the limits into ranges of offsets and splits these into tasks. Empty ranges are left out."""
    partitions = catalog.partitions(options.choice)
    options.starting.check_covers(partitions)
    options.ending.check_covers(partitions)
    ranges = [_resolve(options, catalog, topic, partition) for topic, partition in partitions]
    return split([one for one in ranges if one.size > 0], options.min_partitions, options.max_records)


def _resolve(options: SourceOptions, catalog: Catalog, topic: str, partition: int) -> OffsetRange:
    earliest, latest = catalog.bounds(topic, partition)

    def at(limit: Limit) -> int | None:
        number = limit.of(topic, partition)
        if limit.kind is Kind.TIMESTAMP:
            return catalog.offset_at(topic, partition, number)
        return {EARLIEST: earliest, LATEST: latest}.get(number, number)

    start, end = at(options.starting), at(options.ending)
    if start is None:
        if not options.latest_when_too_late:
            raise ValueError(
                f"no record of {topic}-{partition} is at or after {options.starting.of(topic, partition)} "
                f"(option {options.starting.option!r}); set startingOffsetsByTimestampStrategy to latest "
                "to read no record of it"
            )
        start = latest
    if end is None:
        end = latest
    for limit, offset in ((options.starting, start), (options.ending, end)):
        if options.fail_on_data_loss and not earliest <= offset <= latest:
            raise ValueError(
                f"offset {offset} of {topic}-{partition} (option {limit.option!r}) is not in the log, "
                f"which has [{earliest}, {latest}); set failOnDataLoss to false to read those that exist"
            )
    if options.fail_on_data_loss and start > end:
        raise ValueError(
            f"{topic}-{partition}: the start {start} (option {options.starting.option!r}) is after "
            f"the end {end} (option {options.ending.option!r})"
        )
    return OffsetRange(topic, partition, max(start, earliest), min(end, latest))


def split(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Splits ranges into tasks.

    Without the two options, each range is one task. With `min_partitions` and fewer ranges than that, a range
    gets its share of that many tasks, in proportion to its number of offsets. With `max_records`, a task has
    at most so many offsets. The parts of a range have equally many offsets, so a cut may fall inside a batch.
    """
    total = sum(one.size for one in ranges)
    tasks: list[OffsetRange] = []
    for one in ranges:
        parts = 1
        if min_partitions is not None and len(ranges) < min_partitions:
            parts = max(parts, round(one.size * min_partitions / total))
        if max_records is not None:
            parts = max(parts, -(-one.size // max_records))
        parts = min(parts, one.size)
        edges = [one.start + one.size * index // parts for index in range(parts + 1)]
        tasks += [OffsetRange(one.topic, one.partition, low, high) for low, high in itertools.pairwise(edges)]
    return tasks
