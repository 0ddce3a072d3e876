"""A topic's settings, from the znode to its logs.

If one failed, a setting would be answered and stored without effect; or a setting that the data plane refuses
would keep others from having effect, or take the partition offline at the next start.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker, start_embedded
from cluster.broker.replicas import PartitionSpec
from cluster.broker.replicas.topic_logs import TopicLogs, canonical
from cluster.broker.settings import Setting, topic_settings
from cluster.controller import ZooKeeper, znodes
from cluster.errors import NONE, MessageTooLarge
from logcore._native import Server, ServerConfigError

from ..compat.test_data_plane import batch
from .wire import Wire

TOPIC = 2
SET, SUBTRACT = 0, 3

AS_JAVA_READS_THEM = [
    ("compression.type", "gzip ", "gzip"),
    ("message.timestamp.type", " LogAppendTime", "LogAppendTime"),
    ("retention.ms", "\uff11\uff10\uff10\uff10", "1000"),
    ("cleanup.policy", " compact , delete ", "compact,delete"),
    ("message.downconversion.enable", " FALSE ", "false"),
    ("min.cleanable.dirty.ratio", " 1 ", "1.0"),
]
"""Values that Apache Kafka 3.9.1 accepts, and their meaning."""


@asynccontextmanager
async def served(data: Path, **overrides: str) -> AsyncIterator[tuple[Broker, Wire]]:
    settings = {name.replace("_", "."): value for name, value in overrides.items()}
    async with AsyncExitStack() as stack:
        broker = await start_embedded(stack, data, port=0, overrides=settings)
        yield broker, await stack.enter_async_context(Wire(broker.bootstrap))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(bounded())


async def create(wire: Wire, name: str, **config: str) -> None:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
    assert answer["topics"][0]["error_code"] == NONE, answer


async def alter(wire: Wire, topic: str, *ops: tuple[str, int, str]) -> None:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    answer = await wire.ask("IncrementalAlterConfigs", 0, resources=[resource], validate_only=False)
    assert answer["responses"][0]["error_code"] == NONE, answer


async def produce(wire: Wire, topic: str, size: int = 1) -> dict[str, Any]:
    records = batch((b"k", b"v" * size, 5))
    partition = {"index": 0, "records": records}
    data = [{"name": topic, "partition_data": [partition]}]
    answer = await wire.ask("Produce", 3, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return found


async def leader(wire: Wire, topic: str) -> int:
    answer = await wire.ask("Metadata", 8, topics=[{"name": topic}])
    return int(answer["topics"][0]["partitions"][0]["leader_id"])


def test_a_value_has_effect_however_it_is_written(tmp_path: Path) -> None:
    async def first() -> None:
        async with served(tmp_path) as (_, wire):
            await create(wire, "made", compression_type="zstd ", message_timestamp_type="LogAppendTime ")
            assert (await produce(wire, "made"))["log_append_time_ms"] > 5
            await create(wire, "altered")
            await alter(wire, "altered", *((name, SET, text) for name, text, _ in AS_JAVA_READS_THEM))
            assert (await produce(wire, "altered"))["log_append_time_ms"] > 5
            await alter(wire, "altered", ("max.message.bytes", SET, "100"))
            assert (await produce(wire, "altered", 500))["error_code"] == MessageTooLarge.code

    async def after_a_restart() -> None:
        async with served(tmp_path) as (broker, wire):
            for topic in "made", "altered":
                assert (await produce(wire, topic))["log_append_time_ms"] > 5
            assert (await produce(wire, "altered", 500))["error_code"] == MessageTooLarge.code
            assert broker._zk is not None
            data, _ = await broker._zk.get(znodes.topic_config_path("altered"))
            # Kafka keeps them as they were written.
            assert json.loads(data)["config"]["compression.type"] == "gzip "

    run(first)
    run(after_a_restart)


def test_the_data_plane_gets_parsed_values() -> None:
    written = {name: text for name, text, _ in AS_JAVA_READS_THEM}
    assert canonical(written) == {name: value for name, _, value in AS_JAVA_READS_THEM}
    assert canonical({"cleanup.policy": ""}) == {"cleanup.policy": ""}
    assert canonical({"retention.ms": " x", "nobody.knows": " 1 "}) == {
        "retention.ms": " x",
        "nobody.knows": " 1 ",
    }


def values_of(setting: Setting) -> set[str]:
    """The least, the largest and every named value of a setting."""
    if setting.type == "list":
        words = setting.valid.split("|") if setting.valid != "-" else []
        return {"", ",".join(words), *words}
    if setting.type == "string":
        return {setting.default or "", *(setting.valid.split("|") if setting.valid != "-" else ())}
    if setting.type == "boolean":
        return {"true", "false"}
    most = {"int": 2**31 - 1, "long": 2**63 - 1, "double": 1}[setting.type]
    least = -most - 1 if setting.valid == "-" else None
    ends = [end for part in setting.valid.split("|") for end in part.split("..")]
    texts = {end or str(most) for end in ends if end != "-"} | {str(setting.default)}
    return texts if least is None else texts | {str(least), str(most)}


def test_the_data_plane_accepts_every_allowed_value(tmp_path: Path) -> None:
    server = Server(node_id=0, cluster_id="c", log_dirs=[str(tmp_path)], config={})
    try:
        server.create_partition(PartitionSpec("t", b"t" * 16, 0, 0, 0, {}))
        for setting in topic_settings().values():
            for text in values_of(setting):
                server.update_topic_config("t", canonical({setting.name: text}))
    finally:
        server.stop(0)


class Strict:
    """Logs that refuse compression settings."""

    def __init__(self) -> None:
        self.taken: list[dict[str, str]] = []

    def _take(self, config: dict[str, str]) -> None:
        if "compression.type" in config:
            raise ServerConfigError(f"compression.type={config['compression.type']} is not allowed: no")
        self.taken.append(dict(config))

    def create_partition(self, spec: PartitionSpec) -> None:
        self._take(spec.config)

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        if topic == "broken":
            raise ServerConfigError("nothing=1 is not allowed: no")
        self._take(config)

    def stop_partition(self, topic: str, partition: int, delete: bool) -> None: ...

    def set_brokers(self, brokers: list[tuple[int, str, int]]) -> None: ...

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None: ...

    def forget_topic(self, topic: str) -> None: ...

    def partitions_left(self) -> int:
        return 7


def test_a_refused_setting_is_logged_once_and_the_others_are_applied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict = Strict()
    logs = TopicLogs(strict)
    config = {"compression.type": "gzip", "retention.ms": "5"}
    for partition in range(3):
        logs.create_partition(PartitionSpec("t", b"t" * 16, partition, 0, 0, config))
    assert strict.taken == [{"retention.ms": "5"}] * 3
    [line] = caplog.messages
    assert "topic t" in line
    assert "compression.type=gzip is not allowed" in line
    assert "delete it" in line
    logs.update_topic_config("t", config | {"compression.type": "lz4", "segment.ms": "6"})
    assert strict.taken[-1] == {"retention.ms": "5", "segment.ms": "6"}
    assert "compression.type=lz4" in caplog.messages[-1]
    assert logs.partitions_left() == 7
    with pytest.raises(ServerConfigError):
        logs.update_topic_config("broken", config)


def test_settings_of_another_program_take_no_partition_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def store(zk: ZooKeeper, **config: str) -> None:
        texts = {name.replace("_", "."): text for name, text in config.items()}
        await zk.set(znodes.topic_config_path("t"), znodes.encode_config(texts))

    async def first() -> None:
        async with served(tmp_path) as (broker, wire):
            await create(wire, "t")
            assert broker._zk is not None
            await store(broker._zk, segment_ms="soon", max_message_bytes="100")

    async def after_a_restart() -> None:
        async with served(tmp_path) as (_, wire):
            assert await leader(wire, "t") == 0
            assert (await produce(wire, "t"))["error_code"] == NONE
            assert (await produce(wire, "t", 500))["error_code"] == MessageTooLarge.code

    run(first)
    with caplog.at_level(logging.ERROR, "cluster.broker.replicas.topic_logs"):
        run(after_a_restart)
    assert any("topic t" in line and "segment.ms=soon" in line for line in caplog.messages)


def test_an_empty_cleanup_policy_keeps_everything(tmp_path: Path) -> None:
    """As in Kafka: neither `delete` nor `compact`. If it were refused, the default would delete records."""

    async def start(wire: Wire, topic: str) -> int:
        partition = {"partition_index": 0, "timestamp": -2}
        topics = [{"name": topic, "partitions": [partition]}]
        answer = await wire.ask("ListOffsets", 1, replica_id=-1, topics=topics)
        found: dict[str, Any] = answer["topics"][0]["partitions"][0]
        assert found["error_code"] == NONE
        return int(found["offset"])

    async def fill(wire: Wire, topic: str) -> None:
        for _ in range(5):
            assert (await produce(wire, topic, 1500))["error_code"] == NONE

    async def first() -> None:
        async with served(tmp_path, log_retention_check_interval_ms="100") as (_, wire):
            small = {"segment_bytes": "2000", "retention_ms": "1000"}
            await create(wire, "made", cleanup_policy="", **small)
            await create(wire, "altered", **small)
            await alter(wire, "altered", ("cleanup.policy", SUBTRACT, "delete"))
            await create(wire, "deleted", **small)
            for topic in "made", "altered", "deleted":
                await fill(wire, topic)
            # Retention checks all logs. When it has cut this one twice, it has kept the others.
            while await start(wire, "deleted") < 4:
                await asyncio.sleep(0)
            await fill(wire, "deleted")
            while await start(wire, "deleted") < 9:
                await asyncio.sleep(0)
            assert [await start(wire, topic) for topic in ("made", "altered")] == [0, 0]

    async def after_a_restart() -> None:
        async with served(tmp_path) as (_, wire):
            assert [await leader(wire, topic) for topic in ("made", "altered")] == [0, 0]
            assert [await start(wire, topic) for topic in ("made", "altered")] == [0, 0]

    run(first)
    run(after_a_restart)
