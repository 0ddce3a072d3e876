"""Hostile input to a whole broker: bytes, batches, names, directories, ports.

If one failed, a bad client or a wrong setting would cost other clients their records, end the broker, or
leave its operator without a clear reason.
"""

from __future__ import annotations

import random
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from cluster.errors import (
    CorruptMessage,
    InvalidRecord,
    MessageTooLarge,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from tests.conftest import BrokerProcess, StartBroker

pytestmark = pytest.mark.compat

TIMEOUT = 30.0
REQUEST_MAX = 100 * 1024 * 1024
"""Default of socket.request.max.bytes."""
PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
CORRUPT_MESSAGE = CorruptMessage.code
UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartition.code
MESSAGE_TOO_LARGE = MessageTooLarge.code
UNSUPPORTED_VERSION = UnsupportedVersion.code
INVALID_RECORD = InvalidRecord.code

Connect = Callable[[], "Wire"]


class Wire:
    """A connection that sends arbitrary bytes."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT)

    def send_raw(self, data: bytes) -> None:
        """Sends; the broker may close the connection meanwhile."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def send(self, api_key: int, version: int, body: bytes, correlation: int = 1) -> None:
        """A request with header version 1."""
        header = struct.pack(">hhih", api_key, version, correlation, 4) + b"test"
        self.send_raw(struct.pack(">i", len(header) + len(body)) + header + body)

    def receive(self) -> bytes:
        """The next response without its length; empty if the broker closed the connection."""
        header = self._exactly(4)
        return self._exactly(struct.unpack(">i", header)[0]) if header else b""

    def closed(self) -> bool:
        """Waits until the broker closes the connection; False if it sent something instead."""
        return self._exactly(1) == b""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            data += part
        return data


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Connect]:
    opened: list[Wire] = []

    def connect() -> Wire:
        opened.append(Wire(broker.bootstrap))
        return opened[-1]

    yield connect
    for each in opened:
        each.socket.close()


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT)
    return name


def assert_serving(broker: BrokerProcess, topic: str) -> None:
    """Produces a record and waits for its acknowledgement."""
    errors: list[object] = []
    producer = confluent.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"still here", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(TIMEOUT) == 0
    assert errors == [None]
    assert broker.process.poll() is None


def end_offset(broker: BrokerProcess, topic: str) -> int:
    consumer = confluent.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "offsets"})
    _low, high = consumer.get_watermark_offsets(confluent.TopicPartition(topic, 0), TIMEOUT)
    consumer.close()
    return int(high)


def resident_bytes(broker: BrokerProcess) -> int:
    fields = Path(f"/proc/{broker.process.pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) * 1024


def batch(*values: bytes) -> bytearray:
    """A record batch v2."""
    return bytearray(logcore.build_batch([(None, value, None, 1_700_000_000_000) for value in values]))


def produce(wire: Wire, topic: str, records: bytes, partition: int = 0) -> tuple[int, int]:
    """Produce version 3 with acks=-1. Returns error code and base offset."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhii", -1, -1, 10_000, 1) + name
    body += struct.pack(">iii", 1, partition, len(records)) + records
    wire.send(PRODUCE, 3, body)
    response = wire.receive()
    assert response, "the broker closed the connection of a well-formed request"
    error, base_offset = struct.unpack_from(">hq", response, 4 + 4 + 2 + len(topic) + 4 + 4)
    return error, base_offset


# ---- bytes that are not requests ----


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\xff" * 1000,
        bytes(1000),
        struct.pack(">i", 8) + struct.pack(">hhi", 999, 0, 1),
        struct.pack(">i", 3) + b"\0\3\0",
        struct.pack(">i", 14) + struct.pack(">hhih", METADATA, 1, 1, 32767) + b"cut!",
        struct.pack(">i", 14) + struct.pack(">hhihi", METADATA, 1, 1, -1, 2**31 - 1),
    ],
    ids=["http", "tls", "ones", "zeros", "unknown-api", "short-header", "long-string", "absurd-count"],
)
def test_garbage_closes_only_its_connection(
    broker: BrokerProcess, wire: Connect, topic: str, garbage: bytes
) -> None:
    hostile = wire()
    hostile.send_raw(garbage)
    assert hostile.closed()
    assert_serving(broker, topic)


@pytest.mark.parametrize("length", [REQUEST_MAX + 1, 2**31 - 1, -1, -(2**31)])
def test_a_frame_longer_than_allowed_is_refused_at_its_length(
    broker: BrokerProcess, wire: Connect, topic: str, length: int
) -> None:
    hostile = wire()
    hostile.send_raw(struct.pack(">i", length))
    assert hostile.closed()
    assert_serving(broker, topic)


def test_an_announced_frame_takes_no_memory_before_it_comes(
    broker: BrokerProcess, wire: Connect, topic: str
) -> None:
    assert_serving(broker, topic)
    before = resident_bytes(broker)
    for _ in range(20):
        wire().send_raw(struct.pack(">i", REQUEST_MAX) + struct.pack(">hhi", PRODUCE, 3, 1))
    assert_serving(broker, topic)
    assert resident_bytes(broker) - before < REQUEST_MAX


def test_random_bodies_under_every_api_leave_the_broker_serving(
    broker: BrokerProcess, wire: Connect, topic: str
) -> None:
    seed = 20260101
    chance = random.Random(seed)
    for number in range(400):
        hostile = wire()
        body = chance.randbytes(chance.choice([0, 1, 8, 40, 300]))
        hostile.send(chance.randrange(0, 75), chance.randrange(0, 13), body)
        hostile.socket.close()
        assert broker.process.poll() is None, f"seed {seed}, request {number}\n{broker.output()}"
    assert_serving(broker, topic)


def test_a_client_of_a_future_version_gets_the_supported_versions(
    broker: BrokerProcess, wire: Connect
) -> None:
    future = wire()
    future.send(API_VERSIONS, 99, b"\0")
    response = future.receive()
    correlation, error, count = struct.unpack_from(">ihi", response)
    assert (correlation, error) == (1, UNSUPPORTED_VERSION)
    assert count > 0


def test_other_clients_are_served_while_one_sends_garbage(
    broker: BrokerProcess, wire: Connect, topic: str
) -> None:
    stop = threading.Event()

    def attack() -> None:
        chance = random.Random(7)
        while not stop.is_set():
            hostile = Wire(broker.bootstrap)
            hostile.send_raw(chance.randbytes(2000))
            hostile.socket.close()

    attacker = threading.Thread(target=attack)
    attacker.start()
    offsets: list[int | None] = []
    try:
        producer = confluent.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for number in range(500):
            producer.produce(
                topic,
                b"%d" % number,
                on_delivery=lambda error, message: offsets.append(None if error else message.offset()),
            )
            producer.poll(0.001)
        assert producer.flush(TIMEOUT) == 0
    finally:
        stop.set()
        attacker.join(TIMEOUT)
    assert offsets == list(range(500))


# ---- batches ----


def wrong_crc(records: bytearray) -> None:
    records[-1] ^= 1


def wrong_crc_field(records: bytearray) -> None:
    records[17] ^= 0x80


def unknown_magic(records: bytearray) -> None:
    records[16] = 77


def torn(records: bytearray) -> None:
    del records[-3:]


def longer_than_itself(records: bytearray) -> None:
    records[8:12] = struct.pack(">i", 2**31 - 1)


def negative_length(records: bytearray) -> None:
    records[8:12] = struct.pack(">i", -5)


@pytest.mark.parametrize(
    "damage", [wrong_crc, wrong_crc_field, unknown_magic, torn, longer_than_itself, negative_length]
)
def test_a_damaged_batch_is_refused_and_nothing_is_stored(
    broker: BrokerProcess, wire: Connect, topic: str, damage: Callable[[bytearray], None]
) -> None:
    connection = wire()
    records = batch(b"one", b"two")
    damage(records)
    error, base_offset = produce(connection, topic, bytes(records))
    assert error in (CORRUPT_MESSAGE, INVALID_RECORD)
    assert base_offset == -1
    assert end_offset(broker, topic) == 0
    # The same connection continues, and the next batch has the first offset.
    assert produce(connection, topic, bytes(batch(b"one", b"two"))) == (0, 0)
    assert end_offset(broker, topic) == 2


def test_a_wrong_crc_is_reported_as_the_clients_error(
    broker: BrokerProcess, wire: Connect, topic: str
) -> None:
    records = batch(b"one")
    wrong_crc(records)
    assert produce(wire(), topic, bytes(records)) == (CORRUPT_MESSAGE, -1)


def test_a_batch_larger_than_the_topic_allows_is_refused(
    broker: BrokerProcess, wire: Connect, topic: str
) -> None:
    assert produce(wire(), topic, bytes(batch(bytes(1_100_000)))) == (MESSAGE_TOO_LARGE, -1)
    assert_serving(broker, topic)


def test_an_unknown_topic_or_partition_is_refused_by_name(
    broker: BrokerProcess, wire: Connect, topic: str
) -> None:
    connection = wire()
    assert produce(connection, "nobody-made-this", bytes(batch(b"x"))) == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert produce(connection, topic, bytes(batch(b"x")), partition=7) == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert produce(connection, topic, bytes(batch(b"x")), partition=-1) == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert produce(connection, topic, bytes(batch(b"x"))) == (0, 0)


def test_a_consumer_of_an_unknown_topic_gets_an_error(broker: BrokerProcess) -> None:
    consumer = confluent.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "lost", "allow.auto.create.topics": False}
    )
    consumer.subscribe(["nobody-made-this-either"])
    message = consumer.poll(TIMEOUT)
    consumer.close()
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == confluent.KafkaError.UNKNOWN_TOPIC_OR_PART


# ---- directories and ports ----


def refused(start_broker: StartBroker, data_dir: Path, port: int = 0) -> str:
    """Starts a broker that must fail. Returns its output, which must not be a traceback."""
    broker = start_broker(data_dir, port, ready=False)
    status = broker.process.wait(TIMEOUT)
    broker.stop()
    assert status not in (0, None)
    assert status > 0, f"it was killed by signal {-status}"
    assert "Traceback" not in broker.output()
    assert "panicked" not in broker.output()
    return broker.output()


def test_an_unusable_data_directory_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = refused(start_broker, tmp_path / "file" / "data")
    assert str(tmp_path / "file") in said


def meta_properties(data_dir: Path) -> Path:
    [found] = data_dir.rglob("meta.properties")
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [("broker.id", "4711"), ("cluster.id", "AAAAAAAAAAAAAAAAAAAAAA")],
    ids=["broker", "cluster"],
)
def test_a_directory_of_another_broker_or_cluster_is_refused_and_untouched(
    start_broker: StartBroker, tmp_path: Path, key: str, value: str
) -> None:
    data_dir = tmp_path / "data"
    start_broker(data_dir).stop()
    meta = meta_properties(data_dir)
    lines = meta.read_text().splitlines()
    assert any(line.startswith(f"{key}=") for line in lines)
    meta.write_text(
        "\n".join(f"{key}={value}" if line.startswith(f"{key}=") else line for line in lines) + "\n"
    )
    said = refused(start_broker, data_dir)
    assert value in said
    assert f"{key}={value}" in meta.read_text()


def test_an_invalid_meta_properties_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    start_broker(data_dir).stop()
    meta = meta_properties(data_dir)
    meta.write_bytes(b"version=99\nbroker.id=what\n")
    assert str(meta) in refused(start_broker, data_dir)


def test_a_directory_in_use_is_refused(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker(tmp_path / "data")
    said = refused(start_broker, tmp_path / "data")
    assert str(tmp_path / "data") in said
    assert first.process.poll() is None
    assert first.stop() == 0


def test_a_port_in_use_is_named_and_its_owner_undisturbed(
    start_broker: StartBroker, tmp_path: Path, broker: BrokerProcess, topic: str
) -> None:
    said = refused(start_broker, tmp_path / "other", broker.port)
    assert str(broker.port) in said
    assert "in use" in said
    assert_serving(broker, topic)
    # The failed start left nothing that stops the next one.
    assert start_broker(tmp_path / "other").stop() == 0


def test_a_broker_whose_directory_was_emptied_starts_again(start_broker: StartBroker, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    start_broker(data_dir).stop()
    shutil.rmtree(data_dir)
    assert start_broker(data_dir).stop() == 0
