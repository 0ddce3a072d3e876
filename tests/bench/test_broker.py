"""bench/broker.py: how it starts the servers, and the table's links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import broker
from figures import Board
from loads import Medium
from scenarios import Run
from servers import BARE, KAFKA_3_9, KAFKA_4_1, OURS, Server

Begin = Callable[[Path], AbstractContextManager[Server]]


class Starts:
    """Fake servers. Records which were started, which run, and how many ran when each was started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running: list[str] = []
        self.most_running: list[int] = []
        self.failing: set[str] = set()

    def of(self, name: str) -> Begin:
        @contextmanager
        def begin(directory: Path) -> Iterator[Server]:
            assert directory.is_dir()
            self.started.append(name)
            if name in self.failing:
                raise RuntimeError("it failed")
            self.running.append(name)
            self.most_running.append(len(self.running))
            number = float(self.started.count(name))
            try:
                yield cast(
                    Server,
                    SimpleNamespace(
                        name=name,
                        seconds_to_answer=number,
                        resident_mb=lambda: 10 * number,
                        stop=lambda: None,
                    ),
                )
            finally:
                self.running.remove(name)

        return begin


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    starts = Starts()
    monkeypatch.setattr(broker, "ours", starts.of(OURS))
    monkeypatch.setattr(broker, "KAFKAS", {"3.9.1": starts.of(KAFKA_3_9), "4.1.0": starts.of(KAFKA_4_1)})
    monkeypatch.setattr(broker, "bare", lambda *_: SimpleNamespace(name=BARE, stop=lambda: None))
    return starts


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Medium("tmpfs", tmp_path), Board("tmpfs", 3, 1), seconds=1, quick=True, uncounted=1)


# Broken if it failed: starts would be measured while other servers run, or a server would outlive the run.
def test_each_round_starts_every_server_by_itself(starts: Starts, run: Run, tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker.start(run, ["3.9.1", "4.1.0"], stack)
        names = [OURS, KAFKA_3_9, KAFKA_4_1]
        # One round that does not count, three that do, and the servers for the scenarios.
        assert starts.started == names + names[::-1] + names + names[::-1] + names
        assert starts.most_running == [1] * 12 + [1, 2, 3]
        assert [server.name for server in run.servers] == [*names, BARE]
        assert starts.running == names
    assert starts.running == []
    assert list(tmp_path.iterdir()) == []
    answer, idle = run.board.figures
    assert answer.of(KAFKA_3_9) == {0: 2, 1: 3, 2: 4}
    assert idle.of(OURS) == {0: 20, 1: 30, 2: 40}
    assert answer.ratio("better Kafka") == (1, 1, 1)


# Broken if it failed: one broken Kafka would end the whole run.
def test_a_kafka_that_does_not_start_does_not_stop_the_others(starts: Starts, run: Run) -> None:
    starts.failing = {KAFKA_4_1}
    with ExitStack() as stack:
        broker.start(run, ["3.9.1", "4.1.0"], stack)
        assert [server.name for server in run.servers] == [OURS, KAFKA_3_9, BARE]
    assert starts.started.count(KAFKA_4_1) == 1
    assert run.board.failures() == [
        f"{KAFKA_4_1}: start to first answer (without the start of ZooKeeper): it failed"
    ]
    starts.failing = {OURS}
    with pytest.raises(RuntimeError, match="it failed"), ExitStack() as stack:
        broker.start(run, [], stack)


# Broken if it failed: a reader of the table would not find a profile.
def test_the_table_links_every_profile() -> None:
    table = (broker.RESULTS / "broker.md").read_text()
    for profile in broker.RESULTS.glob("*-profile.md"):
        assert f"[{profile.stem}]({profile.name})" in table
