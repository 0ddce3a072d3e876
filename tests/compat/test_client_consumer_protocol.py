"""Our consumer with group.protocol=consumer (KIP-848): with our broker and Apache Kafka 4.1.0, and in one
group with librdkafka's and Java's members.

If one failed, records would be read twice or by no member while a group changes, or our consumer would not
work with one of the brokers.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kraft import kraft
from tests.compat.load import until
from tests.compat.members import Member, Members, java_member
from tests.compat.test_consumer_protocol import OVERRIDES, SETTINGS, Group
from tests.conftest import BrokerProcess

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

CLASSIC = {"group_protocol": "classic", "session_timeout_ms": "6000", "heartbeat_interval_ms": "300"}
STRATEGIES = {"logcore": "cooperative-sticky", "librdkafka": "range"}
"""Kafka 4.1.0 does not convert a group whose assignments have user data, as librdkafka's sticky ones may."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with java_member(tmp_path_factory.mktemp("classes")) as directory:
        yield directory


@pytest.fixture(scope="module", params=["logcore", "kafka-4.1.0"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker."""
    directory = tmp_path_factory.mktemp("broker")
    if request.param == "logcore":
        process = BrokerProcess(directory / "data", 0, tuple(OVERRIDES))
        process.wait_ready()
        yield process.bootstrap
        assert process.stop() == 0, process.output()
    else:
        with kraft(directory, SETTINGS) as address:
            yield address


@pytest.fixture
def group(server: str, classes: Path) -> Iterator[Group]:
    members = Members(classes)
    yield Group(server, members)
    members.end()


def share(group: Group, *members: Member) -> None:
    """Waits until the members have the four partitions and the group is stable."""
    each = 4 // len(members)
    until(lambda: [len(member.assigned) for member in members] == [each] * len(members), "all have a share")
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the group is stable")


@pytest.mark.parametrize("other", ["logcore", "librdkafka", "java"])
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "ours-second"])
def test_members_share_and_the_survivor_takes_over(group: Group, other: str, ours_first: bool) -> None:
    """Each record is read once while the second member joins, and after it was killed none is missing."""
    libraries = ("logcore", other) if ours_first else (other, "logcore")
    one = group.start(libraries[0])
    one.wait(lambda member: len(member.assigned) == 4)
    sent = group.produce("alone")
    one.wait(lambda member: set(member.records) == sent)
    two = group.start(libraries[1])
    share(group, one, two)
    sent |= group.produce("shared")
    until(lambda: len(one.records) + len(two.records) >= len(sent), "all records are read")
    assert sorted(one.records + two.records) == sorted(sent)
    # The first member gave up what the second has, and no other partition.
    given_up = [event.split(" ")[1].split(",") for event in one.events if event.startswith("revoked ")]
    assert given_up == [two.assigned]
    two.kill()
    one.wait(lambda member: len(member.assigned) == 4)
    after = group.produce("after")
    one.wait(lambda member: after <= set(member.records))


def test_a_member_that_closes_gives_its_partitions_and_commits(group: Group) -> None:
    one, two = group.start("logcore"), group.start("logcore")
    share(group, one, two)
    sent = group.produce("before")
    until(lambda: len(one.records) + len(two.records) >= len(sent), "all records are read")
    two.close()
    one.wait(lambda member: len(member.assigned) == 4)
    one.close()
    again = group.start("logcore")
    again.wait(lambda member: len(member.assigned) == 4)
    after = group.produce("after")
    again.wait(lambda member: len(member.records) >= len(after))
    assert set(again.records) == after


def test_static_members_restart_without_a_rebalance(group: Group) -> None:
    """A rolling restart: each member gets its partitions back, and no other member notices."""
    rolled = [group.start("logcore", group_instance_id=f"i{number}") for number in range(2)]
    share(group, *rolled)
    for index in range(2):
        other = rolled[1 - index]
        before, seen = rolled[index].assigned, other.changes
        rolled[index].close()
        rolled[index] = group.start("logcore", group_instance_id=f"i{index}")
        rolled[index].wait(lambda member, before=before: member.assigned == before)
        assert other.changes == seen


def test_a_member_that_was_stopped_longer_than_its_session_joins_again(group: Group) -> None:
    """SIGSTOP: the others take over. The member loses its partitions when it goes on, and reads its share."""
    one, two = group.start("logcore"), group.start("logcore")
    share(group, one, two)
    held = two.assigned
    two.process.send_signal(signal.SIGSTOP)
    one.wait(lambda member: len(member.assigned) == 4)
    two.process.send_signal(signal.SIGCONT)
    two.wait(lambda member: member.lost)
    assert sorted(two.lost[0].split(",")) == held
    share(group, one, two)
    after = group.produce("after")
    until(lambda: after <= set(one.records + two.records), "all records are read")


def test_a_pattern_finds_new_topics(group: Group) -> None:
    member = group.start("logcore", f"^{group.topic}.*", topic_metadata_refresh_interval_ms="300")
    member.wait(lambda member: len(member.assigned) == 4)
    group.create(f"{group.topic}-more", 1)
    member.wait(lambda member: f"{group.topic}-more-0" in member.assigned)


@pytest.mark.parametrize("other", ["logcore", "librdkafka"])
def test_a_classic_group_moves_to_the_protocol_and_back(group: Group, other: str) -> None:
    """Members are replaced one by one, in both directions. Each record is read once."""
    classic = {**CLASSIC, "partition_assignment_strategy": STRATEGIES[other]}
    old = [group.start(other, **classic) for _ in range(2)]
    until(lambda: [len(member.assigned) for member in old] == [2, 2], "both have two partitions")
    everyone, sent = list(old), set[str]()

    def read(word: str) -> None:
        sent.update(group.produce(word))
        until(lambda: sum(len(member.records) for member in everyone) >= len(sent), f"{word}: all are read")

    read("classic")
    new = [group.start("logcore")]
    everyone += new
    new[0].wait(lambda member: member.assigned)
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the mixed group is stable")
    read("mixed")
    old[0].close()
    new.append(group.start("logcore"))
    everyone.append(new[1])
    old[1].close()
    share(group, *new)
    read("consumer")
    back = group.start(other, **classic)
    everyone.append(back)
    back.wait(lambda member: member.assigned)
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the mixed group is stable again")
    for member in new:
        member.close()
    until(lambda: group.state() == ("CLASSIC", "STABLE"), "the group is classic again")
    back.wait(lambda member: len(member.assigned) == 4)
    read("classic-again")
    assert sorted(record for member in everyone for record in member.records) == sorted(sent)
