"""Clients older than Kafka 0.11, which know neither batches nor headers: the Java client 0.9 and 0.10, and
newer ones that are configured for such a broker.

If one failed, a program that was never upgraded could not read from us, or write to us, as with Apache Kafka
3.9.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import confluent_kafka as confluent
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.programs.client import Client
from tests.compat.programs.piped import java
from tests.compat.programs.python import KafkaPython, Librdkafka
from tests.compat.programs.records import Found, record
from tests.conftest import BrokerProcess

pytestmark = [
    pytest.mark.compat,
    # kafka-python leaves sockets to the garbage collector when it closes.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

CODECS = ["none", "gzip", "snappy", "lz4"]
COUNT = 3000
TIMEOUT = 30.0


class LibrdkafkaAt09(Librdkafka):
    """With Fetch 1 and ListOffsets 0, because it is configured not to ask for the broker's versions."""

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        consumer = confluent.Consumer(
            {
                "bootstrap.servers": server,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "api.version.request": False,
                "broker.version.fallback": "0.9.0",
            }
        )
        consumer.subscribe([topic])
        for _ in range(count):
            message = consumer.poll(TIMEOUT)
            assert message is not None, f"no record came within {TIMEOUT} s"
            assert message.error() is None
            assert message.timestamp()[0] == confluent.TIMESTAMP_NOT_AVAILABLE
            yield _found(message.partition(), message.offset(), message.key(), message.value())
        consumer.close()


class KafkaPythonAt010(KafkaPython):
    """With Fetch 2 and ListOffsets 0."""

    def consume(self, server: str, topic: str, group: str, count: int) -> Iterator[Found]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=server,
            group_id=group,
            auto_offset_reset="earliest",
            api_version=(0, 10, 0),
            consumer_timeout_ms=int(TIMEOUT * 1000),
        )
        for _, message in zip(range(count), consumer, strict=False):
            yield _found(message.partition, message.offset, message.key, message.value)
        consumer.close()


def _found(partition: int, offset: int, key: bytes | None, value: bytes | None) -> Found:
    return Found(partition, offset, record(0)._replace(key=key, value=value, headers=()))


READERS: dict[str, Callable[[], AbstractContextManager[Client]]] = {
    "java-0.9.0.1": lambda: java("kafka-clients-0.9.0.1", "OldPrograms"),
    "java-0.10.2.2": lambda: java("kafka-clients-0.10.2.2", "OldPrograms"),
    "librdkafka as 0.9": lambda: nullcontext(LibrdkafkaAt09()),
    "kafka-python as 0.10": lambda: nullcontext(KafkaPythonAt010()),
}
WRITERS = ["java-0.9.0.1", "java-0.10.2.2"]


@pytest.fixture(scope="module")
def client_of() -> Iterator[Callable[[str], Client]]:
    """Each client by its name, built and started at its first use."""
    with contextlib.ExitStack() as running:
        yield functools.cache(lambda name: running.enter_context(READERS[name]()))


def new_topic(server: str, name: str) -> str:
    """With one partition, so that record i has the offset i."""
    topic = name.replace(" ", "-")
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT)
    return topic


def sent(count: int) -> list[Found]:
    return [Found(0, index, record(index)._replace(headers=())) for index in range(count)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", READERS)
def test_old_readers_find_the_records_of_a_new_writer(
    broker: BrokerProcess, client_of: Callable[[str], Client], reader: str, codec: str
) -> None:
    server = broker.bootstrap
    topic = new_topic(server, f"for {reader} {codec}")
    Librdkafka().produce(server, topic, codec, "all", COUNT)
    assert list(client_of(reader).consume(server, topic, f"of-{topic}", COUNT)) == sent(COUNT)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_the_records_of_an_old_writer_are_read_by_old_and_new(
    broker: BrokerProcess, client_of: Callable[[str], Client], writer: str, codec: str
) -> None:
    server = broker.bootstrap
    topic = new_topic(server, f"from {writer} {codec}")
    client_of(writer).produce(server, topic, codec, "all", COUNT)
    for name, reader in (("old", client_of(writer)), ("new", Librdkafka())):
        assert list(reader.consume(server, topic, f"{name}-of-{topic}", COUNT)) == sent(COUNT), name
