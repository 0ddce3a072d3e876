"""Requests and results of consumer groups. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.errors import NONE
from cluster.groups.assignors import ASSIGNORS, Assignment
from cluster.groups.consumer.values import Current, Subscription, Topic
from cluster.model import TopicId


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """The broker's settings for groups of the consumer protocol (`group.consumer.*`)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    """The first one is the default."""
    upgrade: bool = True
    """A heartbeat of the consumer protocol converts a classic group with members."""
    downgrade: bool = True
    """A group whose last member of the consumer protocol leaves becomes classic."""


class ClusterTopics(Protocol):
    """The topics of the cluster, as this broker sees them."""

    @property
    def version(self) -> int:
        """A number that grows with each topic that appears, goes or grows."""

    def topic(self, name: str) -> Topic | None:
        """The topic of that name."""

    def name_of(self, topic_id: TopicId) -> str | None:
        """The name of the topic with that id."""

    def matching(self, regex: str) -> frozenset[str]:
        """The names that a regular expression matches as a whole. Raises InvalidRegularExpression."""


class NoTopics:
    """A cluster without topics."""

    version = 0

    def topic(self, name: str) -> Topic | None:
        """None."""

    def name_of(self, topic_id: TopicId) -> str | None:
        """None."""

    def matching(self, regex: str) -> frozenset[str]:
        """No names."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """ConsumerGroupHeartbeat. A field of None did not change since the member's last heartbeat."""

    group: str
    member: str
    epoch: int
    instance: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    """Empty ends the subscription to a regular expression."""
    assignor: str | None = None
    owned: Assignment | None = None
    """The partitions that the member has."""
    client_id: str = ""
    client_host: str = ""
    knows_its_id: bool = True
    """From version 1 on, members make their ids."""

    @property
    def is_full(self) -> bool:
        """The member sent all fields, so it wants its whole assignment."""
        subscribed = self.topics is not None or self.regex is not None
        return self.epoch == 0 or (self.rebalance_timeout_ms != -1 and subscribed and self.owned is not None)


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The response to Heartbeat. `assignment` is None if it did not change."""

    error: int = NONE
    message: str | None = None
    member: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class ConsumerMemberView:
    """A member in ConsumerGroupDescribe."""

    id: str
    subscription: Subscription
    current: Current
    target: Assignment


@dataclass(frozen=True, slots=True)
class ConsumerGroupView:
    """A group in ConsumerGroupDescribe."""

    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]
