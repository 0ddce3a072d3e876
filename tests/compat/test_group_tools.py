"""kafka-consumer-groups.sh, kafka-transactions.sh, kafka-get-offsets.sh and kafka-delete-records.sh beside
ours of the same name, on one Apache Kafka 3.9.1 broker.

Broken if they failed: an operator would see another lag, reset other offsets or delete other records with our
tools than with Kafka's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from cluster.client import (
    AdminClient,
    Consumer,
    ConsumerGroupTopicPartitions,
    NewTopic,
    Producer,
    TopicPartition,
)
from tests.compat.apache import ApacheKafka
from tests.compat.conftest import KafkaTools
from tests.compat.test_operator_tools import Done, Tools, same, same_error
from tests.conftest import BrokerProcess

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

RECORDS = 10
PARTITIONS = 3
FIRST_MS = 1_700_000_000_000
"""The first record's timestamp; the others follow each second."""
IDLE = "idle"
LIVE = "live"


@pytest.fixture(scope="module", params=["apache", "ours"])
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools
) -> Iterator[str]:
    """A broker's address."""
    if request.param == "ours":
        ours = BrokerProcess(tmp_path_factory.mktemp("group-tools") / "data", 0, ())
        yield ours.wait_ready().bootstrap
        assert ours.stop() == 0, ours.output()
        return
    broker = ApacheKafka(tmp_path_factory.mktemp("group-tools"))
    try:
        broker.start()
        yield broker.bootstrap
    finally:
        broker.close()


@pytest.fixture(scope="module")
def tools(bootstrap: str, kafka_tools: KafkaTools) -> Iterator[Tools]:
    """A broker with topics `a` and `b`, a group without members and one with a member."""
    config = {"bootstrap.servers": bootstrap}
    with AdminClient(config) as admin:
        for future in admin.create_topics(
            # The records are years old.
            [
                NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
                for name, partitions in (("a", PARTITIONS), ("b", 1), ("empty", 1))
            ]
        ).values():
            future.result()
        producer = Producer(config)
        for topic, partition in [("a", 0), ("a", 1), ("a", 2), ("b", 0)]:
            for number in range(RECORDS):
                producer.produce(topic, b"v", partition=partition, timestamp=FIRST_MS + 1000 * number)
        assert producer.flush(60) == 0
        commit(admin, IDLE, [("a", 0, 4), ("a", 1, 9), ("b", 0, 2)])
        consumer = Consumer(config | {"group.id": LIVE, "auto.offset.reset": "earliest"})
        consumer.subscribe(["b"])
        for _ in range(RECORDS):
            assert consumer.poll(60) is not None
        consumer.commit(asynchronous=False)
        yield Tools(kafka_tools, bootstrap)
        consumer.close()


def commit(admin: AdminClient, group: str, offsets: list[tuple[str, int, int]]) -> None:
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in offsets])
    for future in admin.alter_consumer_group_offsets([wanted]).values():
        assert all(one.error is None for one in future.result().topic_partitions or [])


def rows(done: Done) -> list[list[str]]:
    """The words of each line, sorted: Kafka's tool prints rows in the order of a Java hash table."""
    return sorted(line.split() for line in done.out if line.strip())


def same_rows(pair: tuple[Done, Done], status: int = 0) -> list[list[str]]:
    theirs, ours = pair
    assert theirs.status == 0, theirs
    assert ours.status == status, ours
    assert rows(ours) == rows(theirs)
    return rows(ours)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--list",),
        ("--list", "--state"),
        ("--list", "--type"),
        ("--list", "--state", "--type", "classic"),
        ("--list", "--state", "stable,Empty"),
        ("--list", "--state", "dead"),
        ("--describe", "--group", IDLE),
        ("--describe", "--group", LIVE, "--offsets"),
        ("--describe", "--group", LIVE, "--members"),
        ("--describe", "--all-groups", "--state"),
    ],
    ids=" ".join,
)
def test_groups_are_listed_and_described_as_by_kafkas_tool(tools: Tools, arguments: tuple[str, ...]) -> None:
    found = same_rows(tools.both("consumer-groups", *arguments))
    assert len(found) > 1 or arguments[-1] == "dead"


def test_the_lag_of_a_group(tools: Tools) -> None:
    done = tools.ours("consumer-groups", "--describe", "--group", IDLE)
    lags = {(row[1], row[2]): row[3:6] for row in rows(done) if row[0] == IDLE}
    assert lags == {("a", "0"): ["4", "10", "6"], ("a", "1"): ["9", "10", "1"], ("b", "0"): ["2", "10", "8"]}
    assert "has no active members" in done.err
    members = tools.ours("consumer-groups", "--describe", "--group", LIVE, "--members", "--verbose")
    assert [row[-1] for row in rows(members) if row[0] == LIVE] == ["b(0)"]


def test_a_group_that_does_not_exist(tools: Tools) -> None:
    theirs, ours = tools.both("consumer-groups", "--describe", "--group", "nobody")
    assert (theirs.status, ours.status) == (0, 1)
    message = "Error: Consumer group 'nobody' does not exist."
    assert message in theirs.out
    assert message in ours.out


RESETS = [
    ("--to-earliest", "--topic", "a"),
    ("--to-latest", "--all-topics"),
    ("--to-current", "--topic", "a"),
    ("--to-offset", "3", "--topic", "a:0,1"),
    ("--to-offset", "300", "--topic", "b"),
    ("--shift-by", "-3", "--all-topics"),
    ("--shift-by", "300", "--all-topics"),
    ("--to-datetime", "2023-11-14T22:13:25.000", "--topic", "a", "--topic", "empty"),
    ("--to-datetime", "2023-11-15T00:13:25.000+02:00", "--topic", "b"),
    ("--to-datetime", "2099-01-01T00:00:00.000Z", "--topic", "b"),
    ("--by-duration", "P1DT2H", "--topic", "b"),
    ("--by-duration", "P20000D", "--topic", "b"),
]


@pytest.mark.parametrize("target", RESETS, ids=" ".join)
def test_offsets_are_planned_as_by_kafkas_tool(tools: Tools, target: tuple[str, ...]) -> None:
    arguments = ("--reset-offsets", "--group", IDLE, *target)
    # Kafka's table has no line ends between its rows.
    theirs, ours = tools.both("consumer-groups", *arguments, "--dry-run")
    assert (theirs.status, ours.status) == (0, 0), (theirs, ours)
    assert " ".join(theirs.out).split()[:4] == " ".join(ours.out).split()[:4]
    warnings = [[line for line in done.out if line.startswith("Warn:")] for done in (theirs, ours)]
    assert sorted(warnings[0]) == sorted(warnings[1])
    exported = tools.both("consumer-groups", *arguments, "--export")
    same_rows(exported)
    planned = [row[-3:] for row in rows(ours) if row[0] == IDLE]
    assert planned == sorted(row[0].split(",") for row in rows(exported[1]) if row[0][0] != "W")


def test_offsets_are_exported_changed_and_committed_again(
    bootstrap: str, tools: Tools, tmp_path: Path
) -> None:
    config = {"bootstrap.servers": bootstrap}
    with AdminClient(config) as admin:
        commit(admin, "moved-kafk", [("a", 0, 1), ("a", 2, 5)])
        commit(admin, "moved-ours", [("a", 0, 1), ("a", 2, 5)])
    plan = tmp_path / "plan.csv"
    plan.write_text("a,0,7\na,2,2000\n")
    for run, group in ((tools.theirs, "moved-kafk"), (tools.ours, "moved-ours")):
        reset = ("--reset-offsets", "--group", group)
        assert run("consumer-groups", *reset, "--from-file", str(plan), "--execute").status == 0
    both = tools.both("consumer-groups", "--describe", "--group", "moved-kafk", "--offsets")
    found = same_rows(both)
    assert [row[3:6] for row in found if row[0] == "moved-kafk"] == [["7", "10", "3"], ["10", "10", "0"]]
    ours = tools.ours("consumer-groups", "--describe", "--group", "moved-ours")
    assert [row[1:6] for row in rows(ours)] == [row[1:6] for row in found]

    several = tools.ours(
        "consumer-groups", "--reset-offsets", "--all-groups", "--to-earliest", "--all-topics", "--export"
    )
    assert "moved-ours,a,0,0" in several.out
    file = tmp_path / "several.csv"
    file.write_text("moved-ours,a,0,3\nmoved-kafk,a,2,4\n")
    names = ("--group", "moved-kafk", "--group", "moved-ours")
    same_rows(
        tools.both(
            "consumer-groups", "--reset-offsets", *names, "--from-file", str(file), "--export", "--dry-run"
        )
    )


def test_a_group_with_members_is_neither_reset_nor_deleted(tools: Tools) -> None:
    theirs, ours = tools.both(
        "consumer-groups", "--reset-offsets", "--group", LIVE, "--to-earliest", "--all-topics", "--dry-run"
    )
    message = (
        f"Error: Assignments can only be reset if the group '{LIVE}' is inactive, but the current state is "
        "Stable."
    )
    assert message in theirs.out
    assert message in ours.out
    assert ours.status == 1
    theirs, ours = tools.both("consumer-groups", "--delete", "--group", LIVE)
    assert ours.status == 1
    failed = "Error: Deletion of some consumer groups failed:"
    assert failed in theirs.out
    assert failed in ours.out
    assert "The group is not empty." in " ".join(theirs.out)
    assert "GroupNotEmptyException" in " ".join(theirs.out)
    assert f"* Group '{LIVE}' could not be deleted due to: " in " ".join(ours.out)


def test_groups_and_their_offsets_are_deleted(bootstrap: str, tools: Tools) -> None:
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        for group in ("gone-kafk", "gone-ours"):
            commit(admin, group, [("a", 0, 1), ("a", 2, 1), ("b", 0, 5)])
    done = [
        run(
            "consumer-groups",
            "--delete-offsets",
            "--group",
            f"gone-{twin}",
            "--topic",
            "b",
            "--topic",
            "a:1,0",
        )
        for run, twin in ((tools.theirs, "kafk"), (tools.ours, "ours"))
    ]
    texts = [" ".join(one.out).replace("gone-kafk", "gone-ours").split() for one in done]
    assert texts[0] == texts[1]
    assert done[1].status == 0
    deleted = same(tools.twins("consumer-groups", "--delete", "--group", "gone-@"))
    assert deleted == ["Deletion of requested consumer groups ('gone-@') was successful."]
    assert "gone-ours" not in tools.ours("consumer-groups", "--list").out
    theirs, ours = tools.both("consumer-groups", "--delete-offsets", "--group", LIVE, "--topic", "b")
    assert (theirs.status, ours.status) == (0, 1)
    assert (
        ours.out[1]
        == theirs.out[1]
        == "Error: Encounter some partition level error, see the follow-up details:"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--list", "--describe"), "Command must include exactly one action"),
        (("--list", "--state", "sleepy"), "Invalid state list 'sleepy'. Valid states are: "),
        (("--describe",), "takes one of these options"),
        (("--reset-offsets", "--group", "g", "--topic", "a"), ""),
        (("--reset-offsets", "--group", "g", "--to-earliest"), "One of the reset scopes should be defined"),
        (("--delete-offsets", "--group", "g"), "--delete-offsets"),
    ],
)
def test_wrong_arguments(tools: Tools, arguments: tuple[str, ...], message: str) -> None:
    ours = tools.ours("consumer-groups", *arguments)
    assert ours.status == 2
    assert message in ours.err
    assert ours.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--time", "earliest"),
        ("--time", "-1"),
        ("--time", "-3"),
        ("--time", str(FIRST_MS + 4500)),
        ("--topic", "a", "--partitions", "0,2"),
        ("--topic", "a|b", "--exclude-internal-topics"),
        ("--topic-partitions", "a:1-,b"),
        ("--topic-partitions", ":0", "--exclude-internal-topics"),
        ("--topic-partitions", "a:-1"),
    ],
    ids=" ".join,
)
def test_offsets_are_printed_as_by_kafkas_tool(tools: Tools, arguments: tuple[str, ...]) -> None:
    assert same(tools.both("get-offsets", *arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", "nothing"), "Could not match any topic-partitions with the specified filters"),
        (("--time", "noon"), "Malformed time argument noon."),
        (
            ("--topic", "a", "--topic-partitions", "b"),
            "--topic-partitions cannot be used with --topic or --partitions",
        ),
        (("--partitions", "x"), "--partitions expects a comma separated list"),
    ],
)
def test_wrong_arguments_of_get_offsets(tools: Tools, arguments: tuple[str, ...], message: str) -> None:
    same_error(tools.both("get-offsets", *arguments), message)


def test_records_are_deleted_as_by_kafkas_tool(bootstrap: str, tools: Tools, tmp_path: Path) -> None:
    config = {"bootstrap.servers": bootstrap}
    with AdminClient(config) as admin:
        for future in admin.create_topics(
            [NewTopic(f"cut-{twin}", 2, 1) for twin in ("kafk", "ours")]
        ).values():
            future.result()
    producer = Producer(config)
    for twin in ("kafk", "ours"):
        for partition in range(2):
            producer.produce(f"cut-{twin}", b"1", partition=partition)
            producer.produce(f"cut-{twin}", b"2", partition=partition)
    assert producer.flush(60) == 0
    for twin in ("kafk", "ours"):
        entries = [
            {"topic": f"cut-{twin}", "partition": 0, "offset": 1},
            {"topic": f"cut-{twin}", "partition": 1, "offset": 9},
        ]
        (tmp_path / f"{twin}.json").write_text(json.dumps({"version": 1, "partitions": entries}))
    theirs, ours = tools.twins("delete-records", "--offset-json-file", str(tmp_path / "@.json"))
    assert sorted(theirs.out)[:2] == sorted(ours.out)[:2]
    assert "partition: cut-@-0\tlow_watermark: 1" in ours.out
    assert any("cut-@-1\terror:" in line for line in theirs.out)
    assert any("cut-@-1\terror:" in line for line in ours.out)
    assert ours.status == 1


def test_transactions_are_shown_and_aborted_as_by_kafkas_tool(bootstrap: str, tools: Tools) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "payments",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("b", b"open", partition=0)
    assert producer.flush(60) == 0

    listed = same_rows(tools.both("transactions", "list"))
    assert ["payments", "0", listed[-1][2], "Ongoing"] in listed
    described = [
        without_age(done) for done in tools.both("transactions", "describe", "--transactional-id", "payments")
    ]
    assert described[0] == described[1]
    assert described[0][1][-1] == "b-0"
    producers = ("describe-producers", "--topic", "b", "--partition", "0")
    found = same_rows(tools.both("transactions", *producers))
    [start] = [row[-1] for row in found if row[-1].isdigit()]
    same_rows(tools.both("transactions", "find-hanging", "--topic", "b", "--max-transaction-timeout", "0"))
    same_rows(tools.both("transactions", "find-hanging", "--broker-id", "0"))
    same_error(
        tools.both("transactions", "describe", "--transactional-id", "nobody"),
        "Failed to describe transaction state of transactional-id `nobody`",
    )
    abort = ("abort", "--topic", "b", "--partition", "0", "--start-offset")
    same_error(
        tools.both("transactions", *abort, "1"),
        "Could not find any open transactions starting at offset 1 on partition b-0",
    )
    assert tools.ours("transactions", *abort, start).status == 0
    after = same_rows(tools.both("transactions", *producers))
    assert [row[-1] for row in after if row[-1].isdigit()] == []


def without_age(done: Done) -> list[list[str]]:
    assert done.status == 0, done
    return [
        [cell for number, cell in enumerate(re.split(r"\s+", line.strip())) if number != 7]
        for line in done.out
    ]


STATE_TOPICS = [
    ("__consumer_offsets", "OffsetsMessageFormatter"),
    ("__consumer_offsets", "GroupMetadataMessageFormatter"),
    ("__transaction_state", "TransactionLogMessageFormatter"),
]


@pytest.mark.parametrize(("topic", "formatter"), STATE_TOPICS)
def test_the_state_topics_are_printed_as_by_kafkas_console_consumer(
    bootstrap: str, tools: Tools, topic: str, formatter: str
) -> None:
    if topic == "__transaction_state":
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "seen"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("b", b"x", partition=0)
        producer.commit_transaction(60)
    name = f"org.apache.kafka.tools.consumer.{formatter}"
    arguments = ("--topic", topic, "--from-beginning", "--timeout-ms", "5000", "--formatter", name)
    theirs, ours = tools.both("console-consumer", *arguments)
    # Kafka's formatter writes no line ends.
    expected = "".join(theirs.out).replace("}{", "}\n{").split("\n")
    # Each of the two tools has a group of its own, whose records may be in the other's output or not.
    shown = [
        sorted(line for line in lines if "console-consumer-" not in line) for lines in (ours.out, expected)
    ]
    assert shown[0] == shown[1]
    assert shown[0]
