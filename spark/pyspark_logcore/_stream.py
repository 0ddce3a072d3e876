"""A stream's reader: `spark.readStream.format("logcore")`.

Spark runs one Python process for each query. It makes the reader there, keeps it, and asks it before each
micro-batch for the end of what it reads and for its tasks. Copies of the reader go to the tasks, which read
as those of a batch do. The process keeps its connections to brokers open between micro-batches.

What Spark asks, in this order: `initialOffset` until the first micro-batch of a query is committed, more than
once; `latestOffset`, `partitions` and `commit` for each micro-batch. Spark loses an exception of the
constructor, so a bad option or schema is raised by the first question.

A checkpoint has the end of the first micro-batch, but not its start. So a stream from the latest offsets
begins with an empty micro-batch: its end is the start, which stays when the process is another one.

Offsets in checkpoints: `_progress`. Options: the package's README.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_logcore._limits import LATEST, Kind
from pyspark_logcore._log import Rows, rows_of
from pyspark_logcore._options import SourceOptions, parse_options
from pyspark_logcore._plan import Bounds, Catalog, Key, OffsetRange, split, start_of
from pyspark_logcore._progress import (
    Json,
    Offsets,
    count_new,
    from_json,
    offsets_within,
    ranges,
    share,
    to_json,
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:
    from pyspark_logcore._spark_4_1 import (  # type: ignore[assignment]
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

if TYPE_CHECKING:
    from cluster import Consumer

logger = logging.getLogger("pyspark_logcore")

SPARK_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""Whether this Spark lets a source limit its micro-batches."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._checked: tuple[SourceOptions, Rows] | ValueError
        try:
            options = parse_options(given)
            options.starting(stream=True)
            if options.trigger.has_limits and not SPARK_LIMITS:
                raise ValueError(
                    "maxOffsetsPerTrigger, minOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2: Spark "
                    "4.1 does not let a Python source limit its micro-batches"
                )
            self._checked = options, rows_of(options, schema)
        except ValueError as problem:
            self._checked = problem
        self._connected: ExitStack | None = None
        self._open: Catalog | None = None
        self._committer: Consumer | None = None
        self._initial: Offsets | None = None
        """Where the query begins, once Spark has asked."""
        self._is_from_latest = False
        """Whether that is where the log ended then, so that another process would begin elsewhere."""
        self._first_end: Offsets | None = None
        """The end of the first micro-batch that this reader planned."""
        self._reached: Offsets = {}
        """The end of the last micro-batch that this reader planned, for Spark 4.1, which does not tell it."""
        self._latest: Offsets | None = None
        """What there was at the last question."""
        self._has_end = False
        self._last_of_trigger: Offsets | None = None
        """Where a query with Trigger.AvailableNow ends."""
        self._admitted: float | None = None
        """When the last micro-batch was begun, in seconds of the monotonic clock."""
        self._ids: dict[str, bytes] = {}
        """The ids of topics, where brokers have told them."""

    def initialOffset(self) -> Json:
        if self._initial is None:
            self._initial = self._reached = self._begin()
        return to_json(self._initial)

    def _begin(self) -> Offsets:
        catalog = self._catalog()
        starting = self._options.starting(stream=True)
        partitions = catalog.partitions(self._options.choice)
        starting.check_covers(partitions)
        bounds = catalog.bounds(partitions)
        begin: Offsets = {}
        for key in partitions:
            offset = start_of(self._options, starting, catalog, key, bounds[key])
            earliest, latest = bounds[key][:2]
            if starting.kind is Kind.TIMESTAMP:
                self._is_from_latest |= offset == latest
            else:
                self._is_from_latest |= starting.of(*key) == LATEST
            if not earliest <= offset <= latest:
                self._lost(
                    f"{starting.option} has offset {offset} of {_name(key)}, which has [{earliest}, {latest})"
                )
                offset = min(max(offset, earliest), latest)
            begin[key] = offset
        return begin

    def latestOffset(
        self, start: Mapping[str, Mapping[str, int]] | None = None, limit: ReadLimit | None = None
    ) -> Json:
        begin = self._reached if start is None else from_json(start)
        if self._is_from_latest and begin == self._initial:
            self._is_from_latest = False
            return to_json(begin)
        bounds = self._bounds()
        if self._has_end and self._last_of_trigger is None:
            self._last_of_trigger = {key: one.latest for key, one in bounds.items()}
        self._latest = {key: one.latest for key, one in bounds.items()}
        # A new partition is read from its beginning.
        known = {key: begin.get(key, one.earliest) for key, one in bounds.items()}
        latest = {
            # A replica may have noted a lower high watermark than another one, which is gone now.
            key: known[key] if one.latest < known[key] <= one.log_end else one.latest
            for key, one in bounds.items()
        }
        if self._last_of_trigger is not None:
            latest = {
                key: min(end, self._last_of_trigger[key])
                for key, end in latest.items()
                if key in self._last_of_trigger
            }
        everything = limit is None or isinstance(limit, ReadAllAvailable)
        until = latest if everything else self._admit(known, latest, bounds)
        return to_json(until)

    def getDefaultReadLimit(self) -> ReadLimit:
        trigger = self._options.trigger
        if trigger.most is not None:
            return ReadMaxRows(trigger.most)
        if trigger.most_bytes is not None:
            return ReadMaxBytes(trigger.most_bytes)
        return ReadAllAvailable() if trigger.least is None else ReadMinRows(trigger.least)

    def reportLatestOffset(self) -> Json | None:
        return None if self._latest is None else to_json(self._latest)

    def prepareForTriggerAvailableNow(self) -> None:
        # The end is found after the start.
        self._has_end = True

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        begin, until = from_json(start), from_json(end)
        self._reached = until
        if self._first_end is None:
            self._first_end = until
        if begin == self._initial and until == self._first_end:
            # The first micro-batch, planned again by another process, for which the log ends later.
            begin = {key: min(offset, until.get(key, offset)) for key, offset in begin.items()}
        wanted = ranges(begin, until, self._bounds(), self._lost)
        cut = self._catalog().cut
        return split(wanted, self._options.min_partitions, self._options.max_records, cut)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return self._rows.read(partition)

    def commit(self, end: Mapping[str, Mapping[str, int]]) -> None:
        if self._options.commit_group is None:
            return
        # Imported here: only this option needs the whole client.
        from cluster import Consumer, KafkaException, TopicPartition

        if self._committer is None:
            brokers = {name: text for name, text in self._options.client.items() if name != "isolation.level"}
            self._committer = Consumer({**brokers, "group.id": self._options.commit_group})
        positions = [TopicPartition(*key, offset) for key, offset in from_json(end).items()]
        try:
            self._committer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            # The checkpoint counts; the group only shows the progress, and the next commit shows it, too.
            logger.warning("the progress is not shown in group %r: %s", self._options.commit_group, error)

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()
        if self._committer is not None:
            self._committer.close()

    def _admit(self, begin: Offsets, latest: Offsets, bounds: Mapping[Key, Bounds]) -> Offsets:
        """The end of the next micro-batch under the options' limits."""
        trigger = self._options.trigger
        now = time.monotonic()
        if trigger.least is not None and self._last_of_trigger is None and self._admitted is not None:
            too_few = count_new(begin, latest) < trigger.least
            if too_few and now - self._admitted < trigger.delay:
                return {key: begin[key] for key in latest}
        self._admitted = now
        most = trigger.most
        if trigger.most_bytes is not None and count_new(begin, latest):
            sizes = self._catalog().stored_bytes(list(latest))
            by_bytes = offsets_within(begin, latest, bounds, sizes, trigger.most_bytes)
            most = by_bytes if most is None else min(most, by_bytes)
        return latest if most is None else share(begin, latest, most)

    def _bounds(self) -> dict[Key, Bounds]:
        catalog = self._catalog()
        bounds = catalog.bounds(catalog.partitions(self._options.choice))
        for topic, number in {key[0]: one.topic_id for key, one in bounds.items()}.items():
            before, self._ids[topic] = self._ids.get(topic, number), number
            if before != number:
                self._lost(f"topic {topic} was deleted and made anew while the stream ran")
        return bounds

    def _catalog(self) -> Catalog:
        if self._open is None:
            self._connected = ExitStack()
            self._open = self._connected.enter_context(self._rows.log.catalog())
        return self._open

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._checked, ValueError):
            raise self._checked
        return self._checked[0]

    @property
    def _rows(self) -> Rows:
        if isinstance(self._checked, ValueError):
            raise self._checked
        return self._checked[1]

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise ValueError(
                f"{what}. Some records may have been missed. To go on with those that exist, set the option "
                "failOnDataLoss to false"
            )
        logger.warning("%s. Some records may have been missed", what)


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"
