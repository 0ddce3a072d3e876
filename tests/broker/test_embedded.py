"""A whole broker with its coordinator in this process.

If one failed, a topic, a committed offset or a group would not survive a restart, or a broker that cannot
start would not say why.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from cluster.broker import Broker, BrokerConfig, BrokerStartError, BrokerStopError, start_embedded
from cluster.controller import ZooKeeper, znodes
from cluster.coordinator import CoordinatorServer
from cluster.errors import UnknownMemberId, for_code
from cluster.groups import GroupCoordinator
from cluster.model import Milliseconds

from .wire import Wire


@asynccontextmanager
async def embedded(data: Path, **overrides: str) -> AsyncIterator[Broker]:
    settings = {name.replace("_", "."): value for name, value in overrides.items()}
    async with AsyncExitStack() as stack:
        yield await start_embedded(stack, data, port=0, overrides=settings)


async def topics(wire: Wire) -> dict[str, int]:
    answer = await wire.ask("Metadata", 8, topics=None)
    return {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}


async def create(wire: Wire, name: str, partitions: int = 1, **config: str) -> str:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
    answer = await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000)
    code = answer["topics"][0]["error_code"]
    return for_code(code).name if code else "ok"


async def join(wire: Wire, group: str, member: str) -> dict[str, object]:
    return await wire.ask(
        "JoinGroup",
        3,
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
    )


def test_topics_groups_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> str:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await create(wire, "t", 3, retention_ms="1000") == "ok"
            assert await create(wire, "t") == "TOPIC_ALREADY_EXISTS"
            assert await create(wire, "bad name") == "INVALID_TOPIC_EXCEPTION"
            assert await create(wire, "u", retention_ms="x") == "INVALID_CONFIG"
            found = await wire.ask("FindCoordinator", 2, key="g", key_type=0)
            assert (found["error_code"], found["node_id"]) == (0, 0)
            member = str((await join(wire, "g", ""))["member_id"])
            await wire.ask(
                "SyncGroup",
                3,
                group_id="g",
                generation_id=1,
                member_id=member,
                assignments=[{"member_id": member, "assignment": b"mine"}],
            )
            offset = {"partition_index": 2, "committed_offset": 0, "committed_metadata": "note"}
            commit = await wire.ask(
                "OffsetCommit",
                7,
                group_id="g",
                generation_id_or_member_epoch=1,
                member_id=member,
                topics=[{"name": "t", "partitions": [offset]}],
            )
            assert commit["topics"][0]["partitions"][0]["error_code"] == 0
            return member

    async def second(member: str) -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await topics(wire) == {"t": 3, "__consumer_offsets": 50}
            code = 14
            while code == 14:
                fetched = await wire.ask(
                    "OffsetFetch", 5, group_id="g", topics=[{"name": "t", "partition_indexes": [0, 2]}]
                )
                code = fetched["error_code"]
            found = [
                (item["committed_offset"], item["metadata"]) for item in fetched["topics"][0]["partitions"]
            ]
            assert found == [(-1, ""), (0, "note")]
            described = (await wire.ask("DescribeGroups", 4, groups=["g"]))["groups"][0]
            assert described["group_state"] == "Stable"
            assert described["members"][0]["member_assignment"] == b"mine"
            beat = await wire.ask("Heartbeat", 3, group_id="g", generation_id=1, member_id=member)
            assert beat["error_code"] == 0
            resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.ms"]}
            configs = await wire.ask("DescribeConfigs", 3, resources=[resource])
            assert configs["results"][0]["configs"][0]["value"] == "1000"

    asyncio.run(second(asyncio.run(first())))


def test_an_offset_may_have_a_retention_beyond_the_highest_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await create(wire, "t", 3) == "ok"
            await wire.ask("FindCoordinator", 2, key="g", key_type=0)
            for version, retention in ((2, 2**63 - 1), (4, 2**62), (3, -(2**63))):
                partitions = [{"partition_index": version - 2, "committed_offset": version}]
                topics = [{"name": "t", "partitions": partitions}]
                answer = await wire.ask(
                    "OffsetCommit", version, group_id="g", retention_time_ms=retention, topics=topics
                )
                assert answer["topics"][0]["partitions"][0]["error_code"] == 0
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            await wire.ask("FindCoordinator", 2, key="g", key_type=0)
            asked = [{"name": "t", "partition_indexes": [0, 2]}]
            code = 14
            while code == 14:
                fetched = await wire.ask("OffsetFetch", 5, group_id="g", topics=asked)
                code = fetched["error_code"]
            kept = [item["committed_offset"] for item in fetched["topics"][0]["partitions"]]
            assert kept == [2, 4]

    asyncio.run(run())


def test_a_deleted_topic_is_gone_from_the_disk_and_the_coordinator(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            embedded(tmp_path, log_segment_delete_delay_ms="0") as broker,
            Wire(broker.bootstrap) as wire,
        ):
            assert await create(wire, "t", 2) == "ok"
            assert (tmp_path / "kafka-logs" / "t-1").is_dir()
            gone = await wire.ask("DeleteTopics", 3, topic_names=["t", "unknown"], timeout_ms=30_000)
            assert [item["error_code"] for item in gone["responses"]] == [0, 3]
            assert await topics(wire) == {}
            assert not (tmp_path / "kafka-logs" / "t-1").exists()
            assert await create(wire, "t", 1) == "ok"
            assert await topics(wire) == {"t": 1}

        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await topics(wire) == {"t": 1}

    asyncio.run(run())


def test_groups_get_all_deleted_topics_of_a_request_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time they go through every committed offset, before the request is answered."""
    reported: list[list[str]] = []
    forget = GroupCoordinator.topics_deleted

    def topics_deleted(groups: GroupCoordinator, names: Sequence[str]) -> None:
        reported.append(list(names))
        forget(groups, names)

    monkeypatch.setattr(GroupCoordinator, "topics_deleted", topics_deleted)

    async def run() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            for name in "tuv":
                assert await create(wire, name) == "ok"
            await wire.ask("FindCoordinator", 2, key="g", key_type=0)
            partitions = [{"partition_index": 0, "committed_offset": 0}]
            commits = [{"name": name, "partitions": partitions} for name in "tuv"]
            await wire.ask("OffsetCommit", 5, group_id="g", topics=commits)
            names = ["t", "nowhere", "u"]
            deleted = await wire.ask("DeleteTopics", 3, topic_names=names, timeout_ms=30_000)
            codes = [for_code(item["error_code"]).name for item in deleted["responses"] if item["error_code"]]
            assert codes == ["UNKNOWN_TOPIC_OR_PARTITION"]
            fetched = await wire.ask("OffsetFetch", 5, group_id="g", topics=None)
            assert [topic["name"] for topic in fetched["topics"]] == ["v"]
        assert reported == [["t", "u"]]

    asyncio.run(run())


def test_each_member_that_leaves_has_its_own_result(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            embedded(tmp_path, group_initial_rebalance_delay_ms="0") as broker,
            Wire(broker.bootstrap) as wire,
        ):
            await wire.ask("FindCoordinator", 2, key="g", key_type=0)
            static = {"member_id": "", "group_instance_id": "i", "session_timeout_ms": 10_000}
            protocols = [{"name": "range", "metadata": b""}]
            joined = await wire.ask(
                "JoinGroup",
                5,
                group_id="g",
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=protocols,
                **static,
            )
            assert joined["error_code"] == 0
            members = [("stranger", None), ("", "i"), ("", "i"), (joined["member_id"], None)]
            asked = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
            answer = await wire.ask("LeaveGroup", 3, group_id="g", members=asked)
            assert answer["error_code"] == 0
            left = [
                (item["member_id"], item["group_instance_id"], item["error_code"])
                for item in answer["members"]
            ]
            unknown = UnknownMemberId.code
            assert left == [
                (*member, code) for member, code in zip(members, (unknown, 0, unknown, unknown), strict=True)
            ]
            assert (await wire.ask("LeaveGroup", 2, group_id="g", member_id="m"))["error_code"] == unknown
            described = (await wire.ask("DescribeGroups", 4, groups=["g"]))["groups"][0]
            assert described["group_state"] == "Empty"

    asyncio.run(run())


def test_a_partition_whose_log_cannot_be_opened_has_no_leader_and_the_others_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await create(wire, "t", 2) == "ok"
        segment = tmp_path / "kafka-logs" / "t-1" / f"{0:020}.log"
        segment.unlink()
        segment.mkdir()
        with pytest.raises(BrokerStopError, match=r"1 log was not closed cleanly.*: t-1 "):
            async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
                assert await leaders(wire, "t") == [(0, 0, []), (5, -1, [0])]
        segment.rmdir()
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await leaders(wire, "t") == [(0, 0, []), (0, 0, [])]

    async def leaders(wire: Wire, topic: str) -> list[tuple[int, int, list[int]]]:
        """Error, leader and offline replicas of each partition."""
        answer = await wire.ask("Metadata", 8, topics=[{"name": topic}])
        return [
            (item["error_code"], item["leader_id"], item["offline_replicas"])
            for item in answer["topics"][0]["partitions"]
        ]

    asyncio.run(run())


def test_a_topic_too_large_for_the_coordinator_is_refused_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert broker._controller is not None
            topics_left = broker._controller.topics._logs_left
            broker._controller.topics._logs_left = lambda: 1_000_000
            topic = {"name": "large", "num_partitions": 100_000, "replication_factor": 1}
            [answer] = (await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=30_000))["topics"]
            assert for_code(answer["error_code"]).name == "INVALID_PARTITIONS"
            assert "jute.maxbuffer" in answer["error_message"]
            broker._controller.topics._logs_left = topics_left
            assert await create(wire, "small", 1) == "ok"
            assert await topics(wire) == {"small": 1}

    asyncio.run(run())


def test_requested_topics_are_created_if_that_is_allowed(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path, num_partitions="2") as broker, Wire(broker.bootstrap) as wire:
            answer = await wire.ask("Metadata", 8, topics=[{"name": "new"}], allow_auto_topic_creation=False)
            assert answer["topics"][0]["error_code"] == 3
            answer = await wire.ask("Metadata", 8, topics=[{"name": "new"}, {"name": "a b"}])
            assert [topic["error_code"] for topic in answer["topics"]] == [0, 17]
            assert len(answer["topics"][0]["partitions"]) == 2

    asyncio.run(run())


def test_changes_of_other_programs_in_the_coordinator_are_applied(tmp_path: Path) -> None:
    """Kafka's own tools for ZooKeeper, and its controller, write there."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            zk_address, settings = await coordinator(stack, tmp_path)
            broker = Broker(BrokerConfig.parse(settings))
            await broker.start()
            stack.push_async_callback(broker.stop)
            zk = await ZooKeeper.connect(zk_address, Milliseconds(6000), Milliseconds(5000))
            stack.push_async_callback(zk.close)
            wire = await stack.enter_async_context(Wire(broker.bootstrap))
            registered = json.loads((await zk.get("/brokers/ids/3"))[0])
            assert registered["endpoints"] == [f"PLAINTEXT://{broker.bootstrap}"]
            assert znodes.decode_controller((await zk.get("/controller"))[0]) == 3
            await zk.create("/brokers/topics/made", b'{"version":1,"partitions":{"0":[3],"1":[3]}}')
            await settled(lambda: topics(wire), {"made": 2})
            state, _ = await zk.get("/brokers/topics/made/partitions/1/state")
            assert json.loads(state)["leader"] == 3
            assert "topic_id" in json.loads((await zk.get("/brokers/topics/made"))[0])
            await zk.create("/admin/delete_topics/made")
            await settled(lambda: topics(wire), {})
            await settled(lambda: zk.children("/brokers/topics"), [])
            await settled(lambda: zk.children("/admin/delete_topics"), [])

    asyncio.run(run())


def test_a_broker_id_has_one_owner(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            _, settings = await coordinator(stack, tmp_path)
            broker = Broker(BrokerConfig.parse(settings))
            await broker.start()
            stack.push_async_callback(broker.stop)
            same = settings | {"log.dirs": str(tmp_path / "other")}
            with pytest.raises(BrokerStartError, match="broker id 3 is in use: a live session"):
                await Broker(BrokerConfig.parse(same)).start()

    asyncio.run(run())


def test_an_id_is_generated_if_none_is_set_and_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            _, settings = await coordinator(stack, tmp_path)
            ids = []
            for _ in range(2):
                broker = Broker(BrokerConfig.parse(settings | {"broker.id": "-1"}))
                await broker.start()
                async with Wire(broker.bootstrap) as wire:
                    ids.append((await wire.ask("Metadata", 8, topics=[]))["controller_id"])
                await broker.stop()
            assert ids == [1001, 1001]
            with pytest.raises(BrokerStartError, match="belongs to broker 1001"):
                await Broker(BrokerConfig.parse(settings)).start()

    asyncio.run(run())


def test_the_reason_why_a_broker_does_not_start_is_reported(tmp_path: Path) -> None:
    async def refuse(expected: str, data: Path, port: int = 0, **overrides: str) -> None:
        settings = {name.replace("_", "."): value for name, value in overrides.items()}
        with pytest.raises(BrokerStartError, match=expected):
            async with AsyncExitStack() as stack:
                await start_embedded(stack, data, port=port, overrides=settings)

    async def run() -> None:
        (tmp_path / "file").write_text("")
        await refuse("data directory .*file cannot be used", tmp_path / "file")
        await refuse("num.partitions=zero is not allowed", tmp_path / "a", num_partitions="zero")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            await refuse(
                "Address already in use.*another address and port", tmp_path / "b", taken.getsockname()[1]
            )
        async with embedded(tmp_path / "c"):
            await refuse("is in use by another logcore", tmp_path / "c")
        (tmp_path / "d" / "kafka-logs").mkdir(parents=True)
        (tmp_path / "d" / "kafka-logs" / "meta.properties").write_text(
            "version=0\nbroker.id=0\ncluster.id=foreign\n"
        )
        await refuse("belongs to cluster foreign", tmp_path / "d")
        # A failed start leaves nothing behind that stops the next one.
        async with embedded(tmp_path / "b") as broker:
            assert broker.bootstrap.startswith("127.0.0.1:")

    asyncio.run(run())


def test_no_coordinator(tmp_path: Path) -> None:
    settings = {
        "zookeeper.connect": "127.0.0.1:1",
        "zookeeper.connection.timeout.ms": "200",
        "log.dirs": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }
    with pytest.raises(BrokerStartError, match=r"no coordinator answers at 127\.0\.0\.1:1 within 200 ms"):
        asyncio.run(Broker(BrokerConfig.parse(settings)).start())


async def coordinator(stack: AsyncExitStack, directory: Path) -> tuple[str, dict[str, str]]:
    server = CoordinatorServer(directory / "coordinator", "127.0.0.1", 0)
    port = await server.start()
    stack.push_async_callback(server.stop)
    return f"127.0.0.1:{port}", {
        "broker.id": "3",
        "zookeeper.connect": f"127.0.0.1:{port}",
        "log.dirs": str(directory / "logs"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }


async def settled(ask: object, wanted: object) -> None:
    """Repeats a request until the response is `wanted`; the test's timeout ends it otherwise."""
    while await ask() != wanted:  # type: ignore[operator]
        pass
