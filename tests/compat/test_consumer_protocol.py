"""The consumer protocol (KIP-848) with real clients: Java 4.1.0's and librdkafka's.

If one failed, `group.protocol=consumer` would not work, records would be read twice or by no member while a
group changes, or a running classic group could not move to the protocol.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compat.conftest import KafkaTools, peer_jars
from tests.compat.load import until
from tests.compat.members import PATIENCE_SECONDS, Member, Members, java_member
from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

LIBRARIES = ["librdkafka", "java"]
PAIRS = [("librdkafka", "librdkafka"), ("java", "java"), ("java", "librdkafka")]
SESSION_MS = 6_000
SETTINGS = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
OVERRIDES = [word for name, value in SETTINGS.items() for word in ("--override", f"{name}={value}")]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with java_member(tmp_path_factory.mktemp("classes")) as directory:
        yield directory


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", 0, tuple(OVERRIDES))
    process.wait_ready()
    yield process
    assert process.stop() == 0, process.output()


@pytest.fixture
def members(classes: Path) -> Iterator[Members]:
    started = Members(classes)
    yield started
    started.end()


class Group:
    """A topic and a group that reads it."""

    def __init__(self, server: str, members: Members, partitions: int = 4) -> None:
        self.server, self.members = server, members
        self.topic = f"t{uuid.uuid4().hex[:8]}"
        self.name = uuid.uuid4().hex
        self.admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
        self.create(self.topic, partitions)
        self.producer = confluent.Producer({"bootstrap.servers": server, "log_level": 0})

    def create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_SECONDS)

    def start(self, library: str, topics: str = "", **settings: str) -> Member:
        return self.members.start(library, self.server, self.name, topics or self.topic, **settings)

    def partitions(self, *numbers: int) -> list[str]:
        return [f"{self.topic}-{number}" for number in numbers]

    def produce(self, word: str, count: int = 40, partitions: int = 4) -> set[str]:
        """Records in all partitions, as members print them."""
        sent = set()
        for number in range(count):
            partition, value = number % partitions, f"{word}-{number}"
            self.producer.produce(self.topic, value, partition=partition)
            sent.add(f"{self.topic}-{partition} {value}")
        assert self.producer.flush(PATIENCE_SECONDS) == 0
        return sent

    def state(self) -> tuple[str, str]:
        """The group's type and state, as ListGroups shows them."""
        found = self.admin.list_consumer_groups().result(PATIENCE_SECONDS).valid
        mine = [group for group in found if group.group_id == self.name]
        return (mine[0].type.name, mine[0].state.name) if mine else ("", "")


@pytest.fixture
def group(broker: BrokerProcess, members: Members) -> Group:
    return Group(broker.bootstrap, members)


def owns(*partitions: str) -> object:
    return lambda member: member.assigned == sorted(partitions)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_members_share_and_the_survivor_takes_over(group: Group, first: str, second: str) -> None:
    """Every record is read once while a second member joins; after a kill the first reads everything."""
    one = group.start(first)
    one.wait(lambda member: len(member.assigned) == 4)
    sent = group.produce("alone")
    one.wait(lambda member: set(member.records) == sent)
    two = group.start(second)
    two.wait(lambda member: len(member.assigned) == 2)
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the group is stable")
    sent |= group.produce("shared")
    until(lambda: len(one.records) + len(two.records) >= len(sent), "all records are read")
    assert sorted(one.records + two.records) == sorted(sent)
    two.kill()
    one.wait(lambda member: len(member.assigned) == 4)
    after = group.produce("after")
    one.wait(lambda member: after <= set(member.records))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_topic_that_grows_is_read(group: Group, library: str) -> None:
    member = group.start(library)
    member.wait(lambda member: len(member.assigned) == 4)
    group.admin.create_partitions([NewPartitions(group.topic, 6)])[group.topic].result(PATIENCE_SECONDS)
    member.wait(lambda member: len(member.assigned) == 6)
    sent = group.produce("grown", 60, 6)
    member.wait(lambda member: sent <= set(member.records))


@pytest.mark.parametrize("library", LIBRARIES)
def test_static_members_restart_without_a_rebalance(group: Group, library: str) -> None:
    """A rolling restart: each member gets its partitions back, and no other member notices."""
    settings = {"enable_auto_commit": "true"}
    rolled = [group.start(library, group_instance_id=f"i{n}", **settings) for n in range(2)]
    until(lambda: sorted(len(member.assigned) for member in rolled) == [2, 2], "both have two partitions")
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the group is stable")
    for index in range(2):
        other = rolled[1 - index]
        before, seen = rolled[index].assigned, other.changes
        rolled[index].close()
        rolled[index] = group.start(library, group_instance_id=f"i{index}", **settings)
        rolled[index].wait(lambda member, before=before: member.assigned == before)
        assert other.changes == seen


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_regular_expression_is_matched_by_the_broker(group: Group, library: str) -> None:
    member = group.start(library, f"^{group.topic}.*", topic_metadata_refresh_interval_ms="500") if (
        library == "librdkafka"
    ) else group.start(library, f"^{group.topic}.*")  # fmt: skip
    member.wait(lambda member: len(member.assigned) == 4)
    group.create(f"{group.topic}-more", 1)
    member.wait(lambda member: f"{group.topic}-more-0" in member.assigned)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_classic_group_moves_to_the_protocol_and_back(group: Group, library: str) -> None:
    """Members are replaced one by one, in both directions. Every record is read, and none by two members."""
    classic = {"group_protocol": "classic", "session_timeout_ms": "6000", "heartbeat_interval_ms": "300"}
    classic["partition_assignment_strategy"] = (
        "cooperative-sticky"
        if library == "librdkafka"
        else "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    )
    old = [group.start(library, **classic) for _ in range(2)]
    until(lambda: sorted(len(member.assigned) for member in old) == [2, 2], "both have two partitions")
    sent = group.produce("classic")
    until(lambda: sum(len(member.records) for member in old) >= len(sent), "all records are read")
    everyone = list(old)

    def read(word: str) -> None:
        nonlocal sent
        sent |= group.produce(word)
        until(lambda: sum(len(member.records) for member in everyone) >= len(sent), f"{word}: all are read")

    new = [group.start(library)]
    everyone += new
    new[0].wait(lambda member: member.assigned)
    assert group.state()[0] == "CONSUMER"
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the mixed group is stable")
    read("mixed")
    old[0].close()
    new.append(group.start(library))
    everyone.append(new[1])
    old[1].close()
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the group is stable")
    until(lambda: sum(len(member.assigned) for member in new) == 4, "the new members have all partitions")
    read("consumer")
    back = group.start(library, **classic)
    everyone.append(back)
    back.wait(lambda member: member.assigned)
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the mixed group is stable again")
    for member in new:
        member.close()
    until(lambda: group.state() == ("CLASSIC", "STABLE"), "the group is classic again")
    back.wait(lambda member: len(member.assigned) == 4)
    read("classic-again")
    got = [record for member in everyone for record in member.records]
    assert sorted(got) == sorted(sent)


def test_kafkas_tool_describes_the_group(group: Group, kafka_tools: KafkaTools) -> None:
    """kafka-consumer-groups.sh of 4.1.0."""
    member = group.start("java", client_id="shown", group_instance_id="i")
    sent = group.produce("shown")
    member.wait(lambda member: set(member.records) == sent)
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the group is stable")

    def tool(*arguments: str) -> str:
        libs = peer_jars("kafka-4.1.0")
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        command = [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{libs}/*",
            main,
        ]
        command += ["--bootstrap-server", group.server, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert [group.name, "Consumer", "Stable"] in [
        line.split() for line in tool("--list", "--state", "--type").splitlines()
    ]
    of_group = ("--describe", "--group", group.name, "--verbose")
    lines = [line.split() for line in tool(*of_group, "--members").splitlines()]
    shown = next(line for line in lines if "shown" in line)
    assert f"{group.topic}:0,1,2,3" in " ".join(shown).replace("(", ":").replace(")", "")
    lines = [line.split() for line in tool(*of_group, "--state").splitlines()]
    assert any("uniform" in line and "Stable" in line for line in lines)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_outlives_its_broker(start_broker: StartBroker, members: Members, library: str) -> None:
    """SIGKILL, and a start on the same files: members keep their partitions and read on."""
    broker = start_broker(None, None, *OVERRIDES)
    group = Group(broker.bootstrap, members)
    settings = {"auto_commit_interval_ms": "100"}
    two = [group.start(library, **settings) for _ in range(2)]
    until(lambda: sorted(len(member.assigned) for member in two) == [2, 2], "both have two partitions")
    until(lambda: group.state() == ("CONSUMER", "STABLE"), "the group is stable")
    sent = group.produce("before")
    until(lambda: sum(len(member.records) for member in two) >= len(sent), "all records are read")
    seen = [member.changes for member in two]
    broker.kill()
    broker = start_broker(broker.data_dir, broker.port, *OVERRIDES)
    sent |= group.produce("after")
    until(lambda: sum(len(member.records) for member in two) >= len(sent), "all records are read")
    assert [member.changes for member in two] == seen
    assert sorted(two[0].records + two[1].records) == sorted(sent)
    assert group.state() == ("CONSUMER", "STABLE")
