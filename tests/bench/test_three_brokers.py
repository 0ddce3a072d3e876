"""bench/three_brokers.py: what its figures are made of, with stand-ins for the brokers' processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import clusters
import three_brokers
from clusters import Cluster, Member
from figures import Goal
from pairs import Run, section
from servers import KAFKA_3_9, OURS

pytestmark = pytest.mark.timeout(30)

# A broker that ends by itself at its first start, as Kafka's does while its old session lives.
ENDS_ONCE = """
import pathlib, signal, sys
here = pathlib.Path(sys.argv[1])
if (here / "first").exists():
    (here / "ready").open("w").close()
    signal.pause()
(here / "first").touch()
"""


@pytest.fixture
def wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for bench/wire. `gap` reports the figures in a file. A wait ends when `ready`, a file or a
    pipe, is read.
    """
    program = tmp_path / "wire"
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "here = pathlib.Path(sys.argv[0]).parent\n"
        "if sys.argv[1] == 'gap':\n"
        "    print('producing', flush=True)\n"
        "    sys.stdin.read()\n"
        "    print((here / 'figures').read_text())\n"
        "else:\n"
        "    (here / 'ready').open().read()\n"
        "    print('{\"seconds\": 1}')\n"
    )
    program.chmod(0o755)
    for module in (clusters, three_brokers):
        monkeypatch.setattr(module, "WIRE", program)
    monkeypatch.setattr(three_brokers, "SETTLED_SECONDS", 0.0)
    return tmp_path


def member(number: int, directory: Path, command: Sequence[str]) -> Member:
    return Member(number, 9000 + number, list(command), directory / f"{number}.out")


def cluster_of(members: list[Member]) -> Cluster:
    return Cluster(OURS, members, [], members[0].pid)


# Broken if it failed: Apache Kafka could not be measured, which ends until its old session is over.
def test_a_broker_that_ends_at_its_start_is_started_again(wire: Path) -> None:
    os.mkfifo(wire / "ready")
    broker = member(0, wire, [sys.executable, "-c", ENDS_ONCE, str(wire)])
    try:
        assert broker.has_ended(20)
        (wire / "first").unlink()
        assert cluster_of([broker]).start_again(broker, ["t"], 1) > 0
        assert broker.started_again == 2
    finally:
        broker.end(signal.SIGKILL)
        broker.close()


# Broken if it failed: a cluster that lost records would have a good figure.
def test_a_lost_record_fails_the_scenario(wire: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wire / "ready").touch()
    brokers = [member(number, wire, ["sleep", "60"]) for number in range(3)]
    cluster = cluster_of(brokers)
    monkeypatch.setattr(cluster, "leader", lambda *_: 1)
    try:
        (wire / "figures").write_text('{"lost": 0, "acknowledged": 5, "longest_gap_ms": 7}')
        ended: list[int] = []

        def end(victim: Member) -> None:
            ended.append(victim.number)
            victim.end(signal.SIGKILL)

        got = three_brokers.with_producer(cluster, "t", 0, end)
        assert (ended, got["longest_gap_ms"]) == ([1], 7)
        assert [broker.number for broker in cluster.alive] == [0, 2]
        assert cluster.wire_flags == ["--bootstrap", "9000"]
        (wire / "figures").write_text('{"lost": 2, "acknowledged": 5}')
        with pytest.raises(RuntimeError, match="2 of 5 acknowledged records are lost"):
            three_brokers.with_producer(cluster, "t", 0, lambda _: None)
    finally:
        for broker in brokers:
            broker.close()


# Broken if it failed: a failing side would stop the other, or would not be in the table.
def test_each_side_is_measured_in_turn_and_a_failure_is_shown() -> None:
    sides = [cast(Cluster, SimpleNamespace(name=name)) for name in (OURS, KAFKA_3_9)]
    run = Run(sides, rounds=2, quick=False)
    order: list[str] = []

    def measure(cluster: Cluster, number: int) -> None:
        order.append(cluster.name)
        if cluster.name == KAFKA_3_9 and number == 1:
            raise RuntimeError("it\nended")
        figure = run.figure("gap", "s", (Goal(2), Goal(0.5, KAFKA_3_9)), False)
        run.keep(figure, cluster, number, 1.0 if cluster.name == OURS else 4.0)

    run.each("gap", measure, 1)
    assert order == [KAFKA_3_9, OURS, OURS, KAFKA_3_9, KAFKA_3_9, OURS]
    lines = section("Faults", list(run.figures.values()), OURS, KAFKA_3_9, "Kafka")
    assert lines[5] == "| gap | s | 1.00 | failed | 0.25 | ≤ 2 s; ≤ 0.5x Kafka |"
    assert lines[-1] == f"- {KAFKA_3_9}: gap: it ended"


# Broken if it failed: the topics of a fill would be waited for under another name.
def test_a_wait_names_the_topics_by_their_number(wire: Path) -> None:
    broker = member(0, wire, ["sleep", "60"])
    try:
        cluster = cluster_of([broker])
        command = " ".join(cluster.waiting(["f-0", "f-1"], 10, not_broker=2))
        assert " --topic f --partitions 10 --not-broker 2 --in-sync 0 " in command
        assert command.endswith(" --topics 2")
        assert "--topic f-x --" in " ".join(cluster.waiting(["f-x"], 10))
    finally:
        broker.close()
