"""Watches the queries until they end: their progress, a failure, Ctrl-C.

Spark reports each micro-batch; the reports are added up here. The lag is the number of offsets that were
there at the last micro-batch and that it did not read.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol, TextIO

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_logcore.pipeline._causes import reason
from pyspark_logcore.pipeline._graph import BYTES
from pyspark_logcore.pipeline._model import Pipeline, Sink

_LOOK_SECONDS = 0.25
_PLAIN_SECONDS = 10.0
"""How often the progress is a new line, where there is no terminal."""


class QueryFailed(Exception):
    """A query failed. The text names the query, the sink and the cause; `stack` is all that Spark said."""

    def __init__(self, sink: Sink, error: BaseException) -> None:
        place = sink.options.get("topic") or sink.options.get("path")
        where = f"{sink.format} {place}" if place else sink.format
        super().__init__(f"query {sink.name} ({where}) failed: {reason(error)}")
        self.stack = str(error)


@dataclass
class Progress:
    """What a query has done since it was started."""

    name: str
    started: float = field(default_factory=time.monotonic)
    rows: int = 0
    bytes: int | None = None
    """Of keys and values; None where the source is no log."""
    batches: int = 0
    lag: int | None = None
    rate: float = 0.0
    """Rows a second of the last micro-batch."""
    late: int = 0
    """Rows that were dropped because they came after the watermark."""
    seconds: float = 0.0
    state_rows: int = 0
    _last: int = -1

    def add(self, batch: int, rows: int, rate: float, sized: int | None, lag: int | None) -> None:
        """Adds the report of a micro-batch. Spark repeats the last one while a query is idle."""
        self.lag = lag
        if batch <= self._last:
            return
        self._last = batch
        self.batches += 1
        self.rows += rows
        if rows:
            self.rate = rate
        if sized is not None:
            self.bytes = (self.bytes or 0) + sized

    def look(self, query: StreamingQuery) -> None:
        """Adds what the query has reported since the last look."""
        for report in query.recentProgress:
            fresh = report.batchId > self._last
            sizes = [row["bytes"] for name, row in report.observedMetrics.items() if name.startswith(BYTES)]
            sized = sum(size or 0 for size in sizes) if sizes else None
            lags = [found for source in report.sources if (found := lag_of(source)) is not None]
            self.add(
                report.batchId,
                report.numInputRows,
                report.processedRowsPerSecond,
                sized,
                sum(lags) if lags else None,
            )
            if fresh:
                self.late += sum(one.numRowsDroppedByWatermark for one in report.stateOperators)
                self.state_rows = sum(one.numRowsTotal for one in report.stateOperators)
        self.seconds = time.monotonic() - self.started

    def words(self) -> str:
        """One line, such as `12,000 rows, 4,000 rows/s, 1.2 MB, lag 0`."""
        parts = [f"{self.rows:,} rows", f"{self.rate:,.0f} rows/s"]
        if self.bytes is not None:
            parts.append(f"{self.bytes / 1e6:,.1f} MB")
        if self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        if self.late:
            parts.append(f"{self.late:,} too late")
        return ", ".join(parts)


class Offsets(Protocol):
    """A source's part of a report: offsets as JSON."""

    @property
    def endOffset(self) -> str | None: ...

    @property
    def latestOffset(self) -> str | None: ...


def lag_of(source: Offsets) -> int | None:
    """The offsets that are there and not read; None for a source that does not say."""
    end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    if end is None or latest is None:
        return None
    return sum(max(offset - end.get(partition, 0), 0) for partition, offset in latest.items())


def _offsets(text: str | None) -> dict[tuple[str, str], int] | None:
    """Offsets of partitions in the form of Spark's Kafka source; None for another form."""
    try:
        found = json.loads(text or "")
        return {(topic, part): int(at) for topic, parts in found.items() for part, at in parts.items()}
    except (ValueError, AttributeError, TypeError):
        return None


def watch(
    pipeline: Pipeline, queries: Mapping[str, StreamingQuery], out: TextIO = sys.stderr
) -> tuple[list[Progress], bool]:
    """Waits until all queries have ended, and shows their progress on `out`. Returns the progress of each,
    and whether the user stopped them. Raises QueryFailed for the first that fails; the others are stopped.
    """
    found = {name: Progress(name) for name in queries}
    running = dict(queries)
    try:
        with stop_signals() as stopped, _shown(list(found.values()), out) as show:
            while running and not stopped():
                name, query = next(iter(running.items()))
                try:
                    ended = query.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
                except StreamingQueryException:
                    ended = True
                for other in list(running):
                    found[other].look(running[other])
                    _raise_failure(pipeline, running[other])
                show()
                if ended:
                    del running[name]
            return list(found.values()), bool(running)
    finally:
        for query in running.values():
            query.stop()


def _raise_failure(pipeline: Pipeline, query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise QueryFailed(next(sink for sink in pipeline.sinks if sink.name == query.name), error)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yields a question: whether SIGINT or SIGTERM came. PySpark's own handler of Ctrl-C would cancel jobs,
    and the queries would fail.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    kept = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _shown(progress: list[Progress], out: TextIO) -> AbstractContextManager[Callable[[], None]]:
    return _bars(progress, out) if out.isatty() else _lines(progress, out)


@contextmanager
def _lines(progress: list[Progress], out: TextIO) -> Iterator[Callable[[], None]]:
    last = {one.name: "" for one in progress}
    shown_at = time.monotonic()

    def write() -> None:
        for one in progress:
            if last[one.name] != (words := one.words()):
                last[one.name] = words
                print(f"  {one.name}: {words}", file=out, flush=True)

    def show() -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _PLAIN_SECONDS:
            shown_at = time.monotonic()
            write()

    yield show
    write()


@contextmanager
def _bars(progress: list[Progress], out: TextIO) -> Iterator[Callable[[], None]]:
    """A line for each query. The bar's end is where the topic ends now."""
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(file=out)) as bars:
        tasks = {one.name: bars.add_task(one.name, total=None, words="") for one in progress}

        def show() -> None:
            for one in progress:
                total = None if one.lag is None else max(one.rows + one.lag, 1)
                bars.update(tasks[one.name], completed=one.rows, total=total, words=one.words())

        yield show
        show()
