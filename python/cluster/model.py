"""Values that all packages share: typed ids, topics, partitions, brokers.

All are immutable, so any thread may use them. Topic ids are the 16 bytes of KIP-516's UUID. Their text
(znodes, partition.metadata) is URL-safe base64 without padding, as Kafka's `Uuid.toString` writes it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)
Offset = NewType("Offset", int)
Milliseconds = NewType("Milliseconds", int)
"""A time since 1970 UTC, or a duration."""

TopicId = NewType("TopicId", bytes)

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
"""The state topics of the coordinators of groups and transactions (org.apache.kafka.common.internals.Topic).
"""

NO_TOPIC_ID = TopicId(bytes(16))
NO_LEADER = BrokerId(-1)
NO_BROKER = BrokerId(-1)
METADATA_TOPIC_ID = TopicId(bytes(15) + b"\x01")
"""The reserved id of Kafka's own metadata topic."""


class TopicPartition(NamedTuple):
    """A partition: its topic's name and its index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of a broker: listener name, host, port and security protocol."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class VersionRange(NamedTuple):
    """The versions of a feature that a broker supports (KIP-584)."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered broker. `epoch` is the czxid of its registration (KIP-380)."""

    id: BrokerId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    features: Mapping[str, VersionRange] = field(default_factory=dict, hash=False)

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of the listener, if the broker has it."""
        # Not a generator: metadata ask this for each partition.
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a partition, preferred leader first, and those that a reassignment adds and removes."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_reassigned(self) -> bool:
        """A reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """The replicas before the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def reassigned_to(self, target: Sequence[BrokerId]) -> Replicas:
        """The replicas during a reassignment to `target`, which come first."""
        origin = self.origin
        every = tuple(dict.fromkeys((*target, *origin)))
        return Replicas(
            every,
            adding=tuple(broker for broker in every if broker not in origin),
            removing=tuple(broker for broker in every if broker not in target),
        )


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's leader, epochs and ISR. `zk_version` is the version of its znode."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch
    zk_version: int = 0
    recovery: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: assignment and state by partition, and its own settings where they are known."""

    name: str
    id: TopicId
    assignment: dict[int, Replicas]
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    offline: dict[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    """By partition: the replicas whose broker or log directory is not there."""


def topic_id_text(topic_id: TopicId) -> str:
    """The text of a topic id, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> TopicId:
    """The topic id of `text`. Raises ValueError if it is not one."""
    try:
        raw = base64.urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a topic id: {error}") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id: it has {len(raw)} bytes, not 16")
    return TopicId(raw)


def new_topic_id() -> TopicId:
    """A random topic id (UUID version 4). It is not reserved, and its text does not begin with a dash."""
    while True:
        raw = bytearray(secrets.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = TopicId(bytes(raw))
        if topic_id not in (NO_TOPIC_ID, METADATA_TOPIC_ID) and not topic_id_text(topic_id).startswith("-"):
            return topic_id
