"""Reassignments and elections with three brokers, while records are produced.

If one failed, moving a partition would lose records, leave logs behind, or end with the controller that
began it.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.client import AdminClient, Consumer, NewTopic, Producer, TopicPartition
from cluster.controller import znodes
from cluster.errors import (
    NONE,
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    NotController,
)
from tests.conftest import BrokerProcess

from .test_cluster import ALL, WAIT_SECONDS, Cluster, cluster, consume, run, values
from .wire import Wire

_BEGUN = 20

SETTING = [
    {
        "resource_type": 2,
        "resource_name": "t",
        "configs": [{"name": "retention.ms", "config_operation": 0, "value": "12345"}],
    }
]

pytestmark = pytest.mark.timeout(180)


class Producing:
    """Produces numbered records with acks=all until it is stopped. Each must be acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
        self._topic = topic
        self._stopped = threading.Event()
        self._failures: list[object] = []
        self._begun = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._producer.produce(self._topic, f"v-{self.count}", key="k", on_delivery=self._delivered)
            self.count += 1
            # The next record waits for this one: records are produced during each step.
            self._producer.flush(WAIT_SECONDS)
            if self.count >= _BEGUN:
                self._begun.set()

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(error)

    async def begun(self) -> None:
        """Returns when some records are acknowledged."""
        assert await asyncio.to_thread(self._begun.wait, WAIT_SECONDS)

    def stop(self) -> list[str]:
        """Ends, and returns the acknowledged values."""
        self._stopped.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._producer.close()
        assert self._failures == []
        return values("v", self.count)


def controller(made: Cluster) -> int:
    [found] = [
        number
        for number, broker in made.brokers.items()
        if broker._controller is not None and broker._controller.active
    ]
    return found


async def ask(made: Cluster, name: str, number: int | None = None, **message: Any) -> dict[str, Any]:
    """Asks a broker, or the controller."""
    broker = made.brokers[controller(made) if number is None else number]
    async with Wire(broker.bootstrap) as wire:
        return await wire.ask(name, 0, **message)


def moves(topic: str, *replicas: int | None) -> list[dict[str, Any]]:
    """The topics of AlterPartitionReassignments. Without replicas: cancel."""
    return [{"name": topic, "partitions": [{"partition_index": 0, "replicas": list(replicas) or None}]}]


async def assign(made: Cluster, name: str, *replicas: int) -> int:
    """Creates a topic with one partition. Returns the error code."""
    assignment = [{"partition_index": 0, "broker_ids": list(replicas)}]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignment}
    answer = await ask(made, "CreateTopics", topics=[topic], timeout_ms=60_000)
    code = int(answer["topics"][0]["error_code"])
    if code == NONE:
        await made.until(lambda: made.isr(name) == set(replicas))
    return code


def replicas_of(made: Cluster, name: str) -> set[tuple[int, ...]]:
    """The replicas that the brokers know."""
    topics = [made.topic(number, name) for number in made.brokers]
    return {() if topic is None else tuple(map(int, topic.assignment[0].replicas)) for topic in topics}


async def gone(made: Cluster, path: str) -> None:
    """Waits until a znode is deleted."""
    zk = next(iter(made.brokers.values()))._zk
    assert zk is not None
    async with asyncio.timeout(WAIT_SECONDS):
        changed = asyncio.Event()
        while await zk.exists(path, changed.set):
            await changed.wait()
            changed.clear()


@asynccontextmanager
async def three(directory: Path, **settings: str) -> AsyncIterator[Cluster]:
    async with cluster(directory, brokers=()) as made:
        for number in ALL:
            await made.start(number, **settings)
        yield made


def equal(made: Cluster, name: str, *brokers: int) -> bool:
    first, *others = (made.directory(number) / f"{name}-0" / "00000000000000000000.log" for number in brokers)
    return all(filecmp.cmp(first, other, shallow=False) for other in others)


def test_a_partition_moves_while_records_are_produced(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path, leader_imbalance_check_interval_seconds="1") as made:
            assert await assign(made, "t", 0, 1) == NONE
            producing = Producing(made.bootstrap, "t")
            await producing.begun()
            answer = await ask(made, "AlterPartitionReassignments", topics=moves("t", 2, 1))
            assert (answer["error_code"], answer["responses"][0]["partitions"][0]["error_code"]) == (0, 0)
            await made.until(lambda: replicas_of(made, "t") == {(2, 1)} and made.leader("t") == 2)
            # Once more, with the leader among the targets. It stays until the leaders are balanced.
            await ask(made, "AlterPartitionReassignments", topics=moves("t", 0, 2, 1))
            await made.until(lambda: replicas_of(made, "t") == {(0, 2, 1)} and made.leader("t") == 0)
            await ask(made, "AlterPartitionReassignments", topics=moves("t", 0, 2))
            await made.until(lambda: replicas_of(made, "t") == {(0, 2)})
            await made.until(lambda: not (made.directory(1) / "t-0").exists())
            produced = await asyncio.to_thread(producing.stop)
            assert await consume(made, "t", len(produced)) == produced
            listed = await ask(made, "ListPartitionReassignments", topics=None)
            assert (listed["error_code"], listed["topics"]) == (0, [])
            for number in ALL:
                await made.stop(number)
            assert equal(made, "t", 0, 2)

    run(main)


def test_requests_are_answered_by_the_controller_and_followed_by_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path, auto_leader_rebalance_enable="false") as made:
            assert await assign(made, "t", 0, 1) == NONE
            assert await assign(made, "u", 0, 9) == InvalidReplicaAssignment.code
            others = [number for number in ALL if number != controller(made)]
            for number in others:
                altered = await ask(made, "AlterPartitionReassignments", number, topics=moves("t", 2))
                assert altered["error_code"] == NotController.code
                listed = await ask(made, "ListPartitionReassignments", number, topics=None)
                assert listed["error_code"] == NotController.code
                named = [{"topic": "t", "partitions": [0]}]
                elected = await ask(made, "ElectLeaders", number, topic_partitions=named)
                [result] = elected["replica_election_results"]
                assert result["partition_result"][0]["error_code"] == NotController.code

                asked: list[tuple[str, dict[str, Any], str]] = [
                    ("CreateTopics", {"topics": [{"name": "v", "num_partitions": 1}]}, "topics"),
                    ("CreatePartitions", {"topics": [{"name": "t", "count": 2}]}, "results"),
                    ("DeleteTopics", {"topic_names": ["t"]}, "responses"),
                ]
                for name, body, key in asked:
                    answer = await ask(made, name, number, timeout_ms=60_000, **body)
                    assert [item["error_code"] for item in answer[key]] == [NotController.code], name

            # Settings are written by any broker, and hold on all.
            altered = await ask(made, "IncrementalAlterConfigs", others[0], resources=SETTING)
            assert altered["responses"][0]["error_code"] == NONE
            for number in ALL:
                logs = made.brokers[number]._replicas
                assert logs is not None
                async with asyncio.timeout(WAIT_SECONDS):
                    while (await logs._configs.get("t")).get("retention.ms") != "12345":
                        await asyncio.sleep(0.02)

            cancelled = await ask(made, "AlterPartitionReassignments", topics=moves("t"))
            [result] = cancelled["responses"][0]["partitions"]
            assert result["error_code"] == NoReassignmentInProgress.code

            # Every broker has a block of producer ids from the controller.
            ids = []
            for number in ALL:
                given = await ask(made, "InitProducerId", number, transactional_id=None)
                assert given["error_code"] == NONE
                ids.append(given["producer_id"])
            assert sorted(producer_id // 1000 for producer_id in ids) == [0, 1, 2]

            # As tools before Kafka 2.5 did it: by znodes, which are deleted when all is done.
            zk = made.brokers[others[0]]._zk
            assert zk is not None
            data = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,0]}]}'
            await zk.create(znodes.REASSIGN_PARTITIONS, data)
            await gone(made, znodes.REASSIGN_PARTITIONS)
            await made.until(lambda: replicas_of(made, "t") == {(2, 0)} and made.leader("t") == 0)
            data = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
            await zk.create(znodes.PREFERRED_ELECTION, data)
            await gone(made, znodes.PREFERRED_ELECTION)
            await made.until(lambda: made.leader("t") == 2)
            elected = await ask(made, "ElectLeaders", topic_partitions=named)
            [result] = elected["replica_election_results"]
            assert result["partition_result"][0]["error_code"] == ElectionNotNeeded.code
            assert (await ask(made, "ElectLeaders", topic_partitions=None))["replica_election_results"] == []

    run(main)


def test_replicas_are_spread_over_racks(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, brokers=()) as made:
            for number in ALL:
                await made.start(number, broker_rack="a" if number < 2 else "b")

            def create() -> None:
                admin = AdminClient({"bootstrap.servers": made.bootstrap})
                admin.create_topics([NewTopic("t", 6, 2)])["t"].result(WAIT_SECONDS)
                admin.close()

            await asyncio.to_thread(create)
            topic = made.topic(controller(made), "t")
            assert topic is not None
            # Each partition has one replica in each rack, and broker 2 is all of rack b.
            assert all(2 in item.replicas for item in topic.assignment.values())

    run(main)


def brokers_of(process: BrokerProcess) -> dict[int, int]:
    """The process ids of the brokers of `logcore start --brokers`, by broker id."""
    parent = process.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = {}
    for child in children:
        arguments = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        names = [Path(item).name for item in arguments if item.endswith(".properties")]
        if names:
            found[int(names[0].removeprefix("broker-").removesuffix(".properties"))] = int(child)
    return found


async def until_said(address: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Asks a broker for the metadata of `t` until they are so."""
    async with asyncio.timeout(WAIT_SECONDS), Wire(address) as wire:
        while True:
            said = await wire.ask("Metadata", 4, topics=[{"name": "t"}], allow_auto_topic_creation=False)
            if holds(said):
                return said
            await asyncio.sleep(0.05)


def held_by(*brokers: int) -> Callable[[dict[str, Any]], bool]:
    """These brokers are the replicas of the topic's partition, and in sync."""

    def holds(said: dict[str, Any]) -> bool:
        partitions = said["topics"][0]["partitions"]
        return all(
            sorted(item[kind]) == sorted(brokers)
            for item in partitions
            for kind in ("replica_nodes", "isr_nodes")
        ) and bool(partitions)

    return holds


def test_the_next_controller_finishes_what_a_killed_one_began(tmp_path: Path) -> None:
    process = BrokerProcess(
        tmp_path, 0, ("--brokers", "3", "--override", "zookeeper.session.timeout.ms=4000")
    ).wait_ready()

    async def main() -> None:
        first = process.bootstrap
        said = await until_said(first, lambda said: len(said["brokers"]) == 3)
        addresses = {item["node_id"]: f"{item['host']}:{item['port']}" for item in said["brokers"]}
        controller = said["controller_id"]
        target, other = sorted(addresses.keys() - {controller})
        assignment = [{"partition_index": 0, "broker_ids": [other, controller]}]
        topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignment}
        pids = brokers_of(process)
        async with Wire(addresses[controller]) as wire:
            await wire.ask("CreateTopics", 4, topics=[topic], timeout_ms=60_000, validate_only=False)
            await until_said(addresses[other], held_by(controller, other))
            producing = Producing(addresses[other], "t")
            await producing.begun()
            # The new replica's broker cannot become in sync, so the reassignment stays half-way.
            os.kill(pids[target], signal.SIGSTOP)
            try:
                await wire.ask("AlterPartitionReassignments", 0, topics=moves("t", target, other))
                listed = await wire.ask("ListPartitionReassignments", 0, topics=None)
                [of_topic] = listed["topics"]
                assert of_topic["partitions"][0]["adding_replicas"] == [target]
                os.kill(pids[controller], signal.SIGKILL)
            finally:
                os.kill(pids[target], signal.SIGCONT)

        said = await until_said(addresses[other], held_by(target, other))
        assert said["controller_id"] in (target, other)
        produced = await asyncio.to_thread(producing.stop)

        def read() -> list[str]:
            consumer = Consumer(
                {"bootstrap.servers": addresses[other], "group.id": "g", "enable.auto.commit": False}
            )
            consumer.assign([TopicPartition("t", 0, 0)])
            found: list[str] = []
            while len(found) < len(produced):
                message = consumer.poll(WAIT_SECONDS)
                assert message is not None
                assert message.error() is None, message.error()
                found.append((message.value() or b"").decode())
            consumer.close()
            return found

        assert await asyncio.to_thread(read) == produced

    try:
        asyncio.run(asyncio.wait_for(main(), 150))
    finally:
        for pid in brokers_of(process).values():
            os.kill(pid, signal.SIGKILL)
        process.kill()
