"""`df.write.format("logcore")` and `df.writeStream.format("logcore")` in a real Spark session.

Broken if they failed: rows would be lost or written twice, or get to other partitions than with Kafka's
producer.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cluster import AdminClient
from pyspark_logcore import _sink
from pyspark_logcore._sink import LogWriter
from tests.conftest import BrokerProcess
from tests.spark.streams import TIMEOUT, batches, consume, create_topic, needs_limits, produce, read_stream

pytestmark = pytest.mark.timeout(600)

ONCE = {"exactly.once": "true"}


def rows(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


def written(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(value or -1) for part in consume(bootstrap, topic).values() for value in part)


# Broken if it failed: a batch job would lose or repeat rows, also by a speculative task that comes after its
# end.
@pytest.mark.parametrize("options", [{}, ONCE], ids=["plain", "once"])
def test_every_row_is_written(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"batch-{len(options)}"
    create_topic(broker.bootstrap, topic)
    writer = rows(spark, 5_000).write.format("logcore").mode("append").options(**options)
    writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic).save()
    assert written(broker.bootstrap, topic) == list(range(5_000))
    # One marker of the job stays, those of its tasks are deleted.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    groups = admin.list_consumer_groups().result(timeout=TIMEOUT).valid
    markers = [group.group_id for group in groups if group.group_id.startswith("spark-job-")]
    admin.close()
    assert len(markers) == len(options)
    if not markers:
        return
    job = markers[0].removeprefix("spark-")
    servers = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    late = LogWriter(_sink._parse({**servers, **options}, StructType().add("value", "string")), job)
    monkeypatch.setattr(_sink, "task_context", lambda: SimpleNamespace(partitionId=lambda: 1))
    with pytest.raises(RuntimeError, match=f"job {job} is over: this attempt of task 1 came too late"):
        late.write(iter([pa.record_batch({"value": ["again"]})]))
    assert written(broker.bootstrap, topic) == list(range(5_000))


# Broken if it failed: a column would be lost or get into the wrong place.
def test_columns_become_parts_of_the_record(spark: SparkSession, broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "columns")
    table = spark.sql(
        "select 'k' as key, cast('v' as binary) as value, 'columns' as topic, 1 as partition, "
        "timestamp_millis(1700000000123) as timestamp, 'ignored' as more, "
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers "
        "union all select null, null, 'columns', 0, null, null, null"
    )
    servers = "kafka.bootstrap.servers"
    table.write.format("logcore").mode("append").option(servers, broker.bootstrap).save()
    found = (
        spark.read.format("logcore")
        .option(servers, broker.bootstrap)
        .options(subscribe="columns", includeHeaders="true")
        .load()
        .selectExpr("*", "unix_millis(timestamp) as ms")
        .orderBy("partition")
        .collect()
    )
    assert [row.partition for row in found] == [0, 1]
    assert (found[0].key, found[0].value, found[0].headers) == (None, None, None)
    assert found[0].ms > 1_700_000_000_123
    assert (bytes(found[1].key), bytes(found[1].value), found[1].ms) == (b"k", b"v", 1_700_000_000_123)
    assert [(one.key, bytes(one.value)) for one in found[1].headers] == [("h", b"x")]


def start(stream: DataFrame, bootstrap: str, topic: str, checkpoint: Path) -> None:
    query = (
        stream.selectExpr("key", "value", "partition")
        .writeStream.format("logcore")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint.as_uri())
        .options(**ONCE)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT)


# Broken if it failed: a micro-batch whose end Spark did not note, because the driver was lost, would be twice
# in the topic.
@needs_limits
def test_a_repeated_micro_batch_is_written_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    for topic in ("repeat-in", "repeat-out"):
        create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, "repeat-in", range(200))
    checkpoint = tmp_path / "checkpoint"
    stream = read_stream(spark, broker.bootstrap, "repeat-in", maxOffsetsPerTrigger="80")
    start(stream, broker.bootstrap, "repeat-out", checkpoint)
    expected = {part: [str(value).encode() for value in range(part, 200, 2)] for part in (0, 1)}
    assert consume(broker.bootstrap, "repeat-out") == expected
    last = batches(checkpoint / "commits")[-1]
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    produce(broker.bootstrap, "repeat-in", range(200, 220))
    start(stream, broker.bootstrap, "repeat-out", checkpoint)
    expected = {part: [str(value).encode() for value in range(part, 220, 2)] for part in (0, 1)}
    assert consume(broker.bootstrap, "repeat-out") == expected


# Broken if it failed: rows would be lost or be there twice, without a word, because the checkpoint is an old
# copy, or because a micro-batch that is repeated is split into other tasks.
@needs_limits
def test_a_micro_batch_that_is_not_repeated_exactly_is_refused(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    for topic in ("changed-in", "changed-out"):
        create_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, "changed-in", range(200))
    checkpoint = tmp_path / "checkpoint"

    def run(**options: str) -> None:
        stream = read_stream(spark, broker.bootstrap, "changed-in", maxOffsetsPerTrigger="80", **options)
        start(stream, broker.bootstrap, "changed-out", checkpoint)

    def forget(*kinds: str) -> None:
        for kind in kinds:
            last = batches(checkpoint / kind)[-1]
            last.unlink()
            (checkpoint / kind / f".{last.name}.crc").unlink(missing_ok=True)

    run()
    forget("commits")
    with pytest.raises(Exception, match=r"micro-batch 2 .* is repeated, and its task \d has other rows"):
        run(maxRecordsPerPartition="10")
    forget("offsets")
    forget("offsets", "commits")
    produce(broker.bootstrap, "changed-in", range(200, 300))
    with pytest.raises(Exception, match=r"to write micro-batch 1, .* micro-batch 2 already"):
        run()
    # A task that is new has written its rows before another one was refused, perhaps.
    assert sorted(set(written(broker.bootstrap, "changed-out"))) == list(range(200))


# Broken if it failed: a user would get Spark's stack trace without the reason.
@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("1 as value", {"topic": "t"}, "column value must be string or binary, not int"),
        ("'a' as key", {"topic": "t"}, "a column value is needed"),
        ("'a' as value", {}, "set the option topic, or add a column topic"),
        ("'a' as value, cast(null as string) as topic", {}, "row 0 names no topic"),
        ("'a' as value", {"topic": "t", "kafka.acks": "1"}, "'kafka.acks' must be all"),
        ("'a' as value", {"topic": "t", "topics": "u"}, "unknown option 'topics' for writing"),
        ("'a' as value, 9 as partition", {"topic": "columns"}, "partition 9"),
    ],
)
def test_errors_reach_the_user(
    spark: SparkSession, broker: BrokerProcess, select: str, options: dict[str, str], message: str
) -> None:
    writer = spark.sql(f"select {select}").write.format("logcore").mode("append").options(**options)
    with pytest.raises(Exception, match=message):
        writer.option("kafka.bootstrap.servers", broker.bootstrap).save()
