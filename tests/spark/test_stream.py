"""`spark.readStream.format("logcore")` in a real Spark session, from files and from a broker.

Broken if they failed: a stream would miss or repeat records, or end without saying why.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cluster import AdminClient, ConsumerGroupTopicPartitions, NewPartitions, Producer
from pyspark_logcore import _stream
from pyspark_logcore._schema import kafka_schema
from pyspark_logcore._stream import LogStreamReader
from tests.columns.segment_files import sample, write_partition
from tests.conftest import BrokerProcess
from tests.spark.conftest import ORDERS
from tests.spark.streams import (
    TIMEOUT,
    checkpoints,
    create_topic,
    needs_limits,
    produce,
    read_stream,
    run_available,
    values_in,
)

pytestmark = pytest.mark.timeout(600)


# Broken if it failed: a stream would go on in the middle of another topic, which has the name of a deleted
# one and is longer.
@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_made_anew_while_a_stream_runs(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    topic = f"anew-{fails}"
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, range(10))
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "failOnDataLoss": str(fails).lower(),
    }
    reader = LogStreamReader(options, kafka_schema(False))
    start = reader.latestOffset(reader.initialOffset(), None)
    assert start == {topic: {"0": 5, "1": 5}}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(TIMEOUT)
    admin.close()
    create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, range(30))
    said = f"topic {topic} was deleted and made anew while the stream ran"
    if fails:
        with pytest.raises(ValueError, match=said):
            reader.latestOffset(start, None)
    else:
        assert reader.latestOffset(start, None) == {topic: {"0": 15, "1": 15}}
        assert said in caplog.text
    reader.stop()


# Broken if it failed: a stream would begin anew after a restart, or take more than its trigger allows.
@needs_limits
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "goes-on")
    produce(broker.bootstrap, "goes-on", range(100))
    stream = read_stream(spark, broker.bootstrap, "goes-on", maxOffsetsPerTrigger="30")
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(100))
    assert checkpoints(tmp_path / "checkpoint") == [
        {"goes-on": {"0": end, "1": end}} for end in (15, 30, 45, 50)
    ]
    produce(broker.bootstrap, "goes-on", range(100, 120))
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(120))
    assert checkpoints(tmp_path / "checkpoint")[-1] == {"goes-on": {"0": 60, "1": 60}}


# Broken if it failed: a stream with default options could not begin on a topic that is being written.
def test_a_stream_from_the_latest_offsets_of_a_busy_topic(tmp_path: Path) -> None:
    noted = tmp_path / "replication-offset-checkpoint"
    options = {"path": str(tmp_path), "subscribe": "t"}
    write_partition(tmp_path / "t-0", sample(100))

    def ends_at(offset: int) -> None:
        noted.write_text(f"0\n1\nt 0 {offset}\n")

    def planned(reader: LogStreamReader, start: int, end: int) -> list[tuple[int, int]]:
        tasks: list[Any] = list(reader.partitions({"t": {"0": start}}, {"t": {"0": end}}))
        return [(task.start, task.end) for task in tasks]

    ends_at(40)
    reader = LogStreamReader(options, kafka_schema(False))
    reader.prepareForTriggerAvailableNow()
    begin = reader.initialOffset()
    assert begin == {"t": {"0": 40}}
    ends_at(50)
    # Spark asks again before the first micro-batch is committed. Its end is the start.
    assert reader.initialOffset() == begin
    assert reader.latestOffset(begin, None) == begin
    assert planned(reader, 40, 40) == []
    # Another process goes on from there, although the log ends later now.
    again = LogStreamReader(options, kafka_schema(False))
    ends_at(60)
    assert again.initialOffset() == {"t": {"0": 60}}
    assert planned(again, 60, 40) == []
    assert again.latestOffset(begin, None) == {"t": {"0": 60}}
    assert planned(again, 40, 60) == [(40, 60)]
    # The first process reads what there is now, and no more.
    assert reader.latestOffset(begin, None) == {"t": {"0": 60}}
    ends_at(70)
    assert reader.latestOffset({"t": {"0": 60}}, None) == {"t": {"0": 60}}
    reader.stop()
    again.stop()


# Broken if it failed: a stream with default options would fail, or leave out what came after its start.
def test_a_stream_from_the_latest_offsets(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, "latest")
    produce(broker.bootstrap, "latest", range(10))
    stream = read_stream(spark, broker.bootstrap, "latest", startingOffsets="latest")
    for values in (range(10, 20), range(20, 30)):
        run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
        produce(broker.bootstrap, "latest", values)
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(10, 30))


# Broken if it failed: those who write SQL could not stream.
def test_sql_over_a_stream(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, "sql")
    produce(broker.bootstrap, "sql", range(100))
    read_stream(spark, broker.bootstrap, "sql").createOrReplaceTempView("numbers")
    even = spark.sql("SELECT value FROM numbers WHERE cast(cast(value AS string) AS int) % 2 = 0")
    run_available(even, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(0, 100, 2))


# Broken if it failed: a micro-batch would take all that is there at once, or next to nothing.
@needs_limits
def test_a_trigger_of_bytes(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    create_topic(broker.bootstrap, "bytes")
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        for value in range(400):
            producer.produce("bytes", str(value).encode() + b" " * 1_000, partition=value % 2)
        assert producer.flush(TIMEOUT) == 0
    stream = read_stream(spark, broker.bootstrap, "bytes", maxBytesPerTrigger="100000")
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(400))
    assert 4 <= len(checkpoints(tmp_path / "checkpoint")) <= 6


# Broken if it failed: records of a new partition would be missed.
def test_a_new_partition_is_read_from_its_beginning(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "grows", 1)
    produce(broker.bootstrap, "grows", range(10), 1)
    stream = read_stream(spark, broker.bootstrap, "grows", commitGroup="grows-progress")
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_partitions([NewPartitions("grows", 2)]).values():
        future.result(timeout=TIMEOUT)
    produce(broker.bootstrap, "grows", range(10, 20), 2)
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(20))
    # Spark commits a micro-batch when it begins the next, so the group shows the first run's end at least.
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("grows-progress")])
    shown = asked["grows-progress"].result(timeout=TIMEOUT).topic_partitions
    assert shown
    assert max(one.offset for one in shown) >= 10
    admin.close()


# Broken if it failed: a stream from a broker's files would miss records, or read what is not replicated.
def test_files_are_read_as_far_as_the_broker_says(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "both")
    produce(broker.bootstrap, "both", range(50))
    path = next(broker.data_dir.rglob("both-0")).parent
    stream = read_stream(spark, broker.bootstrap, "both", path=str(path), access="files")
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    assert values_in(spark, tmp_path / "out") == list(range(50))
    # Where the files are not, the brokers are asked.
    elsewhere = read_stream(spark, broker.bootstrap, "both", path=str(tmp_path / "nothing"))
    run_available(elsewhere, tmp_path / "other", tmp_path / "other-checkpoint")
    assert values_in(spark, tmp_path / "other") == list(range(50))


# Broken if it failed: a directory without a broker could not be read as a stream.
def test_a_directory_alone(spark: SparkSession, log_directory: Path, tmp_path: Path) -> None:
    stream = (
        spark.readStream.format("logcore")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .schema("offset bigint, partition int")
        .load(log_directory.as_uri())
    )
    run_available(stream, tmp_path / "out", tmp_path / "checkpoint")
    found = spark.read.parquet((tmp_path / "out").as_uri()).groupBy("partition").count().collect()
    assert {row.partition: row["count"] for row in found} == ORDERS


# Broken if it failed: a stream would go on in silence after records were deleted under it.
def test_lost_records_end_the_stream_unless_it_may_go_on(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_partition(logs / "t-0", sample(20))

    def run(**options: str) -> None:
        reader = spark.readStream.format("logcore").option("startingOffsets", "earliest").options(**options)
        run_available(reader.load(logs.as_uri()), tmp_path / "out", tmp_path / "checkpoint")

    run()
    shutil.rmtree(logs / "t-0")
    write_partition(logs / "t-0", sample(30)[25:])
    with pytest.raises(
        Exception, match=r"offsets .20, 25. of t-0 were deleted before the stream had read them"
    ):
        run()
    run(failOnDataLoss="false")
    found = spark.read.parquet((tmp_path / "out").as_uri()).collect()
    assert sorted(row.offset for row in found) == [*range(20), *range(25, 30)]


# Broken if it failed: a stream would end because a replica has noted a lower high watermark than another.
def test_a_high_watermark_that_goes_back_is_no_loss(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", sample(20))
    noted = tmp_path / "replication-offset-checkpoint"
    reader = LogStreamReader({"path": str(tmp_path), "subscribe": "t"}, kafka_schema(False))
    for offset, start, until in ((15, 0, 15), (10, 15, 15), (17, 15, 17), (17, 21, 17)):
        noted.write_text(f"0\n1\nt 0 {offset}\n")
        assert reader.latestOffset({"t": {"0": start}}, None) == {"t": {"0": until}}
    reader.stop()


# Broken if it failed: streams would not run with Spark 4.1, or would read more at once than they were told.
def test_a_spark_without_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "SPARK_LIMITS", False)
    write_partition(tmp_path / "t-0", sample(20))
    options = {"path": str(tmp_path), "subscribe": "t", "startingOffsets": "earliest"}
    reader = LogStreamReader(options, kafka_schema(False))
    assert reader.initialOffset() == {"t": {"0": 0}}
    assert reader.latestOffset() == {"t": {"0": 20}}
    reader.stop()
    limited = LogStreamReader({**options, "maxOffsetsPerTrigger": "5"}, kafka_schema(False))
    with pytest.raises(ValueError, match=r"maxOffsetsPerTrigger, .* need Spark 4\.2"):
        limited.initialOffset()


# Broken if it failed: a wrong option would end a stream in an error of PySpark that does not name it.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' cannot be set for a stream"),
        ({"subscribe": "absent"}, "topic 'absent' is not in"),
        ({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' must be a time such as 15m"),
    ],
)
def test_errors_reach_the_user(
    spark: SparkSession, log_directory: Path, options: dict[str, str], message: str
) -> None:
    stream = spark.readStream.format("logcore").options(**options).schema("offset bigint")
    query = stream.load(log_directory.as_uri()).writeStream.format("noop").start()
    with pytest.raises(Exception, match=message):
        query.awaitTermination()
