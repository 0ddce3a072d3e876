"""bench/loads.py: the first append to each partition is not part of a measured time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import loads
from figures import Board
from loads import Figures, Medium
from scenarios import SCENARIOS, Run
from servers import BARE, KAFKA_3_9, OURS, Server

Loads = list[tuple[str, str, dict[str, object]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Records the loads of bench/wire, by server and command, and the preparations between them. Nothing
    runs.
    """
    seen: Loads = []

    def wire(command: str, server: Server, _seconds: float, **options: object) -> Figures:
        seen.append((server.name, command, options))
        requests = float(cast(str, options["rate"])) * loads.FIRST_APPENDS if command == "paced" else 5
        return {"requests": requests, "mb_per_s": 5, "peak_mb": 40}

    monkeypatch.setattr(loads, "wire", wire)
    monkeypatch.setattr(Medium, "prepare", lambda *_: seen.append(("", "prepare", {})))
    return seen


def server(name: str) -> Server:
    def nothing(*_: object) -> None:
        pass

    return cast(
        Server,
        SimpleNamespace(name=name, create_topic=nothing, delete_topic=nothing, wait_for_deletions=nothing),
    )


# Broken if it failed: a curve would include the cost of first appends, or not for every server.
@pytest.mark.parametrize("curve", ["batch", "connections", "partitions"])
def test_a_curve_is_timed_after_the_first_append_to_each_partition(
    calls: Loads, tmp_path: Path, curve: str
) -> None:
    run = Run(Medium("tmpfs", tmp_path), Board("tmpfs", 1, 1), seconds=1, quick=False, uncounted=0)
    run.servers = [server(name) for name in (OURS, KAFKA_3_9, BARE)]
    SCENARIOS[curve](run)
    assert run.board.failures() == []
    warm_ups: dict[str, list[dict[str, object]]] = {OURS: [], KAFKA_3_9: [], BARE: []}
    for at in range(0, len(calls), 3):
        (name, first, options), (_, between, _), (timed_name, timed, timed_options) = calls[at : at + 3]
        assert (first, between, timed) == ("paced", "prepare", "produce")
        assert name == timed_name
        for same in ("topic", "partitions", "record_size", "batch_size"):
            assert options[same] == timed_options[same]
        assert float(cast(str, options["rate"])) * loads.FIRST_APPENDS == options["partitions"]
        warm_ups[name].append({**options, "topic": ""})
    assert warm_ups[OURS] == warm_ups[KAFKA_3_9] == warm_ups[BARE]
    assert len(warm_ups[OURS]) == len(run.board.curves[0].points)


# Broken if it failed: a curve would include the cost of first appends.
def test_a_server_that_did_not_answer_every_first_request_is_not_measured(
    calls: Loads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loads, "wire", lambda *_, **__: {"requests": 9})
    with pytest.raises(RuntimeError, match="logcore answered 9 first requests to the 10 partitions of topic"):
        loads.produce(
            server(OURS),
            Medium("tmpfs", tmp_path),
            "topic",
            1,
            record=1024,
            batch=16384,
            partitions=10,
            after_first_appends=True,
        )
    assert calls == []
