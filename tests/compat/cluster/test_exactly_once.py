"""Kafka Streams on our three brokers, while brokers, coordinators and the application are killed, and a copy
on ours and Apache's, while the coordinators move between them.

If one failed, a Kafka Streams application would count a word twice, or a copy would lose or repeat a record.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cluster.client import AdminClient, ElectionType, KafkaException, alter_partition_reassignments
from cluster.client import TopicPartition as Partition
from cluster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from tests.compat.cluster import copiers
from tests.compat.cluster.applications import (
    REPLICAS,
    SETTINGS,
    Application,
    committed,
    coordinator_of,
    replaced,
)
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.conftest import peer_jars
from tests.compat.load import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

LINES, PART = 1_200, 300
WORDS = ["to", "be", "or", "not", "that", "is", "the", "question"]
SOURCES = Path(__file__).parent.parent / "streams"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, "ours", dict.fromkeys(range(3), "ours"), SETTINGS) as running:
        running.start(0, 1, 2)
        yield running


def test_kafka_streams_counts_every_word_once(made: Cluster, tmp_path: Path) -> None:
    libraries = peer_jars("kafka-streams-3.9.1")
    classes = tmp_path / "classes"
    subprocess.run(
        ["javac", "-cp", f"{libraries}/*", "-d", str(classes), str(SOURCES / "WordCount.java")],
        check=True,
        timeout=120,
    )
    for topic in ("lines", "counts"):
        made.create_topic(topic, REPLICAS)

    def application(number: int) -> Application:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{classes}:{libraries}/*",
            "WordCount",
        ]
        state = tmp_path / f"state-{number}"
        command += [made.bootstrap, "word-count", str(state), "lines", "counts"]
        return Application(command, tmp_path / f"streams-{number}.log")

    lines = [" ".join(WORDS[(number + step) % len(WORDS)] for step in range(3)) for number in range(LINES)]
    producer = Producer({"bootstrap.servers": made.bootstrap, "acks": "all", "log_level": 0})

    def write(some: list[str]) -> None:
        for number, line in enumerate(some):
            producer.produce("lines", line.encode(), partition=number % len(REPLICAS))
        assert producer.flush(PATIENCE_SECONDS) == 0

    def words(some: list[str]) -> Counter[str]:
        return Counter(word for line in some for word in line.split())

    parts = [lines[start : start + PART] for start in range(0, LINES, PART)]
    first = application(1)
    try:
        write(parts[0])
        committed(made, "counts", 1, first)
        replaced(made, coordinator_of(made, GROUP_METADATA_TOPIC, "word-count"), ["lines", "counts"])
        write(parts[1])
    finally:
        first.kill()
    second = application(2)
    try:
        write(parts[2])
        # More than the first can have counted.
        committed(made, "counts", words(parts[0] + parts[1]).total() + 1, second)
        replaced(made, made.controller(), ["lines", "counts"])
        write(parts[3])
        found = committed(made, "counts", words(lines).total(), second)
    finally:
        second.kill()
    counts: dict[bytes, list[int]] = {}
    for records in found.values():
        for word, count in records:
            counts.setdefault(word, []).append(int(count))
    assert {word.decode(): numbers[-1] for word, numbers in counts.items()} == words(lines)
    for word, numbers in counts.items():
        assert numbers == list(range(1, len(numbers) + 1)), word


def led_by(made: Cluster, number: int) -> None:
    """Makes a broker the leader of every partition of the state topics."""
    topics = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
    partitions = [(topic, partition) for topic in topics for partition in made.states(topic)]
    replicas = [number, *(other for other in made.kinds if other != number)]
    with AdminClient({"bootstrap.servers": made.bootstrap}) as admin:
        plan = {Partition(*partition): replicas for partition in partitions}
        assert not any(alter_partition_reassignments(admin, plan).values())

        def elected() -> bool:
            with contextlib.suppress(KafkaException):
                admin.elect_leaders(ElectionType.PREFERRED, list(plan)).result(PATIENCE_SECONDS)
            return all(set(made.leaders(topic).values()) == {number} for topic in topics)

        until(elected, f"broker {number} leads the state topics")


def test_coordinators_move_between_ours_and_apaches(tmp_path: Path) -> None:
    """A copy goes on with its group and its transactions while the state topics' leaders change kind."""
    kinds = {0: "ours", 1: "apache", 2: "ours"}
    with cluster(tmp_path, "ours", kinds, SETTINGS) as made:
        made.start(0, 1, 2)
        for topic in ("from", "to"):
            made.create_topic(topic, REPLICAS)
        producer = Producer({"bootstrap.servers": made.bootstrap, "acks": "all", "log_level": 0})
        written = 0

        def write(count: int) -> None:
            nonlocal written
            for number in range(written, written + count):
                producer.produce("from", str(number).encode(), partition=number % len(REPLICAS))
            assert producer.flush(PATIENCE_SECONDS) == 0
            written += count

        write(300)
        command = copiers.command("librdkafka", made.bootstrap, "from", "to", "copies", "copier")
        copier = Application(command, tmp_path / "copier.log")
        try:
            committed(made, "to", written, copier)
            for number in (1, 0, 1, 2):
                led_by(made, number)
                write(300)
                committed(made, "to", written, copier)
        finally:
            copier.kill()
        found = committed(made, "to", written)
        for partition, records in found.items():
            numbers = [f"{number}!".encode() for number in range(partition, written, len(REPLICAS))]
            assert [value for _, value in records] == numbers
        for topic in ("to", GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            made.until_in_sync(topic)
            for partition in made.states(topic):
                # The killed member's group is written once more.
                until(
                    lambda at=(topic, partition): are_equal(
                        [made.log_files(number, *at) for number in kinds]
                    ),
                    f"the replicas of {topic}-{partition} are equal",
                )


def are_equal(replicas: list[dict[str, bytes]]) -> bool:
    return all(one == replicas[0] for one in replicas)
