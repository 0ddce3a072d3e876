"""Apache Kafka 3.9.1's tools against our broker, and our tools beside them.

Broken if they failed: an operator's scripts would not move over, because Java's clients refuse our answers,
or because our tools print other text than Kafka's.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import socket
import struct
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from cluster.cli import COMMANDS
from cluster.cli._common import CommandError
from cluster.cli._java_properties import translate
from cluster.cli.console_producer import LineFormat
from cluster.client import Consumer, Producer, TopicPartition
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess, StartBroker
from tests.ports import free_port

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

PRODUCER = "kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def ours(*arguments: str, stdin: str | None = None, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, (
        f"logcore {arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout if status == 0 else done.stderr


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


# Broken if it failed: Kafka's own tool could not manage topics of our broker.
def test_topics_tool_creates_describes_alters_and_deletes(
    broker: BrokerProcess, kafka_tools: KafkaTools
) -> None:
    topic, server = fresh("java"), ("--bootstrap-server", broker.bootstrap)
    created = kafka_tools.topics(
        "--create", "--topic", topic, *server, "--partitions", "3", "--config", "retention.ms=3600000"
    )
    assert created == f"Created topic {topic}.\n"
    assert topic in kafka_tools.topics("--list", *server).split()
    assert ours("topics", "--list", *server) == kafka_tools.topics("--list", *server)
    described = kafka_tools.topics("--describe", "--topic", topic, *server)
    assert "PartitionCount: 3" in described
    assert "retention.ms=3600000" in described
    assert ours("topics", "--describe", "--topic", topic, *server) == described
    kafka_tools.topics("--alter", "--topic", topic, *server, "--partitions", "5")
    assert "PartitionCount: 5" in kafka_tools.topics("--describe", "--topic", topic, *server)
    again = kafka_tools.topics("--create", "--topic", topic, *server, status=1)
    assert "already exists" in again
    kafka_tools.topics("--delete", "--topic", topic, *server)
    assert topic not in kafka_tools.topics("--list", *server).split()


# Broken if it failed: a script that parses the output would fail.
def test_our_topics_tool_prints_what_kafkas_prints(broker: BrokerProcess, kafka_tools: KafkaTools) -> None:
    topic, server = f"our_topic_{uuid.uuid4().hex[:8]}", ("--bootstrap-server", broker.bootstrap)
    made = ours(
        "topics", "--create", "--topic", topic, *server, "--partitions", "2", "--replication-factor", "1"
    )
    assert made.splitlines()[0].startswith("WARNING: Due to limitations in metric names")
    assert made.splitlines()[1] == f"Created topic {topic}."
    assert kafka_tools.topics("--describe", "--topic", topic, *server) == ours(
        "topics", "--describe", "--topic", topic, *server
    )
    assert "already exists" in ours("topics", "--create", "--topic", topic, *server, status=1)
    assert ours("topics", "--create", "--topic", topic, "--if-not-exists", *server).splitlines()[1:] == []
    ours("topics", "--alter", "--topic", topic, *server, "--partitions", "4")
    assert "PartitionCount: 4" in kafka_tools.topics("--describe", "--topic", topic, *server)
    ours("topics", "--delete", "--topic", topic, *server)
    assert topic not in ours("topics", "--list", *server).split()
    gone = ours("topics", "--delete", "--topic", topic, *server, status=1)
    assert gone == f"logcore topics: Topic '{topic}' does not exist as expected\n"


# Broken if it failed: records of one project's producer could not be read by the other's consumer.
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(broker: BrokerProcess, kafka_tools: KafkaTools, codec: str) -> None:
    """Both producers write, and both consumers read all of it, with each compression."""
    topic = fresh(f"console-{codec}")
    lines = "".join(f"k{i}\tvalue number {i}\n" for i in range(50))
    kafka_tools.run(
        PRODUCER,
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--compression-codec",
        codec,
        "--property",
        "parse.key=true",
        stdin=lines,
    )
    read = (
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--from-beginning",
        "--property",
        "print.key=true",
    )
    ours(
        "console-producer",
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--compression-codec",
        codec,
        "--property",
        "parse.key=true",
        stdin=lines,
    )
    expected = sorted(lines.splitlines() * 2)
    assert (
        sorted(
            kafka_tools.run(CONSUMER, *read, "--max-messages", "100", "--timeout-ms", "60000").splitlines()
        )
        == expected
    )
    assert (
        sorted(ours("console-consumer", *read, "--max-messages", "100", "--timeout-ms", "30000").splitlines())
        == expected
    )


# Broken if it failed: records would be read twice or not at all after a change of tools.
def test_console_consumer_in_a_group_continues_where_it_stopped(
    broker: BrokerProcess, kafka_tools: KafkaTools
) -> None:
    topic, group = fresh("grouped"), fresh("group")
    produce = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    consume = (*produce, "--group", group, "--from-beginning", "--timeout-ms", "60000")
    ours("console-producer", *produce, stdin="one\ntwo\nthree\nfour\n")
    assert kafka_tools.run(CONSUMER, *consume, "--max-messages", "2").split() == ["one", "two"]
    assert ours("console-consumer", *consume, "--max-messages", "2").split() == ["three", "four"]


# Broken if it failed: a typing error would be a traceback.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topics", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["topics", "--list", "--create", "--bootstrap-server", "localhost:1"], "exactly one action"),
        (["console-consumer", "--bootstrap-server", "localhost:1"], "--topic"),
        (["start", "--port", "many"], "--port"),
        (["frobnicate"], "no command 'frobnicate'"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(arguments: list[str], message: str) -> None:
    error = ours(*arguments, status=2)
    assert message in error
    assert error.count("\n") == 1


REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"


# Broken if it failed: an operator could not move partitions or leaders with Kafka's tools.
def test_partitions_and_leaders_are_moved(
    start_broker: StartBroker, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    override = ("--override", "auto.leader.rebalance.enable=false")
    brokers = start_broker(None, 0, "--brokers", "3", *override)
    try:
        server = ("--bootstrap-server", brokers.bootstrap)
        kafka_tools.topics("--create", "--topic", "t", *server, "--replica-assignment", "0:1,1:2")
        ours("console-producer", *server, "--topic", "t", stdin="one\ntwo\nthree\n")
        plan = tmp_path / "plan.json"
        plan.write_text(
            '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,0]},'
            '{"topic":"t","partition":1,"replicas":[0,1,2]}]}'
        )
        given = (*server, "--reassignment-json-file", str(plan))
        executed = kafka_tools.run(REASSIGN, "--execute", *given)
        assert "Successfully started partition reassignments for t-0,t-1" in executed
        verified = ""
        while verified.count("is completed.") < 2:
            verified = kafka_tools.run(REASSIGN, "--verify", *given)
            assert "There is no active" not in verified
        assert kafka_tools.run(REASSIGN, "--list", *server) == "No partition reassignments found.\n"
        elected = kafka_tools.run(ELECT, *server, "--election-type", "preferred", "--all-topic-partitions")
        assert "Successfully completed leader election (PREFERRED) for partitions" in elected
        described = ours("topics", "--describe", "--topic", "t", *server)
        assert re.search(r"Partition: 0\s+Leader: 2\s+Replicas: 2,0\s", described)
        assert re.search(r"Partition: 1\s+Leader: 0\s+Replicas: 0,1,2\s", described)
        read = ("console-consumer", *server, "--topic", "t", "--from-beginning", "--max-messages", "3")
        assert sorted(ours(*read, "--timeout-ms", "30000").split()) == ["one", "three", "two"]
    finally:
        assert brokers.stop() == 0, brokers.output()


BIG_LINE = "x" * 2_000_000


# Broken if it failed: lines before a bad one would be lost silently. Kafka's producer keeps the same ones.
@pytest.mark.parametrize(
    ("flags", "lines", "their_status", "kept"),
    [
        (["--property", "parse.key=true"], ["k\tgood", "bad", "k\tafter"], 1, ["good"]),
        # Ours ends with 1 here, too: a line was not delivered.
        ([], ["one", BIG_LINE, "two"], 0, ["one", "two"]),
        (["--sync"], ["one", BIG_LINE, "two"], 1, ["one"]),
    ],
    ids=["no separator", "too large", "too large with --sync"],
)
def test_a_bad_line_does_not_lose_the_good_ones(
    broker: BrokerProcess,
    kafka_tools: KafkaTools,
    flags: list[str],
    lines: list[str],
    their_status: int,
    kept: list[str],
) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    stdin = "".join(f"{line}\n" for line in lines)
    theirs, mine = fresh("their-lines"), fresh("our-lines")
    kafka_tools.run(PRODUCER, *server, "--topic", theirs, *flags, stdin=stdin, status=their_status)
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", "console-producer", *server, "--topic", mine, *flags],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(r"\bline (number )?2\b", done.stderr), done.stderr
    for topic in (theirs, mine):
        read = (
            "--topic",
            topic,
            "--from-beginning",
            "--max-messages",
            str(len(kept)),
            "--timeout-ms",
            "20000",
        )
        assert ours("console-consumer", *server, *read).splitlines() == kept
        assert end_offset(broker.bootstrap, topic) == len(kept)


def end_offset(bootstrap: str, topic: str) -> int:
    """How many records the topic's only partition has."""
    with contextlib.closing(
        Consumer({"bootstrap.servers": bootstrap, "group.id": fresh("ends")})
    ) as consumer:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        return end


# Broken if it failed: a missing key would be an empty one, and all such lines would go to one partition.
@pytest.mark.parametrize(
    ("properties", "line", "record"),
    [
        ({"parse.key": "true"}, "no key", ([], None, b"no key")),
        ({"parse.key": "true", "key.separator": " "}, "k v", ([], b"k", b"v")),
        (
            {"parse.headers": "true", "null.marker": "~"},
            "bare,a:1,b:~\t~",
            ([("bare", None), ("a", b"1"), ("b", None)], None, None),
        ),
    ],
)
def test_lines_are_parsed_as_by_kafkas_reader(
    properties: dict[str, str], line: str, record: tuple[object, ...]
) -> None:
    assert LineFormat.of({"ignore.error": "true", **properties}).parse(line.encode(), 1) == record
    with pytest.raises(CommandError, match=r"headers.separator and headers.key.separator must not be equal"):
        LineFormat.of({"headers.separator": ":"})


# Broken if it failed: a script with a flag of Kafka's would end with "unrecognized arguments".
@pytest.mark.parametrize(
    ("tool", "main_class"),
    [
        ("topics", "org.apache.kafka.tools.TopicCommand"),
        ("console-producer", PRODUCER),
        ("console-consumer", CONSUMER),
    ],
)
def test_our_tool_has_every_flag_of_kafkas(kafka_tools: KafkaTools, tool: str, main_class: str) -> None:
    listed = subprocess.run(
        kafka_tools.command(main_class, "--help"), capture_output=True, text=True, timeout=90
    )
    flags = set(re.findall(r"^(--[a-z][a-z.-]*)", listed.stdout + listed.stderr, re.MULTILINE))
    assert len(flags) > 20, listed.stderr
    module = importlib.import_module(COMMANDS[tool][0])
    known = {flag for action in module.parser()._actions for flag in action.option_strings}
    assert flags - known == set()
    assert re.fullmatch(r"logcore \d+\.\d+\.\d+\n", ours(tool, "--version"))


JAVA_FILE = """
key.serializer=org.apache.kafka.common.serialization.StringSerializer
max.block.ms=20000
buffer.memory=33554432
linger.ms=0
fetch.max.wait.ms=100
max.poll.records=2
default.api.timeout.ms=20000
request.timeout.ms=20000
receive.buffer.bytes=65536
metadata.max.age.ms=300000
security.protocol=PLAINTEXT
"""


# Broken if it failed: an operator's property file, which is a Java client's, would end the command.
def test_java_client_properties_are_taken_and_unknown_ones_refused(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    file, topic = tmp_path / "client.properties", fresh("java-names")
    file.write_text(JAVA_FILE)
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    for arguments, stdin in (
        (("topics", *server, "--create", "--command-config", str(file)), None),
        (("console-producer", *server, "--producer.config", str(file)), "a\nb\nc\n"),
        (
            (
                "console-consumer",
                *server,
                "--consumer.config",
                str(file),
                "--from-beginning",
                "--max-messages",
                "3",
                "--timeout-ms",
                "20000",
            ),
            None,
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "cluster.cli", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        for name in ("key.serializer", "receive.buffer.bytes"):
            assert f"logcore {arguments[0]}: warning: {name} has no effect here\n" in done.stderr
        assert "buffer.memory" not in done.stderr
    assert done.stdout == "a\nb\nc\n"
    unknown = ours("console-producer", *server, "--producer-property", "no.such=1", stdin="", status=1)
    assert 'No such configuration property: "no.such"' in unknown
    assert unknown.count("\n") == 1


# Broken if it failed: bytes would be taken for kilobytes, or a limit would be another.
def test_java_names_and_units_are_translated(capsys: pytest.CaptureFixture[str]) -> None:
    named = {
        "buffer.memory": "33554433",
        "max.request.size": "5000000",
        "metadata.max.age.ms": "99999999",
        "request.timeout.ms": "1500",
        "compression.type": "zstd",
        "compression.zstd.level": "7",
        "compression.gzip.level": "9",
        "max.block.ms": "1500",
    }
    found = translate(named, "producer", "console-producer")
    assert found.client == {
        "queue.buffering.max.kbytes": "32769",
        "message.max.bytes": "5000000",
        "topic.metadata.refresh.interval.ms": "3600000",
        "request.timeout.ms": "1500",
        "compression.type": "zstd",
        "compression.level": "7",
    }
    assert found.seconds("max.block.ms", 60) == 1.5
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "metadata.max.age.ms=99999999 is taken as 3600000" in warning
    consumer = {
        "request.timeout.ms": "1500",
        "auto.offset.reset": "none",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor,"
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    }
    assert translate(consumer, "consumer", "console-consumer").client == {
        "socket.timeout.ms": "1500",
        "auto.offset.reset": "error",
        "partition.assignment.strategy": "range",
    }
    with pytest.raises(CommandError, match=r"max\.block\.ms takes a whole number"):
        translate({"max.block.ms": "soon"}, "producer", "console-producer")


# Broken if it failed: a key's records from both tools would be in two partitions, in no order.
def test_both_producers_put_a_key_into_the_same_partition(
    broker: BrokerProcess, kafka_tools: KafkaTools
) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    lines = "".join(f"key-{number}\tvalue\n" for number in range(40))
    partitions = []
    for produce in ("kafka", "ours"):
        topic = fresh(f"keys-{produce}")
        ours("topics", "--create", "--topic", topic, "--partitions", "5", *server)
        flags = ("--topic", topic, *server, "--property", "parse.key=true", "--max-memory-bytes", "1000000")
        if produce == "kafka":
            kafka_tools.run(PRODUCER, *flags, stdin=lines)
        else:
            ours(
                "console-producer",
                *flags,
                "--batch-size",
                "100",
                "--metadata-expiry-ms",
                "60000",
                stdin=lines,
            )
        shown = ("--property", "print.key=true", "--property", "print.partition=true")
        read = ("--topic", topic, "--from-beginning", "--max-messages", "40", "--timeout-ms", "20000")
        partitions.append(sorted(ours("console-consumer", *server, *read, *shown).splitlines()))
    assert len(partitions[0]) == 40
    assert partitions[0] == partitions[1]


NUMBERS = "org.apache.kafka.common.serialization."


# Broken if it failed: numbers would be printed as raw bytes, or in another form than a script expects.
@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("Integer", [struct.pack(">i", number) for number in (0, -1, 2**31 - 1)]),
        ("Long", [struct.pack(">q", number) for number in (0, -5, 2**40)]),
        ("Short", [struct.pack(">h", -300)]),
        (
            "Double",
            [
                struct.pack(">d", number)
                for number in (
                    0.0,
                    -0.0,
                    1.0,
                    0.1,
                    123456.789,
                    1e7,
                    9999999.5,
                    0.001,
                    0.00012,
                    -1.5e300,
                    math.inf,
                )
            ],
        ),
        ("Float", [struct.pack(">f", number) for number in (0.1, 1.0, 3.4e38, 1e-5, 16777216.0, -math.inf)]),
        ("String", ["grün".encode()]),
        ("Boolean", [b"\x00", b"\x01"]),
        ("Bytes", [b"a\\\x00\xff"]),
        ("ByteBuffer", [b"abc"]),
        ("UUID", [b"123e4567-e89b-12d3-a456-426614174000"]),
    ],
)
def test_records_are_printed_as_by_kafkas_deserializers(
    broker: BrokerProcess, kafka_tools: KafkaTools, name: str, records: list[bytes]
) -> None:
    topic = fresh(name)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for record in records:
        producer.produce(topic, record, record)
    assert producer.flush(20) == 0
    read = (
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--from-beginning",
        "--timeout-ms",
        "30000",
    )
    count = ("--max-messages", str(len(records)), "--enable-systest-events")
    readers = (
        "--value-deserializer",
        f"{NUMBERS}{name}Deserializer",
        "--property",
        f"key.deserializer={NUMBERS}{name}Deserializer",
        "--property",
        "print.key=true",
    )
    mine = ours("console-consumer", *read, *count, *readers)
    assert mine.endswith("shutdown_complete\n")
    assert mine == kafka_tools.run(CONSUMER, *read, *count, *readers)


# Broken if it failed: one bad record would end in a traceback, or --skip-message-on-error would not skip it.
def test_a_record_that_cannot_be_deserialized_is_an_error_or_skipped(broker: BrokerProcess) -> None:
    topic = fresh("bad-record")
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    ours("console-producer", *server, stdin="1234\nbad\n5678\n")
    read = ("console-consumer", *server, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000")
    integers = ("--value-deserializer", f"{NUMBERS}IntegerDeserializer")
    error = ours(*read, *integers, status=1)
    assert f"{topic}-0 offset 1 cannot be printed: " in error
    assert error.count("\n") == 1
    assert ours(*read, *integers, "--skip-message-on-error").split() == ["825373492", "892745528"]
    assert ours(*read, "--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter") == ""


# Broken if it failed: a flag that names a Java class of the user's would be ignored silently.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["console-producer", "--line-reader", "com.example.Reader"], "--line-reader: 'com.example.Reader'"),
        (["console-consumer", "--formatter", "com.example.Shown"], "--formatter: 'com.example.Shown'"),
        (
            ["console-consumer", "--key-deserializer", "com.example.Avro"],
            "key.deserializer: 'com.example.Avro'",
        ),
        (["topics", "--alter", "--delete-config", "retention.ms"], "--delete-config"),
        (["topics", "--list", "--partition-size-limit-per-response", "5"], "needs --describe"),
        (
            ["console-consumer", "--group", "a", "--consumer-property", "group.id=b"],
            "name different groups: a, b",
        ),
        (
            ["console-producer", "--producer-property", "partitioner.class=com.example.Mine"],
            "partitioner.class com.example.Mine",
        ),
    ],
)
def test_unsupported_flags_are_named_in_one_line(arguments: list[str], message: str) -> None:
    error = ours(*arguments, "--bootstrap-server", "localhost:1", "--topic", "t", status=2, stdin="")
    assert message in error
    assert error.count("\n") == 1


CREATE_TOPICS = 19


class SilentOnCreate:
    """A proxy of a broker that forwards everything except CreateTopics requests, which it drops."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.broker_port = broker_port
        self.dropped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                broker = socket.create_connection(("127.0.0.1", self.broker_port))
                self._sockets += [client, broker]
                for source, sink in ((client, broker), (broker, client)):
                    threading.Thread(
                        target=self._forward, args=(source, sink, source is client), daemon=True
                    ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(head, "big"))
                if requests and int.from_bytes(frame[:2], "big") == CREATE_TOPICS:
                    self.dropped.set()
                else:
                    sink.sendall(head + frame)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


# Broken if it failed: a controller that hangs would be a traceback, or keep the process for a minute.
def test_a_request_that_is_never_answered_ends_in_one_line(
    start_broker: StartBroker, tmp_path: Path, unused_port: int
) -> None:
    own_port = free_port()
    advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{unused_port}"
    start_broker(None, own_port, "--host", "127.0.0.1", "--override", advertised)
    with contextlib.closing(SilentOnCreate(unused_port, own_port)) as proxy:
        address = f"127.0.0.1:{unused_port}"
        file = tmp_path / "client.properties"
        file.write_text("default.api.timeout.ms=4000\n")
        flags = ("--bootstrap-server", address, "--command-config", str(file))
        assert ours("topics", "--list", *flags) == "\n"
        error = ours("topics", "--create", "--topic", "never", *flags, status=1)
        assert proxy.dropped.is_set()
    assert error.startswith(f"logcore topics: {address}: ")
    assert error.count("\n") == 1, error


EVERY_COMMAND = [
    ["topics", "--create", "--topic", "t"],
    ["topics", "--list"],
    ["topics", "--describe", "--topic", "t"],
    ["topics", "--alter", "--topic", "t", "--partitions", "2"],
    ["topics", "--delete", "--topic", "t"],
    ["console-producer", "--topic", "t"],
    ["console-consumer", "--topic", "t"],
]


# Broken if it failed: a script that names a wrong or hanging broker would hang for a minute, or end in a
# traceback.
@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_an_unreachable_broker_is_reported_in_one_line(silent: bool) -> None:
    # A bound socket that does not listen refuses connections. One that listens and never accepts does not
    # answer.
    with socket.create_server(("127.0.0.1", 0)) if silent else socket.socket() as unreachable:
        if not silent:
            unreachable.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*unreachable.getsockname())
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "cluster.cli", *arguments, "--bootstrap-server", address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for arguments in EVERY_COMMAND
        ]
        try:
            for arguments, process in zip(EVERY_COMMAND, started, strict=True):
                # Less than the minute of a request: the tools give up after 3 s and 10 s.
                error = process.communicate(timeout=40)[1]
                assert process.returncode == 1, (arguments, error)
                assert address in error, arguments
                assert error.count("\n") == 1, (arguments, error)
                assert ("no answer within 10 s" if silent else "can be reached") in error, arguments
        finally:
            for process in started:
                process.kill()
                process.communicate()


# Broken if it failed: a user would see "error 17" and have to look it up.
def test_an_error_code_is_printed_with_its_name_and_message(broker: BrokerProcess) -> None:
    error = ours(
        "console-producer",
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        "not a name",
        stdin="x\n",
        status=1,
    )
    assert "INVALID_TOPIC_EXCEPTION (error 17): " in error
    assert error.count("\n") == 1, error
