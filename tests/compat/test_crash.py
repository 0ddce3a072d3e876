"""SIGKILL during producing. If one failed, an acknowledged record, topic or committed offset would be lost,
doubled or out of order after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import cluster
from tests.conftest import StartBroker

pytestmark = pytest.mark.compat

PARTITIONS = 3
ROUNDS = 3
BURST = 3000
ACKNOWLEDGED_PER_ROUND = 700
TIMEOUT = 60.0


@dataclass
class Acknowledged:
    """The results of delivery callbacks: value -> (partition, offset)."""

    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def __call__(self, error: object, message: confluent.Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        if error is not None:
            self.errors.append(f"{value!r}: {error}")
            return
        assert value is not None
        assert partition is not None
        assert offset is not None
        assert value not in self.places, "a record was acknowledged twice"
        self.places[value] = (partition, offset)


def create_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(TIMEOUT)


def read_all(bootstrap: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of a topic: partition -> (offset, value) in the order read."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([confluent.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
    at_end: set[int] = set()
    deadline = time.monotonic() + TIMEOUT
    while len(at_end) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1.0):
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                found[partition].append((offset, value))
            else:
                assert error.code() == confluent.KafkaError._PARTITION_EOF, error
                at_end.add(partition)
    consumer.close()
    assert len(at_end) == PARTITIONS, "not every partition could be read to its end"
    return found


def numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@pytest.mark.parametrize("client", [confluent, cluster], ids=["confluent-kafka", "ours"])
def test_every_acknowledged_record_is_there_once_and_in_order(
    start_broker: StartBroker, tmp_path: Path, unused_port: int, client: ModuleType
) -> None:
    data_dir = tmp_path / "data"
    broker = start_broker(data_dir, unused_port)
    create_topic(broker.bootstrap, "crash")
    acknowledged = Acknowledged()
    producer = client.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
        }
    )
    count = numbers()
    sent = 0
    for _ in range(ROUNDS):
        wanted = len(acknowledged.places) + ACKNOWLEDGED_PER_ROUND
        for number in (next(count) for _ in range(BURST)):
            producer.produce(
                "crash", b"%08d" % number, partition=number % PARTITIONS, on_delivery=acknowledged
            )
            sent += 1
        deadline = time.monotonic() + TIMEOUT
        while len(acknowledged.places) < wanted:
            producer.poll(0.005)
            assert time.monotonic() < deadline, (
                f"only {len(acknowledged.places)} acknowledged\n{broker.output()}"
            )
        broker.kill()
        broker = start_broker(data_dir, unused_port)
    assert producer.flush(TIMEOUT) == 0
    assert acknowledged.errors == []
    assert len(acknowledged.places) == sent

    found = read_all(broker.bootstrap, "crash")
    where = {value: (partition, offset) for partition, records in found.items() for offset, value in records}
    assert where == acknowledged.places
    for records in found.values():
        values = [value for _offset, value in records]
        assert values == sorted(set(values)), "a record is repeated or out of order"
        assert [offset for offset, _value in records] == list(range(len(records)))
    assert broker.stop() == 0


def test_an_acknowledged_topic_survives(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    names = {f"topic-{number}" for number in range(5)}
    for name in sorted(names):
        create_topic(broker.bootstrap, name, 2)
    broker.kill()
    broker = start_broker(tmp_path / "data")
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=TIMEOUT).topics
    assert names <= topics.keys()
    for name in names:
        assert topics[name].error is None
        assert {partition.leader >= 0 for partition in topics[name].partitions.values()} == {True}
        assert len(topics[name].partitions) == 2


def test_an_acknowledged_deletion_survives(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    create_topic(broker.bootstrap, "gone")
    create_topic(broker.bootstrap, "kept")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_topics(["gone"]).values():
        future.result(TIMEOUT)
    broker.kill()
    broker = start_broker(tmp_path / "data")
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=TIMEOUT).topics
    assert "kept" in topics
    assert "gone" not in topics


def test_a_committed_offset_survives(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    create_topic(broker.bootstrap, "committed")
    partition = confluent.TopicPartition("committed", 1, 42)
    options = {"group.id": "survivors", "enable.auto.commit": False}
    consumer = confluent.Consumer({"bootstrap.servers": broker.bootstrap, **options})
    consumer.assign([partition])
    consumer.commit(offsets=[partition], asynchronous=False)
    consumer.close()
    broker.kill()
    broker = start_broker(tmp_path / "data")
    consumer = confluent.Consumer({"bootstrap.servers": broker.bootstrap, **options})
    [committed] = consumer.committed([confluent.TopicPartition("committed", 1)], timeout=TIMEOUT)
    consumer.close()
    assert committed.offset == 42


def test_a_producer_id_is_never_used_twice(start_broker: StartBroker, tmp_path: Path) -> None:
    """The log would take the first records of the second producer with the same id for duplicates."""
    data_dir = tmp_path / "data"
    for number in range(3):
        broker = start_broker(data_dir)
        if number == 0:
            create_topic(broker.bootstrap, "ids")
        acknowledged = Acknowledged()
        producer = confluent.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("ids", b"%d" % number, partition=0, on_delivery=acknowledged)
        assert producer.flush(TIMEOUT) == 0
        assert acknowledged.places == {b"%d" % number: (0, number)}
        broker.kill()
    broker = start_broker(data_dir)
    assert read_all(broker.bootstrap, "ids")[0] == [(number, b"%d" % number) for number in range(3)]
