"""Operators' requests on a broker's logs, over the wire.

If one failed, records would be deleted that must stay, the state of a disk would be reported wrongly, or a
partition would not move to its new directory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker, BrokerConfig
from cluster.broker.replicas import MetadataCache
from cluster.client import Producer
from cluster.errors import (
    NONE,
    InvalidTopicException,
    LogDirNotFound,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from cluster.model import TopicInfo

from .test_jbod import settings
from .wire import Wire

MOVED_SECONDS = 30.0


def only_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the metadata answer only this thread."""
    owner, topic = threading.get_ident(), MetadataCache.topic

    def asked(metadata: MetadataCache, name: str) -> TopicInfo | None:
        assert threading.get_ident() == owner
        return topic(metadata, name)

    monkeypatch.setattr(MetadataCache, "topic", asked)


async def started(stack: AsyncExitStack, directory: Path) -> tuple[Broker, Wire]:
    broker = Broker(BrokerConfig.parse(await settings(stack, directory)))
    await broker.start()
    stack.push_async_callback(broker.stop)
    return broker, await stack.enter_async_context(Wire(broker.bootstrap))


async def create(wire: Wire, name: str, **config: str) -> None:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in config.items()],
    }
    answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
    assert answer["topics"][0]["error_code"] == NONE


async def produce(broker: Broker, topic: str, count: int) -> None:
    def run() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for number in range(count):
            producer.produce(topic, str(number), key="k")
        assert producer.flush(30) == 0

    await asyncio.to_thread(run)


def by_partition(topics: list[dict[str, Any]], name: str = "name") -> dict[tuple[str, int], dict[str, Any]]:
    return {(topic[name], part["partition_index"]): part for topic in topics for part in topic["partitions"]}


async def places(wire: Wire, version: int = 1) -> dict[tuple[str, str, bool], dict[str, Any]]:
    """Each log by its directory's name, its topic and whether it is a copy that is being made."""
    answer = await wire.ask("DescribeLogDirs", version, topics=None)
    return {
        (Path(result["log_dir"]).name, topic["name"], part["is_future_key"]): part
        for result in answer["results"]
        for topic in result["topics"]
        for part in topic["partitions"]
    }


def test_records_are_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            broker, wire = await started(stack, tmp_path)
            await create(wire, "t")
            await create(wire, "compacted", **{"cleanup.policy": "compact"})
            await create(wire, "__consumer_offsets")
            await produce(broker, "t", 5)
            wanted = [
                ("t", 0, 3),
                ("t", 1, 0),
                ("u", 0, 0),
                ("compacted", 0, 0),
                ("__consumer_offsets", 0, 0),
            ]
            topics = [
                {"name": name, "partitions": [{"partition_index": index, "offset": offset}]}
                for name, index, offset in wanted
            ]
            answer = await wire.ask("DeleteRecords", 1, topics=topics, timeout_ms=10_000)
            found = by_partition(answer["topics"])
            assert {key: (part["error_code"], part["low_watermark"]) for key, part in found.items()} == {
                ("t", 0): (NONE, 3),
                ("t", 1): (UnknownTopicOrPartition.code, -1),
                ("u", 0): (UnknownTopicOrPartition.code, -1),
                ("compacted", 0): (PolicyViolation.code, -1),
                ("__consumer_offsets", 0): (InvalidTopicException.code, -1),
            }
            for offset, expected in ((6, (OffsetOutOfRange.code, -1)), (-1, (NONE, 5))):
                part = {"partition_index": 0, "offset": offset}
                topics = [{"name": "t", "partitions": [part]}]
                answer = await wire.ask("DeleteRecords", 0, topics=topics, timeout_ms=10_000)
                one = by_partition(answer["topics"])["t", 0]
                assert (one["error_code"], one["low_watermark"]) == expected

    asyncio.run(run())


# If this failed, an operator's limit would be stored and described while a move takes all of the disks.
def test_a_move_keeps_its_rate_limit(tmp_path: Path) -> None:
    rate = "replica.alter.log.dirs.io.max.bytes.per.second"

    async def run() -> None:
        async with AsyncExitStack() as stack:
            broker, wire = await started(stack, tmp_path)

            async def limit(operation: int, value: str | None, resource: str) -> None:
                configs = [{"name": rate, "config_operation": operation, "value": value}]
                resources = [{"resource_type": 4, "resource_name": resource, "configs": configs}]
                answer = await wire.ask(
                    "IncrementalAlterConfigs", 0, resources=resources, validate_only=False
                )
                assert answer["responses"][0]["error_code"] == NONE

            await create(wire, "t")
            for _ in range(3):
                await produce(broker, "t", 1)
            [(here, _, _)] = await places(wire)
            there = "two" if here == "one" else "one"
            # Nothing may move for all brokers, and some bytes a second for this one.
            await limit(0, "0", "")
            await limit(0, "5", "3")
            part = [{"name": "t", "partitions": [0]}]
            dirs = [{"path": str(tmp_path / there), "topics": part}]
            answer = await wire.ask("AlterReplicaLogDirs", 1, dirs=dirs)
            assert by_partition(answer["results"], "topic_name")["t", 0]["error_code"] == NONE
            while not (copy := (await places(wire)).get((there, "t", True))) or not copy["partition_size"]:
                pass
            await limit(1, None, "3")
            found = await places(wire)
            assert set(found) == {(here, "t", False), (there, "t", True)}
            await limit(1, None, "")
            async with asyncio.timeout(MOVED_SECONDS):
                while set(await places(wire)) != {(there, "t", False)}:
                    pass

    asyncio.run(run())


def test_a_partition_moves_and_directories_are_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            broker, wire = await started(stack, tmp_path)
            await create(wire, "t")
            await produce(broker, "t", 5)
            [(here, _, _)] = await places(wire)
            there = "two" if here == "one" else "one"
            moved = asyncio.Event()

            class Listener(logging.Handler):
                def emit(self, record: logging.LogRecord) -> None:
                    if "t-0 was moved to" in record.getMessage():
                        moved.set()

            listener = Listener()
            logging.getLogger("cluster.broker.bridge").addHandler(listener)
            stack.callback(logging.getLogger("cluster.broker.bridge").removeHandler, listener)
            part = [{"name": "t", "partitions": [0]}, {"name": "u", "partitions": [0]}]
            with caplog.at_level(logging.INFO):
                for path, code in (("/not/one/of/them", LogDirNotFound.code), (str(tmp_path / there), NONE)):
                    answer = await wire.ask("AlterReplicaLogDirs", 1, dirs=[{"path": path, "topics": part}])
                    results = by_partition(answer["results"], "topic_name")
                    assert results["t", 0]["error_code"] == code
                assert results["u", 0]["error_code"] == UnknownTopicOrPartition.code
                await asyncio.wait_for(moved.wait(), MOVED_SECONDS)
            [(key, log)] = (await places(wire)).items()
            assert key == (there, "t", False)
            assert log["partition_size"] > 0
            assert log["offset_lag"] == 0
            only = [{"topic": "t", "partitions": [7]}]
            answer = await wire.ask("DescribeLogDirs", 1, topics=only)
            assert [(Path(one["log_dir"]).name, one["topics"]) for one in answer["results"]] == [
                ("one", []),
                ("two", []),
            ]
            topics = [{"name": "t", "partition_indexes": [0, 1]}]
            only_on_the_loop(monkeypatch)
            answer = await wire.ask("DescribeProducers", 0, topics=topics)
            parts = by_partition(answer["topics"])
            [producer] = parts["t", 0]["active_producers"]
            assert producer["last_sequence"] == 4
            assert producer["current_txn_start_offset"] == -1
            assert parts["t", 1]["error_code"] == UnknownTopicOrPartition.code

    asyncio.run(run())
