"""Partitions on brokers: the plan asks through `cluster`'s clients, the tasks fetch and let the extension
decode.

A task's connection does one thing, Fetch for one partition, and lives as long as the task. It follows the
partition when its leader moves. Bytes go from the socket to the extension's decoder; Python sees whole
responses, never records.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from cluster import AdminClient, Consumer, TopicPartition
from cluster.errors import KafkaProtocolError, for_code
from logcore import _native
from logcore.columns import decode_batches

from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import OffsetRange

# Seconds: for one answer of a broker, and for a partition to have a leader that serves the offset.
ANSWER_TIMEOUT = 30.0
LEADER_TIMEOUT = 60.0
RETRY_PAUSE = 0.2

FETCH_BYTES = 8 << 20
# The last version without flexible fields and topic ids; served by Apache Kafka 2.3 and everything since.
FETCH_VERSION = 11
CLIENT_ID = "pyspark-logcore"


@dataclass(frozen=True)
class BrokerLog:
    """The topics of a cluster. Holds the client's options only; connections are made while planning and
    reading.
    """

    client: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.client.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
            raise ValueError("option 'kafka.security.protocol': only PLAINTEXT can be read from so far")
        if self.client.get("isolation.level", "read_uncommitted") != "read_uncommitted":
            raise ValueError("option 'kafka.isolation.level': only read_uncommitted can be read with so far")

    def partitions(self, choice: TopicChoice) -> list[tuple[str, int]]:
        topics = AdminClient(dict(self.client)).list_topics(timeout=ANSWER_TIMEOUT).topics
        found = {
            (name, number): True
            for name, topic in topics.items()
            if topic.error is None
            for number in topic.partitions
        }
        chosen = sorted(key for key in found if choice.wants(*key))
        for topic, partition in choice.required():
            if not any(topic == key[0] and partition in (None, key[1]) for key in chosen):
                what = f"topic {topic!r}" if partition is None else f"partition {topic}-{partition}"
                raise ValueError(f"{what} is not at {self.client['bootstrap.servers']}")
        return chosen

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=ANSWER_TIMEOUT
            )
            return low, high
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        consumer = self._consumer()
        try:
            [found] = consumer.offsets_for_times(
                [TopicPartition(topic, partition, timestamp)], timeout=ANSWER_TIMEOUT
            )
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches."""
        offset = task.start
        with _PartitionFetcher(self.client, task.topic, task.partition) as fetcher:
            while offset < task.end:
                records = fetcher.fetch(offset)
                batches, offset = decode_batches(
                    records, task.topic, task.partition, columns, offset, task.end
                )
                for batch in batches:
                    yield pa.record_batch(batch)

    def _consumer(self) -> Consumer:
        return Consumer({"group.id": CLIENT_ID, "enable.auto.commit": False, **self.client})


class _PartitionFetcher:
    """Fetches one partition from whoever leads it."""

    def __init__(self, client: Mapping[str, str], topic: str, partition: int) -> None:
        self._admin = AdminClient(dict(client))
        self._topic = topic
        self._partition = partition
        self._leader: _Connection | None = None

    def __enter__(self) -> _PartitionFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def fetch(self, offset: int) -> bytes:
        """The batches from `offset` on, at least one; retries while leaders move, up to LEADER_TIMEOUT."""
        deadline = time.monotonic() + LEADER_TIMEOUT
        while True:
            try:
                records = self._fetch_once(offset)
                if records:
                    return records
                problem: Exception = TimeoutError(f"the leader has nothing at offset {offset}")
            except OSError as error:
                self._disconnect()
                problem = error
            except KafkaProtocolError as error:
                if not error.retriable:
                    raise
                self._disconnect()
                problem = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot fetch {self._topic}-{self._partition}: {problem}") from problem
            time.sleep(RETRY_PAUSE)

    def _fetch_once(self, offset: int) -> bytes:
        if self._leader is None:
            self._leader = self._connect()
        response = self._leader.request(
            "Fetch",
            FETCH_VERSION,
            {
                "replica_id": -1,
                "max_wait_ms": 500,
                "min_bytes": 1,
                "max_bytes": FETCH_BYTES,
                "topics": [
                    {
                        "topic": self._topic,
                        "partitions": [
                            {
                                "partition": self._partition,
                                "fetch_offset": offset,
                                "partition_max_bytes": FETCH_BYTES,
                            }
                        ],
                    }
                ],
            },
        )
        answer = response["responses"][0]["partitions"][0] if response["responses"] else response
        if code := response["error_code"] or answer["error_code"]:
            raise for_code(code)(f"{self._topic}-{self._partition} at offset {offset}")
        records = answer.get("records")
        return bytes(records) if records else b""

    def _connect(self) -> _Connection:
        metadata = self._admin.list_topics(self._topic, timeout=ANSWER_TIMEOUT)
        partition = metadata.topics[self._topic].partitions.get(self._partition)
        broker = metadata.brokers.get(partition.leader) if partition is not None else None
        if broker is None:
            raise ConnectionError(f"{self._topic}-{self._partition} has no leader")
        return _Connection(broker.host, broker.port)

    def _disconnect(self) -> None:
        if self._leader is not None:
            self._leader.close()
            self._leader = None


class _Connection:
    """Requests of the older, not flexible versions over one socket, one at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), ANSWER_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._keys = _native.api_keys()
        self._correlation = 0

    def request(self, api: str, version: int, message: dict[str, object]) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        self._correlation += 1
        client_id = CLIENT_ID.encode()
        head = struct.pack(">hhih", self._keys[api], version, self._correlation, len(client_id)) + client_id
        body = _native.encode_request(self._keys[api], version, message)
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        size, correlation = struct.unpack(">ii", self._receive(8))
        if correlation != self._correlation:
            raise ConnectionError(f"answer {correlation} came to request {self._correlation}")
        return _native.decode_response(self._keys[api], version, self._receive(size - 4))

    def _receive(self, size: int) -> bytearray:
        if not 0 <= size <= 1 << 30:
            raise ConnectionError(f"an answer of {size} bytes was announced")
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return buffer

    def close(self) -> None:
        self._socket.close()
