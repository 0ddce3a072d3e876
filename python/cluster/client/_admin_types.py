"""The types that the admin client takes and returns, in confluent-kafka's shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from ._errors import KafkaError, KafkaException
from ._types import BrokerMetadata, Node, TopicPartition, Uuid


class Ordered:
    """Equality, order and hash by what `_key` returns."""

    def _key(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key() == other._key()

    def __lt__(self, other: Self) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())


class NewTopic(Ordered):
    """A topic to create. -1 for partitions or replication factor is the broker's default.

    `replica_assignment` is a list of broker ids for each partition, instead of a replication factor.
    Equality, order and hash depend on the name and the number of partitions only.
    """

    def __init__(
        self,
        topic: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        replica_assignment: list[list[int]] | None = None,
        config: dict[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.replica_assignment = replica_assignment
        self.config = dict(config or {})

    def _key(self) -> tuple[Any, ...]:
        return (self.topic, self.num_partitions)

    def __repr__(self) -> str:
        return f"NewTopic(topic={self.topic},num_partitions={self.num_partitions})"


class NewPartitions(Ordered):
    """A topic's new number of partitions. Equality, order and hash depend on both only."""

    def __init__(
        self, topic: str, new_total_count: int, replica_assignment: list[list[int]] | None = None
    ) -> None:
        self.topic = topic
        self.new_total_count = new_total_count
        self.replica_assignment = replica_assignment

    def _key(self) -> tuple[Any, ...]:
        return (self.topic, self.new_total_count)

    def __repr__(self) -> str:
        return f"NewPartitions(topic={self.topic},new_total_count={self.new_total_count})"


class ResourceType(Enum):
    """The kind of thing that a configuration belongs to."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    BROKER = 4
    TRANSACTIONAL_ID = 5


class ConfigSource(Enum):
    """Where a configuration entry's value comes from."""

    UNKNOWN_CONFIG = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


class AlterConfigOpType(Enum):
    """What `incremental_alter_configs` does with a setting; APPEND and SUBTRACT change a list."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ElectionType(Enum):
    """The replicas that an election may choose.

    PREFERRED: the first replica, if it is in sync. UNCLEAN: any that is alive, if none is in sync.
    """

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(unsafe_hash=True)
class ConfigEntry:
    """One setting of a topic or broker; `value` is None for a secret."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN_CONFIG
    is_read_only: bool = False
    is_default: bool = False
    is_sensitive: bool = False
    is_synonym: bool = False
    synonyms: dict[str, ConfigEntry] = field(default_factory=dict, hash=False)
    incremental_operation: AlterConfigOpType | None = None

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"'


class ConfigResource(Ordered):
    """A topic or broker with a configuration. Equality, order and hash depend on type and name only."""

    Type = ResourceType

    def __init__(
        self,
        restype: ResourceType | str | int,
        name: str,
        set_config: dict[str, str] | None = None,
        described_configs: dict[str, ConfigEntry] | None = None,
        error: KafkaError | None = None,
        incremental_configs: list[ConfigEntry] | None = None,
    ) -> None:
        if isinstance(restype, str):
            restype = ResourceType[restype.upper()]
        self.restype = ResourceType(restype)
        self.name = name
        self.set_config_dict = dict(set_config or {})
        self.incremental_configs = list(incremental_configs or [])
        self.configs = described_configs
        self.error = error

    def set_config(self, name: str, value: str, overwrite: bool = True) -> None:
        """A setting for `alter_configs`."""
        if overwrite or name not in self.set_config_dict:
            self.set_config_dict[name] = value

    def add_incremental_config(self, config_entry: ConfigEntry) -> None:
        """A change for `incremental_alter_configs`."""
        self.incremental_configs.append(config_entry)

    @property
    def restype_int(self) -> int:
        return int(self.restype.value)

    def _key(self) -> tuple[Any, ...]:
        return (self.restype_int, self.name)

    def __repr__(self) -> str:
        return f"ConfigResource({self.restype},{self.name})"


@dataclass(init=False, unsafe_hash=True)
class TopicCollection:
    """Topics by name."""

    topic_names: list[str] = field(hash=False)

    def __init__(self, topic_names: Iterable[str]) -> None:
        self.topic_names = list(topic_names)


@dataclass(unsafe_hash=True)
class TopicPartitionInfo:
    """A partition of a described topic."""

    id: int
    leader: Node | None
    replicas: list[Node] = field(hash=False)
    isr: list[Node] = field(hash=False)


@dataclass(unsafe_hash=True)
class TopicDescription:
    """A described topic; partitions in the order of their ids."""

    name: str
    topic_id: Uuid
    is_internal: bool
    partitions: list[TopicPartitionInfo] = field(hash=False)


class ConsumerGroupState(Enum):
    """A group's state; UNKNOWN while the consumer protocol moves partitions, as in confluent-kafka."""

    UNKNOWN = 0
    PREPARING_REBALANCING = 1
    COMPLETING_REBALANCING = 2
    STABLE = 3
    DEAD = 4
    EMPTY = 5

    @classmethod
    def of(cls, name: str) -> ConsumerGroupState:
        """The state that the broker calls `name`."""
        return _STATES.get(name, cls.UNKNOWN)


_STATES = {
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "CompletingRebalance": ConsumerGroupState.COMPLETING_REBALANCING,
    "Stable": ConsumerGroupState.STABLE,
    "Dead": ConsumerGroupState.DEAD,
    "Empty": ConsumerGroupState.EMPTY,
}


class ConsumerGroupType(Enum):
    """The protocol that a group's members use."""

    UNKNOWN = 0
    CONSUMER = 1
    CLASSIC = 2

    @classmethod
    def of(cls, name: str) -> ConsumerGroupType:
        """The type that the broker calls `name`; brokers before 3.8 give none."""
        return cls.__members__.get(name.upper(), cls.UNKNOWN)


@dataclass(unsafe_hash=True)
class ConsumerGroupListing:
    """A group as `list_consumer_groups` returns it."""

    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState = ConsumerGroupState.UNKNOWN
    type: ConsumerGroupType = ConsumerGroupType.UNKNOWN


@dataclass(unsafe_hash=True)
class ListConsumerGroupsResult:
    """The groups of all brokers that answered, and the failures of the others."""

    valid: list[ConsumerGroupListing] = field(default_factory=list, hash=False)
    errors: list[KafkaException] = field(default_factory=list, hash=False)


@dataclass(unsafe_hash=True)
class MemberAssignment:
    """The partitions a member has."""

    topic_partitions: list[TopicPartition] = field(default_factory=list, hash=False)


@dataclass(unsafe_hash=True)
class MemberDescription:
    """A member of a described group."""

    member_id: str
    client_id: str
    host: str
    assignment: MemberAssignment
    group_instance_id: str | None = None
    target_assignment: MemberAssignment | None = None
    """What it should have; of the consumer protocol only."""


@dataclass(unsafe_hash=True)
class ConsumerGroupDescription:
    """A described group."""

    group_id: str
    is_simple_consumer_group: bool
    members: list[MemberDescription] = field(hash=False)
    partition_assignor: str
    state: ConsumerGroupState
    coordinator: Node
    type: ConsumerGroupType = ConsumerGroupType.UNKNOWN


@dataclass(unsafe_hash=True)
class GroupMember:
    """A member as `list_groups` returns it; metadata and assignment are the group protocol's bytes."""

    id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(unsafe_hash=True)
class GroupMetadata:
    """A group as `list_groups` returns it."""

    broker: BrokerMetadata
    id: str
    error: KafkaError | None
    state: str
    protocol_type: str
    protocol: str
    members: list[GroupMember] = field(default_factory=list, hash=False)

    def __str__(self) -> str:
        return self.id


@dataclass(unsafe_hash=True)
class ConsumerGroupTopicPartitions:
    """A group and partitions with committed offsets, or offsets to commit; None stands for all partitions."""

    group_id: str
    topic_partitions: list[TopicPartition] | None = field(default=None, hash=False)


@dataclass(unsafe_hash=True)
class DescribeClusterResult:
    """The cluster's brokers; `controller` is None while there is none."""

    controller: Node | None
    nodes: list[Node] = field(hash=False)
    cluster_id: str | None = None


class IsolationLevel(Enum):
    """What counts as a partition's end: with READ_COMMITTED the first open transaction."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True)
class OffsetSpec:
    """The offset that `list_offsets` looks for."""

    _value: int

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The first offset."""
        return cls(-2)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The offset after the last record."""
        return cls(-1)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """The offset of the record with the latest timestamp."""
        return cls(-3)

    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec:
        """The offset of the first record at or after a time in milliseconds."""
        return cls(timestamp)


@dataclass(frozen=True)
class ListOffsetsResultInfo:
    """An offset, -1 when there is no such record; its timestamp, -1 for the beginning and the end."""

    offset: int
    timestamp: int
    leader_epoch: int | None
