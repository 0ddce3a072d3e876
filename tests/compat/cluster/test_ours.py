"""Our three brokers on our coordinator and on Apache ZooKeeper 3.9.4, with the producers of librdkafka, of
Java and of ours, while brokers are killed and replaced.

If one failed, a record that a client was told to be safe would be lost, or be there twice, or replicas would
differ.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from cluster.client import Producer as OurProducer
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.conftest import KafkaTools
from tests.compat.load import PATIENCE_SECONDS, Load, read_all, until
from tests.compat.programs.client import Client
from tests.compat.programs.piped import java
from tests.compat.programs.records import Ledger

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

REPLICAS = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [0, 1, 2], [1, 2, 0]]
"""Broker 2 leads nothing at first, and is the controller."""
RECORDS = 20_000
"""A run of the Java program: more than it sends before the fault."""


@pytest.fixture(params=["ours", "apache"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, request.param, dict.fromkeys(range(3), "ours")) as running:
        for number in (2, 0, 1):
            running.start(number)
        yield running


class JavaRun:
    """One run of the Java program, whose records all go to a topic of their own."""

    def __init__(self, made: Cluster, client: Client, topic: str) -> None:
        self._made = made
        self._client = client
        self._topic = topic
        self._failures: list[BaseException] = []
        made.create_topic(topic, REPLICAS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        consumer = Consumer({"bootstrap.servers": made.bootstrap, "group.id": "ends", "log_level": 0})
        where = TopicPartition(topic, 0)
        until(lambda: consumer.get_watermark_offsets(where, PATIENCE_SECONDS)[1] > 0, f"{topic} has a record")
        consumer.close()

    def _run(self) -> None:
        try:
            self._client.produce(self._made.bootstrap, self._topic, "lz4", "all", RECORDS)
        except BaseException as error:
            self._failures.append(error)

    def join(self) -> None:
        """Waits until every record is acknowledged."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        assert not self._failures, self._failures[0]

    def check(self) -> None:
        """Each record is there once and in order, read by a consumer group."""
        ledger = Ledger(RECORDS)
        for found in self._client.consume(self._made.bootstrap, self._topic, f"{self._topic}-group", RECORDS):
            ledger.take(found)
        ledger.close()
        self._made.check_files(self._topic)


def a_leader(made: Cluster) -> int:
    """A broker that leads and is not the controller."""
    return min(set(made.leaders("librdkafka").values()) - {made.controller()})


def test_no_acknowledged_record_is_lost_while_brokers_are_killed(made: Cluster) -> None:
    for topic in ("librdkafka", "ours"):
        made.create_topic(topic, REPLICAS)
    assert made.controller() == 2
    assert 2 not in made.leaders("librdkafka").values()
    with java("kafka-3.9.1") as client:
        loads = [
            Load(made.bootstrap, "librdkafka", in_flight=20),
            Load(made.bootstrap, "ours", OurProducer, in_flight=20),
        ]
        runs: list[JavaRun] = []

        def during(fault: str, number: int) -> None:
            """Kills a broker while everybody writes, and starts it again."""
            runs.append(JavaRun(made, client, f"java-{fault}"))
            made.stop(number, signal.SIGKILL)
            runs[-1].join()
            restarted(number)
            made.until_in_sync(f"java-{fault}")

        def restarted(number: int) -> None:
            for load in loads:
                load.until_more(300)
            made.start(number)
            for topic in ("librdkafka", "ours"):
                made.until_in_sync(topic)

        try:
            during("controller", made.controller())
            # The next controller is one of the leaders.
            assert made.controller() in made.leaders("librdkafka").values()
            during("controller-and-leader", made.controller())
            during("leader", a_leader(made))
            for number in range(3):
                made.stop(number)
                restarted(number)
        finally:
            for load in loads:
                load.stop()
        for load, topic in zip(loads, ("librdkafka", "ours"), strict=True):
            assert not load.refused, load.refused[0]
            assert read_all(made.bootstrap, topic) == load.acknowledged
            made.check_files(topic)
        for run in runs:
            run.check()
    for number in range(3):
        assert "Traceback" not in made.all_output(number)
        made.stop(number)


def test_a_fourth_broker_takes_the_replicas_of_a_drained_one(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    """With kafka-reassign-partitions, while records are written."""
    with cluster(tmp_path, "ours", dict.fromkeys(range(3), "ours")) as made:
        made.start(0, 1, 2)
        made.create_topic("load", REPLICAS)
        load = Load(made.bootstrap, "load", in_flight=20)
        try:
            load.until_more(300)
            made.kinds[3] = "ours"
            made.add(3)
            made.start(3)
            plan = tmp_path / "plan.json"
            drained = [[3 if broker == 0 else broker for broker in replicas] for replicas in REPLICAS]
            moves = [
                {"topic": "load", "partition": number, "replicas": replicas}
                for number, replicas in enumerate(drained)
            ]
            plan.write_text(json.dumps({"version": 1, "partitions": moves}))
            tool = ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand",)
            where = ("--bootstrap-server", made.bootstrap, "--reassignment-json-file", str(plan))
            kafka_tools.run(*tool, *where, "--execute")
            moved = [set(replicas) for replicas in drained]
            until(
                lambda: [made.replicas("load", number) for number in range(len(moved))] == moved,
                "the partitions are on their new replicas",
            )
            made.until_in_sync("load")
            assert "is completed" in kafka_tools.run(*tool, *where, "--verify")
            until(lambda: not [*made.members[0].log_dir.glob("load-?")], "the drained broker has no log left")
            made.stop(0)
            load.until_more(300)
        finally:
            load.stop()
        assert not load.refused, load.refused[0]
        made.until_in_sync("load")
        assert 3 in made.leaders("load").values()
        assert read_all(made.bootstrap, "load") == load.acknowledged
        made.check_files("load")
        for number in (1, 2, 3):
            made.stop(number)


def test_a_killed_follower_with_a_corrupt_log_gets_it_from_its_leader_again(tmp_path: Path) -> None:
    with cluster(tmp_path, "ours", dict.fromkeys(range(3), "ours")) as made:
        made.start(0, 1, 2)
        made.create_topic("load", REPLICAS)
        load = Load(made.bootstrap, "load", in_flight=20)
        try:
            load.until_more()
            made.stop(2, signal.SIGKILL)
            segment = made.members[2].log_dir / "load-0" / "00000000000000000000.log"
            data = bytearray(segment.read_bytes())
            data[data.index(b"600")] ^= 1
            segment.write_bytes(data)
            made.start(2)
            load.until_more()
        finally:
            load.stop()
        assert not load.refused, load.refused[0]
        made.until_in_sync("load")
        assert read_all(made.bootstrap, "load") == load.acknowledged
        made.check_files("load")
        for number in range(3):
            made.stop(number)
