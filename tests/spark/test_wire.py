"""Reading from brokers without a Spark session, and what the package imports."""

from __future__ import annotations

import ast
import dataclasses
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiokafka.record.util import calc_crc32c

import pyspark_logcore
from cluster import AdminClient, TopicPartition
from cluster.client import batches, delete_records
from cluster.errors import OffsetOutOfRange
from logcore import _native, build_batch
from pyspark_logcore._directory import DirectoryLog
from pyspark_logcore._mixed import MixedLog
from pyspark_logcore._options import parse_options
from pyspark_logcore._plan import OffsetRange, plan
from pyspark_logcore._wire import BrokerLog
from tests.client.conftest import produce
from tests.conftest import BrokerProcess


# Broken if it failed: a job that sets read_committed would not move over.
def test_read_committed_reads_what_is_committed(broker: BrokerProcess) -> None:
    produce(broker.bootstrap, "committed", [b"%d" % number for number in range(30)], partition=0)
    options = parse_options(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "1",
            "assign": '{"committed":[0]}',
        }
    )
    log = BrokerLog(dict(options.client))
    with log.catalog() as catalog:
        [task] = plan(options, catalog)
    values = [value for batch in log.read(task, ["value"]) for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % number for number in range(30)]


# Broken if it failed: a job that may lose records would end because retention was quicker than its task.
def test_records_that_were_deleted_after_the_plan(broker: BrokerProcess) -> None:
    produce(broker.bootstrap, "shrinks", [b"%d" % number for number in range(30)], partition=0)
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, "assign": '{"shrinks":[0]}'})
    log = BrokerLog(dict(options.client))
    with log.catalog() as catalog:
        [task] = plan(options, catalog)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    delete_records(admin, {TopicPartition("shrinks", 0): 12})
    admin.close()
    with pytest.raises(OffsetOutOfRange):
        list(log.read(task, ["offset"]))
    read = dataclasses.replace(log, may_lose=True).read(task, ["offset"])
    assert [row["offset"] for batch in read for row in batch.to_pylist()] == list(range(12, 30))


# Broken if it failed: a job would count records of a deleted topic, because a machine has still its files.
def test_files_of_a_deleted_topic_of_the_same_name_are_not_read(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    produce(broker.bootstrap, "anew", [b"old"] * 3, partition=0)
    shutil.copytree(next(broker.data_dir.rglob("anew-0")), tmp_path / "anew-0")
    admin.delete_topics(["anew"])["anew"].result(30)
    produce(broker.bootstrap, "anew", [b"new"] * 3, partition=0)
    options = parse_options(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "path": str(tmp_path),
            "assign": '{"anew":[0]}',
        }
    )
    log = MixedLog(DirectoryLog(options.paths, "read_uncommitted"), BrokerLog(dict(options.client)), False)
    with log.catalog() as catalog:
        [task] = plan(options, catalog)
    values = [value for batch in log.read(task, ["value"]) for value in batch.column("value").to_pylist()]
    assert values == [b"new"] * 3
    admin.close()


class _Leader:
    """A network whose one broker answers a Fetch with three batches, of which the second is aborted."""

    def __init__(self, _config: object) -> None:
        pass

    def metadata(self, topics: list[str], timeout: float) -> dict[str, Any]:
        return {"topics": {"t": (0, False, [(0, 0, 1)])}}

    def request(self, key: int, version: int, body: bytes, **_where: object) -> bytes:
        asked = _native.decode_request(key, version, body)
        assert asked["isolation_level"] == 1
        partition = {
            "partition_index": 0,
            "high_watermark": 4,
            "last_stable_offset": 4,
            "aborted_transactions": [{"producer_id": 5, "first_offset": 1}],
            "records": b"".join(
                transactional(number, producer, value)
                for number, (producer, value) in enumerate([(6, b"a"), (5, b"aborted"), (6, b"b")])
            ),
        }
        return _native.encode_response(
            key, version, {"responses": [{"topic": "t", "partitions": [partition]}]}
        )

    def close(self) -> None:
        pass


# Broken if it failed: a job that asks for committed records would count those of an aborted transaction.
def test_aborted_records_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batches.FETCH_VERSION >= 4, "older versions have no isolation level"
    monkeypatch.setattr("logcore._native.Network", _Leader)
    log = BrokerLog({"bootstrap.servers": "h:1", "isolation.level": "read_committed"})
    found = log.read(OffsetRange("t", 0, 0, 3), ["offset", "value"])
    rows = [row for batch in found for row in batch.to_pylist()]
    assert rows == [{"offset": 0, "value": b"a"}, {"offset": 2, "value": b"b"}]


class _Compacted(_Leader):
    """A leader that has deleted every record from offset 1 to its end, 4, after it has delayed the client."""

    answers: ClassVar[list[list[dict[str, Any]]]] = []

    def request(self, key: int, version: int, body: bytes, **_where: object) -> bytes:
        return _native.encode_response(key, version, {"responses": self.answers.pop(0)})


# Broken if it failed: a read of a compacted topic would fail, because its last records are gone.
def test_a_hole_at_the_end_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(records: bytes) -> list[dict[str, Any]]:
        return [
            {
                "topic": "t",
                "partitions": [{"partition_index": 0, "high_watermark": 4, "records": records}],
            }
        ]

    first = build_batch([b"a"])
    _Compacted.answers = [[], answer(first), answer(b""), answer(b"")]
    monkeypatch.setattr("logcore._native.Network", _Compacted)
    found = BrokerLog({"bootstrap.servers": "h:1"}).read(OffsetRange("t", 0, 0, 4), ["offset", "value"])
    assert [row for batch in found for row in batch.to_pylist()] == [{"offset": 0, "value": b"a"}]
    assert _Compacted.answers == []


def transactional(offset: int, producer: int, value: bytes) -> bytes:
    batch = bytearray(build_batch([value], producer=(producer, 0, 0)))
    batch[:8] = offset.to_bytes(8, "big")
    batch[22] |= 0x10  # the attributes' transactional bit
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


# Broken if it failed: a new version of logcore could break the package, which is released by itself.
def test_the_package_imports_nothing_private() -> None:
    for file in Path(pyspark_logcore.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            ours = [name for name in names if name.partition(".")[0] in ("cluster", "logcore")]
            assert [name for name in ours if "._" in name] == [], file.name
