"""The replicas that the data plane gets, with racks and listeners.

If one failed, it could send consumers to a broker without their listener, or to another rack.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cluster.broker.replicas import Logs, MetadataCache, PartitionSpec, ReplicaManager, TopicConfigs
from cluster.controller.requests import (
    LEADER_AND_ISR,
    UPDATE_METADATA,
    LiveBrokers,
    Pending,
    Sender,
    body_of,
    published,
)
from cluster.model import (
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicInfo,
    new_topic_id,
)

ZERO, ONE, TWO = BrokerId(0), BrokerId(1), BrokerId(2)


class DataPlane:
    """A data plane that records its calls."""

    def __init__(self) -> None:
        self.replicas: list[Any] = []
        self.brokers: list[tuple[int, str, int]] = []

    def create_partition(self, spec: PartitionSpec) -> None:
        self.replicas = list(spec.replicas)

    def set_brokers(self, brokers: list[tuple[int, str, int]]) -> None:
        self.brokers = brokers

    def know_topic(self, *_args: object) -> None:
        return


class NoSettings:
    """Topics without settings of their own."""

    async def get(self, _topic: str) -> dict[str, str]:
        return {}

    def known(self, _topic: str) -> dict[str, str]:
        return {}


class NoReplication:
    """Nobody decides about in-sync replicas."""

    def leads(self, *_args: object) -> None:
        return

    def follows(self, *_args: object) -> None:
        return

    def isr(self, _partition: object) -> None:
        return None

    def on_give_up(self, _callback: object) -> None:
        return


async def failed() -> None:
    raise AssertionError


def test_the_data_plane_gets_racks_listeners_and_addresses() -> None:
    logs, nothing = DataPlane(), cast(TopicConfigs, NoSettings())
    manager = ReplicaManager(
        cast(Logs, logs), MetadataCache("cluster"), nothing, ZERO, "A", failed, NoReplication()
    )
    endpoints = (Endpoint("A", "localhost", 1), Endpoint("B", "localhost", 2))
    brokers = {ZERO: BrokerInfo(ZERO, endpoints, "near"), ONE: BrokerInfo(ONE, endpoints[:1])}
    three = (ZERO, ONE, TWO)
    state = PartitionState(ZERO, LeaderEpoch(0), three, ControllerEpoch(1))
    topic = TopicInfo("t", new_topic_id(), {0: Replicas(three)}, {0: state})
    pending, sender = Pending(), Sender(ONE, 1, -1)
    pending.lead(topic, 0, new=True)
    pending.publish("t", published(topic, {0: [TWO]}))

    async def send() -> list[int]:
        keys = []
        while (request := pending.take()) is not None:
            keys.append(request.api_key)
            answer = await manager.request(
                request.api_key, 0, body_of(request, sender, LiveBrokers(brokers.values()), "A")
            )
            assert answer["error_code"] == 0
        return keys

    assert asyncio.run(send()) == [LEADER_AND_ISR, UPDATE_METADATA]
    assert logs.replicas == [(0, "near", ["A", "B"]), (1, None, ["A"]), (2, None, ())]
    assert logs.brokers == [(1, "localhost", 1)]
