"""Python's Kafka clients and kcat, unmodified, against our broker, in every pairing and compression.

If these failed, a program that runs against Apache Kafka would lose, change or not find its records here.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import confluent_kafka as confluent
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import cluster
from tests.conftest import BrokerProcess

pytestmark = [
    pytest.mark.compat,
    # kafka-python leaves sockets to the garbage collector when it closes.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Event:
    """A record, independent of the client that reads it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


# A recent time: retention would remove older records.
START = int(time.time() * 1000) - 60_000

EVENTS = [
    Event(b"plain", b"value", (), START),
    Event(None, b"no key", (), START + 1),
    Event(b"tombstone", None, (), START + 2),
    Event(b"", b"", (("empty", b""),), START + 3),
    Event(b"headers", "grüße".encode(), (("a", b"1"), ("a", b"2")), START + 4),
    Event(b"large", b"abcdefgh" * 5000, (), START + 5),
    *(Event(b"k%d" % n, b"v%d" % n * 20, (), START + 1000 + n) for n in range(200)),
]


def produce_kafka_python(server: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=server, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    sent = [producer.send(topic, e.value, e.key, list(e.headers), 0, e.timestamp) for e in EVENTS]
    producer.flush(30)
    assert [future.get(30).offset for future in sent] == list(range(len(EVENTS)))
    producer.close()


def produce_confluent_shape(module: object, server: str, topic: str, codec: str) -> None:
    errors: list[object] = []
    producer = module.Producer({"bootstrap.servers": server, "compression.type": codec, "linger.ms": 20})  # type: ignore[attr-defined]
    for e in EVENTS:
        producer.produce(
            topic,
            e.value,
            e.key,
            0,
            timestamp=e.timestamp,
            headers=list(e.headers),
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(30) == 0
    assert errors == [None] * len(EVENTS)


def produce_confluent(server: str, topic: str, codec: str) -> None:
    produce_confluent_shape(confluent, server, topic, codec)


def produce_ours(server: str, topic: str, codec: str) -> None:
    produce_confluent_shape(cluster, server, topic, codec)


def produce_aiokafka(server: str, topic: str, codec: str) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=server, compression_type=None if codec == "none" else codec, linger_ms=20
        ) as producer:
            sent = [
                await producer.send(topic, e.value, e.key, 0, e.timestamp, headers=list(e.headers))
                for e in EVENTS
            ]
            results = await asyncio.gather(*sent)
            assert [result.offset for result in results] == list(range(len(EVENTS)))

    asyncio.run(run())


def consume_kafka_python(server: str, topic: str) -> list[Event]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server, auto_offset_reset="earliest", enable_auto_commit=False
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[Event] = []
    while len(found) < len(EVENTS):
        records = consumer.poll(timeout_ms=30_000)
        assert records, "no record came within 30 s"
        found += [
            Event(r.key, r.value, tuple((name, value) for name, value in r.headers), r.timestamp)
            for r in records[partition]
        ]
    consumer.close()
    return found


def consume_confluent_shape(module: object, server: str, topic: str) -> list[Event]:
    consumer = module.Consumer(  # type: ignore[attr-defined]
        {"bootstrap.servers": server, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[Event] = []
    while len(found) < len(EVENTS):
        messages = consumer.consume(min(100, len(EVENTS) - len(found)), 30)
        assert messages, "no record came within 30 s"
        for message in messages:
            assert message.error() is None
            headers = tuple(tuple(header) for header in message.headers() or ())
            found.append(Event(message.key(), message.value(), headers, message.timestamp()[1]))
    consumer.close()
    return found


def consume_confluent(server: str, topic: str) -> list[Event]:
    return consume_confluent_shape(confluent, server, topic)


def consume_ours(server: str, topic: str) -> list[Event]:
    return consume_confluent_shape(cluster, server, topic)


def consume_aiokafka(server: str, topic: str) -> list[Event]:
    async def run() -> list[Event]:
        found: list[Event] = []
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=server, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
        ) as consumer:
            while len(found) < len(EVENTS):
                r = await asyncio.wait_for(consumer.getone(), 30)
                found.append(Event(r.key, r.value, tuple(r.headers), r.timestamp))
        return found

    return asyncio.run(run())


PRODUCERS: dict[str, Callable[[str, str, str], None]] = {
    "kafka-python": produce_kafka_python,
    "confluent-kafka": produce_confluent,
    "aiokafka": produce_aiokafka,
    "logcore": produce_ours,
}
CONSUMERS: dict[str, Callable[[str, str], list[Event]]] = {
    "kafka-python": consume_kafka_python,
    "confluent-kafka": consume_confluent,
    "aiokafka": consume_aiokafka,
    "logcore": consume_ours,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_consumer_reads_what_each_producer_wrote(
    broker: BrokerProcess, producer: str, codec: str
) -> None:
    """Keys, values, nulls, headers and timestamps arrive as they were sent, from and to each client."""
    topic = f"{producer}-{codec}-{uuid.uuid4().hex[:8]}"
    PRODUCERS[producer](broker.bootstrap, topic, codec)
    for name, consume in CONSUMERS.items():
        assert consume(broker.bootstrap, topic) == EVENTS, f"read by {name}"


@pytest.mark.parametrize("module", [confluent, cluster], ids=["confluent-kafka", "logcore"])
def test_a_header_without_a_value(broker: BrokerProcess, module: object) -> None:
    """A test of its own, because kafka-python does not send such headers."""
    topic = f"null-header-{uuid.uuid4().hex[:8]}"
    producer = module.Producer({"bootstrap.servers": broker.bootstrap})  # type: ignore[attr-defined]
    producer.produce(topic, b"value", headers=[("nothing", None), ("empty", b"")])
    assert producer.flush(30) == 0
    for reader in (confluent, cluster):
        consumer = reader.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid.uuid4().hex})
        consumer.assign([reader.TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert [tuple(header) for header in message.headers() or ()] == [("nothing", None), ("empty", b"")]
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat(broker: BrokerProcess, kcat: Callable[..., str], codec: str) -> None:
    topic = f"kcat-{codec}-{uuid.uuid4().hex[:8]}"
    lines = "".join(f"k{n}:value {n}\n" for n in range(100))
    setting = f"compression.codec={codec}"
    kcat("-P", "-b", broker.bootstrap, "-t", topic, "-K:", "-X", setting, "-H", "from=kcat", stdin=lines)
    read = kcat("-C", "-b", broker.bootstrap, "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%k:%s\n")
    assert sorted(read.splitlines()) == sorted(lines.splitlines())
    assert f'topic "{topic}"' in kcat("-L", "-b", broker.bootstrap, "-t", topic)


@pytest.mark.parametrize("module", [confluent, cluster], ids=["confluent-kafka", "logcore"])
def test_reading_from_a_timestamp(broker: BrokerProcess, module: object) -> None:
    topic = f"timed-{uuid.uuid4().hex[:8]}"
    produce_kafka_python(broker.bootstrap, topic, "none")
    consumer = module.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid.uuid4().hex})  # type: ignore[attr-defined]
    wanted = START + 1100
    expected = next(n for n, event in enumerate(EVENTS) if event.timestamp >= wanted)
    (found,) = consumer.offsets_for_times([module.TopicPartition(topic, 0, wanted)], timeout=30)  # type: ignore[attr-defined]
    assert found.offset == expected
    consumer.assign([found])
    message = consumer.poll(30)
    assert message is not None
    assert (message.offset(), message.timestamp()[1]) == (expected, wanted)
    consumer.seek(module.TopicPartition(topic, 0, 3))  # type: ignore[attr-defined]
    assert consumer.poll(30).offset() == 3
    assert consumer.get_watermark_offsets(module.TopicPartition(topic, 0), timeout=30) == (0, len(EVENTS))  # type: ignore[attr-defined]
    consumer.close()


def test_kafka_python_finds_offsets_by_time(broker: BrokerProcess) -> None:
    topic = f"timed-{uuid.uuid4().hex[:8]}"
    produce_confluent(broker.bootstrap, topic, "lz4")
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    found = consumer.offsets_for_times({partition: START + 1100})[partition]
    assert EVENTS[found.offset].timestamp == START + 1100
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: len(EVENTS)}
    consumer.close()
