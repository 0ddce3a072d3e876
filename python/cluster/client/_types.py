"""Constants and small values of confluent-kafka's shape: topic partitions, nodes, cluster metadata."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any

from ._errors import KafkaError

OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_STORED = -1000
OFFSET_INVALID = -1001

TIMESTAMP_NOT_AVAILABLE = 0
TIMESTAMP_CREATE_TIME = 1
TIMESTAMP_LOG_APPEND_TIME = 2


@total_ordering
class TopicPartition:
    """A partition of a topic, with an offset, a commit's metadata and an error, depending on the context.

    Equality, order and hash depend on topic and partition only.
    """

    __slots__ = ("error", "leader_epoch", "metadata", "offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int = -1,
        offset: int = OFFSET_INVALID,
        metadata: str | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.metadata = metadata
        self.leader_epoch = leader_epoch if leader_epoch is not None and leader_epoch >= 0 else None
        self.error: KafkaError | None = None

    def _key(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPartition) and self._key() == other._key()

    def __lt__(self, other: TopicPartition) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        names = {-2: "BEGINNING", -1: "END", -1000: "STORED", -1001: "INVALID"}
        offset = names.get(self.offset, str(self.offset))
        return (
            f"TopicPartition{{topic={self.topic},partition={self.partition},offset={offset},"
            f"leader_epoch={self.leader_epoch},error={self.error}}}"
        )

    __str__ = __repr__

    def __getstate__(self) -> object:
        # Protocols 0 and 1 of pickle ask a class with slots to have this method.
        return super().__getstate__()


class Uuid:
    """A 128-bit id of Kafka's; printed as URL-safe base64 without padding."""

    __slots__ = ("_bytes",)

    def __init__(self, most_significant_bits: int, least_significant_bits: int) -> None:
        mask = (1 << 64) - 1
        bits = (most_significant_bits & mask) << 64 | (least_significant_bits & mask)
        self._bytes = bits.to_bytes(16, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> Uuid:
        return cls(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:16], "big"))

    def get_most_significant_bits(self) -> int:
        return int.from_bytes(self._bytes[:8], "big", signed=True)

    def get_least_significant_bits(self) -> int:
        return int.from_bytes(self._bytes[8:], "big", signed=True)

    def __getstate__(self) -> object:
        # Protocols 0 and 1 of pickle ask a class with slots to have this method.
        return super().__getstate__()

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self._bytes).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return f"Uuid({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uuid) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)


@dataclass(frozen=True)
class Node:
    """A broker; `id` -1 and an empty host stand for none."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def id_string(self) -> str:
        return str(self.id)

    def __str__(self) -> str:
        return f"({self.id}) {self.host}:{self.port}"


@dataclass(unsafe_hash=True)
class BrokerMetadata:
    """A broker as `list_topics` returns it."""

    id: int = -1
    host: str = ""
    port: int = -1

    def __str__(self) -> str:
        return f"{self.id}/{self.host}:{self.port}"


@dataclass(unsafe_hash=True)
class PartitionMetadata:
    """A partition as `list_topics` returns it. Leader (-1: none), replicas and isrs are broker ids."""

    id: int = -1
    leader: int = -1
    replicas: list[int] = field(default_factory=list, hash=False)
    isrs: list[int] = field(default_factory=list, hash=False)
    error: KafkaError | None = None

    def __str__(self) -> str:
        return str(self.id)


@dataclass(unsafe_hash=True)
class TopicMetadata:
    """A topic as `list_topics` returns it; partitions by id."""

    topic: str = ""
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict, hash=False)
    error: KafkaError | None = None

    def __str__(self) -> str:
        return self.topic


@dataclass(unsafe_hash=True)
class ClusterMetadata:
    """The cluster as `list_topics` returns it; brokers by id, topics by name."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, BrokerMetadata] = field(default_factory=dict, hash=False)
    topics: dict[str, TopicMetadata] = field(default_factory=dict, hash=False)
    orig_broker_id: int = -1
    orig_broker_name: str | None = None

    def __str__(self) -> str:
        return f"ClusterMetadata({self.cluster_id})"


@dataclass(frozen=True)
class ConsumerGroupMetadata:
    """A consumer's membership in its group, for `Producer.send_offsets_to_transaction`. Opaque."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


def error_of(code: int, reason: str | None = None) -> KafkaError | None:
    """The error for a broker's code; None for 0."""
    return KafkaError(code, reason) if code else None


def cluster_metadata(answer: dict[str, Any]) -> ClusterMetadata:
    """Turns the extension's metadata dict into confluent-kafka's objects."""
    found = ClusterMetadata(cluster_id=answer["cluster_id"], controller_id=answer["controller"])
    for node, (host, port) in answer["brokers"].items():
        found.brokers[node] = BrokerMetadata(node, host, port)
    for name, (code, _internal, partitions, _id) in answer["topics"].items():
        topic = TopicMetadata(name, error=error_of(code))
        for number, partition_code, leader, _epoch, replicas, isr in partitions:
            topic.partitions[number] = PartitionMetadata(
                number, leader, list(replicas), list(isr), error_of(partition_code)
            )
        found.topics[name] = topic
    return found


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """The partitions of each topic, in their order."""
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics
