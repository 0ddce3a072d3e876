"""Three brokers under faults: what their clients sent and read is checked against the log's promises.

:mod:`.checker` lists the promises. If a test failed, a cluster would lose, repeat or reorder records, or stop
taking writes, when a process, a network, a disk or the coordinator fails. `make chaos` runs new seeds; a
failure prints LOGCORE_SEED, which runs its round again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.faults.disks import traceable
from tests.faults.network import can_slow_down, cuttable, network_with_cuts

from .cluster import Cluster, cluster
from .faults import (
    ALONE,
    FAULTS,
    Strike,
    controller_killed,
    coordinators_leader_killed,
    disk_full,
    followers_bit_flipped,
    leader_cut_from_coordinator,
    leader_cut_from_followers,
    leader_hangs,
    leader_killed,
    leaders_disk_slow,
    leaders_network_slow,
)
from .rounds import play

SLICE: list[list[Strike]] = [
    [leader_killed],
    [leader_hangs],
    [leader_cut_from_followers],
    [followers_bit_flipped],
    [controller_killed, coordinators_leader_killed],
    [leader_cut_from_coordinator],
    [disk_full],
    [leaders_disk_slow],
    [leaders_network_slow],
]
ALONE_IN_ONE = 3
"""The faults of a round of new seeds that strike alone."""
SEED = 4
"""With this seed, a hung leader and the cuts last longer than a session."""

Start = Callable[[int], AbstractContextManager[Cluster]]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    @contextmanager
    def started(members: int) -> Iterator[Cluster]:
        with network_with_cuts() as network:
            traceable()
            can_slow_down()
            directory: Path = tmp_path_factory.mktemp("chaos")
            with cluster(directory, cuttable(network), members) as made:
                yield made

    return started


@pytest.mark.timeout(300)
def test_no_record_is_lost_repeated_or_reordered(start: Start) -> None:
    with start(3) as made:
        play(made, SEED, SLICE)


only_chaos = pytest.mark.skipif(
    "LOGCORE_CHAOS_MINUTES" not in os.environ and "LOGCORE_SEED" not in os.environ,
    reason="make chaos runs new seeds",
)


def drawn(seed: int) -> tuple[int, list[list[Strike]]]:
    """The number of the coordinator's servers, and the faults: some kinds alone, and any two at once.

    Successive seeds go through all kinds.
    """
    chance, kinds = random.Random(seed), list(FAULTS)
    faults = [[kinds[(seed * ALONE_IN_ONE + number) % len(kinds)]] for number in range(ALONE_IN_ONE)]
    faults.append(chance.sample([kind for kind in kinds if kind not in ALONE], 2))
    chance.shuffle(faults)
    return chance.choice((1, 3)), faults


@only_chaos
@pytest.mark.timeout(0)
def test_new_seeds(start: Start) -> None:
    again = os.environ.get("LOGCORE_SEED")
    end = time.monotonic() + 60 * float(os.environ.get("LOGCORE_CHAOS_MINUTES", "0"))
    seed, played = int(again) if again else time.time_ns() // 1000, 0
    while not played or not (again or time.monotonic() > end):
        members, faults = drawn(seed)
        with start(members) as made:
            play(made, seed, faults)
        seed, played = seed + 1, played + 1
    print(f"{played} rounds kept the promises")
