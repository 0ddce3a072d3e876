"""Checks of new topics. If one failed, a client's mistake would make a broken topic or get a wrong error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cluster.controller.names import TopicNames, validate_topic_name
from cluster.controller.topics import NewPartitions, NewTopic, TopicDefaults, plan_partitions, plan_topic
from cluster.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    KafkaProtocolError,
    ReassignmentInProgress,
    TopicAlreadyExists,
)
from cluster.model import BrokerId, BrokerInfo, Replicas, TopicInfo, new_topic_id

ONE = BrokerId(1)
BROKERS = [BrokerInfo(ONE, ())]


def check(config: Mapping[str, str]) -> None:
    if "bad" in config:
        raise InvalidConfig("bad")


DEFAULTS = TopicDefaults(3, 1, check)


def plan(new: NewTopic) -> dict[int, Replicas]:
    return plan_topic(new, BROKERS, TopicNames(["there", "a.b"]), DEFAULTS, 0, 0).assignment


def test_the_brokers_defaults() -> None:
    assert plan(NewTopic("t")) == {number: Replicas((ONE,)) for number in range(3)}
    assert len(plan(NewTopic("t", partitions=5))) == 5
    assert plan(NewTopic("t", assignment={0: [1]})) == {0: Replicas((ONE,))}


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("there"), TopicAlreadyExists),
        (NewTopic("a_b"), InvalidTopicException),
        (NewTopic("t", 0), InvalidPartitions),
        (NewTopic("t", -2), InvalidPartitions),
        (NewTopic("t", 2**31 - 1), InvalidPartitions),
        (NewTopic("t", 1, 2), InvalidReplicationFactor),
        (NewTopic("t", 1, 0), InvalidReplicationFactor),
        (NewTopic("t", 1, assignment={0: [1]}), InvalidRequest),
        (NewTopic("t", assignment={0: [2]}), InvalidReplicaAssignment),
        (NewTopic("t", assignment={1: [1]}), InvalidReplicaAssignment),
        (NewTopic("t", config={"a": None}), InvalidConfig),
        (NewTopic("t", config={"bad": "x"}), InvalidConfig),
    ],
)
def test_refusals(new: NewTopic, error: type[KafkaProtocolError]) -> None:
    with pytest.raises(error):
        plan(new)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ü", "a\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidTopicException):
        validate_topic_name(name)


@pytest.mark.parametrize("name", ["a", "x" * 249, "A-z_0.9", "__consumer_offsets", "..."])
def test_good_names(name: str) -> None:
    validate_topic_name(name)


TOPIC = TopicInfo("t", new_topic_id(), {0: Replicas((ONE,)), 1: Replicas((ONE,))})


def test_partitions_are_added_after_the_existing_ones() -> None:
    assert plan_partitions(NewPartitions("t", 4), TOPIC, BROKERS) == {
        2: Replicas((ONE,)),
        3: Replicas((ONE,)),
    }
    assert plan_partitions(NewPartitions("t", 3, [[1]]), TOPIC, BROKERS) == {2: Replicas((ONE,))}


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewPartitions("t", 1), InvalidPartitions),
        (NewPartitions("t", 2), InvalidPartitions),
        (NewPartitions("t", 2**31 - 1), InvalidPartitions),
        (NewPartitions("t", 3, [[1], [1]]), InvalidReplicaAssignment),
        (NewPartitions("t", 3, [[9]]), InvalidReplicaAssignment),
        (NewPartitions("t", 3, [[]]), InvalidReplicaAssignment),
    ],
)
def test_invalid_partitions(new: NewPartitions, error: type[KafkaProtocolError]) -> None:
    with pytest.raises(error):
        plan_partitions(new, TOPIC, BROKERS)


def test_no_partitions_during_a_reassignment() -> None:
    moving = TopicInfo("t", TOPIC.id, {0: Replicas((ONE,), adding=(BrokerId(2),))})
    with pytest.raises(ReassignmentInProgress):
        plan_partitions(NewPartitions("t", 4), moving, BROKERS)
