"""Pipelines: `logcore pipeline run CONFIG`. A TOML file says what goes where:

    sources → SQL tables: decoding, watermarks, windows, joins, deduplication → sinks → report and checks

| module | what it does |
|---|---|
| `_config`, `_model` | the file, parsed and checked as a whole; its tables as data |
| `_session` | the Spark session, whose output goes to a log file |
| `_graph` | sources and tables as data frames, once as streams and once as batches |
| `_queries`, `_by_key` | a streaming query for each sink; the sink that is a table by key |
| `_watch`, `_causes` | progress, failures in one line, Ctrl-C |
| `_report`, `_charts`, `_svg` | figures, charts and checks as one HTML page |

What a restart does: each query goes on from its checkpoint, `CHECKPOINTS/SINK`. Sinks to topics write
transactions, Parquet sinks Spark's own commit log, tables by key a snapshot for each micro-batch. So a row is
in each sink exactly once, whenever the process ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_logcore.pipeline._config import ConfigError, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_logcore.pipeline._model import Pipeline
    from pyspark_logcore.pipeline._watch import Progress

__all__ = ["PipelineError", "check", "run"]


class PipelineError(Exception):
    """A pipeline cannot run, or failed. The text has a line for each reason."""


def check(path: Path) -> None:
    """Checks a configuration: the file first, and then, with Spark, its SQL and the columns of its sinks.
    Connects to no broker. Raises PipelineError.
    """
    from pyspark_logcore.pipeline._graph import streams

    pipeline = _load(path)
    with _running(pipeline) as spark:
        streams(spark, pipeline)
    parts = f"{len(pipeline.sources)} sources, {len(pipeline.tables)} tables, {len(pipeline.sinks)} sinks"
    print(f"{path}: {parts}: nothing is wrong")


def run(path: Path) -> int:
    """Runs a pipeline until its queries end, or until SIGINT or SIGTERM. Returns the exit status: 0, or 130
    if it was stopped before it had read all that was there. Raises PipelineError.
    """
    from pyspark_logcore.pipeline._graph import streams
    from pyspark_logcore.pipeline._queries import start_all
    from pyspark_logcore.pipeline._watch import QueryFailed, watch

    pipeline = _load(path)
    print(f"{pipeline.name}: starting Spark; its log is {_log(pipeline)}", file=sys.stderr, flush=True)
    with _running(pipeline) as spark:
        frames = streams(spark, pipeline)
        queries = start_all(pipeline, frames)
        try:
            progress, stopped = watch(pipeline, queries)
        except QueryFailed as failure:
            with _log(pipeline).open("a", encoding="utf-8") as log:
                log.write(f"{failure}\n{failure.stack}\n")
            raise PipelineError(f"{failure}; the stack is in {_log(pipeline)}") from failure
        if stopped and pipeline.trigger_ms is None:
            print(f"{_summary(pipeline, progress)}; stopped, and the next run goes on from here")
            return 130
        wrong = _report(spark, pipeline, progress)
    report = f"; report {pipeline.report.path}" if pipeline.report else ""
    print(f"{_summary(pipeline, progress)}{report}", flush=True)
    if wrong:
        raise PipelineError("\n".join(wrong))
    return 0


def _load(path: Path) -> Pipeline:
    try:
        return load(path)
    except ConfigError as error:
        raise PipelineError(str(error)) from None


def _log(pipeline: Pipeline) -> Path:
    return pipeline.checkpoints / "pipeline.log"


@contextmanager
def _running(pipeline: Pipeline) -> Iterator[SparkSession]:
    """A session; what is wrong in the file, and a missing Java, become PipelineError."""
    from pyspark_logcore.pipeline._session import NoJava, session

    try:
        with session(pipeline, _log(pipeline)) as spark:
            yield spark
    except (ConfigError, NoJava) as error:
        raise PipelineError(str(error)) from error


def _report(spark: SparkSession, pipeline: Pipeline, progress: list[Progress]) -> list[str]:
    """Writes the report, if there is one. Returns a line for each check that found something."""
    if pipeline.report is None:
        return []
    from pyspark_logcore.pipeline._report import write

    with _status() as doing:
        checked = write(spark, pipeline, pipeline.report, progress, doing)
    return [
        f"check {one.name!r} found {one.wrong:,} wrong rows, the first: {one.first}"
        for one in checked
        if one.wrong
    ]


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Says in the terminal which part of the report is computed; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _what: None
        return
    from rich.console import Console

    with Console(stderr=True).status("report") as status:
        yield lambda what: status.update(f"report: {what}")


def _summary(pipeline: Pipeline, progress: list[Progress]) -> str:
    rows = sum(one.rows for one in progress)
    seconds = max(one.seconds for one in progress)
    sizes = [one.bytes for one in progress if one.bytes is not None]
    size = f", {sum(sizes) / 1e6:,.1f} MB" if sizes else ""
    late = sum(one.late for one in progress)
    dropped = f", {late:,} rows came too late and were dropped" if late else ""
    return (
        f"{pipeline.name}: {len(progress)} queries, {rows:,} rows{size} in {seconds:.1f} s "
        f"({rows / max(seconds, 1e-9):,.0f} rows/s){dropped}"
    )
