"""Apache Kafka 3.9.1's own tools against our broker, and our tools beside them.

If these failed, an operator's scripts would not move over: the Java AdminClient, producer and consumer would refuse
our answers, or our tools would print something other than Kafka's.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import uuid

import pytest

from cluster.cli._common import CommandError, told
from cluster.cli.console_producer import LineFormat
from cluster.client import Consumer, KafkaError, TopicPartition
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess

pytestmark = pytest.mark.compat

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


def test_our_topics_tool_is_the_same_to_kafkas(broker: BrokerProcess, kafka_tools: KafkaTools) -> None:
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


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(broker: BrokerProcess, kafka_tools: KafkaTools, codec: str) -> None:
    """Java's producer (idempotent by default) to Java's consumer and to ours, and ours to Java's, in each compression."""
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


def test_console_consumer_in_a_group_goes_on_where_it_stopped(
    broker: BrokerProcess, kafka_tools: KafkaTools
) -> None:
    topic, group = fresh("grouped"), fresh("group")
    produce = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    consume = (*produce, "--group", group, "--from-beginning", "--timeout-ms", "60000")
    ours("console-producer", *produce, stdin="one\ntwo\nthree\nfour\n")
    assert kafka_tools.run(CONSUMER, *consume, "--max-messages", "2").split() == ["one", "two"]
    assert ours("console-consumer", *consume, "--max-messages", "2").split() == ["three", "four"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topics", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["topics", "--list", "--create", "--bootstrap-server", "localhost:1"], "exactly one action"),
        (["console-consumer", "--bootstrap-server", "localhost:1"], "--topic"),
        (["start", "--port", "many"], "--port"),
        (["frobnicate"], "no command 'frobnicate'"),
    ],
)
def test_wrong_arguments_are_one_clear_line(arguments: list[str], says: str) -> None:
    error = ours(*arguments, status=2)
    assert says in error
    assert error.count("\n") == 1


BIG_LINE = "x" * 2_000_000


@pytest.mark.parametrize(
    ("flags", "lines", "status", "kept"),
    [
        (["--property", "parse.key=true"], ["k\tgood", "bad", "k\tafter"], 1, ["good"]),
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
    status: int,
    kept: list[str],
) -> None:
    """Else lines that were read before a bad one would be gone without a word; Kafka's producer keeps the same ones."""
    server = ("--bootstrap-server", broker.bootstrap)
    stdin = "".join(f"{line}\n" for line in lines)
    theirs, mine = fresh("their-lines"), fresh("our-lines")
    kafka_tools.run(PRODUCER, *server, "--topic", theirs, *flags, stdin=stdin, status=status)
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", "console-producer", *server, "--topic", mine, *flags],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
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
    """How many records the topic's one partition holds."""
    with contextlib.closing(
        Consumer({"bootstrap.servers": bootstrap, "group.id": fresh("ends")})
    ) as consumer:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        return end


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
def test_lines_are_read_as_kafkas_reader_reads_them(
    properties: dict[str, str], line: str, record: tuple[object, ...]
) -> None:
    """Else a key that is missing would be an empty one, and lines without keys would all go to one partition."""
    assert LineFormat.of({"ignore.error": "true", **properties}).parse(line.encode(), 1) == record
    with pytest.raises(CommandError, match=r"headers.separator and headers.key.separator may not be equal"):
        LineFormat.of({"headers.separator": ":"})


EVERY_VERB = [
    ["topics", "--create", "--topic", "t"],
    ["topics", "--list"],
    ["topics", "--describe", "--topic", "t"],
    ["topics", "--alter", "--topic", "t", "--partitions", "2"],
    ["topics", "--delete", "--topic", "t"],
    ["console-producer", "--topic", "t"],
    ["console-consumer", "--topic", "t"],
]


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_an_unreachable_broker_is_one_clear_line(silent: bool) -> None:
    """Else a script that names a wrong or hanging broker would hang for a minute, or end in a traceback."""
    # A socket that is bound and does not listen refuses; one that listens and never accepts is never answered.
    with socket.create_server(("127.0.0.1", 0)) if silent else socket.socket() as nobody:
        if not silent:
            nobody.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*nobody.getsockname())
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "cluster.cli", *arguments, "--bootstrap-server", address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for arguments in EVERY_VERB
        ]
        try:
            for arguments, process in zip(EVERY_VERB, started, strict=True):
                # Less than the request's own minute; the tool takes 3 s and 10 s.
                error = process.communicate(timeout=40)[1]
                assert process.returncode == 1, (arguments, error)
                assert address in error, arguments
                assert error.count("\n") == 1, (arguments, error)
        finally:
            for process in started:
                process.kill()
                process.communicate()


def test_an_error_known_by_its_number_is_told_by_name_and_meaning(broker: BrokerProcess) -> None:
    """Else a person is told "error 17" and has to look it up."""
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
    storage = KafkaError(56, "writing t-0: the broker answered with error 56")
    assert told(storage).startswith("writing t-0: the broker answered KAFKA_STORAGE_ERROR (error 56): ")
    assert told(KafkaError(36, "Topic 't' already exists.")) == "Topic 't' already exists."
