"""Metadata 0, which lists only reachable replicas, with an error if there are others.

If one failed, the oldest clients would connect to missing brokers, or take a partition with a leader for one
without.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.broker.context import Context, Request
from cluster.broker.handlers.metadata import _partition
from cluster.errors import NONE, LeaderNotAvailable, ListenerNotFound, ReplicaNotAvailable
from cluster.model import (
    NO_LEADER,
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

HERE, ELSEWHERE, GONE = BrokerId(0), BrokerId(1), BrokerId(2)
"""One broker with the client's listener, one with another, one that is not registered."""


def described(
    version: int, leader: BrokerId, replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...]
) -> list[Any]:
    brokers = {
        broker: BrokerInfo(broker, (Endpoint(listener, "localhost", 9092),))
        for broker, listener in ((HERE, "A"), (ELSEWHERE, "B"))
    }
    fake = SimpleNamespace(metadata=SimpleNamespace(brokers=brokers))
    fake.endpoint_of = lambda broker, listener: Context.endpoint_of(cast(Context, fake), broker, listener)
    request = cast(Request, SimpleNamespace(api_version=version, listener="A"))
    state = PartitionState(leader, LeaderEpoch(3), isr, ControllerEpoch(1))
    shown = _partition(
        cast(Context, fake), request, TopicInfo("t", NO_TOPIC_ID, {0: Replicas(replicas)}), 0, state
    )
    return [shown[name] for name in ("error_code", "leader_id", "replica_nodes", "isr_nodes")]


ALL = (HERE, ELSEWHERE, GONE)


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "expected"),
    [
        (HERE, (HERE,), (HERE,), [NONE, HERE, [HERE], [HERE]]),
        (HERE, ALL, (HERE,), [ReplicaNotAvailable.code, HERE, [HERE], [HERE]]),
        (HERE, ALL, ALL, [ReplicaNotAvailable.code, HERE, [HERE], [HERE]]),
        # A broker that a reassignment removes can be in the ISR without being a replica.
        (HERE, (HERE,), (GONE, HERE), [ReplicaNotAvailable.code, HERE, [HERE], [HERE]]),
        (ELSEWHERE, ALL, ALL, [LeaderNotAvailable.code, NO_LEADER, [HERE], [HERE]]),
        (GONE, ALL, (GONE,), [LeaderNotAvailable.code, NO_LEADER, [HERE], []]),
    ],
)
def test_the_oldest_version_lists_reachable_replicas(
    leader: BrokerId, replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...], expected: list[Any]
) -> None:
    assert described(0, leader, replicas, isr) == expected


@pytest.mark.parametrize("version", [1, 5, 12])
def test_later_versions_list_all_replicas(version: int) -> None:
    assert described(version, HERE, ALL, ALL) == [NONE, HERE, list(ALL), list(ALL)]
    missing = ListenerNotFound.code if version >= 6 else LeaderNotAvailable.code
    assert described(version, ELSEWHERE, ALL, ALL) == [missing, NO_LEADER, list(ALL), list(ALL)]
