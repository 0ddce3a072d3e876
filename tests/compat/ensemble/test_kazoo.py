"""kazoo's recipes on single servers and on ensembles.

kazoo's own tests run unchanged, all but two. Then each recipe runs with its clients on different servers. If
these fail, Python programs that use ZooKeeper through kazoo do not work on our coordinator.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, LockTimeout, RolledBackError, RuntimeInconsistency
from kazoo.recipe.cache import TreeCache, TreeEvent

from tests.coordinator.support import WAIT_SECONDS

from .conftest import Connect
from .members import Ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

TESTS = {
    **{recipe: [] for recipe in ("barrier", "cache", "counter", "election", "lease", "lock", "party")},
    # That test allows only a tenth of a second. The test of a locking queue below waits instead.
    "queue": ["-k", "not test_concurrent_execution"],
    # That test sleeps for ten seconds.
    "watchers": ["-k", "not test_child_watcher_remove_session_watcher"],
    "client": ["-k", "Transactions"],
}
"""The modules of kazoo's tests, and pytest's arguments that select the recipes' tests."""
SECONDS = 100.0
STUCK_SECONDS = 80
"""pytest prints the stacks of a test that runs longer."""


def test_kazoos_own_tests_pass(servers: Ensemble) -> None:
    # In parallel, because they sleep most of the time.
    running = {recipe: _started(servers, recipe) for recipe in TESTS}
    end = threading.Timer(SECONDS, lambda: [process.kill() for process in running.values()])
    end.start()
    try:
        output = {recipe: process.communicate()[0] for recipe, process in running.items()}
    finally:
        end.cancel()
        for process in running.values():
            process.kill()
            process.wait()
    failed = [recipe for recipe, process in running.items() if process.returncode != 0]
    assert not failed, "\n".join(output[recipe][-6000:] for recipe in failed)
    assert all(" passed" in each for each in output.values()), output


def _started(servers: Ensemble, recipe: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        f"faulthandler_timeout={STUCK_SECONDS}",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.compat.ensemble.kazoo_cluster",
    ]
    of_kazoo = ["-c", os.devnull, "--rootdir", "/", "--pyargs", f"kazoo.tests.test_{recipe}", *TESTS[recipe]]
    return subprocess.Popen(
        [*command, *of_kazoo],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            # Options for this run are not for kazoo's: with -v its test of a cache fails.
            **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            "PYTHONPATH": os.pathsep.join(sys.path),
            "KAZOO_TEST_HOSTS": servers.hosts,
            "ZOOKEEPER_VERSION": "3.9.4",
        },
    )


# ---- each recipe with its clients on different servers ----


class Received:
    """A callback for kazoo's threads that collects the values, and lets the test wait for them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, *values: Any) -> None:
        with self._changed:
            self.values.append(values[0] if len(values) == 1 else values)
            self._changed.notify_all()

    def until(self, is_so: Callable[[list[Any]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.values), WAIT_SECONDS), (
                f"only {self.values} were received"
            )


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Makes the calls in parallel and returns their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(WAIT_SECONDS) for each in [pool.submit(call) for call in calls]]


def test_a_lock_excludes_other_clients(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    inside = Received()

    def work(client: KazooClient, number: int) -> None:
        for _ in range(5):
            with client.Lock("/lock", f"client {number}"):
                inside("in", number)
                inside("out", number)

    together(
        *(lambda client=client, number=number: work(client, number) for number, client in enumerate(clients))
    )
    entered, left = inside.values[::2], inside.values[1::2]
    assert [each[0] for each in entered] == ["in"] * 15
    assert [each[1] for each in entered] == [each[1] for each in left], "two clients held the lock at once"
    lock = clients[0].Lock("/lock", "holder")
    assert lock.acquire(timeout=WAIT_SECONDS)
    with pytest.raises(LockTimeout):
        clients[1].Lock("/lock", "waiter").acquire(timeout=0.2)
    assert not clients[2].Lock("/lock").acquire(blocking=False)
    lock.release()


def test_a_write_lock_excludes_readers_and_waits_for_them(connect: Connect) -> None:
    one, two, three = (connect() for _ in range(3))
    reading, also = one.ReadLock("/lock"), two.ReadLock("/lock")
    assert reading.acquire(timeout=WAIT_SECONDS)
    assert also.acquire(timeout=WAIT_SECONDS)
    writing = three.WriteLock("/lock", "writer")
    assert not writing.acquire(blocking=False)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(writing.acquire, timeout=WAIT_SECONDS)
        reading.release()
        also.release()
        assert later.result(WAIT_SECONDS)
    assert not one.ReadLock("/lock").acquire(blocking=False)
    writing.release()


def test_a_semaphore_limits_its_leases(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    leases = [
        client.Semaphore("/semaphore", f"client {number}", max_leases=2)
        for number, client in enumerate(clients)
    ]
    assert leases[0].acquire(timeout=WAIT_SECONDS)
    assert leases[1].acquire(timeout=WAIT_SECONDS)
    assert not leases[2].acquire(blocking=False)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(leases[2].acquire, timeout=WAIT_SECONDS)
        leases[0].release()
        assert later.result(WAIT_SECONDS)
    clients[0].sync("/semaphore")
    assert sorted(leases[0].lease_holders()) == ["client 1", "client 2"]


def test_a_semaphores_lease_ends_with_its_session(connect: Connect) -> None:
    one, two = connect(), connect()
    assert one.Semaphore("/semaphore", max_leases=1).acquire(timeout=WAIT_SECONDS)
    one.stop()
    assert two.Semaphore("/semaphore", max_leases=1).acquire(timeout=WAIT_SECONDS)


def test_every_candidate_leads_once(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    led = Received()
    elections = [client.Election("/election", f"client {number}") for number, client in enumerate(clients)]
    together(
        *(lambda each=each, number=number: each.run(led, number) for number, each in enumerate(elections))
    )
    assert sorted(led.values) == [0, 1, 2]


def test_the_next_candidate_leads_when_the_leaders_session_ends(connect: Connect) -> None:
    one, two = connect(), connect()
    leads, may_end = Received(), threading.Event()

    def lead(number: int) -> None:
        leads(number)
        may_end.wait(WAIT_SECONDS)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(one.Election("/election").run, lead, 0)
        leads.until(lambda values: values == [0])
        second = pool.submit(two.Election("/election").run, lead, 1)
        one.stop()
        leads.until(lambda values: values == [0, 1])
        may_end.set()
        second.result(WAIT_SECONDS)


def test_a_barrier_blocks_until_it_is_removed(connect: Connect) -> None:
    one, two = connect(), connect()
    one.Barrier("/barrier").create()
    two.sync("/")
    assert not two.Barrier("/barrier").wait(0.1)
    with ThreadPoolExecutor(1) as pool:
        passed = pool.submit(two.Barrier("/barrier").wait, WAIT_SECONDS)
        assert one.Barrier("/barrier").remove()
        assert passed.result(WAIT_SECONDS)


def test_a_double_barrier_lets_all_clients_in_and_out(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    barriers = [client.DoubleBarrier("/barrier", 3) for client in clients]
    steps = Received()

    def work(number: int) -> None:
        barriers[number].enter()
        steps("entered")
        barriers[number].leave()
        steps("left")

    together(*(lambda number=number: work(number) for number in range(3)))
    assert steps.values.count("entered") == steps.values.count("left") == 3
    clients[0].sync("/barrier")
    assert clients[0].get_children("/barrier") == []


def test_a_queue_keeps_its_order(connect: Connect) -> None:
    one, two = connect(), connect()
    writing, reading = one.Queue("/queue"), two.Queue("/queue")
    for number in range(10):
        writing.put(b"%d" % number, priority=100 - number % 2)
    two.sync("/queue")
    got = [reading.get() for _ in range(11)]
    assert got == [b"1", b"3", b"5", b"7", b"9", b"0", b"2", b"4", b"6", b"8", None]


def test_a_locking_queue_offers_unconsumed_entries_again(connect: Connect) -> None:
    one, two, three = (connect() for _ in range(3))
    one.LockingQueue("/queue").put_all([b"one", b"two"])
    second, third = two.LockingQueue("/queue"), three.LockingQueue("/queue")
    assert second.get(WAIT_SECONDS) == b"one"
    assert second.holds_lock()
    assert third.get(WAIT_SECONDS) == b"two"
    assert second.consume()
    # An entry that was taken and not consumed is free again once its client's session ends.
    three.stop()
    assert second.get(WAIT_SECONDS) == b"two"
    assert second.consume()
    assert second.get(0.1) is None


@pytest.mark.parametrize("kind", ["Party", "ShallowParty"])
def test_a_party_lists_its_members(connect: Connect, kind: str) -> None:
    clients = [connect() for _ in range(3)]
    parties = [getattr(client, kind)("/party", f"client-{number}") for number, client in enumerate(clients)]
    for party in parties:
        party.join()
    for client, party in zip(clients, parties, strict=True):
        client.sync("/party")
        assert sorted(party) == ["client-0", "client-1", "client-2"]
        assert len(party) == 3
    parties[1].leave()
    clients[2].stop()
    clients[0].sync("/party")
    assert list(parties[0]) == ["client-0"]


def test_a_counter_loses_no_increment(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]

    def count(client: KazooClient) -> None:
        counter = client.Counter("/counter")
        for _ in range(10):
            counter += 2
            counter -= 1

    together(*(lambda client=client: count(client) for client in clients))
    for client in clients:
        client.sync("/counter")
        assert client.Counter("/counter").value == 30


def test_a_tree_cache_follows_the_tree(connect: Connect) -> None:
    one, two = connect(), connect()
    received = Received()
    cache = TreeCache(two, "/tree")
    cache.listen(received)
    cache.start()
    received.until(lambda events: any(event.event_type == TreeEvent.INITIALIZED for event in events))
    one.set("/tree", b"root")
    for number in range(20):
        one.create(f"/tree/{number}", b"%d" % number)
        one.create(f"/tree/{number}/below", b"x", ephemeral=number % 2 == 0)
        one.set(f"/tree/{number}", b"changed")
    one.delete("/tree/3", recursive=True)

    def is_whole(_events: list[Any]) -> bool:
        names = cache.get_children("/tree") or frozenset()
        data = [cache.get_data(f"/tree/{name}") for name in names]
        return len(names) == 19 and all(
            each is not None and each.data == b"changed" and each.stat.children_count == 1 for each in data
        )

    received.until(is_whole)
    assert cache.get_data("/tree/3") is None
    one.stop()

    def is_clean(_events: list[Any]) -> bool:
        return not any(cache.get_data(f"/tree/{number}/below") for number in range(0, 20, 2))

    received.until(is_clean)
    cache.close()


def test_watches_see_the_newest_data_and_children(connect: Connect) -> None:
    one, two = connect(), connect()
    one.create("/node", b"0")
    two.sync("/node")
    data, children = Received(), Received()
    two.DataWatch("/node", lambda value, stat: data(value, stat and stat.version))
    two.ChildrenWatch("/node", lambda names: children(sorted(names)))
    for number in range(1, 6):
        one.set("/node", b"%d" % number)
        one.create(f"/node/{number}")
        data.until(lambda values: values[-1] == (b"%d" % number, number))  # noqa: B023
        children.until(lambda values: len(values[-1]) == number)  # noqa: B023
    one.delete("/node", recursive=True)
    data.until(lambda values: values[-1] == (None, None))


def test_a_transaction_is_all_or_nothing(connect: Connect) -> None:
    one, two = connect(), connect()
    done = one.transaction()
    done.create("/a", b"1")
    done.create("/a/b", b"2", ephemeral=True)
    done.create("/a/s-", sequence=True)
    done.set_data("/a", b"3")
    done.check("/a", version=1)
    created, below, sequential, stat, checked = done.commit()
    assert (created, below, sequential, stat.version, checked) == ("/a", "/a/b", "/a/s-0000000001", 1, True)
    refused = two.transaction()
    refused.set_data("/a", b"4")
    refused.check("/a", version=7)
    refused.delete("/a/b")
    results = refused.commit()
    assert [type(each) for each in results] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    two.sync("/a")
    assert two.get("/a")[0] == b"3"
    assert stat.czxid == two.get("/a/b")[1].czxid == two.get("/a/b")[1].mzxid
