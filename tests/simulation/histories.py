"""The history that belongs to a seed."""

from __future__ import annotations

import random
from pathlib import Path

from .world import World


def history(seed: int, directory: Path) -> World:
    """One cluster in 40 has 50 brokers, one in 20 has 8 to 20, the others have 3 to 5."""
    chance = random.Random(-seed)
    many = {0: 50, 1: chance.randint(8, 20), 21: chance.randint(8, 20)}.get(seed % 40, 0)
    brokers = many or chance.choice((3, 3, 4, 5))
    return World(seed, directory, brokers, steps=40, unclean=chance.random() < 0.35)


def run(seed: int, directory: Path) -> World:
    """Runs the history. Raises AssertionError if something was not as it must."""
    directory = directory / str(seed)
    directory.mkdir()
    world = history(seed, directory)
    try:
        world.run()
    except BaseException:
        print(f"LOGCORE_SEED={seed} runs it again")
        raise
    return world
