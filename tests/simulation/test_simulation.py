"""Seeded histories of a cluster: the real controller, replica manager and replication driver, on a simulated
clock, network, coordinator and data plane.

If these fail, an acknowledged record is lost, two leaders write in one epoch, a deposed controller changes
something, or a cluster does not recover by itself. `LOGCORE_SEED=n` runs one seed again;
`LOGCORE_FUZZ_MINUTES=n` runs new seeds (`make fuzz`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .histories import history, run

SEEDS, BLOCK = 320, 40
"""The number of seeds of a normal run, and of one test."""


def blocks() -> Iterator[range]:
    seed = os.environ.get("LOGCORE_SEED")
    if seed is not None:
        yield range(int(seed), int(seed) + 1)
        return
    for first in range(1, SEEDS + 1, BLOCK):
        yield range(first, first + BLOCK)


@pytest.mark.parametrize("seeds", list(blocks()), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_a_cluster_keeps_its_promises_and_comes_to_rest(seeds: range, tmp_path: Path) -> None:
    worlds = [run(seed, tmp_path) for seed in seeds]
    if len(seeds) < BLOCK:
        return
    checkers = [world.checker for world in worlds]
    counts = {
        "acknowledgements": sum(checker.acknowledgements for checker in checkers),
        "elections": sum(checker.elections for checker in checkers),
        "truncations": sum(checker.truncations for checker in checkers),
        "unclean elections": sum(checker.unclean_elections for checker in checkers),
        "controllers": sum(checker.controller_epoch for checker in checkers),
        "commands": sum(world.commands for world in worlds),
        "requests": sum(world.network.requests for world in worlds),
    }
    print(f"seeds {seeds[0]} to {seeds[-1]}: {counts}")
    assert min(counts.values()) > 0, f"the histories tested too little: {counts}"


@pytest.mark.skipif("LOGCORE_FUZZ_MINUTES" not in os.environ, reason="set LOGCORE_FUZZ_MINUTES")
@pytest.mark.timeout(0)
def test_new_seeds(tmp_path: Path) -> None:
    first = seed = time.time_ns() // 1000
    end = time.monotonic() + 60 * float(os.environ["LOGCORE_FUZZ_MINUTES"])
    while time.monotonic() < end:
        run(seed, tmp_path)
        seed += 1
    print(f"{seed - first} new histories")


def test_a_seed_gives_the_same_history_again(tmp_path: Path) -> None:
    counts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        world = history(7, tmp_path / name)
        world.run()
        checker = world.checker
        counts.append((world.loop.now, world.network.requests, checker.acknowledgements, checker.states))
    assert counts[0] == counts[1]
