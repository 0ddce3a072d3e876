"""Processes of our ensemble are killed, frozen and stopped.

If these fail, the ensemble loses an acknowledged write or a session together with a server, or does not
recover.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tests.coordinator.support import WAIT_SECONDS

from .members import ASK_AGAIN_SECONDS, OURS, Ensemble, Member, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]
Connect = Callable[..., KazooClient]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Ensemble]:
    """Three members that take snapshots often."""
    with ensemble(OURS, tmp_path, 3, {"tickTime": "1000", "initLimit": "20", "snapCount": "100"}) as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Connect]:
    clients: list[KazooClient] = []

    def start(*members: Member) -> KazooClient:
        retry = KazooRetry(max_tries=-1, deadline=WAIT_SECONDS)
        hosts = ",".join(member.hosts for member in members)
        clients.append(KazooClient(hosts, timeout=20.0, command_retry=retry))
        clients[-1].start(timeout=WAIT_SECONDS)
        return clients[-1]

    yield start
    for client in clients:
        client.stop()
        client.close()


def test_an_ensemble_survives_its_servers(three: Ensemble, connect: Connect) -> None:
    leader, survivors = three.leader(), three.followers()
    client, watcher = connect(*survivors), connect(survivors[0])
    session = client.client_id[0]
    client.create("/e", b"", ephemeral=True)
    client.create("/n", b"")
    gone = threading.Event()
    watcher.sync("/")
    assert watcher.exists("/e", watch=lambda _event: gone.set())

    # The leader is killed while writes are outstanding: each is done once.
    pending = [client.set_async("/n", str(number).encode()) for number in range(100)]
    leader.kill()
    pending += [client.set_async("/n", str(number).encode()) for number in range(100, 200)]
    assert [each.get(timeout=WAIT_SECONDS).version for each in pending] == list(range(1, 201))
    assert client.client_id[0] == session
    assert not gone.is_set()

    # The old leader loses its data, comes back and gets everything from the others.
    shutil.rmtree(leader.data / "quorum")
    leader.start()
    three.wait_until_serving()
    assert leader.mode() == "follower"
    late = connect(leader)
    late.sync("/")
    assert late.get("/n")[0] == b"199"
    assert late.get("/e")[1].ephemeralOwner == session

    # All members are killed and come back with every acknowledged write and session.
    for member in three.members:
        member.kill()
    three.heal()
    assert client.retry(client.get, "/n")[0] == b"199"
    assert client.client_id[0] == session
    assert client.retry(client.exists, "/e")

    # A leader that gets SIGTERM hands over.
    leader = three.leader()
    assert leader.end(signal.SIGTERM) == 0
    assert leader.output().count("the coordinator has stopped; every write that it confirmed is on disk") == 1
    survivor = next(member for member in three.members if member is not leader)
    assert connect(survivor).set("/n", b"last").version == 201


def test_a_frozen_leader_is_replaced_and_follows(three: Ensemble, connect: Connect) -> None:
    leader = three.leader()
    client = connect(*three.followers())
    client.create("/e", b"", ephemeral=True)
    leader.suspend()
    assert client.set("/e", b"while it is frozen").version == 1
    leader.resume()
    three.wait_until_serving()
    thawed = connect(leader)
    thawed.sync("/")
    assert thawed.get("/e")[0] == b"while it is frozen"
    assert three.leader() is not leader
    assert leader.mode() == "follower"


# If this failed, load balancers and clients would stay with a server that can serve nobody.
@pytest.mark.parametrize(("count", "observers"), [(5, 0), (4, 1)])
def test_members_without_a_majority_serve_reads_only(
    tmp_path: Path, connect: Connect, count: int, observers: int
) -> None:
    settings = {"syncLimit": "4", "readonlymode.enabled": "true"}
    with ensemble(OURS, tmp_path, count, settings, observers=observers) as running:
        leader = running.leader()
        left = [leader, running.member_as("observer" if observers else "follower")]
        lost = [member for member in running.members if member not in left]
        client = connect(left[1])
        session = client.client_id[0]
        client.create("/n", b"before")
        for member in lost:
            member.kill()
        _wait_until(left, lambda: all(member.word("isro") == "ro" for member in left))
        assert {member.mode() for member in left} == {"read-only"}
        reader = KazooClient(left[1].hosts, timeout=20.0, read_only=True)
        reader.start(timeout=WAIT_SECONDS)
        assert reader.get("/n")[0] == b"before"
        assert reader.client_state == "CONNECTED_RO"
        reader.stop()
        reader.close()
        assert "no contact to a majority of the ensemble" in left[1].output()

        lost[0].start()
        running.wait_until_serving([*left, lost[0]])
        assert [member.word("isro") for member in left] == ["rw", "rw"]
        assert client.retry(client.set, "/n", b"after").version == 1
        assert client.client_id[0] == session


def _wait_until(running: Sequence[Member], holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        output = "\n".join(member.output() for member in running)
        assert time.monotonic() < end, f"not within {WAIT_SECONDS:.0f} s; the members' output:\n{output}"
        running[0].ends_within(ASK_AGAIN_SECONDS)


# If this failed, a restart would lose data that only a long log has.
@pytest.mark.parametrize("count", [1, 3])
def test_servers_with_long_logs_restart_without_a_snapshot(
    tmp_path: Path, connect: Connect, count: int
) -> None:
    # A snapCount so large that no snapshot is taken.
    with ensemble(OURS, tmp_path, count, {"snapCount": "1000000"}) as servers:
        client = connect(*servers.members)
        session = client.client_id
        client.create("/e", b"", ephemeral=True)
        for name in ("/n", "/m"):
            client.create(name, b"")
        for result in [client.set_async("/n", b"%d" % number) for number in range(11_000)]:
            result.get(timeout=WAIT_SECONDS)
        before = {path: client.get(path) for path in ("/e", "/n", "/m")}
        for member in servers.members:
            assert not snapshots_of(member)
        for member in servers.members:
            assert member.end() == 0, member.output()
            member.start()
            servers.wait_until_serving()
        client.sync("/")
        assert {path: client.get(path) for path in before} == before
        assert client.client_id == session
        assert client.set("/m", b"behind").version == 1


def snapshots_of(member: Member) -> list[Path]:
    """The snapshots on disk of a standalone server or a member."""
    found = [*member.data.glob("snapshot.*"), *(member.data / "quorum" / "snapshots").glob("*.snapshot")]
    return [path for path in found if not path.name.endswith((".tmp", ".part"))]
