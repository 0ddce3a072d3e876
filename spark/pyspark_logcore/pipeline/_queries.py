"""The streaming queries of a pipeline: one for each sink, with a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_logcore.pipeline._by_key import TableByKey
from pyspark_logcore.pipeline._graph import refused
from pyspark_logcore.pipeline._model import Pipeline, Sink

_BEGINNING = "Initializing"
"""How the status of a query begins until its sources are there (StreamExecution)."""
_TOO_SLOW = "Python worker failed to connect back"
_ATTEMPTS = 3
_LOOK_SECONDS = 0.05


def start_all(pipeline: Pipeline, frames: Mapping[str, DataFrame]) -> dict[str, StreamingQuery]:
    """Starts the queries of all sinks, one after the other. Raises ConfigError for what Spark refuses.

    Spark gives a stream's Python process 10 s to begin. On a busy machine, processes that begin at once would
    take longer, and so a query that failed for this reason is started again.
    """
    return {sink.name: _begin(pipeline, sink, frames[sink.source]) for sink in pipeline.sinks}


def _begin(pipeline: Pipeline, sink: Sink, frame: DataFrame) -> StreamingQuery:
    """Starts a query and waits for its sources. One that failed says so when it is watched."""
    for _ in range(_ATTEMPTS):
        query = _start(pipeline, sink, frame)
        with suppress(StreamingQueryException):
            while query.isActive and query.status["message"].startswith(_BEGINNING):
                query.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
        if _TOO_SLOW not in str(query.exception() or ""):
            break
    return query


def _start(pipeline: Pipeline, sink: Sink, frame: DataFrame) -> StreamingQuery:
    """Starts the query of a sink, from its checkpoint on. Raises ConfigError for what Spark refuses."""
    writer = frame.writeStream.queryName(sink.name).outputMode(sink.mode)
    writer = writer.option("checkpointLocation", (pipeline.checkpoints / sink.name).as_uri())
    if pipeline.trigger_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{pipeline.trigger_ms} milliseconds")
    with refused(pipeline, f"sink.{sink.name}", "options"):
        query: StreamingQuery = _to(writer, sink).start()
    return query


def _to(writer: Any, sink: Sink) -> Any:
    if sink.format == "table-by-key":
        table = TableByKey(Path(sink.options["path"]).absolute(), sink.keys, sink.order, sink.deleted)
        return writer.foreachBatch(table)
    writer = writer.format(sink.format).options(**sink.options)
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
