"""Topics, offsets and whole record batches of a cluster, for programs that decode many records at once.

A `BatchClient` leads no group and commits nothing. It fetches batches as bytes, which
`logcore.columns.decode_batches` and `logcore.parse_batches` take. Its connections are the extension's, made
by the process that made the client; it cannot be pickled. One thread uses a client at a time.

>>> with BatchClient({"bootstrap.servers": "localhost:9092"}) as client:   # doctest: +SKIP
...     records, aborted = client.fetch("flights", 0, client.offset("flights", 0, EARLIEST))
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from cluster.errors import KafkaProtocolError, LeaderNotAvailable, for_code
from logcore import _native

from . import _config
from ._errors import KafkaException

__all__ = ["EARLIEST", "LATEST", "BatchClient", "Batches", "TopicPartitions", "check_settings"]

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


class TopicPartitions(NamedTuple):
    """A topic of a cluster."""

    internal: bool
    """Whether it is one of the cluster's own, as `__consumer_offsets` is."""
    partitions: list[int]


class Batches(NamedTuple):
    """What one Fetch response has of a partition."""

    records: bytes
    """Whole batches, perhaps followed by an incomplete one. The first may begin before the offset that was
    asked for.
    """
    aborted: list[tuple[int, int, None]]
    """With read_committed, the aborted transactions among them: producer id, first offset, and None for the
    unknown offset of the marker. Pass it to the decoder."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises KafkaException for settings that a `BatchClient` would refuse. They need not be complete."""
    _config.parse([settings], "c", {})


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

    def topics(self) -> dict[str, TopicPartitions]:
        """Every topic of the cluster by name."""
        topics: dict[str, Any] = self._network.metadata(None, timeout=ANSWER_TIMEOUT)["topics"]
        return {
            name: TopicPartitions(internal, [partition[0] for partition in partitions])
            for name, (_, internal, partitions) in topics.items()
        }

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """The offset of the first record at or after `timestamp` (milliseconds since 1970 UTC, EARLIEST or
        LATEST); -1 if there is none. Raises KafkaException.
        """
        [answer] = self._network.list_offsets(
            [(topic, partition, timestamp)], timeout=ANSWER_TIMEOUT, read_committed=self._committed
        )
        offset, error = answer[2], answer[5]
        if error is not None:
            raise KafkaException(error)
        return offset

    def fetch(self, topic: str, partition: int, offset: int) -> Batches:
        """The batches from the one with `offset` on, at least one, from the partition's leader.

        A failure that may pass is tried again for up to a minute. Raises TimeoutError after that;
        KafkaProtocolError or KafkaException for a failure that stays, such as an offset that is not there.
        """
        deadline = time.monotonic() + FETCH_TIMEOUT
        while True:
            problem: Exception
            try:
                batches = self._fetch_once(topic, partition, offset)
                if batches.records:
                    return batches
                problem = TimeoutError(f"the leader has nothing at offset {offset}")
            except KafkaProtocolError as error:
                if not error.retriable:
                    raise
                problem = error
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                problem = error
            # Another broker may lead the partition now.
            self._leaders.pop((topic, partition), None)
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot fetch {topic}-{partition}: {problem}") from problem
            time.sleep(RETRY_PAUSE)

    def _fetch_once(self, topic: str, partition: int, offset: int) -> Batches:
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
        found = response["responses"][0]["partitions"][0]
        _raise_error(found["error_code"], topic, partition, offset)
        aborted = found["aborted_transactions"] or []
        return Batches(
            found["records"] or b"", [(each["producer_id"], each["first_offset"], None) for each in aborted]
        )

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
