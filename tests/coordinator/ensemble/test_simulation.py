"""Seeded histories of a simulated ensemble.

If these fail, members differ, or a client gets a wrong or an older answer. Or a watch fires too late, or an
ephemeral node and its session do not end together. `LOGCORE_SEED=n` runs one seed again;
`LOGCORE_FUZZ_MINUTES=n` runs new seeds (`make fuzz`).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .simulation import World

SEEDS = 80
"""The number of seeds of a normal run."""
FOUND = (1_795_499_044_960_656,)
"""Seeds that once found a defect: a member that lost its disk had the newest snapshot."""


def seeds() -> Iterator[int]:
    seed, minutes = os.environ.get("LOGCORE_SEED"), os.environ.get("LOGCORE_FUZZ_MINUTES")
    if seed is not None:
        yield int(seed)
    elif minutes is not None:
        first, end = time.time_ns() // 1000, time.monotonic() + 60 * float(minutes)
        while time.monotonic() < end:
            yield first
            first += 1
    else:
        yield from range(1, SEEDS + 1)
        yield from FOUND


@pytest.mark.timeout(0 if "LOGCORE_FUZZ_MINUTES" in os.environ else 300)
def test_simulated_histories_keep_the_promises(tmp_path: Path) -> None:
    ran = installs = walks = answers = changes = 0
    for seed in seeds():
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
            print(f"LOGCORE_SEED={seed} runs it again")
            raise
        ran += 1
        walks += world.ensemble.walks
        installs += world.ensemble.live_installs
        changes += world.reconfigured
        answers += sum(len(client.answers) for client in world.clients)
    print(
        f"{ran} histories with {answers} answers, {walks} snapshots, {installs} of them installed by running "
        f"members, {changes} changes of the members"
    )
    if ran >= SEEDS:
        assert min(walks, installs, changes, answers // ran) > 0, "the histories tested too little"
