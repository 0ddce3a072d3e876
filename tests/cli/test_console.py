"""If these fail, a script does not notice that its lines are missing, or Kafka 4.2's flags are refused."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.conftest import BrokerProcess


def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """A command's exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic that takes no record above 2,000 bytes."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    made = ("--create", "--topic", name, "--bootstrap-server", broker.bootstrap)
    assert run("topics", *made, "--config", "max.message.bytes=2000")[0] == 0
    return name


@pytest.mark.parametrize("flags", [(), ("--sync",)], ids=["batched", "sync"])
def test_an_undelivered_line_ends_the_command_with_a_status_of_its_own(
    broker: BrokerProcess, topic: str, flags: tuple[str, ...]
) -> None:
    lines = "one\n" + "x" * 5000 + "\ntwo\n"
    produce = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    status, _, said = run("console-producer", *produce, *flags, stdin=lines)
    assert status == 1
    assert "line 2 was not delivered" in said
    assert "MESSAGE_TOO_LARGE" in said
    kept = ["one"] if flags else ["one", "two"]
    read = ("--from-beginning", "--max-messages", str(len(kept)), "--timeout-ms", "20000")
    status, records, _ = run("console-consumer", *produce, *read)
    assert (status, records.splitlines()) == (0, kept)


def test_the_flags_of_kafka_4_2(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    file = tmp_path / "client.properties"
    file.write_text("client.id=from-the-file\n")
    config = ("--command-config", str(file))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    produced = run(
        "console-producer", *server, *config, *keyed, "--command-property", "linger.ms=1", stdin="k:v\n"
    )
    assert produced[0] == 0, produced
    shown = ("--formatter-property", "print.key=true", "--command-property", "group.id=mine")
    read = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    assert run("console-consumer", *server, *config, *shown, *read)[:2] == (0, "k\tv\n")


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("console-producer", "--property", "--reader-property"),
        ("console-producer", "--producer-property", "--command-property"),
        ("console-producer", "--producer.config", "--command-config"),
        ("console-consumer", "--property", "--formatter-property"),
        ("console-consumer", "--consumer-property", "--command-property"),
        ("console-consumer", "--consumer.config", "--command-config"),
    ],
)
def test_an_old_flag_and_its_new_name_together_are_refused(command: str, old: str, new: str) -> None:
    given = ("--bootstrap-server", "localhost:1", "--topic", "t", old, "a=b", new, "a=b")
    status, _, said = run(command, *given)
    assert (status, said) == (2, f"logcore {command}: {old} and {new} cannot be used together\n")


def test_a_number_that_no_request_can_hold_is_refused_without_a_traceback(broker: BrokerProcess) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    status, _, said = run("topics", "--create", "--topic", "many", "--partitions", "9999999999", *server)
    assert status == 2
    assert said.startswith("logcore topics: a value does not fit into Kafka's request: ")
    assert "\n" not in said.rstrip("\n")
