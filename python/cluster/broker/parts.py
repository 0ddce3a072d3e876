"""The parts of a broker that the metrics read, and its state.

The broker sets the fields on the event loop. The threads of the metrics listener read them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

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
    began: float = field(default_factory=time.monotonic)
