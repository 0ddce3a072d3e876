"""Seeded histories of a simulated ensemble. If these fail, members differ, a client is told what was not done or what is older
than what it knows, a watch comes too late, or an ephemeral node is there without its session or gone with it alive."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from .simulation import World

SEEDS = int(os.environ.get("LOGCORE_ENSEMBLE_SEEDS", "40"))
FIRST = int(os.environ.get("LOGCORE_SEED", "1"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_histories(seed: int, tmp_path: Path) -> None:
    chance = random.Random(-seed)
    world = World(
        seed,
        tmp_path,
        members_count=chance.choice((1, 3, 3, 5)),
        observers_count=chance.choice((0, 0, 1)),
        read_only=chance.random() < 0.3,
    )
    try:
        world.run()
    except BaseException:
        print(f"LOGCORE_SEED={seed} LOGCORE_ENSEMBLE_SEEDS=1 runs it again")
        raise
