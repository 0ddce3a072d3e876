"""The records of __consumer_offsets.

If one failed, Apache Kafka could not read the offsets that this broker committed, or this broker its own
after a restart.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.groups.classic.group import GroupState
from cluster.groups.committed import CommittedOffset
from cluster.groups.messages import GroupLimits, StoredGroup, StoredMember, Write
from cluster.groups.partition import PartitionGroups
from cluster.groups.records import encode_write, read_subscription
from cluster.model import TopicPartition
from cluster.state_topics import Entry, partition_of
from tests.groups.logs import expire_all


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_commit_bytes_are_kafkas() -> None:
    kept = CommittedOffset(77, leader_epoch=3, metadata="note", commit_ms=1_000)
    [(key, value)] = encode_write(Write(1, "group", offsets={TopicPartition("topic", 5): kept}))
    assert key == struct.pack(">h", 1) + text("group") + text("topic") + struct.pack(">i", 5)
    assert value == struct.pack(">hqi", 3, 77, 3) + text("note") + struct.pack(">q", 1_000)


def test_a_commit_with_an_expiry_time_has_the_version_with_that_field() -> None:
    kept = CommittedOffset(77, commit_ms=1_000, expire_ms=2_000)
    [(_, value)] = encode_write(Write(1, "g", offsets={TopicPartition("t", 0): kept}))
    assert value == struct.pack(">hq", 1, 77) + text("") + struct.pack(">qq", 1_000, 2_000)


def test_group_bytes_are_kafkas() -> None:
    member = StoredMember("m", None, "client", "/host", 60, 10, b"sub", b"assign")
    stored = StoredGroup("g", "consumer", 4, "range", "m", 9, (member,))
    [(key, value)] = encode_write(Write(1, "g", stored=stored))
    assert key == struct.pack(">h", 2) + text("g")
    assert value == (
        struct.pack(">h", 3)
        + text("consumer")
        + struct.pack(">i", 4)
        + text("range")
        + text("m")
        + struct.pack(">q", 9)
        + struct.pack(">i", 1)
        + text("m")
        + struct.pack(">h", -1)
        + text("client")
        + text("/host")
        + struct.pack(">ii", 60, 10)
        + struct.pack(">i", 3)
        + b"sub"
        + struct.pack(">i", 6)
        + b"assign"
    )


@pytest.mark.parametrize(
    ("leader", "members"),
    [
        ("m", [("m", None), ("m", None)]),
        ("m", [("m", "i"), ("n", "i")]),
        ("x", [("m", None)]),
        (None, [("m", None)]),
    ],
    ids=["member twice", "instance twice", "unknown leader", "no leader"],
)
def test_a_group_that_cannot_be_is_skipped(leader: str | None, members: list[tuple[str, str | None]]) -> None:
    """Its partition holds the offsets of other groups, too."""
    stored = StoredGroup(
        "g",
        "consumer",
        4,
        "range",
        leader,
        9,
        tuple(StoredMember(id, instance, "c", "/h", 60, 10, b"", b"") for id, instance in members),
    )
    machine = PartitionGroups(GroupLimits(), lambda: "id")
    records = encode_write(Write(1, "g", stored=stored))
    records += encode_write(Write(2, "h", offsets={TopicPartition("t", 0): CommittedOffset(6)}))
    assert machine.load([Entry(*record) for record in records]) == 1
    machine.loaded(100)
    assert [each.group for each in machine.list_groups()] == ["h"]


def test_written_records_are_read_again() -> None:
    item = TopicPartition("t", 1)
    member = StoredMember(
        "m", "i", "client", "/host", 60_000, 10_000, b"\0\0\0\0\0\1\0\1t\0\0\0\0", b"assign"
    )
    stored = StoredGroup("g", "consumer", 4, "range", "m", 9, (member,))
    machine = PartitionGroups(GroupLimits(), lambda: "id")
    records = encode_write(Write(1, "g", stored=stored, offsets={item: CommittedOffset(5, commit_ms=3)}))
    records += encode_write(Write(2, "only offsets", offsets={item: CommittedOffset(6)}))
    records += encode_write(Write(3, "gone", offsets={item: CommittedOffset(7)}))
    records += encode_write(Write(4, "gone", offsets={item: None}, remove_group=True))
    damaged = [Entry(None, b"x"), Entry(b"\0\1", b"y"), Entry(b"\0\x63", None)]
    assert machine.load([*(Entry(*record) for record in records), *damaged]) == 3
    machine.loaded(100)
    group = machine.table.groups["g"]
    assert (group.state, group.generation, group.leader) == (GroupState.STABLE, 4, "m")
    assert machine.describe("g").members[0].assignment == b"assign"
    assert machine.committed("g")[item].offset == 5
    assert machine.committed("only offsets")[item].offset == 6
    assert "gone" not in machine.table.groups
    assert machine.heartbeat("g", 4, "m", "i", 101) == 0
    expire_all(machine, GroupLimits().offsets_retention_ms + 10)
    assert machine.committed("g"), "its members read the topic"
    assert not machine.committed("only offsets")
    assert machine.next_deadline() == 10_100


@pytest.mark.parametrize(
    ("group", "partition"),
    # From Java: Math.abs("...".hashCode()) % 50. The third has the one hash code without a positive
    # counterpart.
    [("", 0), ("console-consumer-12345", None), ("polygenelubricants", 0), ("g", 3), ("grüße", None)],
)
def test_a_group_has_the_same_partition_as_in_kafka(group: str, partition: int | None) -> None:
    found = partition_of(group, 50)
    assert 0 <= found < 50
    assert partition is None or found == partition


@given(st.text(max_size=20))
def test_every_name_has_a_partition(name: str) -> None:
    assert 0 <= partition_of(name, 50) < 50


def test_invalid_subscriptions_are_not_read() -> None:
    assert read_subscription(b"\0\0\0\0\0\1\0\1t\0\0\0\0") == frozenset({"t"})
    assert read_subscription(b"") is None
    assert read_subscription(b"\0\1\xff\xff\xff") is None
