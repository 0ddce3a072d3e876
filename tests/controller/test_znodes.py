"""Kafka's znodes. If one failed, Apache Kafka and this broker would not understand each other's data in the
coordinator.
"""

from __future__ import annotations

import json

import pytest

from cluster.controller import znodes
from cluster.model import (
    NO_TOPIC_ID,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicPartition,
    new_topic_id,
    parse_topic_id,
    topic_id_text,
)

ONE = BrokerId(1)


def test_broker() -> None:
    endpoints = (Endpoint("CLIENT", "host1", 9092, "PLAINTEXT"), Endpoint("SAFE", "host1", 9093, "SSL"))
    info = BrokerInfo(ONE, endpoints, "dc1", 42)
    data = znodes.encode_broker(info, 2233345666)
    assert json.loads(data) == {
        "version": 5,
        "host": "host1",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "2233345666",
        "endpoints": ["CLIENT://host1:9092", "SAFE://host1:9093"],
        "listener_security_protocol_map": {"CLIENT": "PLAINTEXT", "SAFE": "SSL"},
        "rack": "dc1",
        "features": {},
    }
    assert b" " not in data
    assert znodes.decode_broker(ONE, data, 42) == info


@pytest.mark.parametrize(
    "text",
    [
        '{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"1"}',
        '{"version":2,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"1",'
        '"endpoints":["PLAINTEXT://localhost:9092"]}',
    ],
)
def test_brokers_of_older_versions(text: str) -> None:
    assert znodes.decode_broker(ONE, text.encode(), 0).endpoints == (
        Endpoint("PLAINTEXT", "localhost", 9092),
    )


def test_topic() -> None:
    topic_id = new_topic_id()
    assignment = {0: Replicas((ONE,)), 10: Replicas((ONE, BrokerId(2)), adding=(BrokerId(2),))}
    data = znodes.encode_topic(topic_id, assignment)
    assert json.loads(data) == {
        "version": 3,
        "topic_id": topic_id_text(topic_id),
        "partitions": {"0": [1], "10": [1, 2]},
        "adding_replicas": {"10": [2]},
        "removing_replicas": {},
    }
    assert znodes.decode_topic("t", data) == (topic_id, assignment)
    assert znodes.decode_topic("t", b'{"version":1,"partitions":{"0":[1]}}') == (
        NO_TOPIC_ID,
        {0: Replicas((ONE,))},
    )


def test_state() -> None:
    state = PartitionState(ONE, LeaderEpoch(3), (ONE,), ControllerEpoch(4), zk_version=7)
    data = znodes.encode_state(state)
    assert json.loads(data) == {
        "version": 1,
        "leader": 1,
        "leader_epoch": 3,
        "isr": [1],
        "controller_epoch": 4,
    }
    assert znodes.decode_state("t", 0, data, 7) == state


def test_requests_of_old_tools() -> None:
    wanted = {TopicPartition("t", 0): (ONE, BrokerId(2)), TopicPartition("u", 3): (ONE,)}
    data = znodes.encode_reassignments(wanted)
    assert json.loads(data) == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [1, 2]},
            {"topic": "u", "partition": 3, "replicas": [1]},
        ],
    }
    assert znodes.decode_reassignments(data) == wanted
    text = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"u","partition":3}]}'
    assert znodes.decode_preferred_election(text) == list(wanted)
    for bad in (b"", b"7", b"{}", b'{"partitions":7}', b'{"partitions":[{"topic":"t"}]}'):
        with pytest.raises(znodes.ZnodeError):
            znodes.decode_reassignments(bad)
        with pytest.raises(znodes.ZnodeError):
            znodes.decode_preferred_election(bad)


def test_the_small_znodes() -> None:
    assert json.loads(znodes.encode_config({"a": "b"})) == {"version": 1, "config": {"a": "b"}}
    assert znodes.decode_config("/x", None) == {}
    assert znodes.decode_config_change("/x", znodes.encode_config_change("topics/t")) == "topics/t"
    assert (
        znodes.decode_config_change("/x", b'{"version":1,"entity_type":"topics","entity_name":"t"}')
        == "topics/t"
    )
    assert znodes.decode_controller(znodes.encode_controller(ONE, 5)) == 1
    assert json.loads(znodes.encode_cluster_id("abc")) == {"version": "1", "id": "abc"}
    assert znodes.decode_cluster_id(znodes.encode_cluster_id("abc")) == "abc"
    block = znodes.encode_producer_id_block(1, 2000, 2999)
    assert json.loads(block) == {"version": 1, "broker": 1, "block_start": "2000", "block_end": "2999"}
    assert znodes.decode_producer_id_block(block) == (1, 2000, 2999)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"partitions":[]}', b'{"partitions":{"x":[1]}}', b"\xff"]
)
def test_unreadable_data_is_named(data: bytes) -> None:
    with pytest.raises(znodes.ZnodeError, match="/brokers/topics/t cannot be read"):
        znodes.decode_topic("t", data)


def test_topic_ids_as_text() -> None:
    topic_id = new_topic_id()
    assert parse_topic_id(topic_id_text(topic_id)) == topic_id
    assert topic_id_text(NO_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAA"
    with pytest.raises(ValueError, match="not a topic id"):
        parse_topic_id("short")


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("alice", "alice"),
        ("CN=a b,O=*", "CN%3Da%20b%2CO%3D%2A"),
        ("x~y_z-1.2", "x%7Ey_z-1.2"),
        ("1+1=2", "1%2B1%3D2"),
        ("<default>", "%3Cdefault%3E"),
        ("füß/1", "f%C3%BC%C3%9F%2F1"),
    ],
)
def test_user_and_client_names_as_znodes(name: str, node: str) -> None:
    assert znodes.sanitize(name) == node
    assert znodes.desanitize(node) == name


@pytest.mark.parametrize(
    "replicas", ["[3000000000]", "[-3000000000]", "[Infinity]", "[NaN]", '"012"', "[[0]]", "[" * 100_000]
)
def test_replicas_that_no_request_can_hold_are_refused(replicas: str) -> None:
    """Otherwise no LeaderAndIsr could be sent any more to the brokers of such a partition."""
    asked = f'{{"version":1,"partitions":[{{"topic":"t","partition":0,"replicas":{replicas}}}]}}'
    with pytest.raises(znodes.ZnodeError):
        znodes.decode_reassignments(asked.encode())
    with pytest.raises(znodes.ZnodeError):
        znodes.decode_topic("t", f'{{"version":1,"partitions":{{"0":{replicas}}}}}'.encode())
    state = f'{{"leader":0,"leader_epoch":0,"isr":{replicas},"controller_epoch":1,"version":1}}'
    with pytest.raises(znodes.ZnodeError):
        znodes.decode_state("t", 0, state.encode(), 0)
