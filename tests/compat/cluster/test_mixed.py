"""Our brokers and Apache Kafka's 3.9.1 in one cluster: two of ours and one of Apache's on our coordinator,
two of Apache's and one of ours on Apache ZooKeeper 3.9.4. Each kind leads the other, follows it and is its
controller.

If one failed, a cluster could not be moved from Apache Kafka to logcore broker by broker: a record would be
lost or twice, a replica would differ, or a broker would say that the other kind does wrong.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cluster.model import GROUP_METADATA_TOPIC
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.load import PATIENCE_SECONDS, Group, Load, read_all, until

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

KINDS = {"ours": {0: "ours", 1: "ours", 2: "apache"}, "apache": {0: "apache", 1: "apache", 2: "ours"}}
"""By the coordinator's kind, the brokers: most are of the same kind."""
ORDERS = {"most": (0, 1, 2), "single": (2, 0, 1)}
"""By whose broker starts first, and is the controller: the kind of most brokers, or the single one."""
REPLICAS = [[0, 1, 2], [1, 2, 0], [2, 0, 1]] * 2

NO_CONNECTION = [
    # Of ours.
    r"slow request: ",
    r"refuses connections: (others lead its partitions|another one is elected)",
    r"cannot be fetched from it now: \S+ (cannot connect|receiving failed|the broker closed the connection)",
    r"does not answer the controller, which tries again: "
    r".*(closed the connection|Connection reset|Connect call failed)",
    r"the controller did not change in-sync replicas and is asked again: .*Connect call failed",
    # Of Apache's, and the exceptions that it names below them.
    r"could not be established. Node may not be available",
    r"connection to broker .* was unsuccessful",
    r"Error in response for fetch request",
    r"fails to send (a )?request",
    r"^java.io.IOException: Connection to .* (failed\.|was disconnected before the response was read)$",
    r"^java.lang.InterruptedException$",
    # A controller of Apache's that is deposed closes its connections while they wait for answers.
    r"DisconnectException: NetworkClient is no longer active, state is CLOSING$",
]
"""Complaints about a broker that is dead, which the test has killed."""
USUAL = [
    # Apache's follower asked in an epoch that the leader knows to be over, before the controller told it.
    r"Partition \S+ marked as failed \(ReplicaFetcherThread\)",
    r"Received UNKNOWN_TOPIC_(ID|OR_PARTITION) .* This error may be returned transiently",
    # A new leader learns the high watermark from the last one, with its next Fetch.
    r"Non-monotonic update of high watermark",
    # The machine is busy.
    r"the coordinator's connection is suspended$",
    r"the event loop stood still for \d+ ms",
    r"Client session timed out, have not heard from server in \d+ms",
    r"WARN Session 0x\w+ for server \S+ Closing socket connection\. Attempting reconnect",
    # One broker of three is alive, and acks=all needs two.
    r"ERROR \[ReplicaManager broker=\d\] Error processing append operation",
    r"^org.apache.kafka.common.errors.NotEnoughReplicasException",
    r"its record could not be written: __consumer_offsets-\d has fewer in-sync replicas than min.insync",
    r"Appending metadata message for group group generation \d+ failed due to .*NOT_ENOUGH_REPLICAS",
]
"""Complaints that brokers have about each other in a cluster of Apache's too."""
COMPLAINT = re.compile(
    r"[-\d ]*\d\d:\d\d:\d\d,\d+ (WARN|WARNING|ERROR|FATAL|CRITICAL) |Traceback"
    r"|[a-z.]+\.\w+(Exception|Error)\b"
)
EXPECTED = re.compile("|".join(NO_CONNECTION + USUAL))


@pytest.fixture(params=[(kind, first) for kind in KINDS for first in ORDERS], ids="-first-".join)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, bool]]:
    """A running cluster, and whether the kind of most brokers has the controller."""
    kind, first = request.param
    with cluster(tmp_path, kind, KINDS[kind]) as running:
        for number in ORDERS[first]:
            running.start(number)
        assert running.controller() == ORDERS[first][0]
        yield running, first == "most"


def complaints(made: Cluster) -> list[str]:
    """The warnings, errors and exceptions of each broker that the test does not explain.

    Apache's controller says of each partition that it leaves without a leader for a moment that this leader
    is unavailable: kafka.server.ReplicaManager.makeFollowers. Our controller must not cause it.
    """
    of_itself = "|".join(
        f"from controller {number} .*the new leader -?\\d is unavailable" for number in made.of("apache")
    )
    explained = re.compile(f"{EXPECTED.pattern}|{of_itself}")
    return [
        f"broker {number}, {made.kinds[number]}: {line}"
        for number in made.kinds
        for line in made.all_output(number).splitlines()
        if COMPLAINT.match(line) and not explained.search(line)
    ]


def restart_each(made: Cluster, load: Load, how: signal.Signals) -> None:
    """Ends each broker in turn and starts it again. Writes go on with the two others."""
    for number in made.kinds:
        made.stop(number, how)
        made.until_in_sync("load")
        assert number not in made.leaders("load").values()
        load.until_more(300)
        made.start(number)
        made.until_in_sync("load")


def kill_the_majority(made: Cluster, load: Load) -> None:
    """Kills both brokers of one kind, so that the third is the controller and leads everything."""
    for number in (0, 1):
        made.stop(number, signal.SIGKILL)
    made.until_controller_is(2)
    # Apache's new controller takes the dead leaders away before it elects others.
    until(lambda: set(made.leaders("load").values()) == {2}, "broker 2 leads everything")
    made.until_in_sync("load")
    for number in (0, 1):
        made.start(number)
    made.until_in_sync("load")
    made.until_in_sync(GROUP_METADATA_TOPIC)
    load.until_more(300)


def create_and_delete(made: Cluster, name: str) -> None:
    """Makes a topic with partitions on each broker and deletes it again; its logs go too."""
    made.create_topic(name, REPLICAS)
    made.delete_topic(name)
    folders = [member.log_dir for member in made.members.values()]
    # Each kind renames a log first and deletes it a minute later.
    until(
        lambda: not [path for folder in folders for path in folder.glob(f"{name}-?")],
        f"the logs of topic {name} are gone",
    )


def truncate(made: Cluster, leader: int, next_leader: int) -> None:
    """A leader is killed with records that its followers lack. The next one writes others at their offsets.
    When the old one comes back it must cut its own, by the leaders' epochs.
    """
    name = f"cut-{leader}"
    replicas = [leader, next_leader, 3 - leader - next_leader]
    made.create_topic(name, [replicas])
    settings = {"bootstrap.servers": made.bootstrap, "log_level": 0, "retries": 1000}
    lax, strict = Producer(settings | {"acks": 1}), Producer(settings | {"acks": "all"})
    write(strict, name, "kept")
    write(lax, name, "kept too")
    made.until_in_sync(name)
    followers = replicas[1:]
    for number in followers:
        made.members[number].pause(signal.SIGSTOP)
    for number in range(10):
        # The first one may be under way to the followers in an answer to their last request.
        write(lax, name, f"cut {number}")
    made.stop(leader, signal.SIGKILL)
    for number in followers:
        made.members[number].pause(signal.SIGCONT)
    until(lambda: made.leaders(name)[0] == next_leader, f"{next_leader} leads {name}")
    made.until_in_sync(name)
    write(strict, name, "instead")
    assert b"cut 9" in b"".join(made.log_files(leader, name, 0).values())
    made.start(leader)
    made.until_in_sync(name)
    made.check_files(name)
    written = b"".join(made.log_files(leader, name, 0).values())
    assert [each in written for each in (b"kept", b"kept too", b"cut 9", b"instead")] == [1, 1, 0, 1]


def write(producer: Producer, topic: str, value: str) -> None:
    errors: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(PATIENCE_SECONDS)
    assert errors == [None]


def test_both_kinds_lead_follow_and_control_each_other(made: tuple[Cluster, bool]) -> None:
    running, most_control = made
    running.create_topic("load", REPLICAS)
    # Of the four roles each kind has leader and follower here; the controller's kind is a parameter.
    assert [*running.leaders("load").values()] == [0, 1, 2] * 2
    # A leader whose ISR is too small for a moment may refuse a request and take the next one, which is then
    # out of order. librdkafka's answer is a new epoch, in which it sends records of other partitions again.
    load = Load(running.bootstrap, "load", in_flight=20, requests_at_once=1)
    group = Group(running.bootstrap, "load")
    try:
        load.until_more(300)
        create_and_delete(running, "first")
        restart_each(running, load, signal.SIGKILL if most_control else signal.SIGTERM)
        kill_the_majority(running, load)
        create_and_delete(running, "second")
        load.stop()
        written = {(partition, each[0]) for partition, known in load.acknowledged.items() for each in known}
        group.until_seen(written)
    finally:
        load.stop()
        group.stop()
    assert not load.refused, load.refused[0]
    if most_control:
        truncate(running, 0, 2)
        truncate(running, 2, 0)
    assert read_all(running.bootstrap, "load") == load.acknowledged
    running.until_in_sync("load")
    running.check_files("load")
    # Before the end, because the last brokers find no other leader.
    assert complaints(running) == []
    for number in ORDERS["single"]:
        running.stop(number)
