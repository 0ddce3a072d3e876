"""Ensembles under faults: what their clients recorded is held against what a ZooKeeper promises.

Writes are linearizable, each session sees states in their order and its own writes, nothing that was acknowledged is lost, no
ephemeral outlives its session, no watch is missed, no two hold one lock. If these fail, an ensemble loses what it is there for.

`make fuzz` runs rounds that nobody has run; a failure prints LOGCORE_SEED, which runs its round again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tests.coordinator.support import WAIT_SECONDS

from .faults import FAULTS, possible, possible_or_skip
from .members import MAKERS_OF_ENSEMBLES, Ensemble, clock_library, ensemble
from .network import network_with_cuts
from .runs import SETTINGS, check, play

pytestmark = pytest.mark.compat

SEEDS_AT_ONCE = 8
LEADERS_KILLED = 3


@pytest.fixture(scope="module", params=MAKERS_OF_ENSEMBLES, ids=[maker.name for maker in MAKERS_OF_ENSEMBLES])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One ensemble for all rounds."""
    directory = tmp_path_factory.mktemp("faults")
    clock = clock_library(directory)
    with (
        network_with_cuts() as network,
        ensemble(request.param, directory, 3, SETTINGS, network, clock) as running,
    ):
        yield running


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_histories_hold(three: Ensemble, fault: str) -> None:
    possible_or_skip(fault, three)
    rounds = [play(three, number, fault, SEEDS_AT_ONCE) for number in range(three.maker.rounds)]
    check(three, rounds)


def test_the_next_write_after_the_leader_is_killed(three: Ensemble) -> None:
    lasted = []
    for number in range(LEADERS_KILLED):
        leader = three.leader()
        again = KazooRetry(max_tries=-1, delay=0.005, backoff=1, deadline=WAIT_SECONDS)
        # The client of a follower, then one of the leader itself.
        hosts = three.hosts_from(leader.number + 1 - number % 2)
        client = KazooClient(hosts, timeout=4.0, randomize_hosts=False, command_retry=again)
        client.start(WAIT_SECONDS)
        path = client.create("/next-write", b"before")
        leader.kill()
        began = time.monotonic()
        client.retry(client.set, path, b"after")
        lasted.append(time.monotonic() - began)
        three.heal()
        client.delete(path)
        client.stop()
        client.close()
        print(f"leader {number + 1} of {LEADERS_KILLED}: the next write after {lasted[-1]:.2f} s")
    assert max(lasted) <= three.maker.next_write_seconds, lasted
    assert min(lasted) <= three.maker.best_next_write_seconds, lasted


@pytest.mark.skipif(
    "LOGCORE_FUZZ_MINUTES" not in os.environ and "LOGCORE_SEED" not in os.environ,
    reason="make fuzz runs new seeds",
)
@pytest.mark.timeout(0)
def test_new_seeds(three: Ensemble) -> None:
    faults = [name for name in FAULTS if possible(name, three)]
    again = os.environ.get("LOGCORE_SEED")
    end = time.monotonic() + 60 * float(os.environ.get("LOGCORE_FUZZ_MINUTES", "0"))
    number = int(again) if again else time.time_ns() // 1000
    while True:
        check(three, [play(three, number, random.Random(number).choice(faults), SEEDS_AT_ONCE)])
        number += 1
        if again or time.monotonic() > end:
            return
