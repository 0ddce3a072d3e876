"""The order of the controller's requests to one broker.

If one failed, Apache Kafka's broker would not follow a leader that it does not know to be alive, and a broker
that starts would answer clients before it has its partitions.
"""

from __future__ import annotations

from cluster.controller.requests import (
    LEADER_AND_ISR,
    STOP_REPLICA,
    UPDATE_METADATA,
    Pending,
    Request,
    published,
)
from cluster.model import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicInfo,
    new_topic_id,
)

ONE = BrokerId(1)
STATE = PartitionState(ONE, LeaderEpoch(0), (ONE,), ControllerEpoch(1))
TOPIC = TopicInfo("t", new_topic_id(), {0: Replicas((ONE,))}, {0: STATE})


def filled() -> Pending:
    """Everything that a broker may be sent at once."""
    pending = Pending()
    pending.stop(TOPIC, 0, delete=False)
    pending.lead(TOPIC, 0, new=True)
    pending.publish("t", published(TOPIC, {0: ()}))
    pending.brokers_changed()
    return pending


def taken(pending: Pending) -> list[tuple[int, list[str]]]:
    """Every request's API and topics."""
    requests: list[Request] = []
    while (request := pending.take()) is not None:
        requests.append(request)
    return [(request.api_key, list(request.topics)) for request in requests]


def test_a_broker_that_starts_gets_brokers_and_metadata_before_its_partitions() -> None:
    assert taken(filled()) == [(UPDATE_METADATA, ["t"]), (LEADER_AND_ISR, ["t"]), (STOP_REPLICA, ["t"])]


def test_a_broker_that_did_not_answer_the_first_request_gets_all_of_it_again() -> None:
    pending = filled()
    first = pending.take()
    assert first is not None
    pending.put_back(first)
    assert taken(pending)[0] == (UPDATE_METADATA, ["t"])


def test_later_changed_brokers_go_before_leaders_and_metadata_after_them() -> None:
    pending = filled()
    taken(pending)
    pending.publish("t", published(TOPIC, {0: ()}))
    pending.lead(TOPIC, 0, new=False)
    pending.brokers_changed()
    assert taken(pending) == [(UPDATE_METADATA, []), (LEADER_AND_ISR, ["t"]), (UPDATE_METADATA, ["t"])]
