"""The arguments and files of the operator tools.

Broken if they failed: an operator's mistake would be a traceback or a change of the wrong thing, or
replicas that differ would be taken for equal ones.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from cluster.cli import _config_options, configs, leader_election, reassign_partitions, replica_verification
from cluster.cli._admin_tool import java_exception
from cluster.cli._common import CommandError
from cluster.cli._reassignment import (
    follower_throttles,
    leader_throttles,
    moves_of,
    read_plan,
    read_topics,
    reassignment_json,
)
from cluster.cli.broker_api_versions import lines
from cluster.cli.replica_verification import Batch, Verification, batches
from cluster.client import FetchedReplica, KafkaError, PartitionReassignment, TopicPartition

HERE = ("--bootstrap-server", "localhost:1")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=[x,y],b=2", {"a": "x,y", "b": "2"}),
        ("a=[k=v,l=w]", {"a": "k=v,l=w"}),
        ("a = 1 , b= 2", {"a": "1", "b": "2"}),
        ("a=", {"a": ""}),
        ("a=1,", {"a": "1"}),
    ],
)
def test_settings_to_add_are_parsed_as_by_kafka(text: str, settings: dict[str, str]) -> None:
    assert _config_options.parse_added(text) == settings


@pytest.mark.parametrize("text", ["a", "a=1,b", "a=1=2"])
def test_settings_that_are_no_pairs_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match='in the format "key=val"'):
        _config_options.parse_added(text)


def test_a_file_of_settings_and_names_to_delete(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("retention.ms=5\ncleanup.policy=compact,delete\n")
    options = _config_options.parser().parse_args(
        ["--add-config-file", str(file), "--delete-config", "a,b", "--delete-config", "c"]
    )
    assert _config_options.added(options) == {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    assert _config_options.deleted(options) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "types", "names"),
    [
        (["--entity-type", "topics", "--entity-name", "t"], ["topics"], ["t"]),
        (["--topic", "t"], ["topics"], ["t"]),
        (["--broker-defaults"], ["brokers"], [""]),
        (["--entity-type", "users"], ["users"], []),
        (
            ["--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "c"],
            ["users", "clients"],
            ["", "c"],
        ),
        (["--user", "u", "--client-defaults"], ["users", "clients"], ["u", ""]),
        (["--user", "u", "--client", "c"], ["clients", "users"], ["c", "u"]),
    ],
)
def test_entities_are_read_in_the_order_of_kafka(
    arguments: list[str], types: list[str], names: list[str]
) -> None:
    options = _config_options.parser().parse_args([*HERE, "--describe", *arguments])
    assert _config_options.check(options) == (types, names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--describe", "--alter", "--topic", "t"], "exactly one action"),
        (["--describe", "--topic", "t", "--add-config", "a=1"], "can't be used with option"),
        (["--describe", "--entity-type", "houses"], "Invalid entity type houses"),
        (["--describe", "--topic", "t", "--user", "u"], "may be specified together"),
        (["--describe", "--topic", "t", "--entity-name", "u"], "in conjunction with specific entity flags"),
        (["--describe", "--broker", "one"], "must be a valid integer broker id, but it is: one"),
        (["--describe", "--entity-type", "broker-loggers"], "an entity name must be specified"),
        (["--alter", "--topic", "t"], "At least one of --add-config"),
        (["--alter", "--entity-type", "users", "--add-config", "a=1"], "or default entity must be specified"),
        (
            ["--alter", "--topic", "t", "--add-config", "a=1", "--add-config-file", "f"],
            "Only one of --add-config or --add-config-file",
        ),
        (["--describe", "--topic", "t", "--zookeeper", "z"], "--zookeeper is not supported"),
    ],
)
def test_wrong_arguments_of_configs_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        configs.run([*HERE, *arguments])
    assert refused.value.status == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("password=x", (4096, "x")),
        ("iterations=8192,password=a,b", (8192, "a,b")),
        ("iterations=-1,password=x", (4096, "x")),
    ],
)
def test_scram_credentials_are_parsed(text: str, found: tuple[int, str]) -> None:
    assert configs.scram_credential("SCRAM-SHA-256", text) == found


def test_scram_credentials_with_few_iterations_are_refused() -> None:
    with pytest.raises(CommandError, match="Iterations 100 is less than the minimum 4096"):
        configs.scram_credential("SCRAM-SHA-256", "iterations=100,password=x")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"version": 2}, "Not supported version field value 2"),
        ([], "needs a topic"),
        ({"partitions": [{"topic": "t"}]}, "needs a topic"),
        (
            {"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": []}]},
            r"Size of replicas list \[1\] is different",
        ),
        ({"partitions": []}, "Partition reassignment list cannot be empty"),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}, "replica list cannot be empty"),
        (
            {"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2},
            "contains duplicate topic partitions: t-0",
        ),
        (
            {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1, 2]}]},
            "t-0 contains multiple entries for 1",
        ),
    ],
)
def test_a_wrong_reassignment_file_is_named(contents: object, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        read_plan(contents).check()


def test_a_reassignment_file_is_read_and_written() -> None:
    text = reassignment_json({("t", 10): [2, 1], ("t", 2): [1]})
    assert text == (
        '{"version":1,"partitions":[{"topic":"t","partition":2,"replicas":[1],"log_dirs":["any"]},'
        '{"topic":"t","partition":10,"replicas":[2,1],"log_dirs":["any","any"]}]}'
    )
    plan = read_plan(json.loads(text.replace('"any"]}]', '"/two"]}]')))
    assert plan.replicas == {("t", 2): [1], ("t", 10): [2, 1]}
    assert {str(replica): path for replica, path in plan.log_dirs.items()} == {"t-10-1": "/two"}
    with pytest.raises(CommandError, match=r"duplicate entries: \[t\]"):
        read_topics({"topics": [{"topic": "t"}, {"topic": "t"}]})


def test_throttles_name_the_replicas_that_send_and_those_that_receive() -> None:
    current = {("t", 1): PartitionReassignment([3, 1], [3], [1])}
    moves = moves_of(current, {("t", 0): [1, 2], ("t", 1): [4]}, {("t", 0): [0, 1], ("t", 1): [3, 1]})
    assert leader_throttles(moves) == {"t": "0:0,0:1,1:1"}
    assert follower_throttles(moves) == {"t": "0:2,1:4"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "--execute"], "exactly one action"),
        (["--execute"], r"\[reassignment-json-file\]"),
        (["--generate", "--broker-list", "0"], r"\[topics-to-move-json-file\]"),
        (["--verify", "--reassignment-json-file", "f", "--throttle", "5"], r"\[throttle\].* action"),
        (["--list", "--preserve-throttles"], r"\[preserve-throttles\].* action"),
    ],
)
def test_wrong_arguments_of_reassign_partitions_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        reassign_partitions.run([*HERE, *arguments])
    assert refused.value.status == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "option\\(s\\): election-type"),
        (["--election-type", "preferred"], "One and only one"),
        (["--election-type", "odd", "--all-topic-partitions"], "Cannot parse argument 'odd'"),
        (
            ["--election-type", "unclean", "--all-topic-partitions", "--partition", "1"],
            "allowed if topic",
        ),
    ],
)
def test_wrong_arguments_of_leader_election_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        leader_election.run([*HERE, *arguments])
    assert refused.value.status == 2


def test_partitions_of_an_election_are_read_from_a_file() -> None:
    one = {"topic": "t", "partition": 1}
    assert leader_election.read_partitions({"partitions": [one]}) == [TopicPartition("t", 1)]
    with pytest.raises(CommandError, match=r"duplicate partitions: \[t-1\]"):
        leader_election.read_partitions({"partitions": [one, one]})
    with pytest.raises(CommandError, match='missing "partitions"'):
        leader_election.read_partitions([])


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "UnknownTopicOrPartitionException"),
        (KafkaError.KAFKA_STORAGE_ERROR, "KafkaStorageException"),
        (KafkaError.TOPIC_EXCEPTION, "InvalidTopicException"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "ClusterAuthorizationException"),
        (KafkaError.PREFERRED_LEADER_NOT_AVAILABLE, "PreferredLeaderNotAvailableException"),
    ],
)
def test_an_error_has_the_name_of_its_java_class(code: int, name: str) -> None:
    assert java_exception(KafkaError(code)) == f"org.apache.kafka.common.errors.{name}"


def test_versions_that_both_sides_know_are_usable() -> None:
    shown = lines({0: (0, 99), 1: (90, 99), 999: (0, 0)})
    assert any(line.startswith("Produce(0): 0 to 99 [usable: ") for line in shown)
    assert "Fetch(1): 90 to 99 [unusable: node too new]" in shown
    assert "UNKNOWN(999): 0" in shown
    assert "DescribeQuorum(55): UNSUPPORTED" in shown


def test_an_unreachable_broker_is_named(unused_port: int) -> None:
    address = f"127.0.0.1:{unused_port}"
    with pytest.raises(CommandError, match=f"{address}: .*can be reached"):
        replica_verification.run(["--broker-list", address])


def batch(base: int, last: int, checksum: int) -> bytes:
    body = struct.pack(">ibIhi", 0, 2, checksum, 0, last - base) + bytes(40)
    return struct.pack(">qi", base, len(body)) + body


def test_batches_are_read_up_to_an_incomplete_one() -> None:
    records = batch(0, 4, 7) + batch(5, 5, 9)
    assert list(batches(records)) == [Batch(4, 7), Batch(5, 9)]
    assert list(batches(records[:-1])) == [Batch(4, 7)]


def compared(first: bytes, second: bytes, high_watermark: int) -> tuple[int, list[str]]:
    """The offset after a round, and what was said before the report."""
    partition = TopicPartition("t", 0)
    said: list[str] = []
    verification = Verification({partition: [1, 2]}, {partition: 0}, 3600, said.append)
    fetched = {
        broker: {partition: FetchedReplica(high_watermark, records)}
        for broker, records in ((1, first), (2, second))
    }
    verification.compare(fetched)
    return verification.offsets[partition], [line.partition(": ")[2] for line in said]


def test_replicas_are_compared_up_to_the_high_watermark() -> None:
    same = batch(0, 4, 7) + batch(5, 5, 9)
    assert compared(same, same, 6) == (6, [])
    assert compared(same, same, 5) == (5, [])
    assert compared(same, batch(0, 4, 7), 6) == (5, [])
    assert compared(same, batch(0, 4, 7) + batch(5, 5, 8), 6) == (
        6,
        ["partition t-0 has unmatched checksum at offset 5; replica 1's checksum 9; replica 2's checksum 8"],
    )
    with pytest.raises(CommandError, match="the replicas of partition t-0 differ"):
        compared(same, batch(0, 3, 7), 6)
