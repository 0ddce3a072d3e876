"""`format("logcore")` and `format("kafka")`, Spark's own source, on the same topics: equal rows, schemas,
micro-batches and checkpoints.

Broken if they failed: a job that moves over would read other rows, or its checkpoint would not move over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cluster import AdminClient, Producer, TopicPartition
from cluster.client import delete_records
from tests.columns.segment_files import sample
from tests.conftest import BrokerProcess
from tests.spark.conftest import SPARK_KAFKA
from tests.spark.streams import (
    TIMEOUT,
    changes_in,
    checkpoints,
    create_topic,
    produce,
    read_stream,
    run_available,
    values_in,
)

pytestmark = pytest.mark.timeout(600)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = (*CODECS, "transactions", "deleted", "empty")
COMPACTED = "compacted"


@pytest.fixture(scope="module")
def topics(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker with topics of every compression, with headers and nulls; of transactions, committed, aborted
    and open; with deleted records; without any; and a compacted one, which has holes.
    """
    if not (SPARK_KAFKA / ".complete").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("Spark's Kafka source is missing: run `make peers`")
        pytest.skip("Spark's Kafka source is missing: run `make peers`")
    for topic in TOPICS:
        create_topic(broker.bootstrap, topic, retention_ms="-1")
    for codec in CODECS:
        with Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec}) as producer:
            for record in sample(700):
                producer.produce(
                    codec,
                    value=record.value,
                    key=record.key,
                    timestamp=record.timestamp,
                    headers=list(record.headers),
                )
            assert producer.flush(TIMEOUT) == 0
    open_writer = None
    for number in range(6):
        settings = {"bootstrap.servers": broker.bootstrap, "transaction.timeout.ms": 900_000}
        writer = Producer({**settings, "transactional.id": f"t{number}"})
        writer.init_transactions()
        writer.begin_transaction()
        for value in range(20):
            writer.produce("transactions", f"{number}-{value}", partition=value % 2)
        assert writer.flush(TIMEOUT) == 0
        if number == 5:
            # A reader of committed records ends before it.
            open_writer = writer
        elif number % 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    produce(broker.bootstrap, "deleted", range(1000))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deleted = delete_records(admin, {TopicPartition("deleted", 0): 123})
    assert list(deleted.values()) == [123]
    admin.close()
    compact(broker)
    yield broker
    assert open_writer is not None
    open_writer.abort_transaction()


def compact(broker: BrokerProcess) -> None:
    """Makes the compacted topic, and waits until the broker's cleaner has cleaned it."""
    small = {"segment_ms": "1", "min_cleanable_dirty_ratio": "0.01", "retention_ms": "-1"}
    create_topic(broker.bootstrap, COMPACTED, cleanup_policy="compact", **small)
    logs = next(broker.data_dir.rglob(f"{COMPACTED}-0")).parent
    with changes_in(logs) as changed:
        for begin in range(0, 600, 200):
            produce(broker.bootstrap, COMPACTED, range(begin, begin + 200))
        checkpoint = logs / "cleaner-offset-checkpoint"
        while not (checkpoint.exists() and checkpoint.read_text().count(COMPACTED) == 2):
            assert changed(TIMEOUT), "the cleaner cleaned nothing"


def read(spark: SparkSession, source: str, broker: BrokerProcess, **options: str) -> DataFrame:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**options).load()


def rows(frame: DataFrame) -> list[Any]:
    return frame.orderBy("topic", "partition", "offset").collect()


QUERIES = {
    "everything": {"subscribe": ",".join((*TOPICS, COMPACTED)), "includeHeaders": "true"},
    "holes": {
        "subscribe": COMPACTED,
        "startingOffsets": '{"compacted":{"0":1,"1":3}}',
        "maxRecordsPerPartition": "50",
    },
    "a pattern": {"subscribePattern": "l.4|transactions"},
    "partitions": {"assign": '{"gzip":[1],"deleted":[0,1]}'},
    "committed": {"subscribe": "transactions", "kafka.isolation.level": "read_committed"},
    "offsets": {
        "subscribe": "zstd",
        "startingOffsets": '{"zstd":{"0":17,"1":-2}}',
        "endingOffsets": '{"zstd":{"0":-1,"1":200}}',
    },
    "times": {"subscribe": "lz4", "startingTimestamp": "1700000100000", "endingTimestamp": "1700000400000"},
    "nothing": {"subscribe": "empty"},
}


# Broken if it failed: a batch job that moves over would read other rows or columns.
@pytest.mark.parametrize(
    ("query", "access"),
    [
        *((query, "brokers") for query in QUERIES),
        *((query, "files") for query in ("everything", "holes", "committed", "offsets", "times")),
        ("everything", "auto"),
    ],
)
def test_batches_are_equal(spark: SparkSession, topics: BrokerProcess, query: str, access: str) -> None:
    theirs = read(spark, "kafka", topics, **QUERIES[query])
    path = {} if access == "brokers" else {"path": str(next(topics.data_dir.rglob("gzip-0")).parent)}
    ours = read(spark, "logcore", topics, access=access, **path, **QUERIES[query])
    assert ours.schema == theirs.schema
    expected = rows(theirs)
    assert rows(ours) == expected
    assert bool(expected) == (query != "nothing")


# Broken if it failed: a stream that moves over would read other micro-batches, or begin elsewhere.
@pytest.mark.parametrize("first", ["kafka", "logcore"])
def test_a_checkpoint_moves_over(
    spark: SparkSession, topics: BrokerProcess, tmp_path: Path, first: str
) -> None:
    second = "logcore" if first == "kafka" else "kafka"
    topic = f"moves-{first}"
    create_topic(topics.bootstrap, topic, 3)
    for source, values in ((first, range(99)), (second, range(99, 249)), (first, range(249, 300))):
        produce(topics.bootstrap, topic, values, 3)
        stream = read_stream(spark, topics.bootstrap, topic, source, maxOffsetsPerTrigger="40")
        run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
        assert values_in(spark, tmp_path / "out") == list(range(values.stop)), source
    assert checkpoints(tmp_path / "checkpoint")[-1] == {topic: {"0": 100, "1": 100, "2": 100}}


# Broken if it failed: a stream's micro-batches would not be those of Spark's Kafka source.
def test_micro_batches_are_equal(spark: SparkSession, topics: BrokerProcess, tmp_path: Path) -> None:
    create_topic(topics.bootstrap, "uneven", 3)
    with Producer({"bootstrap.servers": topics.bootstrap}) as producer:
        for partition, count in enumerate((3, 50, 170)):
            for value in range(count):
                producer.produce("uneven", str(value), partition=partition)
        assert producer.flush(TIMEOUT) == 0
    beside(spark, topics, tmp_path, "uneven", maxOffsetsPerTrigger="37")


# Broken if it failed: a stream would lose or repeat rows where offsets have no record, or show aborted ones.
@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("transactions", {}),
        ("transactions", {"kafka.isolation.level": "read_committed"}),
        (COMPACTED, {}),
        ("deleted", {}),
    ],
)
def test_streams_with_holes_are_equal(
    spark: SparkSession, topics: BrokerProcess, tmp_path: Path, topic: str, options: dict[str, str]
) -> None:
    beside(spark, topics, tmp_path, topic, maxOffsetsPerTrigger="45", **options)


def beside(spark: SparkSession, topics: BrokerProcess, directory: Path, topic: str, **options: str) -> None:
    """Streams a topic with both sources, and compares rows and checkpoints."""
    found = {}
    for source in ("kafka", "logcore"):
        stream = read_stream(spark, topics.bootstrap, topic, source, **options)
        run_available(stream, directory / source, directory / f"{source}-checkpoint")
        written = spark.read.parquet((directory / source).as_uri())
        found[source] = rows(written), checkpoints(directory / f"{source}-checkpoint")
    assert found["logcore"] == found["kafka"]
    assert found["logcore"][0]
