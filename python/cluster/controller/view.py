"""What the parts of the controller's state machine see of the whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cluster.model import (
    NO_LEADER,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    TopicInfo,
)

UNREADABLE = PartitionState(NO_LEADER, LeaderEpoch(-1), (), ControllerEpoch(-1))
"""The state of a partition whose znode cannot be read. It has no leader, and its znode is not written."""


class View(Protocol):
    """The cluster as the controller knows it. Elections and reassignments change its topics in place."""

    @property
    def epoch(self) -> ControllerEpoch:
        """This controller's epoch."""

    @property
    def registered(self) -> Mapping[BrokerId, BrokerInfo]:
        """The brokers that have a registration."""

    @property
    def shutting_down(self) -> set[BrokerId]:
        """Brokers that asked for a controlled shutdown."""

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """The topics by name."""

    def is_alive(self, broker: BrokerId) -> bool:
        """The broker is registered and reachable."""

    def is_online(self, topic: str, number: int, broker: BrokerId) -> bool:
        """The broker is alive, and its log directory of the partition has not failed."""

    def topics_on_failed_disks(self) -> set[str]:
        """The topics with replicas in failed log directories."""

    def may_lead(self, topic: str, number: int, broker: BrokerId) -> bool:
        """The broker's replica is online, and the broker does not shut down."""

    def is_withdrawn(self, topic: str) -> bool:
        """The topic is not served any more, because it is being deleted."""

    def is_deleted(self, topic: str) -> bool:
        """The deletion of the topic was requested."""

    def elects_uncleanly(self, topic: TopicInfo) -> bool:
        """A replica outside the ISR may lead the topic's partitions."""
