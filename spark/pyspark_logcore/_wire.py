"""Partitions on brokers: the plan asks for topics and offsets, the tasks fetch, and the extension decodes.

Both go through the extension's connections, which `cluster`'s clients use too, made in the process that needs
them and never pickled. Python sees whole Fetch responses, not records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cluster import KafkaException
from cluster.client import _config
from cluster.errors import KafkaProtocolError, for_code
from logcore import _native
from logcore.columns import decode_batches
from pyspark_logcore._limits import EARLIEST, LATEST
from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import OffsetRange

# Seconds: for one answer, and for a partition to have a leader that serves the offset.
ANSWER_TIMEOUT = 30.0
LEADER_TIMEOUT = 60.0
RETRY_PAUSE = 0.2

FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 500
# The last version without topic ids and flexible fields; Apache Kafka has served it since 2.3.
FETCH_VERSION = 11

LEADER_NOT_AVAILABLE = 5


@dataclass(frozen=True)
class BrokerLog:
    """The topics of a cluster. Holds the client's options only."""

    client: Mapping[str, str]

    @contextmanager
    def catalog(self) -> Iterator[_BrokerCatalog]:
        """What the plan asks, over connections that are open meanwhile."""
        with self._network() as network:
            yield _BrokerCatalog(network, self.client["bootstrap.servers"], self._read_committed())

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches."""
        offset = task.start
        with self._network() as network:
            bytes_max, committed = self._fetch_bytes(), self._read_committed()
            fetcher = _Fetcher(network, task.topic, task.partition, bytes_max, committed)
            while offset < task.end:
                records = fetcher.fetch(offset)
                batches, offset = decode_batches(
                    records, task.topic, task.partition, columns, offset, task.end
                )
                for batch in batches:
                    yield pa.record_batch(batch)

    def _fetch_bytes(self) -> int:
        return int(self.client.get("max.partition.fetch.bytes", FETCH_BYTES))

    def _read_committed(self) -> bool:
        return self.client.get("isolation.level", "").strip().lower() == "read_committed"

    @contextmanager
    def _network(self) -> Iterator[_native.Network]:
        config = _config.parse([self.client], "c", {})
        _config.finish_common(config)
        network = _native.Network(config.values)
        try:
            yield network
        finally:
            network.close()


class _BrokerCatalog:
    def __init__(self, network: _native.Network, servers: str, read_committed: bool) -> None:
        self._network = network
        self._servers = servers
        self._read_committed = read_committed

    def partitions(self, choice: TopicChoice) -> list[tuple[str, int]]:
        chosen = []
        for topic, (_, internal, partitions) in self._topics().items():
            # As in Kafka's consumer, a pattern does not take the cluster's own topics.
            if not (internal and choice.pattern):
                chosen += [(topic, one[0]) for one in partitions if choice.wants(topic, one[0])]
        for topic, partition in choice.required():
            if not any(topic == key[0] and partition in (None, key[1]) for key in chosen):
                what = f"topic {topic!r}" if partition is None else f"partition {topic}-{partition}"
                raise ValueError(f"{what} is not at {self._servers}")
        return sorted(chosen)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._offset(topic, partition, EARLIEST), self._offset(topic, partition, LATEST)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        offset = self._offset(topic, partition, timestamp)
        return offset if offset >= 0 else None

    def _topics(self) -> dict[str, Any]:
        topics: dict[str, Any] = self._network.metadata(None, timeout=ANSWER_TIMEOUT)["topics"]
        return topics

    def _offset(self, topic: str, partition: int, timestamp: int) -> int:
        [answer] = self._network.list_offsets(
            [(topic, partition, timestamp)], timeout=ANSWER_TIMEOUT, read_committed=self._read_committed
        )
        offset, error = answer[2], answer[5]
        if error is not None:
            raise KafkaException(error)
        return offset


class _Fetcher:
    """Fetches one partition from whoever leads it, and follows it when its leader moves."""

    def __init__(
        self, network: _native.Network, topic: str, partition: int, fetch_bytes: int, read_committed: bool
    ) -> None:
        self._network = network
        self._topic = topic
        self._partition = partition
        self._fetch_bytes = fetch_bytes
        self._read_committed = read_committed
        self._key = _native.api_keys()["Fetch"]
        self._leader: int | None = None

    def fetch(self, offset: int) -> bytes:
        """The batches from `offset` on, at least one; tried again up to LEADER_TIMEOUT while it may help."""
        deadline = time.monotonic() + LEADER_TIMEOUT
        while True:
            problem: Exception
            try:
                records = self._fetch_once(offset)
                if records:
                    return records
                problem = TimeoutError(f"the leader has nothing at offset {offset}")
            except KafkaProtocolError as error:
                if not error.retriable:
                    raise
                problem = error
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                problem = error
            self._leader = None
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot fetch {self._topic}-{self._partition}: {problem}") from problem
            time.sleep(RETRY_PAUSE)

    def _fetch_once(self, offset: int) -> bytes:
        if self._leader is None:
            self._leader = self._find_leader()
        partition = {
            "partition": self._partition,
            "fetch_offset": offset,
            "partition_max_bytes": self._fetch_bytes,
        }
        request = {
            "replica_id": -1,
            "max_wait_ms": FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": self._fetch_bytes,
            "isolation_level": int(self._read_committed),
            "topics": [{"topic": self._topic, "partitions": [partition]}],
        }
        body = _native.encode_request(self._key, FETCH_VERSION, request)
        answer = self._network.request(
            self._key, FETCH_VERSION, body, broker=self._leader, timeout=ANSWER_TIMEOUT
        )
        response = _native.decode_response(self._key, FETCH_VERSION, answer)
        self._check(response["error_code"], offset)
        found = response["responses"][0]["partitions"][0]
        self._check(found["error_code"], offset)
        if self._read_committed and found["aborted_transactions"]:
            raise ValueError(
                f"{self._topic}-{self._partition} holds records of an aborted transaction from offset {offset} on, "
                "which this source cannot leave out yet; read with kafka.isolation.level=read_uncommitted"
            )
        return found["records"] or b""

    def _check(self, code: int, offset: int) -> None:
        if code:
            error = for_code(code)
            raise error(f"{self._topic}-{self._partition} at offset {offset}: {error.message}")

    def _find_leader(self) -> int:
        metadata = self._network.metadata([self._topic], timeout=ANSWER_TIMEOUT)
        for partition in metadata["topics"][self._topic][2]:
            if partition[0] == self._partition and partition[2] >= 0:
                return int(partition[2])
        raise for_code(LEADER_NOT_AVAILABLE)(f"{self._topic}-{self._partition} has no leader")
