"""What a query's filters leave to read: `where("partition = 2 and offset >= 1000")`.

Spark hands a query's filters to a Python data source while `spark.sql.python.filterPushdown.enabled` is
true. The plan then leaves out the partitions, and the offsets at both ends of one, that have no such row.
Spark still applies every filter to the rows that are read, so the plan may keep more than needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime.fromtimestamp(0, UTC)


class _Values:
    """The values of a column that may pass: from `low` to `high`, both included, and of `only`; None is no
    limit. A strict comparison keeps its value, too: Spark leaves it out.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.low: Any = None
        self.high: Any = None
        self.only: frozenset[Any] | None = None

    def narrow(self, one: Filter) -> None:
        """Leaves out what a filter excludes, if it compares with values of the column's type."""
        match one:
            case GreaterThan(value=value) | GreaterThanOrEqual(value=value) if self._has_kind(value):
                self.low = value if self.low is None else max(self.low, value)
            case LessThan(value=value) | LessThanOrEqual(value=value) if self._has_kind(value):
                self.high = value if self.high is None else min(self.high, value)
            case EqualTo(value=value) | EqualNullSafe(value=value) if self._has_kind(value):
                self._keep([value])
            case In(value=values) if values and all(map(self._has_kind, values)):
                self._keep(values)

    def __contains__(self, value: Any) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.only is None or value in self.only)
        )

    def _has_kind(self, value: Any) -> bool:
        if isinstance(value, datetime) and value.tzinfo is None:
            return False
        return isinstance(value, self._kind)

    def _keep(self, values: Sequence[Any]) -> None:
        self.only = frozenset(values) if self.only is None else self.only.intersection(values)
        self.narrow(GreaterThanOrEqual((), min(values)))
        self.narrow(LessThanOrEqual((), max(values)))


class Wanted:
    """The partitions and offsets that may have rows which pass the filters; without filters, all."""

    def __init__(self, filters: Sequence[Filter] = ()) -> None:
        self._topics, self._partitions = _Values(str), _Values(int)
        self._offsets, self._times = _Values(int), _Values(datetime)
        columns: dict[tuple[str, ...] | None, _Values] = {
            ("topic",): self._topics,
            ("partition",): self._partitions,
            ("offset",): self._offsets,
            ("timestamp",): self._times,
        }
        for one in filters:
            column: tuple[str, ...] | None = getattr(one, "attribute", None)
            if column in columns:
                columns[column].narrow(one)

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition may have such rows."""
        return topic in self._topics and partition in self._partitions

    def within(self, start: int, end: int, offset_at: Callable[[int], int | None]) -> tuple[int, int]:
        """The part of a partition's offsets [start, end) that may have such rows; it may be empty.

        `offset_at` tells the offset of the first record at or after a time in ms.
        """
        low, high, since = self._offsets.low, self._offsets.high, self._times.low
        start = start if low is None else max(start, low)
        end = end if high is None else min(end, high + 1)
        since_ms = 0 if since is None else (since - _EPOCH) // timedelta(milliseconds=1)
        if since_ms > 0 and start < end:
            # Every record before this one is older. No end follows from `high`: times may go back.
            first = offset_at(since_ms)
            start = end if first is None else max(start, first)
        return start, max(start, end)


class Push:
    """A reader's `pushFilters`. It takes the filters, and leaves them all to Spark, too.

    Spark refuses a reader with a `pushFilters` of its own while the switch is off. It looks for the function
    behind the method, and finds that of the base class here.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Sequence[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._take(filters)
        return filters
