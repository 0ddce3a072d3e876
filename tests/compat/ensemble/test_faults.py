"""Ensembles under faults: the clients' recorded histories are checked against ZooKeeper's promises.

- Writes are linearizable, and no acknowledged write is lost.
- Each session sees states in order, and its own writes.
- No ephemeral node outlives its session.
- No watch event is missed.
- No two clients hold one lock.

If these fail, an ensemble breaks a promise that its clients rely on. `make fuzz` runs new seeds; a failure
prints LOGCORE_SEED, which runs its round again.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

import logcore
from tests.coordinator.support import WAIT_SECONDS
from tests.faults.network import network_with_cuts

from .faults import FAULTS, possible, possible_or_skip
from .members import MAKERS_OF_ENSEMBLES, SAVING, Ensemble, Maker, Member, clock_library, ensemble
from .runs import SETTINGS, SNAPSHOTS, check, play

pytestmark = pytest.mark.compat

SEEDS_AT_ONCE = 8
ROUNDS_OF_ONE = 4
"""Rounds of new seeds on one ensemble; a new ensemble keeps the log that the check reads short."""
LEADERS_KILLED = 5
NUMBER_OF_SAVING = 100
"""The round number for members that take snapshots, so that their seeds differ from the other rounds'."""
BEHIND = 100
"""A member whose log ends this many entries before its leader's log begins certainly needs a snapshot."""


Faulty = Callable[[Maker, Mapping[str, str]], AbstractContextManager[Ensemble]]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    """Starts an ensemble on which every fault is possible."""

    @contextmanager
    def start(maker: Maker, settings: Mapping[str, str]) -> Iterator[Ensemble]:
        directory = tmp_path_factory.mktemp("faults")
        clock = clock_library(directory)
        with network_with_cuts() as network, ensemble(maker, directory, 3, settings, network, clock) as made:
            yield made

    return start


@pytest.fixture(scope="module", params=MAKERS_OF_ENSEMBLES, ids=[maker.name for maker in MAKERS_OF_ENSEMBLES])
def three(request: pytest.FixtureRequest, faulty: Faulty) -> Iterator[Ensemble]:
    """One ensemble for all rounds."""
    with faulty(request.param, SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def saving(faulty: Faulty) -> Iterator[Ensemble]:
    with faulty(SAVING, SNAPSHOTS) as running:
        yield running


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_histories_keep_the_promises(three: Ensemble, fault: str) -> None:
    possible_or_skip(fault, three)
    check(three, [play(three, 0, fault, SEEDS_AT_ONCE)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_histories_keep_the_promises_with_snapshots(saving: Ensemble, fault: str) -> None:
    possible_or_skip(fault, saving)
    check(saving, [play(saving, NUMBER_OF_SAVING, fault, SEEDS_AT_ONCE)])


def test_a_member_that_was_away_gets_a_snapshot(saving: Ensemble) -> None:
    """Otherwise the rounds with snapshots would test nothing that the other rounds do not."""
    leader, away = saving.leader(), saving.followers()[0]
    client = KazooClient(leader.hosts, timeout=20.0)
    client.start(WAIT_SECONDS)
    path = client.create("/away", b"")
    installed_before, log_end = installed(away), offsets(away)[1]
    away.suspend()
    # Its log may also get the entries that are in flight to it now, hence the margin.
    while offsets(leader)[0] <= log_end + BEHIND:
        client.set(path, b"while it is away")
    away.resume()
    client.stop()
    client.close()
    saving.wait_until_serving()
    assert installed(away) > installed_before


def installed(member: Member) -> int:
    """The number of snapshots that the member has installed since its start."""
    return int(re.findall(r"^zk_snap_count\t([0-9]+)$", member.word("mntr"), re.MULTILINE)[0])


def offsets(member: Member) -> tuple[int, int]:
    """The offset of its log's first entry, and the one after its last."""
    with logcore.open(member.data / "quorum" / "log", readonly=True) as log:
        return log.start_offset, log.end_offset


def test_the_next_write_soon_follows_the_leaders_kill(three: Ensemble) -> None:
    lasted = []
    for number in range(LEADERS_KILLED):
        leader = three.leader()
        again = KazooRetry(max_tries=-1, delay=0.005, backoff=1, deadline=WAIT_SECONDS)
        # A client of a follower and a client of the leader, in turn.
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
    assert statistics.median(lasted) <= three.maker.median_next_write_seconds, lasted


only_fuzz = pytest.mark.skipif(
    "LOGCORE_FUZZ_MINUTES" not in os.environ and "LOGCORE_SEED" not in os.environ,
    reason="make fuzz runs new seeds",
)


@only_fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("maker", MAKERS_OF_ENSEMBLES, ids=lambda maker: maker.name)
def test_new_seeds_keep_the_promises(faulty: Faulty, maker: Maker) -> None:
    play_new_seeds(faulty, maker, SETTINGS)


@only_fuzz
@pytest.mark.timeout(0)
def test_new_seeds_keep_the_promises_with_snapshots(faulty: Faulty) -> None:
    play_new_seeds(faulty, SAVING, SNAPSHOTS)


def play_new_seeds(faulty: Faulty, maker: Maker, settings: Mapping[str, str]) -> None:
    again = os.environ.get("LOGCORE_SEED")
    end = time.monotonic() + 60 * float(os.environ.get("LOGCORE_FUZZ_MINUTES", "0"))
    number, played = int(again) if again else time.time_ns() // 1000, 0
    while not played or not (again or time.monotonic() > end):
        with faulty(maker, settings) as running:
            faults = [name for name in FAULTS if possible(name, running)]
            for _ in range(1 if again else ROUNDS_OF_ONE):
                check(running, [play(running, number, random.Random(number).choice(faults), SEEDS_AT_ONCE)])
                number, played = number + 1, played + 1
    print(f"{played} rounds of {SEEDS_AT_ONCE} seeds kept the promises")
