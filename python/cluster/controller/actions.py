"""What the controller's state machine asks of its driver: writes to znodes, and requests to brokers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.model import BrokerId, PartitionState, TopicInfo, TopicPartition


@dataclass(frozen=True, slots=True)
class WriteTopic:
    """Rewrite the topic's znode: its id and its replicas."""

    topic: TopicInfo


@dataclass(frozen=True, slots=True)
class CreateStates:
    """Create the state znodes of partitions that have none, with their parents."""

    topic: str
    states: dict[int, PartitionState]


@dataclass(frozen=True, slots=True)
class UpdateStates:
    """Set the state znodes of partitions that have the versions `state.zk_version`."""

    topic: str
    states: dict[int, PartitionState]


@dataclass(frozen=True, slots=True)
class Lead:
    """Send leaders and replicas of partitions to the brokers that hold them (LeaderAndIsr)."""

    topic: TopicInfo
    partitions: tuple[int, ...]
    new: frozenset[int] = frozenset()
    """The partitions that have no log yet."""
    to: frozenset[BrokerId] | None = None
    """Only these brokers; None: every one."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Send partitions to the metadata that brokers answer clients from (UpdateMetadata)."""

    topic: TopicInfo
    partitions: tuple[int, ...]
    to: frozenset[BrokerId] | None = None
    """Only these brokers; None: every one."""


@dataclass(frozen=True, slots=True)
class PublishBrokers:
    """Send the live brokers to the metadata of every broker (UpdateMetadata)."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Hide the topic from clients (UpdateMetadata). If `deleted`, brokers forget its committed offsets."""

    topic: TopicInfo
    deleted: bool


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """Stop serving partitions on a broker, and delete their logs if `delete` (StopReplica)."""

    topic: TopicInfo
    broker: BrokerId
    partitions: tuple[int, ...]
    delete: bool
    lives_on: bool = False
    """The topic stays, without this replica. A broker that knows a newer leader epoch keeps its log."""


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Delete the topic's znodes: partitions, settings, the topic, the request to delete it."""

    topic: str


@dataclass(frozen=True, slots=True)
class DropReassignments:
    """Remove partitions from the request of the znode /admin/reassign_partitions."""

    partitions: dict[TopicPartition, tuple[BrokerId, ...] | None]
    """By partition: remove it if these are the replicas it asks for; None: in any case."""


@dataclass(frozen=True, slots=True)
class DropDeletion:
    """Delete the request to delete a topic, because the topic does not exist or deletion is disabled."""

    topic: str


Action = (
    WriteTopic
    | CreateStates
    | UpdateStates
    | Lead
    | Publish
    | PublishBrokers
    | Withdraw
    | StopReplicas
    | RemoveTopic
    | DropReassignments
    | DropDeletion
)
