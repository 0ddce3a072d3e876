"""Transactional copies by several clients on our three brokers, while brokers, coordinators and copiers are
killed at seeded places.

If one failed, an exactly-once application would lose or repeat a record. `make chaos` runs new seeds with
200,000 records; a failure prints LOGCORE_SEED, which runs its kills again.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from cluster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from logcore._native import api_keys
from tests.compat.cluster import copiers
from tests.compat.cluster.applications import (
    REPLICAS,
    SETTINGS,
    Application,
    Reader,
    committed,
    coordinator_of,
    replaced,
)
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.conftest import peer_jars
from tests.compat.load import PATIENCE_SECONDS
from tests.compat.test_data_plane import Peer

IS_CHAOS = "LOGCORE_CHAOS_MINUTES" in os.environ or "LOGCORE_SEED" in os.environ
RECORDS, ROUNDS, BATCH = (200_000, 5, 200) if IS_CHAOS else (3_000, 1, 20)
"""BATCH is the size of a transaction. In each round, each of the kinds of KILLED is killed once."""
KILLED = ("copier", "the transactions' coordinator", "the group's coordinator", "controller")
GROUP, NAME = "copies", "copier"
DESCRIBE_TRANSACTIONS = api_keys()["DescribeTransactions"]

pytestmark = [pytest.mark.compat, pytest.mark.timeout(3600 if IS_CHAOS else 300)]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, "ours", dict.fromkeys(range(3), "ours"), SETTINGS) as running:
        running.start(0, 1, 2)
        yield running


class Source:
    """Writes numbers, in turn into each partition."""

    def __init__(self, made: Cluster, topic: str) -> None:
        self._topic, self._errors = topic, list[KafkaError]()
        self._producer = Producer(
            {"bootstrap.servers": made.bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._written = 0

    def write_up_to(self, count: int) -> None:
        for number in range(self._written, count):
            partition = number % len(REPLICAS)
            while True:
                try:
                    self._producer.produce(
                        self._topic, str(number).encode(), partition=partition, on_delivery=self._delivered
                    )
                except BufferError:
                    self._producer.poll(1.0)
                else:
                    break
        self._written = count

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        assert self._errors == []


def kill(made: Cluster, what: str) -> None:
    brokers = {
        "the transactions' coordinator": lambda: coordinator_of(made, TRANSACTION_STATE_TOPIC, NAME),
        "the group's coordinator": lambda: coordinator_of(made, GROUP_METADATA_TOPIC, GROUP),
        "controller": made.controller,
    }
    replaced(made, brokers[what](), ["from", "to", TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC])


def transaction_version(made: Cluster, version: int) -> None:
    """Finalizes a version of the feature, with Kafka's tool."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{peer_jars('kafka-4.1.0')}/*"]
    command += ["org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", made.bootstrap, "upgrade"]
    subprocess.run(
        [*command, "--feature", f"transaction.version={version}"], check=True, timeout=PATIENCE_SECONDS
    )


def epoch(made: Cluster) -> int:
    """The epoch of the transactional id's producer."""
    peer = Peer(made.members[coordinator_of(made, TRANSACTION_STATE_TOPIC, NAME)].bootstrap)
    with contextlib.closing(peer):
        answer = peer.ask(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [NAME]})
    assert isinstance(answer, dict)
    return int(answer["transaction_states"][0]["producer_epoch"])


@pytest.mark.parametrize("client", copiers.CLIENTS)
def test_a_copy_is_exact(made: Cluster, tmp_path: Path, client: str) -> None:
    seed = int(os.environ.get("LOGCORE_SEED", time.time_ns() // 1000 if IS_CHAOS else 1))
    print(f"LOGCORE_SEED={seed}")
    chance = random.Random(seed)
    for topic in ("from", "to"):
        made.create_topic(topic, REPLICAS)
    has_epochs = client == copiers.EPOCH_A_TRANSACTION
    if has_epochs:
        transaction_version(made, 2)
    command = copiers.command(client, made.bootstrap, "from", "to", GROUP, NAME, BATCH)
    kills = [what for _ in range(ROUNDS) for what in chance.sample(KILLED, len(KILLED))]
    share = RECORDS // (len(kills) + 1)
    source = Source(made, "from")
    copier = Application(command, tmp_path / "copier-0.log")
    try:
        with Reader(made, "to") as reader:
            for number, what in enumerate(kills):
                source.write_up_to((number + 1) * share)
                reader.until(number * share + chance.randrange(1, share // 2), copier, at_end=False)
                print(f"after {reader.count()} records: {what} is killed", flush=True)
                if what == "copier":
                    copier.kill()
                    copier = Application(command, tmp_path / f"copier-{number + 1}.log")
                else:
                    kill(made, what)
            source.write_up_to(RECORDS)
            source.finish()
            reader.until(RECORDS, copier)
    finally:
        copier.kill()
    found = committed(made, "to", RECORDS)
    for partition, records in found.items():
        numbers = [f"{number}!".encode() for number in range(partition, RECORDS, len(REPLICAS))]
        assert [value for _, value in records] == numbers
    # Each start takes an epoch, and a transaction that is aborted takes one or two.
    assert (epoch(made) > RECORDS // BATCH // 2) == has_epochs
