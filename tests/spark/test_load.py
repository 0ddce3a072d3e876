"""`df.write.format("logcore")` with a path: a log directory that is filled without a broker.

Broken if they failed: loaded rows would be lost, in other partitions than Kafka's producer chooses, or
unknown to a broker.
"""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession

import logcore
from tests.conftest import StartBroker
from tests.spark.streams import consume, create_topic

pytestmark = pytest.mark.timeout(300)

ROWS = 3_000


def rows(spark: SparkSession, count: int = ROWS) -> DataFrame:
    key = "if(id % 5 = 0, null, cast(id % 100 as string)) as key"
    return spark.range(0, count, 1, 3).selectExpr(key, "cast(id as string) as value")


def load(frame: DataFrame, path: Path, **options: str) -> None:
    frame.write.format("logcore").mode("append").options(**options).save(str(path))


# Broken if it failed: rows would be lost or repeated, or be where no consumer of their key looks for them.
def test_a_new_directory(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    load(rows(spark), path, topic="t", partitions="4", compression="zstd")
    load(rows(spark, 10), path, topic="t")
    assert not list(path.glob(".load-*"))
    found = spark.read.format("logcore").load(str(path)).collect()
    assert {row.topic for row in found} == {"t"}
    assert {row.partition for row in found} == {0, 1, 2, 3}
    assert sorted(int(row.value) for row in found) == sorted([*range(ROWS), *range(10)])
    for partition in range(4):
        mine = [row for row in found if row.partition == partition]
        assert sorted(row.offset for row in mine) == list(range(len(mine)))
    for row in found:
        if row.key is not None:
            assert row.partition == confluent_kafka.murmur2(bytes(row.key), 4)
    assert logcore.verify(path) == []


# Broken if it failed: a key would go to another partition the next time, or rows where no broker serves them.
def test_all_partitions_of_a_topic_are_there(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    load(rows(spark, 1), path, topic="t", partitions="3")
    assert sorted(logcore.find_logs(path)) == [("t", 0), ("t", 1), ("t", 2)]
    load(rows(spark, 50), path, topic="t", partitions="3")
    with pytest.raises(Exception, match=r"t has 3 partitions in .*, and the option partitions says 8"):
        load(rows(spark, 1), path, topic="t", partitions="8")
    with logcore.open_dir(tmp_path / "some") as directory:
        directory.create("t", 2)
    with pytest.raises(Exception, match="has the partitions 2 of t only"):
        load(rows(spark, 1), tmp_path / "some", topic="t")


# Broken if it failed: a row could write files anywhere, or rows over a mebibyte could not be loaded.
def test_names_and_large_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "logs"
    outside = tmp_path / "outside"
    for topic in (str(outside), "../outside", "a b"):
        with pytest.raises(Exception, match="topic"):
            load(spark.sql(f"select 'v' as value, '{topic}' as topic"), path)
        assert not list(tmp_path.rglob("*.log"))
        assert not list(path.glob(".load-*"))
    load(spark.sql("select repeat('x', 3000000) as value"), path, topic="large")
    (row,) = spark.read.format("logcore").load(str(path)).selectExpr("length(value) as n").collect()
    assert row.n == 3_000_000


# Broken if it failed: a broker would not serve what was loaded into its directory.
def test_a_broker_serves_what_was_loaded(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    create_topic(broker.bootstrap, "loaded", 3)
    port = broker.port
    assert broker.stop() == 0
    load(rows(spark), tmp_path / "data", topic="loaded", compression="lz4")
    broker = start_broker(tmp_path / "data", port)
    found = consume(broker.bootstrap, "loaded", 3)
    assert all(found.values())
    assert sorted(int(value or -1) for part in found.values() for value in part) == list(range(ROWS))
    # It goes on from there.
    assert broker.stop() == 0


# Broken if it failed: a user would get Spark's stack trace without the reason, or a directory in use would be
# written.
def test_errors_reach_the_user(spark: SparkSession, tmp_path: Path) -> None:
    for options, message in (
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, "not both"),
        ({"topic": "t", "compression": "rar"}, "'compression' must be one of none, gzip"),
        ({}, "set the option topic, or add a column topic"),
    ):
        with pytest.raises(Exception, match=message):
            load(rows(spark, 5), tmp_path / "logs", **options)
    with pytest.raises(Exception, match="names the partition 7 of t, which has 2"):
        load(spark.sql("select 'v' as value, 7 as partition"), tmp_path / "logs", topic="t", partitions="2")
    with logcore.open_dir(tmp_path / "used") as directory:
        directory.create("t")
        with pytest.raises(Exception, match="LockedError"):
            load(rows(spark, 5), tmp_path / "used", topic="t")
        assert directory["t", 0].end_offset == 0
