"""The data of a consumer group's members. Immutable values, so that a change can be undone.

Source: ConsumerGroupMember, MemberState, ConsumerGroupMember's records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from cluster.groups.assignors import Assignment
from cluster.groups.messages import Protocols
from cluster.model import TopicId

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The epochs of heartbeats that join, leave, and leave while the instance id keeps its partitions."""


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment, with the numbers in its record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has partitions that it must give up before it gets another epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not given up."""
    UNKNOWN = 127
    """A version of Kafka that is not known wrote it."""


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What a member that uses the classic protocol has in addition."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member is and wants to read (ConsumerGroupMemberMetadataValue)."""

    instance: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has (ConsumerGroupCurrentMemberAssignmentValue)."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)
    """Partitions that it must give up. It has them until it says that it does not."""


class Topic(NamedTuple):
    """A topic that a group reads, as its last target assignment saw it."""

    id: TopicId
    partitions: int


class Resolved(NamedTuple):
    """The topics that a regular expression matched (ConsumerGroupRegularExpressionValue)."""

    topics: frozenset[str]
    version: int
    """Kafka's version of the cluster's metadata; here the time."""
    timestamp_ms: int


Topics = Mapping[str, Topic]
"""By name."""
