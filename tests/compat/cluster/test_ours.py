"""Our three brokers on our coordinator and on Apache ZooKeeper 3.9.4, with the producers of librdkafka, of
Java and of ours, while brokers are killed.

If one failed, a record that a client was told to be safe would be lost, or be there twice, or replicas would
differ.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from cluster.client import Producer as OurProducer
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.load import PATIENCE_SECONDS, Load, read_all, until
from tests.compat.programs.client import Client
from tests.compat.programs.piped import java
from tests.compat.programs.records import Ledger

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

REPLICAS = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [0, 1, 2], [1, 2, 0]]
"""Broker 2 leads nothing at first, and is the controller."""
RECORDS = 40_000
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
        loads = [Load(made.bootstrap, "librdkafka"), Load(made.bootstrap, "ours", OurProducer)]
        runs: list[JavaRun] = []

        def during(fault: str, chosen: Callable[[], int], how: signal.Signals) -> None:
            """Ends a broker while everybody writes, and starts it again."""
            runs.append(JavaRun(made, client, f"java-{fault}"))
            number = chosen()
            made.stop(number, how)
            for load in loads:
                load.until_more()
            runs[-1].join()
            made.start(number)
            for topic in ("librdkafka", "ours", f"java-{fault}"):
                made.until_in_sync(topic)

        try:
            during("controller", made.controller, signal.SIGKILL)
            # The next controller is one of the leaders.
            assert made.controller() in made.leaders("librdkafka").values()
            during("controller-and-leader", made.controller, signal.SIGKILL)
            during("leader", lambda: a_leader(made), signal.SIGKILL)
            for number in range(3):
                during(f"restart-{number}", lambda number=number: number, signal.SIGTERM)  # type: ignore[misc]
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
