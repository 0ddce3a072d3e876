"""Partitions with replicas on dead brokers, which Apache Kafka 3.9.1 left behind and serves beside our
broker.

If one failed, a record with acks=all would be acknowledged where Kafka refuses it, or refused where Kafka
acknowledges it; or requests for another broker's partitions would have another result.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from cluster.controller import znodes
from cluster.errors import NONE
from cluster.model import BrokerId, ControllerEpoch, LeaderEpoch, PartitionState, Replicas, new_topic_id
from tests.compat.apache import apache_kafka_in_place_of_ours, coordinator
from tests.compat.conftest import KafkaTools
from tests.compat.test_data_plane import NO_CREATION, NOW, Peer, batch, fetch, listing, neutral, produce
from tests.conftest import StartBroker
from tests.server.wire import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, PRODUCE

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

OFFSET_COMMIT, CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 8, 19, 44
OFFSETS = "__consumer_offsets"
THREE = tuple(BrokerId(number) for number in range(3))
LEAST = {"lax": 1, "two": 2, "three": 3, "shrunk": 2, "alone": 2}
"""`min.insync.replicas` by topic. All but the last have three replicas."""
ELSEWHERE = "elsewhere"
"""A topic that only broker 1 has."""
LEFT_IN_SYNC = {"lax": THREE, "two": THREE, "three": THREE[:2]}
"""The replicas that were in sync when all brokers stopped at once. Of the others only broker 0 is."""


def made(peer: Peer) -> None:
    leasts = LEAST | {OFFSETS: 1}
    topics = [
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": 0, "broker_ids": list(THREE if name != "alone" else THREE[:1])}
            ],
            "configs": [{"name": "min.insync.replicas", "value": str(least)}],
        }
        for name, least in leasts.items()
    ]
    answer = peer.ask(CREATE_TOPICS, 4, {"topics": topics, "timeout_ms": 30_000, "validate_only": False})
    assert isinstance(answer, dict)
    assert {topic["error_code"] for topic in answer["topics"]} == {0}, answer
    peer.wait(lambda: are_all(peer, "leader_id", 0))


def shown(peer: Peer, version: int = 8) -> dict[str, Any]:
    fields = NO_CREATION if version >= 4 else {}
    answer = peer.ask(METADATA, version, {"topics": [{"name": name} for name in LEAST], **fields})
    assert isinstance(answer, dict)
    described = {topic["name"]: topic["partitions"] for topic in answer["topics"]}
    # The number of epochs is the controller's own: Kafka's removes replicas from the ISR one by one.
    return {name: one | {"leader_epoch": 0} for name, partitions in described.items() for one in partitions}


def are_all(peer: Peer, field: str, value: Any) -> bool:
    """Of every topic's partition, also if a broker that has just started lacks some metadata."""
    found = shown(peer)
    return found.keys() == LEAST.keys() and all(partition[field] == value for partition in found.values())


def answers_of(peer: Peer) -> dict[str, Any]:
    """The metadata of the partitions, and the result of a batch for each."""
    peer.wait(lambda: are_all(peer, "isr_nodes", [0]))
    answers: dict[str, Any] = {"metadata": neutral(shown(peer)), "to the oldest": neutral(shown(peer, 0))}
    for name in LEAST:
        for acks in (-1, 1):
            body = produce(name, batch((b"k", b"v", NOW)), acks=acks)
            answers[f"{name} {acks}"] = neutral(peer.ask(PRODUCE, 9, body))
    answers["commits"] = commits(peer)
    answers["elsewhere"] = [elsewhere(peer, partition) for partition in (0, 1)]
    return answers


def elsewhere(peer: Peer, partition: int) -> list[Any]:
    """The result for a partition of another broker, which is dead, or that does not exist."""
    ended = [{"topic": ELSEWHERE, "partitions": [{"partition": partition, "leader_epoch": 0}]}]
    listed = listing(ELSEWHERE, -1)
    listed["topics"][0]["partitions"][0]["partition_index"] = partition
    read = {"partition": partition}
    answers = [
        peer.ask(PRODUCE, 9, produce(ELSEWHERE, batch((b"k", b"v", NOW)), partition=partition)),
        peer.ask(FETCH, 12, fetch(ELSEWHERE, read)),
        peer.ask(FETCH, 13, fetch(peer.topic_id(ELSEWHERE), read)),
        peer.ask(LIST_OFFSETS, 5, listed),
        peer.ask(OFFSET_FOR_LEADER_EPOCH, 3, {"topics": ended}),
    ]
    return [neutral(answer) for answer in answers]


def commits(peer: Peer) -> list[int]:
    """The results of commits while the offsets need one broker, and then two."""

    def code() -> int:
        partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        topics = [{"name": "lax", "partitions": [partition]}]
        answer = peer.ask(OFFSET_COMMIT, 2, {"group_id": "g", "topics": topics})
        assert isinstance(answer, dict)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    peer.wait(lambda: code() == NONE)
    configs = [{"name": "min.insync.replicas", "config_operation": 0, "value": "2"}]
    resources = [{"resource_type": 2, "resource_name": OFFSETS, "configs": configs}]
    asked = {"resources": resources, "validate_only": False}
    altered = peer.ask(INCREMENTAL_ALTER_CONFIGS, 0, asked)
    assert isinstance(altered, dict)
    assert altered["responses"][0]["error_code"] == NONE
    peer.wait(lambda: code() != NONE)
    return [code(), code()]


def all_go_at_once(address: str) -> None:
    client = KazooClient(hosts=address)
    client.start(30)
    try:
        for name, isr in LEFT_IN_SYNC.items():
            path = znodes.state_path(name, 0)
            data, stat = client.get(path)
            state = znodes.decode_state(name, 0, data, stat.version)
            left = replace(state, leader_epoch=LeaderEpoch(state.leader_epoch + 1), isr=isr)
            client.set(path, znodes.encode_state(left))
        gone = PartitionState(BrokerId(1), LeaderEpoch(3), (BrokerId(1),), ControllerEpoch(1))
        assignment = {0: Replicas((BrokerId(1),))}
        client.create(znodes.topic_path(ELSEWHERE), znodes.encode_topic(new_topic_id(), assignment))
        client.create(znodes.state_path(ELSEWHERE, 0), znodes.encode_state(gone), makepath=True)
    finally:
        client.stop()
        client.close()


def test_replicas_in_sync_are_answered_alike(
    tmp_path: Path, start_broker: StartBroker, kafka_tools: KafkaTools
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    start_broker(data).stop()
    with apache_kafka_in_place_of_ours(tmp_path / "maker", data) as kafka:
        peer = Peer(kafka.bootstrap)
        made(peer)
        peer.close()
        kafka.stop()
    with coordinator(data / "coordinator") as port:
        all_go_at_once(f"127.0.0.1:{port}")
    shutil.copytree(data, copy)
    with apache_kafka_in_place_of_ours(tmp_path / "apache", copy) as kafka:
        peer = Peer(kafka.bootstrap)
        apache = answers_of(peer)
        peer.close()
        kafka.stop()
    broker = start_broker(data)
    peer = Peer(broker.bootstrap)
    ours = answers_of(peer)
    peer.close()
    assert ours == apache
