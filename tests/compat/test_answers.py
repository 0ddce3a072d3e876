"""The responses of Python's handlers, compared with Apache Kafka 3.9.1.

Every request goes to both brokers. The responses are compared field by field, without error texts and fields
that differ between brokers. If one failed, a client would get another result than from Kafka for topics that
it names wrongly, twice or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.errors import InvalidRequest
from logcore._native import api_keys
from tests.compat.apache import apache_kafka
from tests.compat.conftest import KafkaTools
from tests.compat.test_data_plane import Both, Message, Peer, differences
from tests.conftest import BrokerProcess
from tests.server.wire import METADATA

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

KEYS = api_keys()
CREATE_TOPICS, DELETE_TOPICS = KEYS["CreateTopics"], KEYS["DeleteTopics"]
FIND_COORDINATOR, INIT_PRODUCER_ID = KEYS["FindCoordinator"], KEYS["InitProducerId"]
NO_ID = bytes(16)
NOBODYS_ID = b"9" * 16
INVALID_REQUEST = InvalidRequest.code
OF_A_BROKER = frozenset(
    {
        "error_message",
        "configs",
        "host",
        "port",
        "cluster_id",
        "throttle_time_ms",
        "partitions",
        "producer_id",
    }
)


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools, broker: BrokerProcess
) -> Iterator[Both]:
    with apache_kafka(tmp_path_factory.mktemp("apache"), {"auto.create.topics.enable": "false"}) as kafka:
        kafka.start()
        peers = Both(Peer(broker.bootstrap), Peer(kafka.bootstrap))
        for peer in peers.peers:
            peer.create("there", {})
        yield peers
        for peer in peers.peers:
            peer.close()


def without_words(answer: Any, ids: dict[bytes, str]) -> Any:
    """The response without fields that differ between brokers, and with names for ids."""
    if isinstance(answer, dict):
        kept = {name: value for name, value in answer.items() if name not in OF_A_BROKER}
        return {name: without_words(value, ids) for name, value in kept.items()}
    if isinstance(answer, list):
        return [without_words(one, ids) for one in answer]
    if isinstance(answer, bytes):
        return ids.get(answer, "another" if any(answer) else answer)
    return answer


def alike(both: Both, key: int, version: int, *bodies: Message) -> Any:
    """The response, which must be the same from both. `bodies` is one for both, or ours and Kafka's."""
    answers = []
    for peer, body in zip(both.peers, bodies * 2, strict=False):
        ids = {value: name for name, value in body.pop("ids", {}).items()}
        answers.append(without_words(peer.ask(key, version, body), ids))
    assert not differences(*answers)
    return answers[0]


def creation(*names: str, timeout_ms: int = 30_000) -> Message:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": timeout_ms}


def codes(answer: Message, what: str = "topics") -> list[tuple[str | None, int]]:
    return [(item["name"], item["error_code"]) for item in answer[what]]


@pytest.mark.parametrize("version", [0, 1, 4])
def test_a_creation_is_answered_as_often_as_it_is_named(both: Both, version: int) -> None:
    named = ["twice", f"once{version}", "twice", "there", "", "__cluster_metadata", "__cluster_metadata"]
    answer = alike(both, CREATE_TOPICS, version, creation(*named))
    assert codes(answer) == list(zip(named, (42, 0, 42, 36, 17, 42, 42), strict=True))


@pytest.mark.parametrize("version", [5, 7])
def test_newer_creations_are_answered_the_same(both: Both, version: int) -> None:
    answer = alike(both, CREATE_TOPICS, version, creation("again", "", "again", "__cluster_metadata"))
    assert [code for _, code in codes(answer)] == [42, 17, 42, 42]


def test_krafts_topic_is_not_created(both: Both) -> None:
    assert codes(alike(both, CREATE_TOPICS, 4, creation("__cluster_metadata"))) == [
        ("__cluster_metadata", INVALID_REQUEST)
    ]
    assert all(peer.topic_id("__cluster_metadata") == NO_ID for peer in both.peers)


@pytest.mark.parametrize("version", [0, 4, 7])
def test_a_creation_without_a_timeout_gets_its_errors(both: Both, version: int) -> None:
    named = [f"soon{version}", "not a name", "there"]
    answer = alike(both, CREATE_TOPICS, version, creation(*named, timeout_ms=0))
    assert codes(answer) == list(zip(named, (7, 17, 36), strict=True))


@pytest.mark.parametrize("version", [0, 3, 5])
def test_a_deletion_is_answered_as_often_as_it_is_named(both: Both, version: int) -> None:
    name = f"gone{version}"
    for peer in both.peers:
        peer.create(name, {})
    named = ["nowhere", name, "nowhere", name, ""]
    answer = alike(both, DELETE_TOPICS, version, {"topic_names": named, "timeout_ms": 30_000})
    assert codes(answer, "responses") == list(zip(named, (3, 0, 3, 0, 3), strict=True))


def deletion(*named: tuple[str | None, bytes]) -> Message:
    return {
        "topics": [{"name": name, "topic_id": topic_id} for name, topic_id in named],
        "timeout_ms": 30_000,
    }


def test_a_deletion_names_a_topic_by_its_name_or_its_id(both: Both) -> None:
    bodies = []
    for peer in both.peers:
        peer.create("named", {})
        peer.create("identified", {})
        topic_id = peer.topic_id("identified")
        body = deletion(
            (None, NO_ID),
            (None, topic_id),
            ("named", NO_ID),
            (None, topic_id),
            ("identified", NO_ID),
            (None, NOBODYS_ID),
            (None, NO_ID),
            ("named", NO_ID),
            ("nowhere", NO_ID),
        )
        bodies.append(body | {"ids": {"identified": topic_id}})
    answer = alike(both, DELETE_TOPICS, 6, *bodies)
    assert [code for _, code in codes(answer, "responses")] == [29, 0, 0, 0, 0, 100, 29, 0, 3]


def test_a_deletion_with_a_name_and_an_id_is_refused_as_a_whole(both: Both) -> None:
    bodies = []
    for peer in both.peers:
        peer.create("kept", {})
        topic_id = peer.topic_id("kept")
        body = deletion(("kept", NO_ID), ("kept", topic_id), ("kept", NO_ID), (None, NOBODYS_ID))
        bodies.append(body | {"ids": {"kept": topic_id}})
    answer = alike(both, DELETE_TOPICS, 6, *bodies)
    assert [code for _, code in codes(answer, "responses")] == [INVALID_REQUEST] * 4
    assert all(peer.topic_id("kept") != NO_ID for peer in both.peers)


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
@pytest.mark.parametrize("asked", [False, True])
def test_authorized_operations_are_answered_for_each_name(both: Both, version: int, asked: bool) -> None:
    for name in ("there", "nowhere", "not a name", "", "..", "__cluster_metadata"):
        topic = {"name": name} if version < 10 else {"name": name, "topic_id": NO_ID}
        ids = [{"there": peer.topic_id("there")} for peer in both.peers]
        body = {
            "topics": [topic],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": asked,
        }
        answer = alike(both, METADATA, version, *(body | {"ids": known} for known in ids))
        assert (answer["topics"][0]["topic_authorized_operations"] > 0) == asked
    if version == 12:
        topic = {"name": None, "topic_id": NOBODYS_ID}
        body = {"topics": [topic], "include_topic_authorized_operations": asked}
        assert alike(both, METADATA, version, body)["topics"][0]["topic_authorized_operations"] < 0


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producers_id_and_epoch_come_together(both: Both, version: int) -> None:
    for producer_id, epoch in ((-1, 3), (5, -1)):
        for transactional_id in (None, "", "t"):
            body = {
                "transactional_id": transactional_id,
                "transaction_timeout_ms": 1000,
                "producer_id": producer_id,
                "producer_epoch": epoch,
            }
            assert alike(both, INIT_PRODUCER_ID, version, body)["error_code"] == INVALID_REQUEST


@pytest.mark.parametrize("version", [1, 3, 4, 6])
def test_a_group_without_a_name_has_a_coordinator(both: Both, version: int) -> None:
    body: Message = {"key": ""} if version < 4 else {"coordinator_keys": ["", ""]}
    for peer in both.peers:
        # Kafka begins to create the topic of the groups at the first request.
        peer.wait(lambda peer=peer: "'error_code': 15" not in str(peer.ask(FIND_COORDINATOR, version, body)))
    answer = alike(both, FIND_COORDINATOR, version, body)
    found = answer["coordinators"] if version >= 4 else [answer]
    assert [item["error_code"] for item in found] == [0] * len(found)
