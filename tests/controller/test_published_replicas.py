"""The replicas that the data plane gets, with racks and listeners.

If one failed, it could send consumers to a broker without their listener, or to another rack.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cluster.controller import MetadataCache, PartitionSpec, ZooKeeper
from cluster.controller._actions import Executor, Logs
from cluster.controller.state import ControllerState, OpenPartitions
from cluster.model import (
    NO_TOPIC_ID,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicInfo,
)


class Told:
    """A data plane that records its calls."""

    def __init__(self) -> None:
        self.replicas: list[Any] = []

    def create_partition(self, spec: PartitionSpec) -> None:
        self.replicas = list(spec.replicas)


def test_the_data_plane_gets_racks_and_listeners() -> None:
    logs, metadata = Told(), MetadataCache("cluster")
    endpoints = (Endpoint("A", "localhost", 1), Endpoint("B", "localhost", 2))
    metadata.brokers = {
        BrokerId(0): BrokerInfo(BrokerId(0), endpoints, "near"),
        BrokerId(1): BrokerInfo(BrokerId(1), endpoints[:1]),
    }
    nothing = cast(Any, None)
    executor = Executor(cast(ZooKeeper, nothing), cast(Logs, logs), metadata, cast(ControllerState, nothing))
    three = tuple(BrokerId(number) for number in range(3))
    state = PartitionState(BrokerId(0), LeaderEpoch(0), three, ControllerEpoch(0))
    topic = TopicInfo("t", NO_TOPIC_ID, {0: Replicas(three)}, {0: state})
    asyncio.run(executor.run([OpenPartitions(topic, (0,), frozenset())]))
    assert logs.replicas == [(0, "near", ["A", "B"]), (1, None, ["A"]), (2, None, ())]
