"""bench/scenarios.py: rounds, failures and warm-ups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from figures import Board, Figure
from loads import Figures, Medium
from scenarios import Run
from servers import KAFKA_3_9, OURS, Server


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(Medium("tmpfs", tmp_path), Board("tmpfs", 2, 1), seconds=1, quick=True, uncounted=1)
    run.servers = [cast(Server, SimpleNamespace(name=name)) for name in (OURS, KAFKA_3_9)]
    return run


# Broken if it failed: one server's failure would end the whole run.
def test_a_failing_server_is_reported_and_the_others_are_measured(run: Run) -> None:
    speed = Figure("speed", "MB/s")
    measured: list[str] = []

    def load(server: Server, _medium: Medium, _topic: str, _seconds: float, **_: Any) -> Figures:
        measured.append(server.name)
        if server.name == KAFKA_3_9:
            raise RuntimeError("it\n  failed")
        return {"mb_per_s": 5, "peak_mb": 40}

    for number in run.rounds("speed", 2):
        for server in run.servers:
            run.measure(server, number, {"mb_per_s": speed}, load, "topic")
    assert speed.failed == {KAFKA_3_9: "it failed"}
    assert speed.of(OURS) == {0: 5, 1: 5}
    assert run.memory.of(OURS) == {0: 40, 1: 40}
    # A server that failed is not tried again, because each try may take minutes.
    assert measured == [OURS, KAFKA_3_9, OURS]


# Broken if it failed: a server would be left out although it can be measured.
def test_a_failure_in_the_warm_up_does_not_count(run: Run) -> None:
    speed = Figure("speed", "MB/s")

    def load(_server: Server, _medium: Medium, topic: str, _seconds: float) -> Figures:
        if topic == "topic-1":
            raise RuntimeError
        return {"mb_per_s": 5, "peak_mb": 40}

    for number in run.rounds("speed", 1, uncounted=1):
        run.measure(run.servers[0], number, {"mb_per_s": speed}, load, "topic")
    assert not speed.failed
    assert [len(rounds) for rounds in speed.values.values()] == [1]


# Broken if it failed: one server would always be measured under better conditions.
def test_the_order_of_servers_is_reversed_after_each_round(run: Run) -> None:
    orders = [[server.name for server in run.servers] for _ in run.rounds("speed", 2)]
    assert orders == [[OURS, KAFKA_3_9], [KAFKA_3_9, OURS]]
