"""Sources, tables and sinks as data frames: one temporary view for each source and table.

The same configuration is built twice. As streams it is what the queries run. As batches it is what the report
reads: there, a stream's source is read from its beginning to its end, watermarks have no effect, and each
sink's name is a view of what the sink has written. So a check can compare a sink with the same SQL over the
whole source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_logcore.pipeline._by_key import read_table
from pyspark_logcore.pipeline._causes import reason
from pyspark_logcore.pipeline._config import ConfigError
from pyspark_logcore.pipeline._model import (
    Chart,
    Check,
    Figure,
    Pipeline,
    Report,
    Sink,
    Source,
    Table,
    Watermark,
)

BYTES = "bytes of "
"""Followed by the source's name: the name of the metric that counts the bytes of keys and values."""

_RECORD = """key string, value string, topic string, partition int, offset long, timestamp timestamp,
    timestampType int"""
"""What a sink that is a topic has for a report: keys and values as text."""

_BOOTSTRAP = "kafka.bootstrap.servers"
# The options that say where a stream begins: a report reads from the beginning.
_STARTING = "starting"


def define(spark: SparkSession, pipeline: Pipeline, *, stream: bool) -> dict[str, DataFrame]:
    """Makes a view for each source and table, and returns them by name. Raises ConfigError for SQL, a schema
    or an option that Spark refuses.
    """
    frames: dict[str, DataFrame] = {}

    def add(name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        frames[name] = frame

    for source in pipeline.sources:
        add(source.name, _source(spark, pipeline, source, stream))
    for table in pipeline.tables:
        add(table.name, _table(spark, pipeline, table, stream))
    return frames


def streams(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Makes the views as streams. Before, checks the sinks and the report's SQL: a long run should not end in
    a mistake of its last step. Raises ConfigError.
    """
    frames = define(spark, pipeline, stream=True)
    for sink in pipeline.sinks:
        _check_sink(pipeline, sink, frames[sink.source])
    if pipeline.report is not None:
        _check_report(spark, pipeline, pipeline.report, frames)
        frames = define(spark, pipeline, stream=True)
    return frames


def define_sinks(spark: SparkSession, pipeline: Pipeline) -> None:
    """Makes a view of what each sink has written. Raises PySparkException."""
    for sink in pipeline.sinks:
        if sink.format != "console":
            _written(spark, sink).createOrReplaceTempView(sink.name)


def _check_report(
    spark: SparkSession, pipeline: Pipeline, report: Report, frames: dict[str, DataFrame]
) -> None:
    """Analyses the report's SQL over empty sinks."""
    define(spark, pipeline, stream=False)
    for sink in pipeline.sinks:
        schema = _RECORD if sink.format == "logcore" else frames[sink.source].schema
        spark.createDataFrame([], schema).createOrReplaceTempView(sink.name)
    every: list[tuple[str, Sequence[Figure | Chart | Check]]]
    every = [("figure", report.figures), ("chart", report.charts), ("check", report.checks)]
    for kind, found in every:
        for at, one in enumerate(found, 1):
            with refused(pipeline, f"report.{kind} {at}", "sql"):
                spark.sql(one.sql)
    for sink in pipeline.sinks:
        spark.catalog.dropTempView(sink.name)


@contextmanager
def refused(pipeline: Pipeline, table: str, key: str) -> Iterator[None]:
    """Turns what Spark refuses into an error that names the place in the file."""
    try:
        yield
    except (PySparkException, ValueError) as error:
        raise ConfigError([f"{pipeline.where(table, key)}: {reason(error)}"]) from error


def _source(spark: SparkSession, pipeline: Pipeline, source: Source, stream: bool) -> DataFrame:
    place = f"source.{source.name}"
    streams = source.stream and stream
    with refused(pipeline, place, "schema" if source.schema else "options"):
        reader: Any = spark.readStream if streams else spark.read
        reader = reader.format(source.format)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        frame: DataFrame = reader.options(**_options(source, streams)).load()
    if streams and source.format == "logcore":
        frame = _count_bytes(frame, source.name)
    if source.select:
        with refused(pipeline, place, "select"):
            frame = frame.selectExpr(*source.select)
    return _timed(pipeline, place, frame, source.watermark, source.deduplicate, stream)


def _options(source: Source, streams: bool) -> dict[str, str]:
    if streams or not source.stream or source.format != "logcore":
        return dict(source.options)
    return {name: text for name, text in source.options.items() if not name.lower().startswith(_STARTING)}


def _count_bytes(frame: DataFrame, name: str) -> DataFrame:
    sizes = [F.coalesce(F.length(column), F.lit(0)) for column in ("key", "value") if column in frame.columns]
    if not sizes:
        return frame
    size = sizes[0] if len(sizes) == 1 else sizes[0] + sizes[1]
    return frame.observe(f"{BYTES}{name}", F.sum(size.cast("bigint")).alias("bytes"))


def _table(spark: SparkSession, pipeline: Pipeline, table: Table, stream: bool) -> DataFrame:
    place = f"table.{table.name}"
    with refused(pipeline, place, "sql"):
        frame = spark.sql(table.sql)
    return _timed(pipeline, place, frame, table.watermark, table.deduplicate, stream)


def _timed(
    pipeline: Pipeline,
    place: str,
    frame: DataFrame,
    watermark: Watermark | None,
    deduplicate: tuple[str, ...],
    stream: bool,
) -> DataFrame:
    if watermark is not None and stream:
        with refused(pipeline, place, "watermark"):
            frame = frame.withWatermark(watermark.column, watermark.delay)
    if deduplicate:
        with refused(pipeline, place, "deduplicate"):
            drop: Callable[[list[str]], DataFrame]
            drop = frame.dropDuplicatesWithinWatermark if frame.isStreaming else frame.dropDuplicates
            frame = drop(list(deduplicate))
    return frame


def _check_sink(pipeline: Pipeline, sink: Sink, frame: DataFrame) -> None:
    """Checks a sink against the columns of its table. Raises ConfigError."""
    place = f"sink.{sink.name}"
    if not frame.isStreaming:
        raise ConfigError([f"{pipeline.where(place, 'from')}: {sink.source} does not come from a stream"])
    columns = {field.name: field.dataType for field in frame.schema.fields}
    if sink.format == "logcore":
        from pyspark_logcore._sink import stream_writer

        with refused(pipeline, place, "from"):
            stream_writer(sink.options, frame.schema)
    for key, names in (("keys", sink.keys), ("partition_by", sink.partition_by)):
        missing = [name for name in names if name not in columns]
        if missing:
            words = f"{sink.source} has no column {missing[0]!r}; it has {', '.join(columns)}"
            raise ConfigError([f"{pipeline.where(place, key)}: {words}"])
    for key, expression in (("order", sink.order), ("deleted", sink.deleted)):
        if expression is not None:
            with refused(pipeline, place, key):
                frame.select(F.expr(expression))


def _written(spark: SparkSession, sink: Sink) -> DataFrame:
    if sink.format == "table-by-key":
        return read_table(spark, sink.options["path"])
    if sink.format != "logcore":
        return spark.read.format(sink.format).load(sink.options["path"])
    topic = next(text for name, text in sink.options.items() if name.lower() == "topic")
    servers = next(text for name, text in sink.options.items() if name.lower() == _BOOTSTRAP)
    records = (
        spark.read.format("logcore")
        .option(_BOOTSTRAP, servers)
        .options(**{"subscribe": topic, "isolation.level": "read_committed"})
        .load()
    )
    text = {name: F.col(name).cast("string") for name in ("key", "value")}
    return records.withColumns(text)
