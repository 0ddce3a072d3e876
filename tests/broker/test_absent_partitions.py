"""The answers for partitions that the cluster has and this broker cannot serve: the disk was missing at the
start or has failed since, or another broker has the partition.

If one failed, a client would be sent to a leader that answers only errors, be served from a failed disk, or
get "unknown partition" where it has to wait.
"""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cluster.broker import Broker, BrokerConfig, BrokerStopError
from cluster.controller import znodes
from cluster.errors import (
    NONE,
    KafkaStorageError,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from cluster.model import BrokerId, Replicas, TopicId, new_topic_id

from ..compat.test_data_plane import batch
from .test_jbod import create, leaders, settings
from .test_topic_logs import run, served
from .wire import Wire

HERE = 3
NO_LEADER = -1


async def produced(wire: Wire, topic: str, partition: int) -> int:
    data = [
        {"name": topic, "partition_data": [{"index": partition, "records": batch((b"k", b"v" * 600, 5))}]}
    ]
    answer = await wire.ask("Produce", 9, transactional_id=None, acks=1, timeout_ms=10_000, topic_data=data)
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


async def fetched(wire: Wire, version: int, partition: int, **topic: str | TopicId) -> int:
    read = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [topic | {"partitions": [read]}]
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    answer = await wire.ask("Fetch", version, session_id=0, session_epoch=-1, topics=topics, **limits)
    return int(answer["responses"][0]["partitions"][0]["error_code"])


async def codes(wire: Wire, topic: str, partition: int) -> set[int]:
    """The error codes of every request to a partition's leader."""
    found = {await produced(wire, topic, partition), await fetched(wire, 12, partition, topic=topic)}
    asked = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
    listed = [{"name": topic, "partitions": [asked]}]
    ended = [{"topic": topic, "partitions": [{"partition": partition, "leader_epoch": 0}]}]
    described = [{"name": topic, "partition_indexes": [partition]}]
    for name, version, topics in (
        ("ListOffsets", 5, listed),
        ("OffsetForLeaderEpoch", 3, ended),
        ("DescribeProducers", 0, described),
    ):
        others = {} if name == "DescribeProducers" else {"replica_id": -1}
        answer = await wire.ask(name, version, topics=topics, **others)
        found.add(answer["topics"][0]["partitions"][0]["error_code"])
    return found


async def shown(wire: Wire, topic: str) -> dict[int, tuple[int, int, list[int]]]:
    """Error, leader and offline replicas of each partition."""
    answer = await wire.ask("Metadata", 8, topics=[{"name": topic}])
    return {
        one["partition_index"]: (one["error_code"], one["leader_id"], one["offline_replicas"])
        for one in answer["topics"][0]["partitions"]
    }


def as_seen(lost: set[int]) -> dict[int, tuple[int, int, list[int]]]:
    """Four partitions, some of which are offline."""
    return {
        number: (LeaderNotAvailable.code, NO_LEADER, [HERE]) if number in lost else (NONE, HERE, [])
        for number in range(4)
    }


def as_led(lost: set[int]) -> dict[int, int]:
    return {number: leader for number, (_, leader, _) in as_seen(lost).items()}


def partitions_in(directory: Path) -> set[int]:
    return {int(path.name.removeprefix("t-")) for path in directory.glob("t-*")}


def die(directory: Path) -> None:
    """Removes a directory from a running broker. It is renamed first, because removing takes a while."""
    directory.rename(directory.with_suffix(".dead"))


def test_a_directory_that_fails_while_it_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            given = await settings(stack, tmp_path) | {"log.segment.bytes": "1000"}
            broker = Broker(BrokerConfig.parse(given))
            await broker.start()
            async with Wire(broker.bootstrap) as wire:
                await create(wire, "t", 4)
                lost = partitions_in(tmp_path / "one")
                assert len(lost) == 2
                for number in range(4):
                    assert await codes(wire, "t", number) == {NONE}
                die(tmp_path / "one")
                assert await produced(wire, "t", min(lost)) == KafkaStorageError.code
                while await leaders(wire, "t") != as_led(lost):
                    assert broker.endpoints
                await told_apart(wire, lost)
                # A broker that becomes the controller again opens all logs again.
                assert broker._controller is not None
                broker._controller.session_renewed()
                while not broker._controller.active:
                    await leaders(wire, "t")
                # The controller opens the logs before it publishes them.
                await create(wire, "behind", 1)
                await told_apart(wire, lost)

                die(tmp_path / "two")
                assert await produced(wire, "t", min(set(range(4)) - lost)) == KafkaStorageError.code
                reason = await broker.failed()
                assert str(tmp_path / "one") in reason
                assert str(tmp_path / "two") in reason
            with pytest.raises(BrokerStopError, match=r"logs were not closed cleanly"):
                await broker.stop()

    run(main)


async def told_apart(wire: Wire, lost: set[int]) -> None:
    assert await shown(wire, "t") == as_seen(lost)
    for number in range(4):
        assert await codes(wire, "t", number) == {KafkaStorageError.code if number in lost else NONE}
    assert await produced(wire, "t", 4) == UnknownTopicOrPartition.code


def test_a_directory_that_is_gone_at_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            config = BrokerConfig.parse(await settings(stack, tmp_path))
            broker = Broker(config)
            await broker.start()
            async with Wire(broker.bootstrap) as wire:
                await create(wire, "t", 4)
            await broker.stop()
            lost = partitions_in(tmp_path / "one")
            shutil.rmtree(tmp_path / "one")
            (tmp_path / "one").write_text("")
            broker = Broker(config)
            await broker.start()
            stack.push_async_callback(broker.stop)
            async with Wire(broker.bootstrap) as wire:
                await told_apart(wire, lost)

    run(main)


def test_a_partition_of_another_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (broker, wire):
            assert broker._zk is not None
            ids = {"both": new_topic_id(), "theirs": new_topic_id()}
            here, there = Replicas((BrokerId(0),)), Replicas((BrokerId(1),))
            for name, assignment in (("both", {0: here, 1: there}), ("theirs", {0: there})):
                data = znodes.encode_topic(ids[name], assignment)
                await broker._zk.create(znodes.topic_path(name), data)
                while await codes_by_id(wire, ids[name], 0) == UnknownTopicId.code:
                    # The topic's znode is read after its watch has fired.
                    assert broker.endpoints
            assert await codes(wire, "both", 0) == {NONE}
            for name, number in (("both", 1), ("theirs", 0)):
                assert await codes(wire, name, number) == {NotLeaderOrFollower.code}
                assert await codes_by_id(wire, ids[name], number) == NotLeaderOrFollower.code
            for name, number in (("both", 2), ("theirs", 1)):
                assert await codes(wire, name, number) == {UnknownTopicOrPartition.code}
                assert await codes_by_id(wire, ids[name], number) == UnknownTopicOrPartition.code
            await deleted(wire, "theirs")
            assert await codes_by_id(wire, ids["theirs"], 0) == UnknownTopicId.code
            assert await codes(wire, "theirs", 0) == {UnknownTopicOrPartition.code}

    run(main)


async def codes_by_id(wire: Wire, topic_id: TopicId, partition: int) -> int:
    return await fetched(wire, 13, partition, topic_id=topic_id)


async def deleted(wire: Wire, topic: str) -> None:
    answer = await wire.ask("DeleteTopics", 4, topic_names=[topic], timeout_ms=30_000)
    assert answer["responses"][0]["error_code"] == NONE
