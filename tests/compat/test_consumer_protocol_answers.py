"""ConsumerGroupHeartbeat, ConsumerGroupDescribe and the requests around them, beside Apache Kafka 4.1.0.

Each request goes to both brokers. If one failed, a client of the consumer protocol would get another error,
epoch or assignment than from Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from logcore._native import api_keys
from tests.compat.kraft import kraft
from tests.compat.load import until
from tests.compat.test_data_plane import Peer, differences
from tests.conftest import BrokerProcess

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

KEYS = api_keys()
BEAT, DESCRIBE = KEYS["ConsumerGroupHeartbeat"], KEYS["ConsumerGroupDescribe"]
FIND, COMMIT, FETCH = KEYS["FindCoordinator"], KEYS["OffsetCommit"], KEYS["OffsetFetch"]
TOPIC = "there"
"""It has two partitions."""

Answer = dict[str, Any]


class Pair:
    """Ours and Apache Kafka."""

    def __init__(self, ours: Peer, apache: Peer) -> None:
        self.peers = (ours, apache)
        self.ids = [peer.topic_id(TOPIC) for peer in self.peers]

    def same(self, key: int, version: int, body: dict[str, Any]) -> Any:
        """The response, which must be the same from both. T in a request stands for the topic's id."""
        answers = []
        for peer, topic_id in zip(self.peers, self.ids, strict=True):
            answers.append(neutral(peer.ask(key, version, put(body, topic_id)), topic_id))
        assert not differences(*answers)
        return answers[0]

    def beat(self, version: int = 1, **fields: Any) -> Answer:
        """A heartbeat. `owned`: its partitions of the topic."""
        owned = fields.pop("owned", None)
        if owned is not None:
            partitions = [{"topic_id": "T", "partitions": owned}] if owned else []
            fields["topic_partitions"] = partitions
        body = {"group_id": "g", "member_id": "a", "member_epoch": 0, **fields}
        return self.same(BEAT, version, body)  # type: ignore[no-any-return]

    def join(self, version: int = 1, **fields: Any) -> Answer:
        """A heartbeat that joins."""
        names = [TOPIC] if "subscribed_topic_regex" not in fields else None
        every = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": names, "owned": [], **fields}
        return self.beat(version, **every)

    def group(self, name: str) -> None:
        """Both have the coordinator of the group."""
        body = {"key_type": 0, "coordinator_keys": [name]}
        for peer in self.peers:

            def found(peer: Peer = peer) -> bool:
                answer = peer.ask(FIND, 4, body)
                return isinstance(answer, dict) and answer["coordinators"][0]["error_code"] == 0

            until(found, "the coordinator")
            until(lambda peer=peer: loaded(peer, name), "the groups are loaded")


def loaded(peer: Peer, group: str) -> bool:
    answer = peer.ask(DESCRIBE, 1, {"group_ids": [group]})
    return isinstance(answer, dict) and answer["groups"][0]["error_code"] == 69


def put(body: Any, topic_id: bytes) -> Any:
    if isinstance(body, dict):
        return {name: put(value, topic_id) for name, value in body.items()}
    if isinstance(body, list):
        return [put(each, topic_id) for each in body]
    return topic_id if body == "T" else body


def neutral(answer: Any, topic_id: bytes) -> Any:
    """The response without texts and ids that differ."""
    if isinstance(answer, dict):
        return {
            name: neutral(value, topic_id)
            for name, value in sorted(answer.items(), key=lambda item: (item[0] != "member_id", item[0]))
            if name not in ("error_message", "throttle_time_ms", "client_host")
        }
    if isinstance(answer, list):
        # Kafka has members and partitions in the order of a hash table.
        return sorted((neutral(each, topic_id) for each in answer), key=str)
    return "T" if answer == topic_id else answer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess) -> Iterator[Pair]:
    with kraft(tmp_path_factory.mktemp("kraft")) as address:
        peers = Peer(broker.bootstrap), Peer(address)
        for peer in peers:
            peer.create(TOPIC, {})
        yield Pair(*peers)
        for peer in peers:
            peer.close()


BAD = [
    {"member_epoch": 0},
    {"member_epoch": 0, "rebalance_timeout_ms": 1000, "owned": []},
    {"member_epoch": 0, "subscribed_topic_names": ["there"], "owned": []},
    {"member_epoch": 0, "rebalance_timeout_ms": 1000, "subscribed_topic_names": ["there"]},
    {"member_epoch": 0, "rebalance_timeout_ms": 1000, "subscribed_topic_names": ["there"], "owned": [0]},
    {"member_epoch": 1},
    {"member_epoch": -1},
    {"member_epoch": -2},
    {"member_epoch": -2, "instance_id": "i"},
    {"member_epoch": -3},
    {"member_epoch": 5, "instance_id": ""},
    {"member_epoch": 5, "rack_id": ""},
    {"member_epoch": 5, "member_id": ""},
    {"member_epoch": 0, "group_id": ""},
    {"member_epoch": 5, "server_assignor": "sticky"},
    {
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_regex": "(",
        "owned": [],
    },
]


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (version, each)
        for version in (0, 1)
        for each in BAD
        if version or "subscribed_topic_regex" not in each
    ],
)
def test_bad_heartbeats_get_the_same_errors(pair: Pair, version: int, fields: dict[str, Any]) -> None:
    group = f"bad{version}"
    pair.group(group)
    assert pair.beat(version, **{"group_id": group, **fields})["error_code"] != 0


def test_a_groups_life_is_the_same(pair: Pair) -> None:
    """Joins, revocation, fencing, static members, offsets, leaving: each response, field by field."""
    group = {"group_id": "life"}
    pair.group("life")
    a, b = {**group, "member_id": "a"}, {**group, "member_id": "b", "instance_id": "i"}
    assert pair.join(**a)["assignment"]["topic_partitions"][0]["partitions"] == [0, 1]
    pair.beat(**a, member_epoch=1)
    pair.beat(**a, member_epoch=1, rebalance_timeout_ms=60_000, subscribed_topic_names=[TOPIC], owned=[0, 1])
    pair.join(**b)
    described = pair.same(DESCRIBE, 1, {"group_ids": ["life"]})["groups"][0]
    assert described["group_state"] == "Reconciling"
    kept = pair.beat(**a, member_epoch=1, owned=[0, 1])["assignment"]["topic_partitions"][0]["partitions"]
    assert len(kept) == 1
    pair.beat(**b, member_epoch=2, owned=[])
    pair.beat(**a, member_epoch=1, owned=kept)
    got = pair.beat(**b, member_epoch=2)["assignment"]["topic_partitions"][0]["partitions"]
    assert sorted(kept + got) == [0, 1]
    assert pair.same(DESCRIBE, 1, {"group_ids": ["life"]})["groups"][0]["group_state"] == "Stable"
    # Fencing.
    for epoch in (0, 1, 3):
        pair.beat(**a, member_epoch=epoch, owned=[0, 1])
    pair.join(**a)
    pair.beat(**a, member_epoch=-2)
    pair.beat(**{**b, "member_id": "x"}, member_epoch=2)
    pair.beat(**{**b, "instance_id": "x"}, member_epoch=2)
    pair.join(**{**b, "member_id": "b2"})
    # Offsets.
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
    for member, epoch in (("a", 2), ("a", 1), ("x", 2), ("", -1)):
        commit = {**group, "member_id": member, "generation_id_or_member_epoch": epoch, "topics": topics}
        for version in (8, 9):
            pair.same(COMMIT, version, commit)
    for member, epoch in ((None, -1), ("a", 2), ("a", 1), ("x", 2)):
        asked = {**group, "member_id": member, "member_epoch": epoch, "topics": None}
        pair.same(FETCH, 9, {"groups": [asked]})
    pair.same(COMMIT, 9, {**group, "group_id": "none", "generation_id_or_member_epoch": 1, "topics": topics})
    # A static member leaves for a while and comes back.
    pair.beat(**b, member_epoch=-2)
    pair.join(**{**b, "member_id": "b2"})
    pair.beat(**b, member_epoch=2)
    # Leaving.
    pair.beat(**a, member_epoch=-1)
    pair.beat(**{**b, "member_id": "b2"}, member_epoch=-1)
    empty = pair.same(DESCRIBE, 1, {"group_ids": ["life", "none"]})["groups"]
    assert [each["group_state"] for each in empty] == ["", "Empty"]
    pair.same(KEYS["DescribeGroups"], 5, {"groups": ["life"]})
    pair.same(KEYS["DeleteGroups"], 2, {"groups_names": ["life", "none"]})


def test_the_range_assignor_gives_the_same(pair: Pair) -> None:
    group = {"group_id": "range", "server_assignor": "range"}
    pair.group("range")
    for member in ("c", "a", "b"):
        pair.join(**group, member_id=member, instance_id=f"i{member}")
    described = pair.same(DESCRIBE, 1, {"group_ids": ["range"]})
    assert described["groups"][0]["assignor_name"] == "range"
