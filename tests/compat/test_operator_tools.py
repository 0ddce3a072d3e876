"""Kafka's operator tools beside ours of the same name, on the same Apache Kafka 3.9.1 brokers and on ours.

Broken if they failed: an operator's script that reads the output of kafka-reassign-partitions.sh,
kafka-leader-election.sh, kafka-configs.sh, kafka-log-dirs.sh, kafka-broker-api-versions.sh or
kafka-replica-verification.sh would not work with our tools.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.cli import COMMANDS
from cluster.cli._common import CommandError
from cluster.client import AdminClient, NewTopic, Producer
from tests.compat.apache import ApacheKafka, coordinator
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

TIMEOUT = 120.0
TWINS = ("kafk", "ours")
MAIN = {
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "configs": "kafka.admin.ConfigCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
}


@dataclass(frozen=True)
class Done:
    status: int
    out: list[str]
    err: str

    @property
    def said(self) -> str:
        return "\n".join(self.out) + "\n" + self.err


def without_hash_order(line: str) -> str:
    """Kafka's tools list some topics and quotas in the order of a Java hash table."""
    for before, comma in (("throttles on topics ", ","), ("Quota configs for ", ", ")):
        if before in line:
            head, separator, names = line.rpartition(" ") if comma == "," else line.partition(" are ")
            line = head + separator + comma.join(sorted(names.split(comma)))
    return line


@dataclass(frozen=True)
class Tools:
    """Runs Kafka's tool and ours with the same arguments."""

    kafka: KafkaTools
    bootstrap: str

    def ours(self, tool: str, *arguments: str) -> Done:
        return self._run([sys.executable, "-m", "cluster.cli", tool, *self._server(tool), *arguments])

    def theirs(self, tool: str, *arguments: str) -> Done:
        return self._run(self.kafka.command(MAIN[tool], *self._server(tool), *arguments))

    def both(self, tool: str, *arguments: str) -> tuple[Done, Done]:
        """Theirs and ours, at the same time."""
        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(lambda start: start(tool, *arguments), (self.theirs, self.ours))
            return theirs, ours

    def twins(self, tool: str, *arguments: str) -> tuple[Done, Done]:
        """Theirs and ours, each on its own topics. `@` in arguments and output stands for the twin."""

        def run(twin: str) -> Done:
            start = self.theirs if twin == TWINS[0] else self.ours
            done = start(tool, *(argument.replace("@", twin) for argument in arguments))
            lines = [without_hash_order(line.replace(f"-{twin}", "-@")) for line in done.out]
            return Done(done.status, lines, done.err)

        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(run, TWINS)
            return theirs, ours

    def _server(self, tool: str) -> tuple[str, str]:
        return ("--broker-list" if tool == "replica-verification" else "--bootstrap-server", self.bootstrap)

    def _run(self, command: Sequence[str]) -> Done:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        return Done(done.returncode, done.stdout.splitlines(), done.stderr)


def same(pair: tuple[Done, Done], status: int = 0) -> list[str]:
    """Both ended with the status and wrote the same lines, which are returned."""
    theirs, ours = pair
    assert theirs.status == status, theirs
    assert ours.status == status, ours
    assert ours.out == theirs.out
    return ours.out


def same_error(pair: tuple[Done, Done], message: str, status: int = 1) -> None:
    """Both failed with the message; ours in one line. Kafka's exit status is always 1."""
    theirs, ours = pair
    assert theirs.status == 1, theirs
    assert message in theirs.said, theirs
    assert ours.status == status, ours
    assert message in ours.err, ours
    assert ours.err.count("\n") == 1 + message.count("\n"), ours


class Brokers:
    """Two Apache brokers of two racks, with two log directories each, on our coordinator."""

    def __init__(self, root: Path, zookeeper: str) -> None:
        self.root = root
        self.peers = []
        for number in range(2):
            directory = root / f"broker-{number}"
            directory.mkdir()
            settings = {
                "broker.id": str(number),
                "broker.rack": f"rack-{number}",
                "log.dirs": f"{directory}/one,{directory}/two",
                "auto.leader.rebalance.enable": "false",
                "replica.fetch.max.bytes": "100000",
            }
            peer = ApacheKafka(directory, settings, zookeeper=zookeeper)
            peer.launch()
            self.peers.append(peer)
        for peer in self.peers:
            peer.wait_until_serving()

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    def file(self, name: str, contents: object) -> str:
        path = self.root / name
        path.write_text(json.dumps(contents))
        return str(path)

    def files(self, name: str, partitions: list[tuple[str, int, list[int], list[str] | None]]) -> str:
        """A reassignment file for each twin; the path has an `@`."""
        for twin in TWINS:
            listed = []
            for topic, number, replicas, paths in partitions:
                one = {"topic": topic.replace("@", twin), "partition": number, "replicas": replicas}
                listed.append(one if paths is None else one | {"log_dirs": paths})
            self.file(f"{name}-{twin}.json", {"version": 1, "partitions": listed})
        return str(self.root / f"{name}-@.json")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools) -> Iterator[Brokers]:
    root = tmp_path_factory.mktemp("operator-tools")
    with coordinator(root / "coordinator") as port:
        found = Brokers(root, f"127.0.0.1:{port}")
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def tools(brokers: Brokers, kafka_tools: KafkaTools) -> Tools:
    return Tools(kafka_tools, brokers.peers[0].bootstrap)


def create(tools: Tools, assignments: dict[str, list[list[int]]]) -> None:
    """Creates topics for both twins, `@` in their names."""
    topics = [
        NewTopic(name.replace("@", twin), replica_assignment=placed)
        for name, placed in assignments.items()
        for twin in TWINS
    ]
    with AdminClient({"bootstrap.servers": tools.bootstrap}) as admin:
        for future in admin.create_topics(topics).values():
            future.result()


def test_reassignments_are_executed_verified_and_listed_as_by_kafkas_tool(
    brokers: Brokers, tools: Tools
) -> None:
    create(tools, {"wide-@": [[0, 1], [0, 1]], "thin-@": [[0], [1]]})
    move = brokers.files("move", [("thin-@", 0, [1, 0], None), ("wide-@", 1, [1], None)])
    run, plan = "reassign-partitions", ("--reassignment-json-file", move)
    started = same(tools.twins(run, "--execute", *plan, "--additional", "--throttle", "10000000"))
    assert started[-1] == "Successfully started partition reassignments for thin-@-0,wide-@-1"
    wait_until_moved(tools)
    done = same(tools.twins(run, "--verify", *plan))
    assert "Reassignment of partition thin-@-0 is completed." in done
    assert same(tools.both(run, "--list")) == ["No partition reassignments found."]

    two = str(brokers.root / "broker-1" / "two")
    inside = brokers.files("inside", [("thin-@", 1, [1], [two])])
    plan = ("--reassignment-json-file", inside)
    throttle = ("--replica-alter-log-dirs-throttle", "10000000")
    started = same(tools.twins(run, "--execute", *plan, "--additional", *throttle))
    assert (
        f"Successfully started moving log directory to {two} for replica thin-@-1 with broker 1 " in started
    )
    wait_until_in(tools, two)
    assert "Reassignment of replica thin-@-1-1 completed successfully." in same(
        tools.twins(run, "--verify", *plan, "--preserve-throttles")
    )

    theirs, ours = tools.twins(run, "--cancel", *plan)
    # Kafka's tool prints no line end after this sentence.
    joined = "None of the specified partition moves are active."
    assert [line.removeprefix(joined) for line in theirs.out] == [line for line in ours.out if line != joined]

    elections(tools, brokers)


def wait_until_moved(tools: Tools) -> None:
    for _ in range(200):
        if tools.ours("reassign-partitions", "--list").out == ["No partition reassignments found."]:
            return
    raise AssertionError("the reassignment does not end")


def wait_until_in(tools: Tools, path: str) -> None:
    for _ in range(200):
        [answer] = [json.loads(line) for line in tools.ours("log-dirs", "--describe").out if line[0] == "{"]
        here = {
            partition["partition"]: partition["isFuture"]
            for broker in answer["brokers"]
            for directory in broker["logDirs"]
            for partition in directory["partitions"]
            if directory["logDir"] == path
        }
        if here.get("thin-kafk-1") is False and here.get("thin-ours-1") is False:
            return
    raise AssertionError("the replica does not come to its directory")


def elections(tools: Tools, brokers: Brokers) -> None:
    """thin-@-0 is led by 0, which is no longer its first replica."""
    for twin in TWINS:
        asked = [{"topic": f"thin-{twin}", "partition": number} for number in (0, 1, 7)]
        brokers.file(f"elect-{twin}.json", {"partitions": asked})
    path = ("--path-to-json-file", str(brokers.root / "elect-@.json"))
    theirs, ours = tools.twins("leader-election", "--election-type", "preferred", *path)
    assert theirs.status == ours.status == 1
    assert ours.out == theirs.out
    assert [line.split()[0] for line in ours.out] == ["Successfully", "Valid", "Error"]
    assert ours.err == "logcore leader-election: 1 replica(s) could not be elected\n"
    assert "1 replica(s) could not be elected" in theirs.err


def test_a_slow_reassignment_is_in_progress_until_it_is_cancelled(brokers: Brokers, tools: Tools) -> None:
    create(tools, {"slow-@": [[0]]})
    producer = Producer({"bootstrap.servers": tools.bootstrap, "acks": "all"})
    for _ in range(20):
        producer.produce("slow-ours", bytes(400_000))
    assert producer.flush(60) == 0
    file = brokers.files("slow", [("slow-@", 0, [1], None)]).replace("@", TWINS[1])
    plan = ("--reassignment-json-file", file)
    run = "reassign-partitions"
    started = tools.ours(run, "--execute", *plan, "--throttle", "1000")
    assert started.status == 0, started
    assert same(tools.both(run, "--list")) == [
        "Current partition reassignments:",
        "slow-ours-0: replicas: 1,0. adding: 1. removing: 0.",
    ]
    assert "Reassignment of partition slow-ours-0 is still in progress." in same(
        tools.both(run, "--verify", *plan)
    )
    same_error(tools.both(run, "--execute", *plan), "Cannot execute because there is an existing partition")
    cancelled = tools.ours(run, "--cancel", *plan)
    assert cancelled.out[0] == "Successfully cancelled partition reassignment for: slow-ours-0"
    assert tools.ours(run, "--list").out == ["No partition reassignments found."]


def test_generate_prints_kafkas_format_and_moves_less(brokers: Brokers, tools: Tools) -> None:
    create(tools, {"even-@": [[0, 1], [1, 0], [0, 1], [1, 0]]})
    topics = brokers.file("topics.json", {"version": 1, "topics": [{"topic": "even-kafk"}]})
    arguments = ("--generate", "--topics-to-move-json-file", topics, "--broker-list", "0,1")
    theirs, ours = tools.both("reassign-partitions", *arguments)
    assert theirs.status == ours.status == 0
    assert ours.out[:4] == theirs.out[:4]
    current, proposed = json.loads(ours.out[1]), json.loads(ours.out[4])
    assert proposed == current
    assert json.loads(theirs.out[4]).keys() == proposed.keys()
    missing = brokers.file("missing.json", {"version": 1, "topics": [{"topic": "nope"}]})
    same_error(
        tools.both(
            "reassign-partitions", "--generate", "--topics-to-move-json-file", missing, "--broker-list", "0"
        ),
        "Topic nope not found.",
    )


def test_wrong_arguments_and_missing_things_are_named_as_by_kafkas_tools(
    brokers: Brokers, tools: Tools
) -> None:
    unknown = brokers.file(
        "unknown.json", {"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [7]}]}
    )
    wrong, failed = 2, 1
    cases: list[tuple[list[str], str, int]] = [
        (
            ["reassign-partitions", "--execute", "--reassignment-json-file", unknown],
            "Unknown broker id 7",
            failed,
        ),
        (
            ["reassign-partitions", "--list", "--throttle", "1"],
            'Option "[throttle]" can\'t be used with action',
            wrong,
        ),
        (["reassign-partitions", "--execute"], 'Missing required argument "[reassignment-json-file]"', wrong),
        (["leader-election", "--election-type", "preferred", "--topic", "t"], "option(s): partition", wrong),
        (
            ["log-dirs", "--describe", "--broker-list", "0,5"],
            "--broker-list: 5. Current existent brokers: 0,1",
            failed,
        ),
        (["configs", "--describe"], "At least one entity type must be specified", wrong),
        (["configs", "--alter", "--broker-defaults", "--delete-config", "x"], "Invalid config(s): x", failed),
    ]
    with ThreadPoolExecutor(2) as pool:
        theirs = list(pool.map(lambda case: tools.theirs(*case[0]), cases))
        ours = list(pool.map(lambda case: tools.ours(*case[0]), cases))
    for (_, message, status), one, other in zip(cases, theirs, ours, strict=True):
        same_error((one, other), message, status)


def test_each_flag_of_kafkas_tools_is_known_and_no_other(kafka_tools: KafkaTools) -> None:
    nowhere = Tools(kafka_tools, "127.0.0.1:1")
    with ThreadPoolExecutor(2) as pool:
        helps = list(pool.map(lambda tool: nowhere.theirs(tool, "--help").said, MAIN))
    for tool, text in zip(MAIN, helps, strict=True):
        # The tool of transactions has subcommands and indents its flags.
        flags = set(re.findall(r"^ *(?:-\w, )?(--[a-z][a-z.-]*)", text, re.MULTILINE))
        assert len(flags) > 3, text
        module = importlib.import_module(COMMANDS[tool][0])
        known = {flag for action in module.parser()._actions for flag in action.option_strings}
        assert flags <= known, tool
        command = ["list"] if tool == "transactions" else []
        with pytest.raises(CommandError, match="--nope") as refused:
            module.run([*nowhere._server(tool), *command, "--nope"])
        assert refused.value.status == 2


def test_settings_quotas_and_credentials_are_those_of_kafkas_tool(tools: Tools) -> None:
    create(tools, {"set-@": [[0]]})
    changes = [
        ["--topic", "set-@", "--add-config", "retention.ms=3600000,cleanup.policy=[compact,delete]"],
        [
            "--entity-type",
            "users",
            "--entity-name",
            "bob-@",
            "--add-config",
            "request_percentage=50,producer_byte_rate=1024,consumer_byte_rate=12345678",
        ],
        ["--user", "bob-@", "--client", "app", "--add-config", "controller_mutation_rate=1.5"],
        ["--user", "bob-@", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]"],
    ]
    for change in changes:
        assert same(tools.twins("configs", "--alter", *change))[-1].startswith(
            "Completed updating config for "
        )
    shown = same(tools.twins("configs", "--describe", "--topic", "set-@"))
    assert len(shown) == 3
    shown = same(tools.twins("configs", "--describe", "--user", "bob-@"))
    assert [line.split()[0] for line in shown] == ["Quota", "SCRAM"]
    pair = tools.both("configs", "--describe", "--entity-type", "users", "--entity-type", "clients")
    assert sorted(pair[0].out) == pair[1].out
    assert len(pair[1].out) == 2
    assert len(same(tools.both("configs", "--describe", "--broker", "1", "--all"))) > 200
    unknown = tools.ours("configs", "--describe", "--broker", "7")
    assert unknown.status == 1
    assert unknown.err.endswith("broker 7 is not running; the brokers that are: 0,1\n")
    removed = tools.ours("configs", "--alter", "--topic", "set-ours", "--delete-config", "retention.ms")
    assert removed.out == ["Completed updating config for topic set-ours."]
    assert "retention.ms" not in tools.ours("configs", "--describe", "--topic", "set-ours").said


def without_order(lines: list[str]) -> list[str]:
    """The JSON of log-dirs with its lists sorted: Kafka prints them in the order of a Java hash table."""
    found = []
    for line in lines:
        if line.startswith("{"):
            contents = json.loads(line)
            for broker in contents["brokers"]:
                broker["logDirs"].sort(key=lambda one: one["logDir"])
                for directory in broker["logDirs"]:
                    directory["partitions"].sort(key=lambda one: one["partition"])
            line = json.dumps(contents)
        found.append(line)
    return found


def by_broker(lines: list[str]) -> list[str]:
    """The output of broker-api-versions by broker: Kafka prints them in the order of a Java hash table."""
    return sorted(re.findall(r"^\S+ \(id: .*?^\)", "\n".join(lines), re.MULTILINE | re.DOTALL))


def test_log_directories_and_versions_are_printed_as_by_kafkas_tools(tools: Tools) -> None:
    theirs, ours = tools.both("log-dirs", "--describe")
    assert without_order(ours.out) == without_order(theirs.out)
    assert '"isFuture":false' in ours.out[-1]
    theirs, ours = tools.both("broker-api-versions")
    assert len(by_broker(ours.out)) == 2
    assert by_broker(ours.out) == by_broker(theirs.out)


TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_replicas_are_compared_and_the_lag_reported_as_by_kafkas_tool(tools: Tools) -> None:
    create(tools, {"both-@": [[0, 1]]})
    producer = Producer({"bootstrap.servers": tools.bootstrap, "acks": "all"})
    for number in range(3):
        producer.produce("both-kafk", str(number))
        assert producer.flush(60) == 0
    arguments = [
        "--broker-list",
        tools.bootstrap,
        "--topics-include",
        "both-kafk",
        "--time",
        "-2",
        "--report-interval-ms",
        "100",
    ]
    wanted = "<time>: max lag is 0 for partition both-kafk-0 at offset 3 among 1 partitions"
    for command in (
        tools.kafka.command(MAIN["replica-verification"], *arguments),
        [sys.executable, "-m", "cluster.cli", "replica-verification", *arguments],
    ):
        with running(command) as process:
            assert process.stdout is not None
            lines = [
                TIME.sub("<time>", line.rstrip("\n"))
                for line, _ in zip(process.stdout, range(3), strict=False)
            ]
        assert lines[0] == "<time>: verification process is started"
        assert lines[-1] == wanted


def test_the_tools_say_the_same_of_our_broker(broker: BrokerProcess, kafka_tools: KafkaTools) -> None:
    tools = Tools(kafka_tools, broker.bootstrap)
    create(tools, {"own-@": [[0]]})
    assert same(tools.twins("configs", "--alter", "--topic", "own-@", "--add-config", "segment.ms=7000"))
    assert len(same(tools.both("configs", "--describe", "--topic", "own-kafk", "--all"))) > 20
    theirs, ours = tools.both("log-dirs", "--describe", "--topic-list", "own-kafk")
    assert without_order(ours.out) == without_order(theirs.out)
    theirs, ours = tools.both("broker-api-versions")
    # Ours knows Kafka 4.0's versions of the APIs of KIP-848 and KIP-890. Kafka 3.9.1's tool knows one less.
    newer = re.compile(
        r"((?:ConsumerGroup(?:Heartbeat|Describe)|Produce|EndTxn|TxnOffsetCommit)\(\d+\): 0 to (\d+))"
        r" \[usable: \2\]"
    )
    (known,) = by_broker(ours.out)
    assert len(newer.findall(known)) == 5
    less = newer.sub(lambda found: f"{found[1]} [usable: {int(found[2]) - 1}]", known)
    assert [less] == by_broker(theirs.out)
