"""The sink that keeps the latest row of each key.

Broken if they failed: a table would lose changes, or take one twice, when a stream is started again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_logcore.pipeline._by_key import TableByKey, current, read_table

pytestmark = pytest.mark.timeout(900)

Change = tuple[str, str, int]


def changes(spark: SparkSession, *found: Change) -> DataFrame:
    return spark.createDataFrame(list(found), "id string, op string, offset int")


def rows(spark: SparkSession, path: Path) -> list[Change]:
    return sorted(tuple(row) for row in read_table(spark, path).collect())


def by_offset(path: Path) -> TableByKey:
    return TableByKey(path, ("id",), "offset", "op = 'd' or op is null")


def test_the_latest_change_of_each_key_stays(spark: SparkSession, tmp_path: Path) -> None:
    table = by_offset(tmp_path)
    table(changes(spark, ("a", "c", 0), ("b", "c", 1), ("a", "u", 2), ("c", "c", 3), ("c", "d", 4)), 0)
    assert rows(spark, tmp_path) == [("a", "u", 2), ("b", "c", 1)]
    table(changes(spark, ("b", "d", 5), ("b", None, 6), ("d", "c", 7), ("a", "u", 8), ("c", "c", 9)), 1)
    assert rows(spark, tmp_path) == [("a", "u", 8), ("c", "c", 9), ("d", "c", 7)]


# Broken if it failed: after a crash, a micro-batch that is repeated would change the table again.
def test_a_repeated_micro_batch_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    counted = TableByKey(tmp_path, ("id",), None, None)
    counted(changes(spark, ("a", "c", 1)), 0)
    counted(changes(spark, ("a", "c", 2)), 1)
    snapshot = current(tmp_path)
    counted(changes(spark, ("a", "c", 99)), 1)
    # Spark repeats the last micro-batch only: an older one comes from an old copy of the checkpoint.
    with pytest.raises(ValueError, match="has micro-batch 1 already, and is to get 0"):
        counted(changes(spark, ("a", "c", 99)), 0)
    assert current(tmp_path) == snapshot
    assert rows(spark, tmp_path) == [("a", "c", 2)]


# Broken if it failed: half a snapshot that a crash left would become the table.
def test_a_snapshot_that_a_crash_left_is_written_again(spark: SparkSession, tmp_path: Path) -> None:
    table = by_offset(tmp_path)
    table(changes(spark, ("a", "c", 0)), 0)
    torn = tmp_path / "batch-0000000001"
    changes(spark, ("x", "c", 1)).write.parquet(torn.as_uri())
    (torn / "_SUCCESS").unlink()
    assert rows(spark, tmp_path) == [("a", "c", 0)]
    table(changes(spark, ("b", "c", 1)), 1)
    assert rows(spark, tmp_path) == [("a", "c", 0), ("b", "c", 1)]
    # A reader may be at work on the snapshot before; older ones go.
    table(changes(spark, ("b", "u", 2)), 2)
    assert sorted(one.name for one in tmp_path.glob("batch-*")) == ["batch-0000000001", "batch-0000000002"]


# Broken if it failed: of two rows of a key, chance would choose.
def test_a_key_twice_needs_an_order(spark: SparkSession, tmp_path: Path) -> None:
    table = TableByKey(tmp_path, ("id",), None, None)
    with pytest.raises(Exception, match="a key is in one micro-batch more than once: set order"):
        table(changes(spark, ("a", "c", 0), ("a", "u", 1)), 0)
    with pytest.raises(FileNotFoundError, match="no snapshot yet"):
        read_table(spark, tmp_path)


# Broken if it failed: a query that begins anew would skip its first micro-batches, and lose them.
def test_another_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    changes(spark, ("a", "c", 0)).write.parquet(source.as_uri())

    def run(checkpoint: str) -> None:
        stream = spark.readStream.schema("id string, op string, offset int").parquet(source.as_uri())
        writer = stream.writeStream.foreachBatch(by_offset(tmp_path / "table")).trigger(availableNow=True)
        writer.option("checkpointLocation", (tmp_path / checkpoint).as_uri()).start().awaitTermination()

    run("one")
    changes(spark, ("b", "c", 1)).write.mode("append").parquet(source.as_uri())
    run("one")
    assert rows(spark, tmp_path / "table") == [("a", "c", 0), ("b", "c", 1)]
    with pytest.raises(Exception, match="was written by a query with another checkpoint"):
        run("two")
