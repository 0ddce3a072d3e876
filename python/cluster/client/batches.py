"""Topics, offsets and whole record batches of a cluster, for programs that decode many records at once.

A `BatchClient` leads no group and commits nothing. It fetches batches as bytes, which
`logcore.columns.decode_batches` and `logcore.parse_batches` take. Its connections are the extension's, made
by the process that made the client; it cannot be pickled. One thread uses a client at a time.

>>> with BatchClient({"bootstrap.servers": "localhost:9092"}) as client:   # doctest: +SKIP
...     records, aborted = client.fetch("flights", 0, client.offset("flights", 0, EARLIEST))
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from cluster.errors import KafkaProtocolError, LeaderNotAvailable, for_code
from logcore import _native

from . import _config
from ._errors import KafkaException

__all__ = [
    "EARLIEST",
    "LATEST",
    "BatchClient",
    "Batches",
    "ListedOffset",
    "TopicPartitions",
    "check_settings",
    "partitions_of_rows",
]

EARLIEST = -2
"""For `BatchClient.offset`: the offset of a partition's first record."""
LATEST = -1
"""For `BatchClient.offset`: the offset after a partition's last record, or with read_committed the last
stable offset.
"""

ANSWER_TIMEOUT = 30.0
"""Seconds for one response."""
FETCH_TIMEOUT = 60.0
"""Seconds in which a partition must have a leader that serves an offset."""
RETRY_PAUSE = 0.2
FETCH_WAIT_MS = 500
FETCH_VERSION = 11
"""The last version without topic ids and flexible fields; Apache Kafka has served it since 2.3."""
LOG_DIRS_VERSION = 1


class TopicPartitions(NamedTuple):
    """A topic of a cluster."""

    internal: bool
    """Whether it is one of the cluster's own, as `__consumer_offsets` is."""
    partitions: list[int]
    id: bytes
    """16 bytes, which a topic of the same name that is made later does not share. Empty from a broker before
    Apache Kafka 2.8, which has none."""


class ListedOffset(NamedTuple):
    """An answer of ListOffsets."""

    offset: int
    leader_epoch: int
    """The epoch of the leader that wrote the record; for LATEST the leader's latest one. -1 if unknown."""


class Batches(NamedTuple):
    """What one Fetch response has of a partition."""

    records: bytes
    """Whole batches, perhaps followed by an incomplete one. The first may begin before the offset that was
    asked for. Empty when no record up to the high watermark is left.
    """
    aborted: list[tuple[int, int, None]]
    """With read_committed, the aborted transactions among them: producer id, first offset, and None for the
    unknown offset of the marker. Pass it to the decoder."""


def partitions_of_rows(rows: object, count: int, otherwise: int) -> Any:
    """The partition of each row of an Arrow table among `count`, as an Arrow array of int32: what its column
    `partition` says, or what Kafka's Java producer chooses for its column `key`. Rows with neither go to
    `otherwise`.
    """
    return _native.client_partitions_of_rows(rows, "murmur2_random", count, otherwise)


def check_settings(settings: Mapping[str, Any], client: str = "c") -> None:
    """Raises KafkaException for settings that a `BatchClient`, or with client "p" a `Producer`, would refuse.
    They need not be complete.
    """
    _config.parse([settings], client, {})


class BatchClient:
    """Reads batches of a cluster. A context manager: leaving the block closes its connections.

    `config` has the names of a `Consumer`'s; `bootstrap.servers` must be among them. Of those for fetching,
    `isolation.level` and `max.partition.fetch.bytes` count. Raises KafkaException for a bad setting.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        parsed = _config.parse([config], "c", {})
        _config.finish_common(parsed)
        self._committed = parsed.get("isolation.level") == "read_committed"
        self._max_bytes = int(parsed.get("max.partition.fetch.bytes", 1 << 20))
        self._network = _native.Network(parsed.values)
        self._leaders: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._network.close()

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicPartitions]:
        """Topics of the cluster by name: every one, or those of `names` that exist. Creates none."""
        asked = None if names is None else list(names)
        topics: dict[str, Any] = self._network.metadata(asked, timeout=ANSWER_TIMEOUT)["topics"]
        return {
            name: TopicPartitions(internal, [partition[0] for partition in partitions], topic_id or b"")
            for name, (_, internal, partitions, topic_id) in topics.items()
            if partitions
        }

    def offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[tuple[str, int], ListedOffset]:
        """`offset` of several partitions, one request to each leader. Raises the KafkaException of the first
        that has no answer.
        """
        questions = [(topic, partition, timestamp) for topic, partition in partitions]
        found = {}
        for topic, partition, offset, _, epoch, error in self._network.list_offsets(
            questions, timeout=ANSWER_TIMEOUT, read_committed=self._committed
        ):
            if error is not None:
                raise KafkaException(error)
            found[topic, partition] = ListedOffset(offset, epoch)
        return found

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """The offset of the first record at or after `timestamp` (milliseconds since 1970 UTC, EARLIEST or
        LATEST); -1 if there is none. Raises KafkaException.
        """
        return self.offsets([(topic, partition)], timestamp)[topic, partition].offset

    def stored_bytes(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The size of each of these partitions on the disk of its leader (DescribeLogDirs); 0 if that is
        moving.
        """
        sizes = dict.fromkeys(partitions, 0)
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, partition in sizes:
            asked = by_leader.setdefault(self._leader(topic, partition), {})
            asked.setdefault(topic, []).append(partition)
        key = _native.api_keys()["DescribeLogDirs"]
        for leader, topics in by_leader.items():
            request = {"topics": [{"topic": topic, "partitions": found} for topic, found in topics.items()]}
            body = _native.encode_request(key, LOG_DIRS_VERSION, request)
            answer = self._network.request(key, LOG_DIRS_VERSION, body, broker=leader, timeout=ANSWER_TIMEOUT)
            for directory in _native.decode_response(key, LOG_DIRS_VERSION, answer)["results"]:
                for topic in directory["topics"]:
                    for one in topic["partitions"]:
                        if not one["is_future_key"]:
                            sizes[topic["name"], one["partition_index"]] = one["partition_size"]
        return sizes

    def fetch(self, topic: str, partition: int, offset: int) -> Batches:
        """The batches from the one with `offset` on, from the partition's leader. At least one, unless every
        record up to the high watermark was deleted by compaction: then none.

        A failure that may pass is tried again for up to a minute. Raises TimeoutError after that;
        KafkaProtocolError or KafkaException for a failure that stays, such as an offset that is not there.
        """
        deadline = time.monotonic() + FETCH_TIMEOUT
        holes = 0
        while True:
            problem: Exception
            try:
                batches, readable = self._fetch_once(topic, partition, offset)
                # A hole is what the leader says twice.
                holes = holes + 1 if readable > offset and not batches.records else 0
                if batches.records or holes == 2:
                    return batches
                problem = TimeoutError(f"the leader has nothing at offset {offset}")
            except KafkaProtocolError as error:
                if not error.retriable:
                    raise
                problem, holes = error, 0
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                problem, holes = error, 0
            if holes:
                continue
            # Another broker may lead the partition now.
            self._leaders.pop((topic, partition), None)
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot fetch {topic}-{partition}: {problem}") from problem
            time.sleep(RETRY_PAUSE)

    def _fetch_once(self, topic: str, partition: int, offset: int) -> tuple[Batches, int]:
        """The batches, and the offset up to which the partition may be read; -1 when the broker delays the
        client for its quota, and says nothing.
        """
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": self._max_bytes}
        request = {
            "replica_id": -1,
            "max_wait_ms": FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": self._max_bytes,
            "isolation_level": int(self._committed),
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        key = _native.api_keys()["Fetch"]
        body = _native.encode_request(key, FETCH_VERSION, request)
        answer = self._network.request(
            key, FETCH_VERSION, body, broker=self._leader(topic, partition), timeout=ANSWER_TIMEOUT
        )
        response = _native.decode_response(key, FETCH_VERSION, answer)
        _raise_error(response["error_code"], topic, partition, offset)
        if not response["responses"]:
            return Batches(b"", []), -1
        found = response["responses"][0]["partitions"][0]
        _raise_error(found["error_code"], topic, partition, offset)
        aborted = found["aborted_transactions"] or []
        readable = found["last_stable_offset" if self._committed else "high_watermark"]
        batches = Batches(
            found["records"] or b"", [(each["producer_id"], each["first_offset"], None) for each in aborted]
        )
        return batches, readable

    def _leader(self, topic: str, partition: int) -> int:
        known = self._leaders.get((topic, partition))
        if known is not None:
            return known
        metadata = self._network.metadata([topic], timeout=ANSWER_TIMEOUT)
        for found in metadata["topics"][topic][2]:
            if found[0] == partition and found[2] >= 0:
                return self._leaders.setdefault((topic, partition), int(found[2]))
        raise LeaderNotAvailable(f"{topic}-{partition} has no leader")


def _raise_error(code: int, topic: str, partition: int, offset: int) -> None:
    if code:
        error = for_code(code)
        raise error(f"{topic}-{partition} at offset {offset}: {error.message}")
