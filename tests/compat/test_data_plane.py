"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch, compared with Apache Kafka 3.9.1.

Every request goes to both brokers, and the responses are compared field by field. Fields that may differ are
removed first: ids of topics and sessions, times in texts. A real difference is named where it is removed.
Records without timestamps are not looked up by the largest one: Kafka answers the first of them and we answer
none.

If one failed, a client would get another result than from Kafka: another error, other records, another offset
to continue from.
"""

from __future__ import annotations

import gzip
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from logcore._native import api_keys
from tests.compat.apache import apache_kafka
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess
from tests.server import wire
from tests.server.wire import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, PRODUCE, varint

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

TIMEOUT = 60.0
NO_CREATION = {"allow_auto_topic_creation": False}
NOW = int(time.time() * 1000)
"""In milliseconds."""
HOUR = 3_600_000
DAY = 24 * HOUR
APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32
GZIP = 1
TOPICS = {
    "plain": {},
    "small": {"max.message.bytes": "2000"},
    "compacted": {"cleanup.policy": "compact"},
    "limited": {"message.timestamp.before.max.ms": str(HOUR), "message.timestamp.after.max.ms": str(HOUR)},
    "strict": {"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(HOUR)},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "gzipped": {"compression.type": "gzip"},
    "uncompressed": {"compression.type": "uncompressed"},
    "zstd": {"compression.type": "zstd"},
    "two-copies": {"min.insync.replicas": "2"},
    "sequences": {},
    "new-sequences": {},
    "departures": {},
    "recompressed": {"compression.type": "lz4"},
    "rolled": {"segment.bytes": "300"},
    "read": {},
    "times": {},
    "empty": {},
}

Record = tuple[bytes | None, bytes | None, int]
"""Key, value and time."""
Message = dict[str, Any]
Answers = tuple[Any, Any]
"""Ours and Apache Kafka's."""


def batch(
    *records: Record,
    attributes: int = 0,
    count: int | None = None,
    last_delta: int | None = None,
    max_time: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    base_offset: int = 0,
    deltas: Sequence[int] | None = None,
) -> bytes:
    """A record batch v2 (KIP-98) with a right checksum, whatever else is wrong with it."""
    first = records[0][2] if records else -1
    body = bytearray()
    for delta, (key, value, when) in zip(deltas or range(len(records)), records, strict=True):
        record = b"\0" + varint(when - first) + varint(delta) + _bytes(key) + _bytes(value) + varint(0)
        body += varint(len(record)) + record
    payload = gzip.compress(bytes(body), mtime=0) if attributes & 7 == GZIP else bytes(body)
    last = len(records) - 1 if last_delta is None else last_delta
    newest = max((when for _, _, when in records), default=-1) if max_time is None else max_time
    number = len(records) if count is None else count
    checked = struct.pack(">hiqqqhii", attributes, last, first, newest, *producer, number) + payload
    tail = struct.pack(">ibI", -1, 2, wire.crc32c(checked)) + checked
    return struct.pack(">qi", base_offset, len(tail)) + tail


def _bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def plain(*values: bytes) -> bytes:
    return batch(*((b"k", value, NOW) for value in values))


def changed(data: bytes, position: int, new: bytes) -> bytes:
    """The batch with other bytes at a position, and with the old checksum."""
    return data[:position] + new + data[position + len(new) :]


class Peer:
    """One broker on one connection, which is opened again if the broker closes it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._port = int(bootstrap.rpartition(":")[2])
        self._client = wire.Client(self._port)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def ask(self, key: int, version: int, body: Message) -> Message | str:
        try:
            return self._client.call(key, version, body)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._connect_again()
            return "closed"
        except BaseException:
            # Responses that are still to come on this connection must not reach the next test.
            self._connect_again()
            raise

    def send(self, key: int, version: int, body: Message) -> None:
        """A request without a response."""
        self._client.send(key, version, body)

    def _connect_again(self) -> None:
        self._client.socket.close()
        self._client = wire.Client(self._port)

    def topic_id(self, topic: str) -> bytes:
        response = self.ask(METADATA, 12, {"topics": [{"topic_id": bytes(16), "name": topic}], **NO_CREATION})
        assert isinstance(response, dict)
        found = response["topics"][0]
        return bytes(found["topic_id"]) if found["error_code"] == 0 else bytes(16)

    def create(self, name: str, config: dict[str, str]) -> None:
        self.wait(lambda: self._created(name, config))
        self.wait(lambda: self._leads(name))

    def _created(self, name: str, config: dict[str, str]) -> bool:
        """False while a topic of the same name is being deleted."""
        future = self.admin.create_topics([NewTopic(name, 2, 1, config=config)])[name]
        try:
            future.result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(TIMEOUT)
        self.wait(lambda: self.topic_id(name) == bytes(16))

    def _leads(self, name: str) -> bool:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        topics = [{"topic": name, "partitions": [part, part | {"partition": 1}]}]
        response = self.ask(OFFSET_FOR_LEADER_EPOCH, 3, {"replica_id": -1, "topics": topics})
        assert isinstance(response, dict)
        return all(part["error_code"] == 0 for topic in response["topics"] for part in topic["partitions"])

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end

    def close(self) -> None:
        self._client.socket.close()


class Both:
    """Ours and Apache Kafka."""

    def __init__(self, ours: Peer, apache: Peer) -> None:
        self.peers = (ours, apache)

    def ask(self, key: int, version: int, body: Message) -> Answers:
        ours, apache = (peer.ask(key, version, body) for peer in self.peers)
        return neutral(ours), neutral(apache)

    def same(self, key: int, version: int, body: Message) -> Any:
        """The response, which must be the same from both."""
        ours, apache = self.ask(key, version, body)
        assert not differences(ours, apache)
        return ours


def differences(ours: Any, apache: Any, where: str = "") -> list[str]:
    """Where two responses differ, and how."""
    if isinstance(ours, dict) and isinstance(apache, dict) and ours.keys() == apache.keys():
        return [line for name in ours for line in differences(ours[name], apache[name], f"{where}.{name}")]
    if isinstance(ours, list) and isinstance(apache, list) and len(ours) == len(apache):
        pairs = enumerate(zip(ours, apache, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, f"{where}[{number}]")]
    return [] if ours == apache else [f"{where}: {ours!r} is {apache!r} with Apache Kafka"]


def neutral(answer: Any) -> Any:
    """The response without fields that differ between brokers."""
    match answer:
        case dict():
            # Our broker does not name the leader's endpoint (KIP-951).
            fields = {name: value for name, value in answer.items() if name != "node_endpoints"}
            return {name: _neutral_field(name, value) for name, value in fields.items()}
        case list():
            return [neutral(one) for one in answer]
        case _:
            return answer


def _neutral_field(name: str, value: Any) -> Any:
    if name in ("topic_id", "session_id") and value:
        return "some" if any(value if isinstance(value, bytes) else [value]) else value
    if name == "log_append_time_ms" and value >= NOW:
        return "now"
    if name == "batch_index_error_message" and value is not None:
        return re.sub(r"within \[-?\d+, -?\d+\]", "within [a, b]", value)
    return neutral(value)


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools, broker: BrokerProcess
) -> Iterator[Both]:
    settings = {"auto.create.topics.enable": "false", "log.retention.check.interval.ms": "300000"}
    with apache_kafka(tmp_path_factory.mktemp("apache"), settings) as kafka:
        kafka.start()
        peers = Both(Peer(broker.bootstrap), Peer(kafka.bootstrap))
        for peer in peers.peers:
            for name, config in TOPICS.items():
                peer.create(name, config)
        yield peers
        for peer in peers.peers:
            peer.close()


def produce(topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0) -> Message:
    data = [{"index": partition, "records": records}]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }


GOOD = plain(b"good", b"too")
KEYED: Record = (b"k", b"v", NOW)
KEYLESS: Record = (None, b"v", NOW)
LATE: Record = (b"k", b"v", NOW - DAY)
EARLY: Record = (b"k", b"value", NOW + DAY)
PRODUCED: dict[str, tuple[str, bytes | None]] = {
    "good": ("plain", GOOD),
    "wrong checksum": ("plain", changed(GOOD, len(GOOD) - 1, b"!")),
    "cut short": ("plain", GOOD[:-1]),
    "a header cut short": ("plain", GOOD[:40]),
    "a few bytes": ("plain", GOOD[:10]),
    "nothing": ("plain", b""),
    "a length of 13": ("plain", changed(GOOD, 8, struct.pack(">i", 13))),
    "a negative length": ("plain", changed(GOOD, 8, struct.pack(">i", -1))),
    "zeros": ("plain", bytes(20)),
    "zeros after a batch": ("plain", GOOD + bytes(20)),
    "a length of 13 of no known format": (
        "plain",
        changed(changed(GOOD, 8, struct.pack(">i", 13)), 16, b"\3"),
    ),
    "a part of an old message": ("plain", changed(GOOD, 16, b"\1")[:40]),
    "an old message after a batch": ("plain", GOOD + changed(GOOD, 16, b"\1")),
    "magic 0": ("plain", changed(GOOD, 16, b"\0")),
    "magic 1": ("plain", changed(GOOD, 16, b"\1")),
    "magic 3": ("plain", changed(GOOD, 16, b"\3")),
    "a base offset": ("plain", batch(KEYED, base_offset=5)),
    "two batches": ("plain", GOOD + GOOD),
    "two batches, the second damaged": ("plain", GOOD + changed(GOOD, len(GOOD) - 1, b"!")),
    "two batches, the second too short": ("plain", GOOD + changed(GOOD, 8, struct.pack(">i", 20))),
    "two batches, the second of no known format": ("plain", GOOD + changed(GOOD, 16, b"\3")),
    "a batch and a part of one": ("plain", GOOD + GOOD[:30]),
    "control": ("plain", batch(KEYED, attributes=CONTROL)),
    "an unknown attribute": ("plain", batch(KEYED, attributes=0x80)),
    "another unknown attribute": ("plain", batch(KEYED, attributes=0x4000)),
    "an offset delta too large": ("plain", batch(KEYED, deltas=[5])),
    "a negative offset delta": ("plain", batch(KEYED, deltas=[-1])),
    "keyless with a wrong offset delta": ("compacted", batch(KEYLESS, deltas=[5])),
    "offset deltas to be compressed": ("gzipped", batch(KEYED, KEYED, deltas=[1, 0])),
    "a count too large": ("plain", batch(KEYED, count=2)),
    "a count of none": ("plain", batch(KEYED, count=0, last_delta=-1)),
    "a negative count": ("plain", batch(KEYED, count=-1)),
    "a last delta too large": ("plain", batch(KEYED, last_delta=3)),
    "a negative last delta": ("plain", batch(KEYED, last_delta=-5)),
    "count and delta too large": ("plain", batch(KEYED, count=2, last_delta=1)),
    "count and delta too small": ("plain", batch(KEYED, KEYED, count=1, last_delta=0)),
    "a producer without a sequence": ("plain", batch(KEYED, producer=(7, 0, -1))),
    "transactional": ("plain", batch(KEYED, attributes=TRANSACTIONAL, producer=(7, 0, 0))),
    "too large": ("small", plain(bytes(3000))),
    "too large and damaged": ("small", changed(plain(bytes(3000)), 100, b"!")),
    "no such topic": ("nowhere", GOOD),
    "no such topic, and damaged": ("nowhere", GOOD[:-1]),
    "keyless": ("compacted", batch(KEYED, KEYLESS, KEYED, KEYLESS)),
    "many keyless": ("compacted", batch(*[KEYLESS] * 5)),
    "keyless, compressed": ("compacted", batch(KEYED, KEYLESS, attributes=GZIP)),
    "keyed": ("compacted", batch(KEYED, KEYED, attributes=GZIP)),
    "a wrong largest time, keyed and compressed": (
        "compacted",
        batch(KEYED, KEYED, attributes=GZIP, max_time=NOW + DAY),
    ),
    # As Sarama writes it for all compressed batches.
    "no largest time": ("plain", batch(KEYED, EARLY, KEYED, attributes=GZIP, max_time=-1)),
    "a largest time before the first": ("plain", batch(KEYED, EARLY, attributes=GZIP, max_time=NOW - 1)),
    "late and early": ("limited", batch(LATE, KEYED, EARLY)),
    "late, compressed": ("limited", batch(KEYED, LATE, attributes=GZIP)),
    "a negative time": ("limited", batch((b"k", b"v", -7))),
    "no time": ("limited", batch((b"k", b"v", -1))),
    "in time": ("limited", batch(KEYED, KEYED)),
    "keyless and early": ("strict", batch(KEYLESS, EARLY, (None, b"v", NOW + DAY))),
    "a header that lies about the time": ("limited", batch(KEYED, max_time=NOW + DAY)),
    "append time claimed": ("plain", batch(KEYED, EARLY, attributes=APPEND_TIME, max_time=NOW)),
    "append time claimed, compressed": ("plain", batch(KEYED, attributes=APPEND_TIME | GZIP, max_time=NOW)),
    "append time claimed, with wrong offset deltas": (
        "plain",
        batch(KEYED, LATE, attributes=APPEND_TIME, max_time=NOW, deltas=[5, 6]),
    ),
    "append time claimed without one": ("plain", batch(KEYED, EARLY, attributes=APPEND_TIME, max_time=-1)),
    "append time claimed from a broker": ("append-time", batch(KEYED, EARLY, attributes=APPEND_TIME)),
    "append time claimed, all of it": ("append-time", batch(KEYLESS, attributes=APPEND_TIME | GZIP)),
    "append time": ("append-time", batch(KEYED, LATE)),
    "append time, compressed": ("append-time", batch(KEYED, LATE, attributes=GZIP)),
    "to be compressed": ("gzipped", batch(KEYED, EARLY)),
    "compressed as wanted": ("gzipped", batch(KEYED, EARLY, attributes=GZIP)),
    "to be decompressed": ("uncompressed", batch(KEYED, EARLY, attributes=GZIP)),
    "an only replica": ("two-copies", GOOD),
    "before the sequences": ("sequences", GOOD),
    "a first sequence": ("sequences", batch(KEYED, producer=(7, 0, 3))),
    "a repeated sequence": ("sequences", batch(KEYED, producer=(7, 0, 3))),
    "a sequence too far": ("sequences", batch(KEYED, producer=(7, 0, 9))),
    "a next sequence": ("sequences", batch(KEYED, KEYED, producer=(7, 0, 4))),
    "a newer epoch, not from 0": ("sequences", batch(KEYED, producer=(7, 1, 4))),
    "a newer epoch": ("sequences", batch(KEYED, producer=(7, 1, 0))),
    "an older epoch": ("sequences", batch(KEYED, producer=(7, 0, 6))),
}


@pytest.mark.parametrize("name", PRODUCED)
def test_a_produced_batch_is_answered_alike(both: Both, name: str) -> None:
    topic, records = PRODUCED[name]
    for version in (9, 11, 8, 5, 3):
        both.same(PRODUCE, version, produce(topic, records))


HEADER_SIZE = 61
CODECS = ("gzip", "snappy", "lz4", "zstd")


def compressed(codec: str) -> bytes:
    """A batch of three records."""
    value = b"text that repeats, text that repeats, text that repeats"
    return logcore.build_batch([(b"k", value, (), NOW)] * 3, codec)


def corrected(data: bytes, count: int | None = None) -> bytes:
    """The batch with its length and checksum right again, and with another count of records."""
    data = data[:8] + struct.pack(">i", len(data) - 12) + data[12:]
    if count is not None:
        data = changed(changed(data, 23, struct.pack(">i", count - 1)), 57, struct.pack(">i", count))
    return changed(data, 17, struct.pack(">I", wire.crc32c(data[21:])))


def damaged(codec: str) -> dict[str, bytes]:
    good = compressed(codec)
    header, payload = good[:HEADER_SIZE], good[HEADER_SIZE:]
    found = {
        "intact": good,
        "without its last byte": corrected(good[:-1]),
        "without its last four bytes": corrected(good[:-4]),
        "cut in the middle": corrected(header + payload[: len(payload) // 2]),
        "without records": corrected(header),
        "ones": corrected(header + b"\xff" * 40),
        "zeros": corrected(header + bytes(40)),
        "not compressed": corrected(header + compressed("none")[HEADER_SIZE:]),
        "one record too few": corrected(good, 4),
        "one record too many": corrected(good, 2),
    }
    if codec in ("snappy", "zstd"):
        # After an lz4 frame both ignore them, after gzip only Kafka.
        found["bytes after the stream"] = corrected(good + b"after")
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_compressed_batch_is_refused_alike(both: Both, codec: str) -> None:
    """If it failed, a batch that no consumer can read would be stored, or refused with another error."""
    for name, records in damaged(codec).items():
        for topic in ("plain", "compacted", "uncompressed"):
            answer = both.same(PRODUCE, 9, produce(topic, records))
            assert (answer["responses"][0]["partition_responses"][0]["error_code"] == 0) == (
                name == "intact"
            ), name


def gzipped(body: bytes, count: int) -> bytes:
    """A batch of these encoded records."""
    return corrected(compressed("gzip")[:HEADER_SIZE] + gzip.compress(body, mtime=0), count)


def encoded(
    delta: int = 0, *, key: bytes | None = b"k", headers: bytes = b"\0", length: int | None = None
) -> bytes:
    record = b"\0\0" + varint(delta) + _bytes(key) + _bytes(b"v") + headers
    return varint(len(record) if length is None else length) + record


COMPRESSED_RECORDS = {
    "two records": ("plain", gzipped(encoded() + encoded(1), 2)),
    "bytes after the last record": ("plain", gzipped(encoded() + encoded(1) + b"after", 2)),
    "no records": ("plain", gzipped(b"", 2)),
    "half a record": ("plain", gzipped(encoded() + encoded(1)[:-2], 2)),
    "a count of headers too large": ("plain", gzipped(encoded(headers=varint(3)), 1)),
    "a negative count of headers": ("plain", gzipped(encoded(headers=varint(-1)), 1)),
    "a header without a key": ("plain", gzipped(encoded(headers=varint(1) + varint(-1) + varint(-1)), 1)),
    "keyless": ("compacted", gzipped(encoded(key=None) + encoded(1, key=None), 2)),
    "keyless, with a wrong count": ("compacted", gzipped(encoded(key=None) + encoded(1, key=None), 3)),
    "keyless, and half a record": ("compacted", gzipped(encoded(key=None) + encoded(1)[:-2], 2)),
    "keyless, with wrong offset deltas": ("compacted", gzipped(encoded(1, key=None) + encoded(key=None), 2)),
    "wrong offset deltas, to be decompressed": ("uncompressed", gzipped(encoded(1) + encoded(), 2)),
    "wrong offset deltas, to be compressed again": ("recompressed", gzipped(encoded(1) + encoded(), 2)),
    "a wrong length, to be decompressed": ("uncompressed", gzipped(encoded(length=9) + encoded(1), 2)),
}


@pytest.mark.parametrize("name", COMPRESSED_RECORDS)
def test_records_of_a_compressed_batch_are_checked_alike(both: Both, name: str) -> None:
    topic, records = COMPRESSED_RECORDS[name]
    both.same(PRODUCE, 9, produce(topic, records))


def test_compressed_batches_that_only_we_refuse_or_correct(both: Both) -> None:
    """Named in docs/departures/broker.md. If it failed, the text would be wrong."""
    ok, invalid, unknown = 0, 87, -1
    lengths = [gzipped(encoded(length=length) + encoded(1), 2) for length in (5, 9, 12)]
    after = corrected(compressed("gzip") + b"after")
    deltas = gzipped(encoded(1) + encoded(), 2)
    for records, expected in (
        *((records, (invalid, ok)) for records in lengths),
        (after, (unknown, ok)),
        (deltas, (ok, unknown)),
    ):
        answers = both.ask(PRODUCE, 9, produce("departures", records))
        codes = [answer["responses"][0]["partition_responses"][0]["error_code"] for answer in answers]
        assert codes == list(expected)


def test_a_new_producer_begins_at_0_on_a_new_log(both: Both) -> None:
    """Kafka does so from 4.5 on (KAFKA-15591). If this failed, a topic made again could lack records."""
    out_of_order = 45
    for sequence, expected in ((3, [out_of_order, 0]), (0, [0, out_of_order])):
        answers = both.ask(PRODUCE, 9, produce("new-sequences", batch(KEYED, producer=(7, 0, sequence))))
        codes = [answer["responses"][0]["partition_responses"][0]["error_code"] for answer in answers]
        assert codes == expected


@pytest.mark.parametrize("acks", [1, 2, -2])
def test_acks_are_accepted_alike(both: Both, acks: int) -> None:
    both.same(PRODUCE, 9, produce("plain", GOOD, acks=acks))
    both.same(PRODUCE, 9, produce("nowhere", GOOD, acks=acks))
    both.same(PRODUCE, 9, produce("plain", GOOD[:-1], acks=acks))
    assert both.same(PRODUCE, 9, produce("plain", GOOD))


def test_requests_without_a_response_are_accepted_alike(both: Both) -> None:
    """With acks=0 the next request shows the result: it is answered, or the connection was closed."""

    def outcome(peer: Peer, topic: str, records: bytes) -> tuple[str, int]:
        before = end(peer)
        peer.send(PRODUCE, 9, produce(topic, records, acks=0))
        following = peer.ask(METADATA, 9, {"topics": [], **NO_CREATION})
        return "closed" if following == "closed" else "open", end(peer) - before

    def end(peer: Peer) -> int:
        answer = peer.ask(LIST_OFFSETS, 5, listing("plain", -1))
        assert isinstance(answer, dict)
        return int(answer["topics"][0]["partitions"][0]["offset"])

    for topic, records, expected in (
        ("plain", GOOD, ("open", 2)),
        ("nowhere", GOOD, ("closed", 0)),
        ("plain", GOOD[:-1], ("closed", 0)),
        ("plain", plain(b"after"), ("open", 1)),
    ):
        assert [outcome(peer, topic, records) for peer in both.peers] == [expected] * 2


def by_partition(answer: Message) -> Message:
    return {
        (topic["name"], part["index"]): part
        for topic in answer["responses"]
        for part in topic["partition_responses"]
    }


def test_partitions_of_a_request_have_separate_results(both: Both) -> None:
    parts = [
        {"index": index, "records": records} for index, records in ((1, GOOD), (7, GOOD), (0, GOOD[:-1]))
    ]
    topics = [{"name": name, "partition_data": parts} for name in ("plain", "nowhere")]
    ours, apache = both.ask(PRODUCE, 9, produce("plain", GOOD) | {"topic_data": topics})

    assert by_partition(ours) == by_partition(apache)


def test_a_batch_without_its_transaction_is_refused_alone(both: Both) -> None:
    transactional = batch(KEYED, attributes=TRANSACTIONAL, producer=(7, 0, 0))
    parts = [{"index": 0, "records": transactional}, {"index": 1, "records": GOOD}]
    body = produce("plain", GOOD) | {
        "transactional_id": "nobody's",
        "topic_data": [{"name": "plain", "partition_data": parts}],
    }
    for answer in map(by_partition, both.ask(PRODUCE, 9, body)):
        assert answer["plain", 0]["error_code"] != 0
        assert answer["plain", 1]["error_code"] == 0


def test_of_a_partition_named_twice_the_last_counts_alike(both: Both) -> None:
    """A topic without partitions is not in the response."""
    named = [("sequences", 1), ("plain", 0), ("sequences", 1), ("nowhere", 0), ("plain", 0), ("nowhere", 0)]
    topics = [
        {"name": topic, "partition_data": [{"index": index, "records": plain(b"%d" % number)}]}
        for number, (topic, index) in enumerate(named)
    ]
    topics.append({"name": "empty", "partition_data": []})
    for _ in range(2):
        ours, apache = both.ask(PRODUCE, 9, produce("plain", GOOD) | {"topic_data": topics})
        answered = [
            sorted((topic["name"], len(topic["partition_responses"])) for topic in answer["responses"])
            for answer in (ours, apache)
        ]
        assert answered == [[("nowhere", 1), ("plain", 1), ("sequences", 1)]] * 2
        assert by_partition(ours) == by_partition(apache)


def message_set(*values: bytes, magic: int = 1, attributes: int = 0, time: int = NOW) -> bytes:
    """Messages of the format before v2 (KIP-32). With a codec the values are compressed message sets."""
    import zlib

    out = b""
    for value in values:
        times = struct.pack(">q", time) if magic else b""
        body = bytes([magic, attributes]) + times + struct.pack(">ii", -1, len(value)) + value
        out += struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    return out


WRAPPER_OF_ONES = message_set(b"\xff" * 30, attributes=GZIP)
WRAPPER = message_set(gzip.compress(message_set(b"a"), mtime=0), attributes=GZIP)
OLD: dict[str, tuple[str, bytes]] = {
    "magic 1": ("plain", message_set(b"a", b"b")),
    "magic 0": ("plain", message_set(b"a", magic=0)),
    "a batch": ("plain", GOOD),
    "wrong checksum": ("plain", message_set(b"a")[:-1] + b"!"),
    "keyless": ("compacted", message_set(b"a", b"b")),
    "too short a length": ("plain", changed(message_set(b"a"), 8, struct.pack(">i", 13))),
    "a message and a part of one": ("plain", message_set(b"a") + message_set(b"b")[:-1]),
    "a message and a few bytes": ("plain", message_set(b"a") + bytes(8)),
    "a part of a message": ("plain", message_set(b"a")[:-1]),
    "a part of a batch": ("plain", GOOD[:-1]),
    "nothing": ("plain", b""),
    "a few bytes": ("plain", bytes(10)),
    "an unknown format": ("plain", changed(message_set(b"a"), 16, b"\7")),
    "a part of an unknown format": ("plain", changed(message_set(b"a"), 16, b"\7")[:-1]),
    "nothing to nowhere": ("nowhere", b""),
    "a wrapper": ("plain", WRAPPER),
    "a wrapper that cannot be decompressed": ("plain", WRAPPER_OF_ONES),
    "a wrapper and a message": ("plain", WRAPPER + message_set(b"b")),
    "a message and a wrapper": ("plain", message_set(b"b") + WRAPPER),
    "a wrapper and a damaged one": ("plain", WRAPPER + WRAPPER[:-1] + b"!"),
    "a wrapper and a part of one": ("plain", WRAPPER + WRAPPER[:-1]),
    "append time": ("plain", message_set(b"a", attributes=APPEND_TIME)),
    "append time and no time": ("plain", message_set(b"a", attributes=APPEND_TIME, time=-1)),
    "append time where the broker gives it": ("append-time", message_set(b"a", attributes=APPEND_TIME)),
    "a wrapper's append time": (
        "plain",
        message_set(gzip.compress(message_set(b"a", time=-1), mtime=0), attributes=GZIP | APPEND_TIME),
    ),
    "a wrapper's append time where the broker gives it": (
        "append-time",
        message_set(gzip.compress(message_set(b"a"), mtime=0), attributes=GZIP | APPEND_TIME),
    ),
    "no time": ("plain", message_set(b"a", time=-1)),
    "a negative time": ("plain", message_set(b"a", b"b", time=-5)),
    "a negative time where the broker gives it": ("append-time", message_set(b"a", time=-5)),
    "a negative time in a wrapper": (
        "plain",
        message_set(gzip.compress(message_set(b"a", time=-5), mtime=0), attributes=GZIP),
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_old_message_sets_are_answered_alike(both: Both, name: str) -> None:
    topic, records = OLD[name]
    for version in (0, 1, 2):
        both.same(PRODUCE, version, produce(topic, records))
    both.same(PRODUCE, 2, produce(topic, records, acks=1))


def records_of(data: bytes) -> list[Record]:
    """The records of stored batches, decompressed."""
    found: list[Record] = []
    while data:
        (size,) = struct.unpack_from(">i", data, 8)
        one, data = data[: 12 + size], data[12 + size :]
        attributes, _, first = struct.unpack_from(">hiq", one, 21)
        payload = gzip.decompress(one[61:]) if attributes & 7 == GZIP else one[61:]
        while payload:
            length, payload = _varint(payload)
            record, payload = payload[1:length], payload[length:]
            delta, record = _varint(record)
            _, record = _varint(record)
            key, record = _take(record)
            value, record = _take(record)
            found.append((key, value, first + delta))
    return found


def _varint(data: bytes) -> tuple[int, bytes]:
    number = shift = 0
    for position, byte in enumerate(data):
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), data[position + 1 :]
    raise ValueError("a varint is cut short")


def _take(data: bytes) -> tuple[bytes | None, bytes]:
    length, data = _varint(data)
    return (None, data) if length < 0 else (data[:length], data[length:])


@pytest.mark.parametrize(
    "topic", ["plain", "append-time", "gzipped", "uncompressed", "limited", "sequences", "compacted"]
)
def test_produced_batches_are_stored_alike(both: Both, topic: str) -> None:
    """The headers of the batches are compared without checksums and lengths."""
    name, stored = f"stored-{topic}", []
    for peer in both.peers:
        peer.create(name, TOPICS[topic])
        for _, records in filter(lambda case: case[0] == topic, PRODUCED.values()):
            assert isinstance(peer.ask(PRODUCE, 9, produce(name, records)), dict)
        answer = peer.ask(FETCH, 12, fetch(name, max_bytes=50 << 20))
        assert isinstance(answer, dict)
        data = answer["responses"][0]["partitions"][0]["records"]
        headers, position = [], 0
        while position < len(data):
            base, size, epoch, magic = struct.unpack_from(">qiib", data, position)
            fields = struct.unpack_from(">hiqqqhii", data, position + 21)
            newest = "now" if fields[0] & APPEND_TIME else fields[3]
            headers.append((base, epoch, magic, *fields[:3], newest, *fields[4:]))
            position += 12 + size
        stored.append((headers, records_of(data)))
    assert stored[0] == stored[1]
    assert stored[0][1]


def fetch(
    topic: str | bytes,
    *parts: Message,
    offset: int = 0,
    session: tuple[int, int] = (0, -1),
    **terms: Any,
) -> Message:
    """A Fetch of partition 0, or of `parts`. A topic may be named by its id."""
    asked = [
        {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20} | part
        for part in parts or ({},)
    ]
    name = {"topic_id" if isinstance(topic, bytes) else "topic": topic}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{**name, "partitions": asked}],
    } | terms


def fetched(both: Both, topic: str, version: int, *parts: Message, **terms: Any) -> Any:
    """The same response from both. From version 13 on the topic is named by each broker's id of it."""
    if version < 13:
        return both.same(FETCH, version, fetch(topic, *parts, **terms))
    ours, apache = (
        neutral(peer.ask(FETCH, version, fetch(peer.topic_id(topic), *parts, **terms))) for peer in both.peers
    )
    assert not differences(ours, apache), f"version {version}"
    return ours


@pytest.fixture(scope="module")
def filled(both: Both) -> Both:
    """Ten batches of about a hundred bytes in both partitions of `read`, and some in small segments in
    `rolled`.
    """
    for number in range(10):
        for topic in ("read", "rolled"):
            for partition in (0, 1):
                records = batch((b"k", b"%02d" % number * 20, NOW + number * 1000))
                both.same(PRODUCE, 9, produce(topic, records, partition=partition))
    return both


ASKED: dict[str, tuple[tuple[Message, ...], Message]] = {
    "all": ((), {}),
    "committed": ((), {"isolation_level": 1}),
    "the end": (({"fetch_offset": 10},), {}),
    "the end, committed": (({"fetch_offset": 10},), {"isolation_level": 1}),
    "behind the end": (({"fetch_offset": 11},), {}),
    "before the start": (({"fetch_offset": -1},), {}),
    "an epoch that is": (({"current_leader_epoch": 0},), {}),
    "an epoch to come": (({"current_leader_epoch": 4},), {}),
    "one batch": (({"partition_max_bytes": 1},), {}),
    "one batch of all": (({}, {"partition": 1}), {"max_bytes": 1}),
    "two batches": (({"partition_max_bytes": 300}, {"partition": 1, "partition_max_bytes": 1}), {}),
    "a batch does not fit, committed": (
        ({"partition_max_bytes": 1}, {"partition": 1, "partition_max_bytes": 1}),
        {"isolation_level": 1},
    ),
    "no bytes are left, committed": (({}, {"partition": 1}), {"max_bytes": 1, "isolation_level": 1}),
    "as many as fit": (({}, {"partition": 1}), {"max_bytes": 1300}),
    "no such partition": (({}, {"partition": 9}, {"partition": 1}), {}),
    "no such partition first": (({"partition": 9}, {"partition": 1}), {}),
    "all are there": ((), {"min_bytes": 100, "max_wait_ms": 30_000}),
    "a wait that ends": ((), {"min_bytes": 1 << 20, "max_wait_ms": 100}),
    "an error ends a wait": (
        ({}, {"partition": 1, "fetch_offset": 99}),
        {"min_bytes": 1 << 20, "max_wait_ms": 30_000},
    ),
    "no such partition ends none": (({}, {"partition": 9}), {"min_bytes": 1 << 20, "max_wait_ms": 100}),
    "as a replica": ((), {"replica_id": 5, "replica_state": {"replica_id": 5, "replica_epoch": -1}}),
    "as a replica of an epoch": (
        ({"current_leader_epoch": 0},),
        {"replica_id": 5, "replica_state": {"replica_id": 5, "replica_epoch": -1}},
    ),
    "as a tool": ((), {"replica_id": -2, "replica_state": {"replica_id": -2, "replica_epoch": -1}}),
    "as a tool that wants what is committed": (
        (),
        {
            "replica_id": -2,
            "replica_state": {"replica_id": -2, "replica_epoch": -1},
            "isolation_level": 1,
        },
    ),
    "one partition more than once": (
        ({"fetch_offset": 99}, {"partition": 1}, {"fetch_offset": 4}, {"partition": 1, "fetch_offset": 6}),
        {},
    ),
    "a rack": ((), {"rack_id": "somewhere"}),
    "a log that agrees": (({"last_fetched_epoch": 0, "fetch_offset": 4},), {}),
    "a log that is longer": (({"last_fetched_epoch": 0, "fetch_offset": 14},), {"isolation_level": 1}),
    "an unknown epoch": (({"last_fetched_epoch": 3, "fetch_offset": 4},), {}),
    "a log that ends before": (({"last_fetched_epoch": 0, "fetch_offset": -4},), {}),
}
SINCE = {
    "replica_state": 15,
    "rack_id": 11,
    "isolation_level": 4,
    "last_fetched_epoch": 12,
    "current_leader_epoch": 9,
}


@pytest.mark.parametrize("name", ASKED)
def test_a_fetch_is_answered_alike(filled: Both, name: str) -> None:
    parts, terms = ASKED[name]
    needs = max((SINCE.get(field, 4) for said in (*parts, terms) for field in said), default=4)
    for version in (4, 5, 7, 11, 12, 13, 15, 16, 17):
        known = {field: value for field, value in terms.items() if SINCE.get(field, 4) <= version}
        if "replica_id" in known and version >= SINCE["replica_state"]:
            del known["replica_id"]
        if version >= needs or "replica_state" in terms:
            said = [{k: v for k, v in part.items() if SINCE.get(k, 4) <= version} for part in parts]
            fetched(filled, "read", version, *said, **known)


def whole_messages(sent: bytes) -> bytes:
    """The response without the bytes after the last message: Apache Kafka fills up the size that it
    announced.
    """
    end = 0
    while len(sent) >= end + 12:
        (size,) = struct.unpack_from(">i", sent, end + 8)
        if len(sent) < end + 12 + size:
            break
        end += 12 + size
    return sent[:end]


def in_whole_messages(answer: Any) -> Any:
    for topic in answer["responses"]:
        for part in topic["partitions"]:
            if part["records"] is not None:
                part["records"] = whole_messages(part["records"])
    return answer


def can_be_asked_of_old(name: str) -> bool:
    """The response without a newer field. Of the two fields for the replica's id the second stays."""
    parts, terms = ASKED[name]
    return not any((said.keys() & SINCE.keys()) - {"replica_state"} for said in (*parts, terms))


@pytest.mark.parametrize("name", [name for name in ASKED if can_be_asked_of_old(name)])
def test_an_old_fetch_is_answered_alike(filled: Both, name: str) -> None:
    """Fetch 0 to 3: messages v0 and v1, byte by byte, without Kafka's filling. Before version 3 a part of a
    message that is too large shows that there is more.
    """
    parts, terms = ASKED[name]
    for version in range(4):
        since_3 = {"max_bytes"} if version < 3 else set()
        known = {field: value for field, value in terms.items() if field not in SINCE.keys() | since_3}
        for topic in ("read", "rolled"):
            answers = filled.ask(FETCH, version, fetch(topic, *parts, **known))
            ours, apache = map(in_whole_messages, answers)
            assert not differences(ours, apache), f"{topic}, version {version}"


def test_old_clients_get_the_same_errors_for_newer_formats(both: Both) -> None:
    for peer in both.peers:
        peer.create("unconverted", {"message.downconversion.enable": "false"})
        peer.create("zstd-only", {"compression.type": "zstd"})
    for topic in ("unconverted", "zstd-only"):
        both.same(PRODUCE, 9, produce(topic, GOOD))
        for version in (0, 1, 2, 3, 4):
            ours, apache = both.ask(FETCH, version, fetch(topic))
            if version < 4 or topic == "zstd-only":
                assert not differences(ours, apache), f"{topic}, version {version}"
                assert isinstance(ours, dict)
                assert ours["responses"][0]["partitions"][0]["error_code"] != 0


def test_unknown_topics_are_answered_alike(filled: Both) -> None:
    filled.same(FETCH, 12, fetch("nowhere"))
    filled.same(FETCH, 17, fetch(bytes(range(16))))
    filled.same(FETCH, 17, fetch(bytes(16)))
    filled.same(FETCH, 9, fetch("zstd"))
    filled.same(FETCH, 10, fetch("zstd"))


@pytest.mark.parametrize("version", [3, 12])
def test_a_quota_counts_whole_responses_alike(both: Both, version: int) -> None:
    """Not only records: otherwise a consumer of many empty partitions would have no quota."""
    answers = []
    for peer in both.peers:
        limit_fetches(peer, f"metered-{version}", 2000.0)
        # Kafka applies quotas in their order, some time after they are set.
        limit_fetches(peer, f"measured-{version}", 1.0)
        peer.wait(lambda peer=peer: fetches_until_throttled(peer, f"measured-{version}", version, 1) == 0)
        answers.append(fetches_until_throttled(peer, f"metered-{version}", version, 1000))
    # Ten seconds of the quota at once.
    assert 5 < answers[1] < 1000
    assert abs(answers[0] - answers[1]) <= 1


def limit_fetches(peer: Peer, client_id: str, bytes_per_second: float) -> None:
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    op = {"key": "consumer_byte_rate", "value": bytes_per_second, "remove": False}
    body = {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}
    answer = peer.ask(api_keys()["AlterClientQuotas"], 0, body)
    assert isinstance(answer, dict)
    assert [entry["error_code"] for entry in answer["entries"]] == [0]


def fetches_until_throttled(peer: Peer, client_id: str, version: int, most: int) -> int:
    """How many unknown partitions are not marked as such: their responses have no records."""
    parts = [{"partition": number, "fetch_offset": 0} for number in range(2, 42)]
    with wire.Client(int(peer.bootstrap.rpartition(":")[2]), client_id) as client:
        for count in range(most):
            if client.call(FETCH, version, fetch("plain", *parts))["throttle_time_ms"] > 0:
                return count
    return most


def test_a_fetch_does_not_wait_if_an_older_segment_has_records(filled: Both) -> None:
    begun = time.monotonic()
    answer = fetched(filled, "rolled", 12, min_bytes=1 << 20, max_wait_ms=60_000)
    assert answer["responses"][0]["partitions"][0]["records"]
    assert time.monotonic() - begun < TIMEOUT


def test_sessions_behave_alike(filled: Both) -> None:
    """Each broker has its own session; the responses in it are the same."""

    def answers_of(version: int) -> list[list[Any]]:
        ids = [0, 0]
        said: list[list[Any]] = [[], []]

        def ask(epoch: int, *parts: Message, wrong_id: int = 0, **terms: Any) -> None:
            for which, peer in enumerate(filled.peers):
                topic = peer.topic_id("read") if version >= 13 else "read"
                body = fetch(topic, *parts, session=(ids[which] + wrong_id, epoch), **terms)
                if not parts:
                    body["topics"] = []
                answer = peer.ask(FETCH, version, body)
                assert isinstance(answer, dict)
                if epoch == 0:
                    ids[which] = answer["session_id"]
                said[which].append(neutral(answer))

        ask(0, {}, {"partition": 1, "fetch_offset": 10})
        ask(1)
        ask(2, {"fetch_offset": 10})
        ask(3)
        ask(4, {"partition": 9}, {"partition": 1, "fetch_offset": 7})
        ask(5)
        ask(5)
        ask(3)
        ask(6, wrong_id=1)
        ask(6, {"partition": 1, "fetch_offset": 99})
        ask(7, {"partition": 1, "fetch_offset": 10})
        ask(8)
        ask(-1, {"fetch_offset": 9})
        ask(9)
        return said

    for version in (7, 12, 13, 17):
        ours, apache = answers_of(version)
        assert not differences(ours, apache), f"version {version}"


def test_sessions_forget_alike(filled: Both) -> None:
    said: list[list[Any]] = []
    for peer in filled.peers:
        first = peer.ask(FETCH, 12, fetch("read", {"fetch_offset": 9}, {"partition": 1}, session=(0, 0)))
        assert isinstance(first, dict)
        session = first["session_id"]
        forget = [{"topic": "read", "partitions": [0]}]
        bare = {"topics": []}
        answers = [
            peer.ask(FETCH, 12, fetch("read", session=(session, 1), forgotten_topics_data=forget) | bare),
            peer.ask(FETCH, 13, fetch("read", session=(session, 2)) | bare),
            peer.ask(
                FETCH,
                12,
                fetch(
                    "read", session=(session, 2), forgotten_topics_data=[{"topic": "read", "partitions": [1]}]
                )
                | bare,
            ),
            peer.ask(FETCH, 12, fetch("read", session=(session, 3)) | bare),
        ]
        said.append([neutral(answer) for answer in answers])
    assert not differences(*said)


def test_a_session_learns_that_its_topic_was_replaced(filled: Both) -> None:
    said: list[list[Any]] = []
    for peer in filled.peers:
        peer.create("short-lived", {})
        old = peer.topic_id("short-lived")
        first = peer.ask(FETCH, 17, fetch(old, session=(0, 0)))
        assert isinstance(first, dict)
        session = first["session_id"]
        peer.delete("short-lived")
        gone = peer.ask(FETCH, 17, fetch(old, session=(session, 1)) | {"topics": []})
        peer.create("short-lived", {})
        again = peer.ask(FETCH, 17, fetch(old, session=(session, 2)) | {"topics": []})
        stranger = peer.ask(FETCH, 17, fetch(old))
        said.append([neutral(answer) for answer in (gone, again, stranger)])
        assert isinstance(again, dict)
        assert again["responses"][0]["partitions"][0]["error_code"] == 103
    assert not differences(*said)


def listing(topic: str, *timestamps: int, **terms: Any) -> Message:
    part = {"current_leader_epoch": terms.pop("epoch", -1)}
    asked = [part | {"partition_index": index, "timestamp": when} for index, when in enumerate(timestamps)]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": asked}]} | terms


@pytest.fixture(scope="module")
def timed(both: Both) -> Both:
    """`times`: rising and falling times in partition 0, one time in partition 1."""
    for when in (NOW, NOW + 5000, NOW + 3000, NOW + 5000, NOW + 4000):
        both.same(PRODUCE, 9, produce("times", batch((b"k", b"v", when), (b"k", b"v", when - 100))))
    both.same(PRODUCE, 9, produce("times", batch((b"k", b"v", NOW)), partition=1))
    return both


TIMES = {
    "yesterday": NOW - DAY,
    "first": NOW,
    "between": NOW + 2900,
    "largest": NOW + 5000,
    "behind all": NOW + 5001,
} | {str(when): when for when in (-1, -2, -3, -4, -5, -6, 0)}


@pytest.mark.parametrize("when", TIMES.values(), ids=TIMES)
def test_offsets_are_listed_alike(timed: Both, when: int) -> None:
    for version in range(1, 10):
        for topic in ("times", "empty", "nowhere"):
            for replica in (-1, -2, 5):
                timed.same(LIST_OFFSETS, version, listing(topic, when, when, replica_id=replica))
        if version >= 2:
            timed.same(LIST_OFFSETS, version, listing("times", when, isolation_level=1))
        if version >= 4:
            for epoch in (0, 3):
                timed.same(LIST_OFFSETS, version, listing("times", when, epoch=epoch))


@pytest.mark.parametrize("when", [-1, -2, -3, -4, -5, -7, 0, 1 << 60])
def test_segments_are_listed_alike(filled: Both, timed: Both, when: int) -> None:
    """ListOffsets 0, whose times are those of the files."""
    for topic in ("rolled", "times", "empty", "nowhere"):
        for replica in (-1, -2, 5):
            for count in (-1, 0, 1, 3, 100):
                body = listing(topic, when, when, replica_id=replica)
                for part in body["topics"][0]["partitions"]:
                    part["max_num_offsets"] = count
                timed.same(LIST_OFFSETS, 0, body)


def test_a_partition_listed_twice_is_refused_alike(timed: Both) -> None:
    body = listing("times", -1, -2)
    body["topics"] += [{"name": "times", "partitions": body["topics"][0]["partitions"][:1]}]
    timed.same(LIST_OFFSETS, 7, body)


@pytest.mark.parametrize("topic", ["times", "empty", "nowhere"])
def test_ends_of_epochs_are_told_alike(timed: Both, topic: str) -> None:
    for version in range(5):
        for replica in (-1, -2, 5) if version >= 3 else (-2,):
            for epoch in (-2, -1, 0, 1, 7):
                for current in (-1, 0, 3) if version >= 2 else (-1,):
                    part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
                    topics = [{"topic": topic, "partitions": [part, part | {"partition": 1}]}]
                    timed.same(OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": replica, "topics": topics})
