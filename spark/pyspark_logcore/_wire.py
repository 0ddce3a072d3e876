"""Partitions on brokers: the plan's catalog, and the tasks that fetch.

Python handles whole Fetch responses; the extension decodes their records. Each process makes its own
connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cluster.client.batches import EARLIEST, LATEST, BatchClient
from cluster.errors import OffsetOutOfRange
from logcore.columns import decode_batches
from pyspark_logcore._options import TopicChoice
from pyspark_logcore._plan import Bounds, Key, OffsetRange, cut_evenly, say_lost

FETCH_BYTES = 8 << 20
"""Bytes of a Fetch response, unless the user set `kafka.max.partition.fetch.bytes`."""


@dataclass(frozen=True)
class BrokerLog:
    """The topics of a cluster. Pickled into tasks, so it has the client's settings only."""

    client: Mapping[str, str]
    may_lose: bool = False
    """Whether a task leaves out records that were deleted after the plan (failOnDataLoss=false)."""

    @contextmanager
    def catalog(self) -> Iterator[_BrokerCatalog]:
        """The catalog for the plan, while its connections are open."""
        with self._connect() as client:
            yield _BrokerCatalog(client, self.client["bootstrap.servers"])

    def read(self, task: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields the task's rows as Arrow batches. One response is fetched while Spark takes the rows of the
        one before.
        """
        topic, partition, offset = task.topic, task.partition, task.start
        with self._connect() as client, ThreadPoolExecutor(1, "logcore-fetch") as ahead:
            fetched = ahead.submit(client.fetch, topic, partition, offset)
            while offset < task.end:
                try:
                    records, aborted = fetched.result()
                except OffsetOutOfRange:
                    [(earliest, _)] = client.offsets([(topic, partition)], EARLIEST).values()
                    if not self.may_lose or earliest <= offset:
                        raise
                    say_lost(task, offset, earliest)
                    offset = earliest
                    fetched = ahead.submit(client.fetch, topic, partition, offset)
                    continue
                if not records:
                    return
                batches, offset = decode_batches(
                    records, topic, partition, columns, offset, task.end, aborted=aborted
                )
                if offset < task.end:
                    fetched = ahead.submit(client.fetch, topic, partition, offset)
                for batch in batches:
                    yield pa.record_batch(batch)

    def _connect(self) -> BatchClient:
        return BatchClient({"max.partition.fetch.bytes": FETCH_BYTES, **self.client})


class _BrokerCatalog:
    def __init__(self, client: BatchClient, servers: str) -> None:
        self._client = client
        self._servers = servers
        self._ids: dict[str, bytes] = {}

    def partitions(self, choice: TopicChoice) -> list[Key]:
        named = sorted({topic for topic, _ in choice.required()})
        chosen = []
        for topic, (internal, partitions, topic_id) in self._client.topics(named or None).items():
            self._ids[topic] = topic_id
            # As in Kafka's consumer, a pattern does not match the cluster's own topics.
            if not (internal and choice.pattern):
                chosen += [(topic, number) for number in partitions if choice.wants(topic, number)]
        for topic, partition in choice.required():
            if not any(topic == key[0] and partition in (None, key[1]) for key in chosen):
                what = f"topic {topic!r}" if partition is None else f"partition {topic}-{partition}"
                raise ValueError(f"{what} is not at {self._servers}")
        return sorted(chosen)

    def bounds(self, partitions: Sequence[Key]) -> dict[Key, Bounds]:
        earliest, latest = (
            self._client.offsets(partitions, EARLIEST),
            self._client.offsets(partitions, LATEST),
        )
        return {
            key: Bounds(earliest[key].offset, *latest[key], topic_id=self._ids.get(key[0], b""))
            for key in partitions
        }

    def stored_bytes(self, partitions: Sequence[Key]) -> dict[Key, int]:
        return self._client.stored_bytes(partitions)

    def cut(self, one: OffsetRange, parts: int) -> list[int]:
        return cut_evenly(one, parts)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        offset = self._client.offset(topic, partition, timestamp)
        return offset if offset >= 0 else None
