"""Options and plans, without a Spark session.

Broken if they failed: jobs would read the wrong offsets, or a misspelt option would be ignored.
"""

from __future__ import annotations

import dataclasses
import operator
import pickle
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

import logcore
from pyspark_logcore._directory import DirectoryLog
from pyspark_logcore._filters import Wanted
from pyspark_logcore._options import TopicChoice, parse_options
from pyspark_logcore._plan import Bounds, Key, OffsetRange, cut_evenly, plan, split
from pyspark_logcore._schema import check_schema, kafka_schema
from tests.columns.segment_files import sample, write_partition


class FakeLog:
    """Partitions of topic `t` with their first and end offsets; the timestamp of record i is 10 * i."""

    def __init__(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        self._bounds = bounds

    def partitions(self, choice: TopicChoice) -> list[tuple[str, int]]:
        return sorted(("t", number) for number in self._bounds if choice.wants("t", number))

    def bounds(self, partitions: Sequence[Key]) -> dict[Key, Bounds]:
        return {key: Bounds(*self._bounds[key[1]]) for key in partitions}

    def stored_bytes(self, partitions: Sequence[Key]) -> dict[Key, int]:
        raise AssertionError("batches do not ask for sizes")

    def cut(self, one: OffsetRange, parts: int) -> list[int]:
        return cut_evenly(one, parts)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        low, high = self._bounds[partition]
        offset = max(low, -(-timestamp // 10))
        return offset if offset < high else None


def planned(bounds: Mapping[int, tuple[int, int]], **options: str) -> list[tuple[int, int, int]]:
    tasks = plan(parse_options({"path": "/logs", **options}), FakeLog(bounds))
    return [(task.partition, task.start, task.end) for task in tasks]


TWO = {0: (5, 20), 1: (0, 8)}


def at_ms(time: int) -> datetime:
    return datetime.fromtimestamp(time / 1000, UTC)


# Broken if it failed: a read without options would leave records out.
def test_everything_by_default() -> None:
    assert planned(TWO) == [(0, 5, 20), (1, 0, 8)]


OFFSETS = st.integers(-2, 25)
FILTERS = st.one_of(
    st.builds(EqualTo, st.just(("topic",)), st.sampled_from("tu")),
    st.builds(In, st.just(("topic",)), st.lists(st.sampled_from("stu"), min_size=1).map(tuple)),
    *(
        st.builds(kind, st.just((column,)), OFFSETS)
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
        for column in ("partition", "offset")
    ),
    *(
        st.builds(In, st.just((column,)), st.lists(OFFSETS, min_size=1).map(tuple))
        for column in ("partition", "offset")
    ),
    *(
        st.builds(kind, st.just(("timestamp",)), st.integers(-5, 250).map(at_ms))
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ),
    st.builds(Not, st.builds(EqualTo, st.just(("offset",)), OFFSETS)),
    st.just(IsNotNull(("value",))),
)


def passes(one: Filter, row: Mapping[str, object]) -> bool:
    """What Spark finds."""
    match one:
        case Not(child=child):
            return not passes(child, row)
        case IsNotNull():
            return True
        case In(attribute=(column,), value=values):
            return row[column] in values
        case (
            EqualTo(attribute=(column,), value=value)
            | GreaterThan(attribute=(column,), value=value)
            | GreaterThanOrEqual(attribute=(column,), value=value)
            | LessThan(attribute=(column,), value=value)
            | LessThanOrEqual(attribute=(column,), value=value)
        ):
            return bool(COMPARISONS[type(one)](row[column], value))
    raise AssertionError(one)


COMPARISONS = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


# Broken if it failed: a row that passes a query's filters would not be read.
@given(st.lists(FILTERS, max_size=4))
def test_filters_lose_no_row(filters: list[Filter]) -> None:
    log = FakeLog(TWO)
    tasks = plan(parse_options({"path": "/logs"}), log, Wanted(filters))
    read = [(task.partition, offset) for task in tasks for offset in range(task.start, task.end)]
    assert len(read) == len(set(read))
    for partition, (low, high) in TWO.items():
        for offset in range(low, high):
            row = {"topic": "t", "partition": partition, "offset": offset, "timestamp": at_ms(10 * offset)}
            if all(passes(one, row) for one in filters):
                assert (partition, offset) in read


# Broken if it failed: a job that may lose records would end because retention was quicker than its task.
def test_records_that_were_deleted_after_the_plan(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", sample(30)[10:])
    log = DirectoryLog((str(tmp_path),), "read_uncommitted")
    with pytest.raises(ValueError, match=r"offsets .0, 20. of t-0 cannot be read"):
        list(log.read(OffsetRange("t", 0, 0, 20), ["offset"]))
    log = dataclasses.replace(log, may_lose=True)
    for end, expected in ((20, list(range(10, 20))), (5, [])):
        read = log.read(OffsetRange("t", 0, 0, end), ["offset"])
        assert [row["offset"] for batch in read for row in batch.to_pylist()] == expected


# Broken if it failed: a job would count records of a deleted topic, which no broker has any more.
def test_a_directory_of_a_deleted_topic_of_the_same_name_is_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_partition(directory, sample(30))
    log = DirectoryLog((str(tmp_path),), "read_uncommitted")
    task, other = OffsetRange("t", 0, 0, 20, topic_id=bytes(15) + b"\1"), bytes(15) + b"\2"
    assert log.directory_with(task, []) == directory, "a broker before Kafka 2.8 has noted no id"
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    problems: list[str] = []
    assert log.directory_with(task, problems) == directory
    assert log.directory_with(dataclasses.replace(task, topic_id=b""), problems) == directory
    assert problems == []
    assert log.directory_with(dataclasses.replace(task, topic_id=other), problems) is None
    assert problems == [f"{directory} is of another topic of this name, which was deleted"]


# Broken if it failed: a query would read offsets that its filters exclude. The plan keeps the value that a
# strict comparison names.
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("topic",), "u")], []),
        ([In(("partition",), (0, 7)), GreaterThan(("offset",), 9)], [(0, 9, 20)]),
        ([In(("offset",), (3, 6)), LessThan(("offset",), 6)], [(0, 5, 7), (1, 3, 7)]),
        ([GreaterThanOrEqual(("timestamp",), at_ms(75))], [(0, 8, 20)]),
        ([EqualTo(("timestamp",), at_ms(500))], []),
        # Times that have another meaning in a request.
        ([GreaterThan(("timestamp",), at_ms(-1))], [(0, 5, 20), (1, 0, 8)]),
        ([GreaterThan(("timestamp",), at_ms(-5_000_000))], [(0, 5, 20), (1, 0, 8)]),
    ],
)
def test_filters_leave_out(filters: list[Filter], expected: list[tuple[int, int, int]]) -> None:
    tasks = plan(parse_options({"path": "/logs"}), FakeLog(TWO), Wanted(filters))
    assert [(task.partition, task.start, task.end) for task in tasks] == expected


# Broken if it failed: Spark would start tasks that read nothing.
def test_an_empty_partition_is_no_task() -> None:
    assert planned({0: (5, 5), 1: (0, 8)}) == [(1, 0, 8)]


# Broken if it failed: a job would begin or end at the wrong record.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [(0, 5, 20), (1, 0, 8)]),
        ({"startingOffsets": '{"t":{"0":7,"1":-2}}'}, [(0, 7, 20), (1, 0, 8)]),
        ({"endingOffsets": '{"t":{"0":-1,"1":3}}'}, [(0, 5, 20), (1, 0, 3)]),
        ({"startingTimestamp": "70"}, [(0, 7, 20), (1, 7, 8)]),
        ({"startingTimestamp": "70", "startingOffsets": '{"t":{"0":9,"1":1}}'}, [(0, 7, 20), (1, 7, 8)]),
        ({"endingTimestamp": "100"}, [(0, 5, 10), (1, 0, 8)]),
        ({"startingOffsetsByTimestamp": '{"t":{"0":100,"1":10}}'}, [(0, 10, 20), (1, 1, 8)]),
        ({"assign": '{"t":[1]}'}, [(1, 0, 8)]),
        ({"subscribePattern": "u.*"}, []),
        ({"STARTINGOFFSETS": "EARLIEST", "Subscribe": "t"}, [(0, 5, 20), (1, 0, 8)]),
    ],
)
def test_limits(options: dict[str, str], expected: list[tuple[int, int, int]]) -> None:
    assert planned(TWO, **options) == expected


# Broken if it failed: a user would search for the option that is wrong.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset'; the options are path, paths"),
        ({"kafka.client.id": "job"}, "set the brokers' addresses"),
        ({"access": "brokers"}, "'access' is brokers, but 'kafka.bootstrap.servers' is not set"),
        ({"isolation.level": "committed"}, "'isolation.level' must be one of"),
        ({"commitGroup": "g"}, "'commitGroup' needs brokers"),
        ({"paths": '["/a"]'}, "the option 'path' or 'paths', not both"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "'minOffsetsPerTrigger' .6. is above"),
        ({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' must be a time such as 15m"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "only one of the options"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"assign": "t"}, "'assign' must be JSON"),
        ({"assign": '{"t":[-1]}'}, "'assign' must be JSON"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"startingOffsets": '{"t":{"0":-1,"1":0}}'}, "cannot be latest"),
        ({"startingOffsets": "soon"}, "'startingOffsets' must be JSON like"),
        ({"startingOffsets": '{"t":{"0":6}}'}, "missing: t-1"),
        ({"startingOffsets": '{"t":{"0":6,"1":0,"2":0}}'}, "not read: t-2"),
        ({"startingOffsets": '{"t":{"0":4,"1":0}}'}, r"offset 4 of t-0 .*\[5, 20\)"),
        ({"endingOffsets": '{"t":{"0":21,"1":0}}'}, r"offset 21 of t-0 .*\[5, 20\)"),
        (
            {"startingOffsets": '{"t":{"0":9,"1":0}}', "endingOffsets": '{"t":{"0":8,"1":8}}'},
            "the start 9 .* is after the end 8",
        ),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingTimestamp": "5000"}, "no record of t-0 is at or after 5000"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "one of error, latest"),
        ({"minPartitions": "0"}, "'minPartitions' must be a positive number"),
        ({"includeHeaders": "yes"}, "'includeHeaders' must be one of true, false"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(TWO, **options)


# Broken if it failed: a read would start without knowing what to read.
def test_brokers_need_a_topic_and_every_read_needs_a_path_or_brokers() -> None:
    with pytest.raises(ValueError, match="needs one of the options subscribe"):
        parse_options({"kafka.bootstrap.servers": "h:1"})
    with pytest.raises(ValueError, match="set a log directory"):
        parse_options({"subscribe": "t"})
    with pytest.raises(ValueError, match=r"kafka.auto.offset.reset' is not supported"):
        parse_options({"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.auto.offset.reset": "latest"})


def client_of(**options: str) -> Mapping[str, str]:
    kafka = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **kafka}).client


# Broken if it failed: a job with options of Kafka's Java consumer would not move over, or its settings would
# be lost.
def test_options_of_kafkas_consumer_are_taken_over_or_ignored(caplog: pytest.LogCaptureFixture) -> None:
    tuned = {
        "max_poll_records": "500",
        "fetch_max_wait_ms": "100",
        "default_api_timeout_ms": "60000",
        "receive_buffer_bytes": "-1",
        "group_id": "g",
        "partition_assignment_strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        "sasl_jaas_config": "secret",
    }
    kept = {"client_id": "job", "max_partition_fetch_bytes": "65536", "security_protocol": "PLAINTEXT"}
    client = client_of(**tuned, **kept, request_timeout_ms="400000")
    assert client == {
        "bootstrap.servers": "h:1",
        "client.id": "job",
        "isolation.level": "read_uncommitted",
        "max.partition.fetch.bytes": "65536",
        "security.protocol": "PLAINTEXT",
        "socket.timeout.ms": "300000",
    }
    [line] = caplog.messages
    assert all(f"kafka.{name.replace('_', '.')}" in line for name in tuned)
    assert "secret" not in line


# Broken if it failed: a misspelt or unsafe setting would be ignored, or the error would not name it.
def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^option 'kafka\.max\.pol\.records': neither Kafka's consumer nor"):
        client_of(max_pol_records="1")
    with pytest.raises(ValueError, match=r"^option 'kafka\.security\.protocol': .*only plaintext"):
        client_of(security_protocol="SASL_SSL")
    with pytest.raises(ValueError, match=r"^option 'kafka\.request\.timeout\.ms': .*'soon'"):
        client_of(request_timeout_ms="soon")


# Broken if it failed: a path as Spark writes it would be looked for in the working directory.
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/var/lib/logcore", "/var/lib/logcore"),
        ("logs", "logs"),
        ("odd:name", "odd:name"),
        ("file:///var/lib/log%20core", "/var/lib/log core"),
        ("file:/var/lib/logcore", "/var/lib/logcore"),
        ("FILE://localhost/var/lib", "/var/lib"),
    ],
)
def test_a_path_may_be_a_file_url(given: str, path: str) -> None:
    assert parse_options({"path": given}).paths == (path,)


# Broken if it failed: a path on another file system would look like a missing directory.
@pytest.mark.parametrize(
    ("given", "message"), [("s3a://b/logs", "not in a local file system"), ("file://logs", "names a host")]
)
def test_a_path_on_another_file_system_is_refused(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_options({"path": given})


# Broken if it failed: a job could not read a log that lost its oldest records.
def test_options_allow_missing_offsets_and_times() -> None:
    assert planned(TWO, startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest") == []
    wide = {"startingOffsets": '{"t":{"0":0,"1":0}}', "endingOffsets": '{"t":{"0":99,"1":99}}'}
    assert planned(TWO, failOnDataLoss="false", **wide) == [(0, 5, 20), (1, 0, 8)]


# Broken if it failed: records would be read twice or by no task.
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5000)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 500),
)
def test_a_split_covers_every_offset_once(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [OffsetRange("t", number, start, start + size) for number, (start, size) in enumerate(sizes)]
    tasks = split(ranges, min_partitions, max_records)
    for one in ranges:
        edge = one.start
        for task in tasks:
            if task.partition == one.partition:
                assert task.start == edge
                assert task.size > 0
                assert max_records is None or task.size <= max_records
                edge = task.end
        assert edge == one.end
    if min_partitions is None and max_records is None:
        assert tasks == ranges


# Broken if it failed: of two tasks of a partition, one would have most of the work.
def test_files_are_cut_by_bytes(tmp_path: Path) -> None:
    with logcore.open(tmp_path / "t-0") as written:
        for value, count in ((b"x", 1000), (b"y" * 1000, 100)):
            for _ in range(count // 10):
                written.append_records([(None, value)] * 10)
    log = DirectoryLog((str(tmp_path),), "read_uncommitted")
    start, middle, end = log.cut(OffsetRange("t", 0, 0, 1100), 2)
    assert (start, end) == (0, 1100)
    assert 1000 < middle < 1100


# Broken if it failed: a large partition would be one slow task.
def test_min_partitions_follow_size() -> None:
    tasks = split([OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)], 10, None)
    assert [task.partition for task in tasks] == [0] * 9 + [1]


# Broken if it failed: a job with many tasks would send much memory to its executors.
def test_a_task_survives_pickling_and_is_small() -> None:
    task = OffsetRange("t", 1, 5, 9)
    sent = pickle.dumps(task)
    assert pickle.loads(sent) == task
    assert len(sent) < 300


# Broken if it failed: Spark would refuse every batch, or accept a wrong schema.
def test_schemas() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert kafka_schema(False).fieldNames() == names
    assert kafka_schema(True).fieldNames() == [*names, "headers"]
    assert all(field.nullable for field in kafka_schema(True))
    check_schema(StructType([StructField("offset", LongType(), False)]))
    for schema, message in (
        (StructType([StructField("size", LongType())]), "no column 'size'"),
        (StructType([StructField("offset", IntegerType())]), "'offset' is bigint, not int"),
        (StructType([StructField("value", kafka_schema(False)["value"].dataType, False)]), "can be null"),
        (StructType([]), "names no column"),
    ):
        with pytest.raises(ValueError, match=message):
            check_schema(schema)
