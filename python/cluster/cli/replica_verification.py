"""`logcore replica-verification`: the flags and output of kafka-replica-verification.sh
(ReplicaVerificationTool of Apache Kafka 3.9).

Reads every replica of the topics, compares the batches below the high watermark, and reports the largest lag.
It runs until it is stopped.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from cluster.cli._admin_tool import REQUEST_TIMEOUT, administer, need
from cluster.cli._common import CommandError, Once, Parser

if TYPE_CHECKING:
    from cluster.client import AdminClient, FetchedReplica, TopicPartition

FETCH_SIZE = 1024 * 1024
LATEST, EARLIEST = -1, -2


def parser() -> Parser:
    options = Parser("replica-verification", "Compares the replicas of topics until it is stopped.")
    options.add_argument(
        "--broker-list", action=Once, metavar="HOST:PORT[,...]", help="the brokers to connect to (required)"
    )
    options.add_argument(
        "--fetch-size", action=Once, type=int, default=FETCH_SIZE, metavar="BYTES", help="of each fetch"
    )
    options.add_argument(
        "--max-wait-ms", action=Once, type=int, default=1000, metavar="MS", help="how long a fetch waits"
    )
    options.add_argument(
        "--topics-include", action=Once, metavar="REGEX", help="the topics to compare (default: all)"
    )
    options.add_argument(
        "--topic-white-list", action=Once, metavar="REGEX", help="the old name of --topics-include"
    )
    options.add_argument(
        "--time",
        action=Once,
        type=int,
        default=LATEST,
        metavar="TIMESTAMP",
        help="where to start: a timestamp in ms, -1 (latest, the default) or -2 (earliest)",
    )
    options.add_argument(
        "--report-interval-ms", action=Once, type=int, default=30_000, metavar="MS", help="between reports"
    )
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    need(options.broker_list, "broker-list")
    if options.topics_include is not None and options.topic_white_list is not None:
        raise CommandError(
            'Option "[topics-include]" can\'t be used with option "[topic-white-list]"', status=2
        )
    regex = options.topics_include or options.topic_white_list or ".*"
    try:
        pattern = re.compile(regex.strip().replace(",", "|").replace(" ", "").strip("\"'"))
    except re.error:
        raise CommandError(f"{regex} is an invalid regex", status=2) from None
    with administer("replica-verification", options.broker_list) as admin:
        replicas = replicas_of(admin, pattern)
        if not replicas:
            raise CommandError(
                "No topics found. --topics-include if specified, is either filtering out all topics or "
                "there is no topic."
            )
        offsets = first_offsets(admin, list(replicas), options.time)
        print(f"{_now()}: verification process is started", flush=True)
        verification = Verification(replicas, offsets, options.report_interval_ms / 1000)
        while True:
            verification.round(admin, options.fetch_size, options.max_wait_ms / 1000)


def replicas_of(admin: AdminClient, pattern: re.Pattern[str]) -> dict[TopicPartition, list[int]]:
    """The brokers with a replica of each partition of the topics that match."""
    from cluster.client import TopicPartition

    return {
        TopicPartition(topic.topic, number): list(partition.replicas)
        for topic in admin.list_topics(timeout=REQUEST_TIMEOUT).topics.values()
        if pattern.fullmatch(topic.topic)
        for number, partition in sorted(topic.partitions.items())
    }


def first_offsets(
    admin: AdminClient, partitions: list[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    from cluster.client import OffsetSpec

    specs = {LATEST: OffsetSpec.latest(), EARLIEST: OffsetSpec.earliest()}
    spec = specs.get(timestamp) or OffsetSpec.for_timestamp(timestamp)
    asked = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=REQUEST_TIMEOUT)
    return {partition: future.result().offset for partition, future in asked.items()}


class Batch(NamedTuple):
    """What is compared of a batch."""

    last_offset: int
    checksum: int


_HEAD = struct.Struct(">qiibIhi")
"""A batch's base offset, length, leader epoch, magic, checksum, attributes and last offset's delta."""
_BEFORE_LENGTH = 12


def batches(records: bytes) -> Iterator[Batch]:
    """The complete batches of a fetched partition (format 2, the only one that brokers send)."""
    position = 0
    while position + _HEAD.size <= len(records):
        base, length, _, _, checksum, _, delta = _HEAD.unpack_from(records, position)
        position += _BEFORE_LENGTH + length
        if position > len(records):
            return
        yield Batch(base + delta, checksum)


class Verification:
    """Rounds of fetching and comparing. Every replica is read from the same offset."""

    def __init__(
        self,
        replicas: dict[TopicPartition, list[int]],
        offsets: dict[TopicPartition, int],
        report_interval: float,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        self.replicas = replicas
        self.offsets = offsets
        self._interval = report_interval
        self._reported = time.monotonic()
        self._say = say

    def round(self, admin: AdminClient, fetch_size: int, wait: float) -> None:
        """Fetches from all brokers at once and compares what they have."""
        from cluster.client import fetch_replicas

        asked: dict[int, dict[TopicPartition, int]] = {}
        for partition, brokers in self.replicas.items():
            for broker in brokers:
                asked.setdefault(broker, {})[partition] = self.offsets[partition]
        started = time.monotonic()
        fetched = fetch_replicas(admin, asked, partition_bytes=fetch_size, wait=wait)
        self.compare(fetched)
        if all(one.high_watermark < 0 for found in fetched.values() for one in found.values()):
            # No broker answers; each would be asked again at once.
            time.sleep(max(wait - (time.monotonic() - started), 0))

    def compare(self, fetched: dict[int, dict[TopicPartition, FetchedReplica]]) -> None:
        lags: list[tuple[int, TopicPartition]] = []
        for partition, brokers in self.replicas.items():
            found = {broker: fetched[broker][partition] for broker in brokers}
            self._compare(partition, found)
            highest = max(one.high_watermark for one in found.values())
            lags.append((highest - self.offsets[partition], partition))
        now = time.monotonic()
        if now - self._reported > self._interval:
            lag, partition = max(lags, key=lambda one: one[0])
            self._say(
                f"{_now()}: max lag is {lag} for partition {partition.topic}-{partition.partition} at offset "
                f"{self.offsets[partition]} among {len(self.replicas)} partitions"
            )
            self._reported = now

    def _compare(self, partition: TopicPartition, found: dict[int, FetchedReplica]) -> None:
        """Compares batch by batch, as far as every replica has them below its high watermark."""
        name = f"{partition.topic}-{partition.partition}"
        reading = {broker: batches(one.records) for broker, one in found.items()}
        while True:
            first: tuple[int, Batch] | None = None
            for broker, batch in ((broker, next(rest, None)) for broker, rest in reading.items()):
                if batch is None or batch.last_offset >= found[broker].high_watermark:
                    return
                if first is None:
                    first = (broker, batch)
                elif first[1].last_offset != batch.last_offset:
                    self._say(
                        f"{_now()}: partition {name}: replica {first[0]}'s offset {first[1].last_offset} "
                        f"doesn't match replica {broker}'s offset {batch.last_offset}"
                    )
                    raise CommandError(f"the replicas of partition {name} differ")
                elif first[1].checksum != batch.checksum:
                    self._say(
                        f"{_now()}: partition {name} has unmatched checksum at offset {batch.last_offset}; "
                        f"replica {first[0]}'s checksum {first[1].checksum}; "
                        f"replica {broker}'s checksum {batch.checksum}"
                    )
            if first is None:
                return
            self.offsets[partition] = first[1].last_offset + 1


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
