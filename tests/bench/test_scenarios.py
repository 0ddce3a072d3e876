"""If these fail, one server's failure ends the run of all, or one of them is measured under better conditions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from figures import Board, Figure
from loads import Figures, Ground
from scenarios import Run
from servers import KAFKA_3_9, OURS, Server


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(Ground("tmpfs", tmp_path), Board("tmpfs", 2, 1), seconds=1, quick=True, uncounted=1)
    run.servers = [cast(Server, SimpleNamespace(name=name)) for name in (OURS, KAFKA_3_9)]
    return run


def test_a_server_that_fails_is_told_by_its_reason_and_the_others_go_on(run: Run) -> None:
    speed = Figure("speed", "MB/s")
    asked: list[str] = []

    def load(server: Server, _ground: Ground, _topic: str, _seconds: float, **_: Any) -> Figures:
        asked.append(server.name)
        if server.name == KAFKA_3_9:
            raise RuntimeError("it said\n  no")
        return {"mb_per_s": 5, "peak_mb": 40}

    for number in run.rounds("speed", 2):
        for server in run.servers:
            run.measure(server, number, {"mb_per_s": speed}, load, "topic")
    assert speed.failed == {KAFKA_3_9: "it said no"}
    assert speed.of(OURS) == {0: 5, 1: 5}
    assert run.memory.of(OURS) == {0: 40, 1: 40}
    # What failed once is not tried again, as each try may take minutes.
    assert asked == [OURS, KAFKA_3_9, OURS]


def test_a_warm_up_that_fails_may_go_well_later(run: Run) -> None:
    speed = Figure("speed", "MB/s")

    def load(_server: Server, _ground: Ground, topic: str, _seconds: float) -> Figures:
        if topic == "topic-1":
            raise RuntimeError
        return {"mb_per_s": 5, "peak_mb": 40}

    for number in run.rounds("speed", 1, uncounted=1):
        run.measure(run.servers[0], number, {"mb_per_s": speed}, load, "topic")
    assert not speed.failed
    assert [len(rounds) for rounds in speed.values.values()] == [1]


def test_whoever_goes_first_in_one_round_goes_last_in_the_next(run: Run) -> None:
    orders = [[server.name for server in run.servers] for _ in run.rounds("speed", 2)]
    assert orders == [[OURS, KAFKA_3_9], [KAFKA_3_9, OURS]]
