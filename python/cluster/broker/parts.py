"""The parts of a broker that the metrics read, and its state.

The broker sets the fields on the event loop. The threads of the metrics listener read them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from prometheus_client import Histogram

if TYPE_CHECKING:
    from cluster.broker.replicas import MetadataCache
    from cluster.controller import Controller
    from cluster.groups import GroupCoordinator
    from cluster.replication import Replication
    from logcore._native import LoadProgress, Server


class BrokerState(IntEnum):
    """Kafka's `BrokerState`."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    SHUTTING_DOWN = 7


def _election_times() -> Histogram:
    return Histogram(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Milliseconds that the controller took for a change of the brokers, elections of leaders included.",
        buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000),
        registry=None,
    )


@dataclass(slots=True)
class Parts:
    """The parts of a broker; None before a part exists."""

    state: BrokerState = BrokerState.NOT_RUNNING
    loading: LoadProgress | None = None
    server: Server | None = None
    metadata: MetadataCache | None = None
    controller: Controller | None = None
    groups: GroupCoordinator | None = None
    replication: Replication | None = None
    election_times: Histogram = field(default_factory=_election_times)
    """Kafka's LeaderElectionRateAndTimeMs."""
    began: float = field(default_factory=time.monotonic)
