"""Topics, and what streams leave behind, for the tests of streams and writers."""

from __future__ import annotations

import ctypes
import json
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cluster import AdminClient, Consumer, NewTopic, Producer, TopicPartition
from pyspark_logcore._stream import SPARK_LIMITS

TIMEOUT = 240
needs_limits = pytest.mark.skipif(not SPARK_LIMITS, reason="Spark 4.1 does not limit micro-batches")
_CREATED, _MOVED_IN = 0x100, 0x80
"""Events of inotify."""


def create_topic(
    bootstrap: str, topic: str, partitions: int = 2, *, replicas: int = -1, **config: str
) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        for future in admin.create_topics([NewTopic(topic, partitions, replicas, config=settings)]).values():
            future.result(timeout=TIMEOUT)
    finally:
        admin.close()


def produce(bootstrap: str, topic: str, values: range, partitions: int = 2) -> None:
    """Value i goes to partition i modulo `partitions`."""
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        for value in values:
            producer.produce(topic, str(value), str(value % 10), value % partitions)
        assert producer.flush(TIMEOUT) == 0


def consume(bootstrap: str, topic: str, partitions: int = 2) -> dict[int, list[bytes | None]]:
    """The values that a read_committed consumer gets, by partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    found: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
        ended: set[int] = set()
        while len(ended) < partitions:
            message = consumer.poll(TIMEOUT)
            assert message is not None, f"no record and no end of {topic} within {TIMEOUT} s"
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                found[partition].append(message.value())
            else:
                ended.add(partition)
    finally:
        consumer.close()
    return found


def read_stream(
    spark: SparkSession, bootstrap: str, topic: str, source: str = "logcore", **options: str
) -> DataFrame:
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()


def run_available(stream: DataFrame, output: Path, checkpoint: Path) -> None:
    """Writes all that is there now to Parquet files."""
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint.as_uri())
        .option("path", output.as_uri())
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT)


def checkpoints(checkpoint: Path) -> list[dict[str, Any]]:
    """The source's offsets of each micro-batch in a checkpoint."""
    return [json.loads(file.read_text().splitlines()[-1]) for file in batches(checkpoint / "offsets")]


def batches(directory: Path) -> list[Path]:
    """A checkpoint's files of micro-batches, in their order."""
    numbered = [file for file in directory.iterdir() if file.name.isdecimal()]
    return sorted(numbered, key=lambda file: int(file.name))


@contextmanager
def changes_in(directory: Path) -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits, at most so many seconds, until a file gets its name in the directory;
    False if none does (Linux's inotify).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        added = libc.inotify_add_watch(descriptor, os.fsencode(directory), _CREATED | _MOVED_IN)
        assert added >= 0, os.strerror(ctypes.get_errno())

        def changed(seconds: float) -> bool:
            ready, _, _ = select.select([descriptor], [], [], seconds)
            return bool(ready and os.read(descriptor, 65536))

        yield changed
    finally:
        os.close(descriptor)


def values_in(spark: SparkSession, output: Path) -> list[int]:
    rows = spark.read.parquet(output.as_uri()).selectExpr("cast(cast(value as string) as int) as v").collect()
    return sorted(row.v for row in rows)
