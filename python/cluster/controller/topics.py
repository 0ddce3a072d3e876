"""Checks for CreateTopics, CreatePartitions and DeleteTopics, and plans for what they create.

Owns the checks of kafka.server.ZkAdminManager and kafka.zk.AdminZkClient, with their error codes. Pure: the
controller's driver writes the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.controller.assignment import assign_replicas, validate_assignment
from cluster.controller.names import TopicNames, validate_topic_name
from cluster.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopicException,
    ReassignmentInProgress,
    TopicAlreadyExists,
)
from cluster.model import NO_TOPIC_ID, BrokerId, BrokerInfo, Replicas, TopicId, TopicInfo

DEFAULT = -1
"""In a request: use the broker's default."""

PARTITIONS_MAX = 100_000
"""More partitions do not fit into one request to the coordinator."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic of CreateTopics."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    config: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """New partitions of CreatePartitions. `count` is the total, with the existing ones."""

    name: str
    count: int
    assignment: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicToDelete:
    """A topic of DeleteTopics. With an `id`, only the topic with this id is deleted."""

    name: str
    id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The broker's defaults for new topics. `check_config` raises InvalidConfig for settings that are not
    allowed.
    """

    partitions: int
    replication_factor: int
    check_config: Callable[[Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create."""

    name: str
    assignment: dict[int, Replicas]
    config: dict[str, str]

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition."""
        return len(self.assignment[0].replicas)


def plan_topic(
    new: NewTopic,
    brokers: Sequence[BrokerInfo],
    names: TopicNames,
    defaults: TopicDefaults,
    start: int,
    shift: int,
) -> TopicPlan:
    """Checks a new topic against the existing `names` and assigns its replicas. Raises KafkaProtocolError."""
    if new.name in names:
        raise TopicAlreadyExists(f"Topic '{new.name}' already exists.")
    nulls = [name for name, value in new.config.items() if value is None]
    if nulls:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    if new.assignment and (new.partitions != DEFAULT or new.replication_factor != DEFAULT):
        raise InvalidRequest(
            "Both numPartitions or replicationFactor and replicasAssignments were set. "
            "Both cannot be used at the same time."
        )
    assignment = _assignment(new, brokers, defaults, start, shift)
    validate_topic_name(new.name)
    other = names.colliding(new.name)
    if other is not None:
        raise InvalidTopicException(f"Topic '{new.name}' collides with existing topics: {other}")
    validate_assignment(assignment)
    config = {name: value for name, value in new.config.items() if value is not None}
    defaults.check_config(config)
    return TopicPlan(
        new.name, {number: Replicas(replicas) for number, replicas in assignment.items()}, config
    )


def _assignment(
    new: NewTopic, brokers: Sequence[BrokerInfo], defaults: TopicDefaults, start: int, shift: int
) -> dict[int, tuple[BrokerId, ...]]:
    if new.assignment:
        _check_known([replica for replicas in new.assignment.values() for replica in replicas], brokers)
        return {
            number: tuple(BrokerId(replica) for replica in replicas)
            for number, replicas in new.assignment.items()
        }
    partitions = defaults.partitions if new.partitions == DEFAULT else new.partitions
    factor = defaults.replication_factor if new.replication_factor == DEFAULT else new.replication_factor
    if partitions > PARTITIONS_MAX:
        raise InvalidPartitions(f"Number of partitions must be at most {PARTITIONS_MAX}, not {partitions}.")
    return assign_replicas(brokers, partitions, factor, start, shift)


def _check_known(replicas: Iterable[int], brokers: Sequence[BrokerInfo]) -> None:
    unknown = sorted(set(replicas) - {broker.id for broker in brokers})
    if unknown:
        names = ", ".join(str(broker) for broker in unknown)
        raise InvalidReplicaAssignment(f"Unknown broker(s) in replica assignment: {names}.")


def plan_partitions(
    new: NewPartitions, topic: TopicInfo, brokers: Sequence[BrokerInfo]
) -> dict[int, Replicas]:
    """The replicas of new partitions. Raises KafkaProtocolError."""
    existing = len(topic.assignment)
    if any(item.adding or item.removing for item in topic.assignment.values()):
        raise ReassignmentInProgress(f"A partition reassignment is in progress for the topic '{new.name}'.")
    if new.count < existing:
        raise InvalidPartitions(
            f"Topic currently has {existing} partitions, which is higher than the requested {new.count}."
        )
    if new.count == existing:
        raise InvalidPartitions(f"Topic already has {existing} partitions.")
    if new.count > PARTITIONS_MAX:
        raise InvalidPartitions(f"Number of partitions must be at most {PARTITIONS_MAX}, not {new.count}.")
    added = new.count - existing
    if new.assignment is None:
        first = topic.assignment[0].replicas
        ids = sorted(broker.id for broker in brokers)
        start = next((index for index, broker in enumerate(ids) if broker >= first[0]), 0)
        assigned = assign_replicas(brokers, added, len(first), start, start, existing)
    else:
        if len(new.assignment) != added:
            raise InvalidReplicaAssignment(
                f"Increasing the number of partitions by {added} "
                f"but {len(new.assignment)} assignments provided."
            )
        _check_known([replica for replicas in new.assignment for replica in replicas], brokers)
        assigned = {
            existing + index: tuple(BrokerId(replica) for replica in replicas)
            for index, replicas in enumerate(new.assignment)
        }
    validate_assignment(assigned, existing)
    factor = len(topic.assignment[0].replicas)
    if any(len(replicas) != factor for replicas in assigned.values()):
        raise InvalidReplicaAssignment(
            f"Inconsistent replication factor between partitions: the topic has {factor} replicas of each."
        )
    return {number: Replicas(replicas) for number, replicas in assigned.items()}
