"""The replicas of a partition and its ISR, from the znodes to the data plane.

If one failed, a record with `acks=all` and `min.insync.replicas` would be acknowledged by one broker alone,
or a topic with one replica would refuse records.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker
from cluster.controller import znodes
from cluster.errors import NONE, CoordinatorNotAvailable, NotEnoughReplicas
from cluster.model import GROUP_METADATA_TOPIC, BrokerId, LeaderEpoch, Replicas, new_topic_id

from ..compat.test_data_plane import batch
from .test_topic_logs import SET, alter, run, served
from .wire import Wire

THREE = tuple(BrokerId(number) for number in range(3))


async def make(broker: Broker, name: str, replicas: tuple[BrokerId, ...], least: int) -> None:
    """Creates a topic as Apache Kafka does, which accepts assignments to brokers that do not exist."""
    assert broker._zk is not None
    config = znodes.encode_config({"min.insync.replicas": str(least)})
    await broker._zk.create(znodes.topic_config_path(name), config)
    await broker._zk.create(
        znodes.topic_path(name), znodes.encode_topic(new_topic_id(), {0: Replicas(replicas)})
    )


async def led(wire: Wire, name: str) -> None:
    while not (shown := await partitions(wire, name)) or shown[0]["leader_id"] != 0:
        assert not shown or shown[0]["partition_index"] == 0


async def produced(wire: Wire, topic: str, acks: int = -1) -> int:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch((b"k", b"v", 5))}]}]
    answer = await wire.ask(
        "Produce", 3, transactional_id=None, acks=acks, timeout_ms=10_000, topic_data=data
    )
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


async def committed(wire: Wire) -> int:
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    topics = [{"name": GROUP_METADATA_TOPIC, "partitions": [partition]}]
    answer = await wire.ask("OffsetCommit", 2, group_id="g", topics=topics)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


async def partitions(wire: Wire, topic: str) -> list[dict[str, Any]]:
    answer = await wire.ask("Metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return list(answer["topics"][0]["partitions"])


async def say_in_sync(broker: Broker, topic: str, *isr: BrokerId) -> None:
    """Writes the partition's state as an earlier controller."""
    assert broker._zk is not None
    path = znodes.state_path(topic, 0)
    data, stat = await broker._zk.get(path)
    state = znodes.decode_state(topic, 0, data, stat.version)
    await broker._zk.set(path, znodes.encode_state(replace(state, leader_epoch=LeaderEpoch(4), isr=isr)))


def test_too_few_replicas_in_sync_refuse_acks_all(tmp_path: Path) -> None:
    async def first() -> None:
        async with served(tmp_path) as (broker, wire):
            for name, replicas in (("three", THREE), ("one", THREE[:1])):
                await make(broker, name, replicas, 2)
                await led(wire, name)
            await refused(wire)
            await alter(wire, "three", ("min.insync.replicas", SET, "1"))
            assert await produced(wire, "three") == NONE
            await alter(wire, "three", ("min.insync.replicas", SET, "2"))

    async def refused(wire: Wire) -> None:
        assert [await produced(wire, "three", acks) for acks in (-1, 1)] == [NotEnoughReplicas.code, NONE]
        assert [await produced(wire, "one", acks) for acks in (-1, 1)] == [NONE, NONE]

    async def after_a_restart() -> None:
        async with served(tmp_path, broker_rack="a") as (_, wire):
            await refused(wire)

    run(first)
    run(after_a_restart)


def test_too_few_replicas_in_sync_refuse_commits(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (broker, wire):
            await make(broker, GROUP_METADATA_TOPIC, THREE, 2)
            await led(wire, GROUP_METADATA_TOPIC)
            assert await committed(wire) == CoordinatorNotAvailable.code
            await alter(wire, GROUP_METADATA_TOPIC, ("min.insync.replicas", SET, "1"))
            assert await committed(wire) == NONE

    run(main)


@pytest.mark.parametrize(("least", "code"), [(1, NONE), (2, NotEnoughReplicas.code)])
def test_replicas_of_dead_brokers_are_not_in_sync(tmp_path: Path, least: int, code: int) -> None:
    """Their state is unknown, and they may never come back."""

    async def first() -> None:
        async with served(tmp_path) as (broker, wire):
            await make(broker, "t", THREE, least)
            await led(wire, "t")
            await say_in_sync(broker, "t", *THREE)

    async def after_a_restart() -> None:
        async with served(tmp_path) as (_, wire):
            [partition] = await partitions(wire, "t")
            assert (partition["leader_id"], partition["leader_epoch"], partition["isr_nodes"]) == (0, 5, [0])
            assert await produced(wire, "t") == code

    run(first)
    run(after_a_restart)


def test_added_replicas_are_counted(tmp_path: Path) -> None:
    """The topic's znode, which lists them, is watched."""

    async def main() -> None:
        async with served(tmp_path) as (broker, wire):
            await make(broker, "t", THREE[:1], 2)
            await led(wire, "t")
            assert await produced(wire, "t") == NONE
            assert broker._zk is not None
            path = znodes.topic_path("t")
            topic_id, assignment = znodes.decode_topic("t", (await broker._zk.get(path))[0])
            more = {0: replace(assignment[0], replicas=THREE)}
            await broker._zk.set(path, znodes.encode_topic(topic_id, more))
            while await produced(wire, "t") == NONE:
                assert (await partitions(wire, "t"))[0]["isr_nodes"] == [0]
            assert await produced(wire, "t") == NotEnoughReplicas.code

    run(main)
