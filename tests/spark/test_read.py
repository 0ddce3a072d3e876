"""`spark.read.format("logcore")` in a real Spark session, from files and from a broker.

Broken if they failed: a Spark job would fail or, worse, read wrong records.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_logcore._schema import kafka_schema
from tests.columns.segment_files import sample, write_partition
from tests.conftest import BrokerProcess
from tests.spark.conftest import ORDERS

pytestmark = pytest.mark.timeout(600)


def read(
    spark: SparkSession, path: Path, schema: str | StructType | None = None, **options: str
) -> DataFrame:
    reader = spark.read.format("logcore").options(**options)
    return (reader.schema(schema) if schema is not None else reader).load(str(path))


def plain(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


# Broken if it failed: a read of a log directory would miss topics, or include the cluster's own.
def test_every_topic_of_a_directory(spark: SparkSession, log_directory: Path) -> None:
    found = read(spark, log_directory)
    assert found.schema == kafka_schema(False)
    counted = Counter((row.topic, row.partition) for row in found.select("topic", "partition").collect())
    assert counted == {**{("orders", number): count for number, count in ORDERS.items()}, ("refunds", 0): 10}


# Broken if it failed: a column would have wrong content.
def test_rows_are_the_records(spark: SparkSession, log_directory: Path) -> None:
    found = read(spark, log_directory, subscribe="orders", includeHeaders="true")
    assert found.schema == kafka_schema(True)
    rows = found.where("partition = 1").orderBy("offset").collect()
    for row, record in zip(rows, sample(ORDERS[1]), strict=True):
        assert (row.offset, row.topic, row.timestampType) == (record.offset, "orders", 0)
        assert plain(row.key) == record.key
        assert plain(row.value) == record.value
        headers = tuple((one.key, plain(one.value)) for one in row.headers or ())
        assert headers == record.headers
    first = found.where("partition = 1 and offset = 1").selectExpr("unix_millis(timestamp) as ms").first()
    assert first is not None
    assert first.ms == sample(2)[1].timestamp


# Broken if it failed: a job would pay for columns that it does not use.
def test_the_users_schema_prunes(spark: SparkSession, log_directory: Path) -> None:
    found = read(spark, log_directory, "offset bigint, value binary", subscribe="refunds")
    assert found.columns == ["offset", "value"]
    assert sorted(row.offset for row in found.collect()) == list(range(10))
    headers = "headers array<struct<key:string,value:binary>>, partition int not null"
    assert read(spark, log_directory, headers, subscribe="refunds").where("headers is not null").count() == 4


# Broken if it failed: a job would read other records than its options say, or in one task.
def test_offsets_and_tasks(spark: SparkSession, log_directory: Path) -> None:
    found = read(
        spark,
        log_directory,
        "partition int, offset bigint",
        subscribe="orders",
        startingOffsets='{"orders":{"0":10,"1":-2,"2":59}}',
        endingOffsets='{"orders":{"0":-1,"1":3,"2":-1}}',
        minPartitions="6",
    )
    assert found.rdd.getNumPartitions() > 3
    rows = Counter(row.partition for row in found.collect())
    assert rows == {0: 90, 1: 3, 2: 1}
    later = sample(100)[90].timestamp
    times = read(spark, log_directory, assign='{"orders":[0]}', startingTimestamp=str(later))
    assert sorted(row.offset for row in times.collect()) == list(range(90, 100))


# Broken if it failed: a query would read whole partitions for a few rows, lose rows to its filters, or fail
# because Spark's switch is off.
@pytest.mark.parametrize("pushed", [False, True])
def test_filters(spark: SparkSession, log_directory: Path, pushed: bool) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushed).lower())
    try:
        found = read(spark, log_directory)
        some = found.where("topic = 'orders' and partition in (0, 2) and offset > 50 and value is not null")
        assert some.rdd.getNumPartitions() == (2 if pushed else 4)
        rows = [(row.partition, row.offset) for row in some.collect()]
        values = {record.offset for record in sample(100) if record.value is not None}
        assert Counter(rows) == Counter(
            (partition, offset)
            for partition in (0, 2)
            for offset in range(51, ORDERS[partition])
            if offset in values
        )
        time = sample(100)[90].timestamp
        late = found.where(f"timestamp >= timestamp_millis({time}) and topic = 'orders'")
        assert late.rdd.getNumPartitions() == (1 if pushed else 4)
        assert sorted(row.offset for row in late.collect()) == list(range(90, 100))
        assert found.where("offset < 0").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# Broken if it failed: a query without records would fail.
def test_nothing_to_read_is_an_empty_frame(spark: SparkSession, log_directory: Path) -> None:
    assert read(spark, log_directory, subscribePattern="nothing.*").count() == 0


# Broken if it failed: a copy of one partition could not be read.
def test_a_single_partitions_directory(spark: SparkSession, log_directory: Path) -> None:
    found = read(spark, log_directory / "orders-2")
    assert {(row.topic, row.partition) for row in found.collect()} == {("orders", 2)}
    assert found.count() == ORDERS[2]


# Broken if it failed: a user would have to know where `logcore start` puts its logs.
def test_a_data_directory_of_logcore_start(spark: SparkSession, log_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "kafka-logs").symlink_to(log_directory)
    assert read(spark, tmp_path, subscribe="refunds").count() == 10


# Broken if it failed: a user would get Spark's stack trace without the reason.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subscribe": "absent"},
            "topic 'absent' is not in .*; there is __consumer_offsets, orders, refunds",
        ),
        ({"assign": '{"orders":[9]}'}, "partition orders-9 is not in"),
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset'"),
    ],
)
def test_errors_reach_the_user(
    spark: SparkSession, log_directory: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, log_directory, **options).count()


# Broken if it failed: those who write SQL could not read a log, or would not learn why a table is none.
def test_sql(spark: SparkSession, log_directory: Path) -> None:
    options = f"USING logcore OPTIONS (path '{log_directory}', subscribe 'orders')"
    spark.sql(f"CREATE TEMPORARY VIEW orders {options}")
    found = spark.sql("SELECT partition, count(*) AS rows FROM orders GROUP BY partition")
    assert {row.partition: row.rows for row in found.collect()} == ORDERS
    spark.catalog.dropTempView("orders")
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE orders {options}")


# Broken if it failed: a misspelt path would look like a log without records.
def test_a_missing_directory_and_an_empty_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="does not exist"):
        read(spark, tmp_path / "absent").count()
    with pytest.raises(Exception, match="holds no partition"):
        read(spark, tmp_path).count()


# Broken if it failed: a job would succeed without the records of a damaged batch.
def test_a_damaged_segment_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", sample(20))
    segment = sorted((tmp_path / "t-0").glob("*.log"))[0]
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(Exception, match="corrupt"):
        read(spark, tmp_path).collect()


# Broken if it failed: a script in a virtual environment would need PYSPARK_PYTHON to find the source.
def test_a_driver_that_imports_the_package_needs_to_set_nothing(
    spark: SparkSession, log_directory: Path
) -> None:
    script = (
        "import sys, pyspark_logcore\n"
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "session = builder.getOrCreate()\n"
        "found = session.read.format('logcore').option('subscribe', 'refunds').load(sys.argv[1])\n"
        "print('rows', found.count())\n"
        "session.stop()\n"
    )
    inside = str(Path(sys.executable).parent)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment["PATH"] = os.pathsep.join(
        part for part in environment["PATH"].split(os.pathsep) if part != inside
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, log_directory.as_uri()],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "rows 10" in ended.stdout, ended.stderr


# Broken if it failed: a job would read other rows from a broker than from the broker's files.
def test_from_a_broker_as_from_its_files(spark: SparkSession, broker: BrokerProcess) -> None:
    from cluster import AdminClient, NewTopic, Producer

    for future in (
        AdminClient({"bootstrap.servers": broker.bootstrap})
        .create_topics([NewTopic("wire", 3, 1, config={"retention.ms": "-1"})])
        .values()
    ):
        future.result(timeout=30)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
    written = sample(500)
    for record in written:
        producer.produce(
            "wire",
            value=record.value,
            key=record.key,
            timestamp=record.timestamp,
            headers=list(record.headers),
        )
    assert producer.flush(30) == 0

    options = {"subscribe": "wire", "includeHeaders": "true"}
    fetched = (
        spark.read.format("logcore").option("kafka.bootstrap.servers", broker.bootstrap).options(**options)
    )
    over_wire = sorted(fetched.load().collect(), key=lambda row: (row.partition, row.offset))
    partition = next(broker.data_dir.rglob("wire-0"))
    from_files = sorted(
        fetched.options(path=str(partition.parent), access="files").load().collect(),
        key=lambda row: (row.partition, row.offset),
    )
    assert over_wire == from_files
    assert len(over_wire) == len(written)
    assert Counter(plain(row.value) for row in over_wire) == Counter(record.value for record in written)

    with pytest.raises(Exception, match="topic 'absent' is not at"):
        spark.read.format("logcore").options(
            **{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "absent"}
        ).load().count()
