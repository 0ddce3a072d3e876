"""The data of Apache ZooKeeper 3.9.4, or of a standalone server of ours, becomes the data of a new ensemble.

If these fail, the move to an ensemble loses nodes, sessions or the order of transactions, or members start
with different data without an error.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NewConfigNoQuorumError

from cluster.coordinator.protocol.jute import Acl, Id, Stat, Writer
from cluster.coordinator.protocol.requests import EPHEMERAL, Op
from cluster.coordinator.state.acl import digest_identity
from cluster.coordinator.state.tree import CONFIG
from cluster.coordinator.transfer import load_directory
from tests.compat.test_transfer import (
    PROPERTIES,
    Filled,
    Seen,
    check_session,
    differences,
    fill,
    logcore,
    open_session,
    read_everything,
    request_ok,
)
from tests.compat.test_zookeeper import SUPER, create, read, set_data
from tests.compat.zookeeper_peer import TICK_MS, Request, apache_zookeeper
from tests.coordinator.support import WAIT_SECONDS, RawClient
from tests.faults.network import Network

from .members import OURS, START_SECONDS, Ensemble, Member

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

SETTINGS = {
    "maxSessionTimeout": str(20 * TICK_MS),
    "DigestAuthenticationProvider.superDigest": digest_identity(SUPER).id,
}
SET_WATCHES_XID = -8


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The directory of a killed Apache ZooKeeper, its last state, and a session that owns a node."""
    directory = tmp_path_factory.mktemp("left")
    with apache_zookeeper(
        directory, {}, PROPERTIES | {"zookeeper.snapCount": "300"}, how=signal.SIGKILL
    ) as port:
        session = open_session(port)
        fill(port, range(2))
        seen, zxid = read_everything(port)
    return Filled(directory / "zookeeper", seen, zxid, session)


@contextlib.contextmanager
def three(directory: Path) -> Iterator[Ensemble]:
    """Three servers, not started yet."""
    made = Ensemble(OURS, directory, 3, SETTINGS, Network())
    try:
        yield made
    finally:
        made.stop()


def look_with_kazoo(member: Member) -> Seen:
    """All nodes, read by the super user from one member after a sync."""
    client = KazooClient(member.hosts, timeout=20.0)
    client.start(WAIT_SECONDS)
    try:
        client.add_auth("digest", SUPER.decode())
        client.sync("/")
        seen: Seen = {}
        paths = ["/"]
        while paths:
            path = paths.pop()
            data, stat = client.get(path)
            acls, _stat = client.get_acls(path)
            acl = tuple(Acl(each.perms, Id(each.id.scheme, each.id.id)) for each in acls)
            seen[path] = data, Stat(*stat), acl
            paths += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
        return seen
    finally:
        client.stop()
        client.close()


def changed(before: Seen, now: Seen) -> dict[str, object]:
    """The differences. The configuration node is not compared: the new ensemble has its own."""
    return differences({**before, CONFIG: now[CONFIG]}, now)


def import_into(left: Filled, member: Member) -> None:
    logcore("import", left.directory, member.data)


def start(servers: Ensemble, first: Member) -> None:
    """Starts all, the member with the data first: empty members wait some seconds for one with data."""
    for member in sorted(servers.members, key=lambda member: member is not first):
        member.start()
    servers.wait_until_serving()


def output_of_failed(member: Member) -> str:
    """Waits for the process to exit by itself with status 1, and returns its output."""
    assert member.ends_within(START_SECONDS), member.output()
    assert member.end() == 1
    return member.output()


def remove_data(member: Member) -> None:
    for path in member.data.iterdir():
        if path.name == "myid":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# ---- from Apache ZooKeeper ----


def test_an_ensemble_begins_with_apaches_data(left: Filled, tmp_path: Path) -> None:
    with three(tmp_path) as servers:
        import_into(left, servers.members[1])
        start(servers, servers.members[1])
        for member in servers.members:
            assert changed(left.seen, look_with_kazoo(member)) == {}

        # A session of Apache's goes on, with its node, and its client gets the events that it missed.
        session, other = left.session, servers.members[2]
        client = RawClient(other.addresses.clients)
        found = client.connect(session.timeout_ms, session.id, session.password, left.zxid)
        assert found == (session.timeout_ms, session.id, session.password)
        assert request_ok(client, read(Op.GET_DATA, session.path))[1].buffer() == b"mine"
        watches = Writer().i64(left.zxid).strings(["/kinds", CONFIG]).strings([]).strings([]).finish()
        client.send(Writer().i32(SET_WATCHES_XID).i32(Op.SET_WATCHES).finish() + watches)
        events = [client.reply() for _ in range(2)]
        # One event: the configuration node changed since then.
        assert sorted(event[0] for event in events) == [SET_WATCHES_XID, -1]
        zxid, _reader = request_ok(client, create("/after", b"x", flags=EPHEMERAL))
        assert zxid >> 32 > left.zxid >> 32
        client.close()
        check_session(servers.members[0].addresses.clients, session, zxid)

        # Killed members come back with the imported data and with later writes.
        writer = RawClient(servers.members[1].addresses.clients)
        writer.connect(20 * TICK_MS)
        before, _reader = request_ok(writer, create("/written", b"1"))
        assert before > zxid
        writer.close()
        for victim in (servers.leader(), servers.members[1]):
            victim.kill()
            others = [member for member in servers.members if member is not victim]
            servers.wait_until_serving(others)
            writer = RawClient(others[0].addresses.clients)
            writer.connect(20 * TICK_MS)
            after, _reader = request_ok(writer, set_data("/written", b"2"))
            request_ok(writer, Request(Op.CLOSE_SESSION))
            writer.close()
            assert after > before
            before = after
            victim.start()
            servers.wait_until_serving([victim])
        expected = read_everything(servers.members[0].addresses.clients)[0]
        assert session.path not in expected
        assert expected.keys() - left.seen.keys() == {"/written"}
        for member in servers.members:
            assert differences(expected, look_with_kazoo(member)) == {}

        # The export gives Apache ZooKeeper all of it back.
        servers.stop()
        newest = max((load_directory(member.data) for member in servers.members), key=lambda it: it.last_zxid)
        assert newest.last_zxid > before
        number = [load_directory(member.data).last_zxid for member in servers.members].index(newest.last_zxid)
        logcore("export", servers.members[number].data, tmp_path / "zookeeper")
        with apache_zookeeper(tmp_path, {}, PROPERTIES) as port:
            assert changed(expected, read_everything(port)[0]) == {}


def test_two_members_with_data_do_not_start(left: Filled, tmp_path: Path) -> None:
    with three(tmp_path) as servers:
        one, two, empty = servers.members
        import_into(left, one)
        import_into(left, two)
        one.start()
        two.start()
        for member in (one, two):
            assert "have data of their own" in output_of_failed(member)
            assert load_directory(member.data).last_zxid == left.zxid
        remove_data(two)
        start(servers, one)
        assert changed(left.seen, look_with_kazoo(empty)) == {}


def test_a_late_member_with_data_refuses_to_start(left: Filled, tmp_path: Path) -> None:
    """Otherwise the ensemble that began without it would overwrite its data."""
    with three(tmp_path) as servers:
        late, *others = servers.members
        for member in others:
            member.start()
        servers.wait_until_serving(others)
        import_into(left, late)
        late.start()
        assert "an ensemble without that data" in output_of_failed(late)
        for member in others:
            member.kill()
            remove_data(member)
        start(servers, late)
        for member in servers.members:
            assert changed(left.seen, look_with_kazoo(member)) == {}


def _is_bound(data: Path) -> bool:
    """Whether the identity file has the flag of a member, at byte 26."""
    identity = data / "quorum" / "identity"
    return identity.exists() and identity.read_bytes()[26:27] == b"\x01"


POINTS: dict[str, Callable[[Path], object]] = {
    "opened": lambda data: (data / "quorum" / "identity").exists(),
    # The file may already have its final name when it is seen.
    "written": lambda data: any((data / "quorum" / "snapshots").glob("*.*")),
    "bound": _is_bound,
    "in-its-place": lambda data: any((data / "quorum" / "snapshots").glob("*.snapshot")),
    "voted": lambda data: (data / "quorum" / "vote").exists(),
    "moved": lambda data: any(data.glob("standalone.*")),
}
"""The steps of a member that begins an ensemble, in order, as they show in its files."""


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_loses_nothing(left: Filled, tmp_path: Path, point: str) -> None:
    with three(tmp_path) as servers:
        first, *others = servers.members
        import_into(left, first)
        first.start()
        for member in others:
            member.start()
        is_there = POINTS[point]
        while not is_there(first.data):
            assert not first.ends_within(0.001), first.output()
        for member in servers.members:
            member.kill()
        # A standalone server would have all of the data too.
        copy = tmp_path / "copy"
        shutil.copytree(first.data, copy)
        state = load_directory(copy)
        assert state.nodes
        assert {path for path, _node in state.nodes} == left.seen.keys()
        start(servers, first)
        for member in servers.members:
            assert changed(left.seen, look_with_kazoo(member)) == {}
        check_session(others[0].addresses.clients, left.session, left.zxid)


# ---- from a standalone server ----


def configure(member: Member, **settings: str) -> None:
    """Adds to its zoo.cfg."""
    with (member.directory / "zoo.cfg").open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())


def test_one_server_grows_to_three_without_loss_to_its_client(tmp_path: Path) -> None:
    """A kazoo client keeps its session, nodes, watches and lock throughout."""
    made = Ensemble(OURS, tmp_path, 3, SETTINGS | {"reconfigEnabled": "true"}, Network(), founders=1)
    first, *joiners = made.members
    config = (first.directory / "zoo.cfg").read_text()
    line = next(line for line in config.splitlines() if line.startswith("server.1="))
    (first.directory / "zoo.cfg").write_text(config.replace(f"{line}\n", ""))
    client = KazooClient(made.hosts, timeout=30.0, randomize_hosts=False)
    states: list[str] = []
    try:
        first.start()
        made.wait_until_serving([first])
        assert first.mode() == "standalone"
        client.start(WAIT_SECONDS)
        client.add_listener(lambda state: states.append(str(state)))
        session = client.client_id
        client.add_auth("digest", SUPER.decode())
        client.create("/kept", b"0")
        client.create("/mine", b"", ephemeral=True)
        lock = client.Lock("/lock", "first")
        assert lock.acquire(timeout=WAIT_SECONDS)
        seen: list[bytes] = []
        updated = threading.Condition()

        @client.DataWatch("/kept")
        def watch(data: bytes, _stat: object) -> None:
            with updated:
                seen.append(data)
                updated.notify_all()

        before = client.exists("/kept")

        # One server line and one setting make it an ensemble of one.
        assert first.end() == 0
        configure(first, standaloneEnabled="false", **dict([line.split("=", 1)]))
        first.start()
        made.wait_until_serving([first])
        assert first.mode() == "leader"
        assert client.retry(client.exists, "/kept") == before
        stat = client.retry(client.set, "/kept", b"1")
        assert stat.mzxid >> 32 > before.mzxid >> 32

        for number, joiner in enumerate(joiners, 2):
            joiner.start()
            made.wait_until_serving([joiner])
            while True:
                with contextlib.suppress(NewConfigNoQuorumError):
                    data, _stat = client.reconfig(joiner.line(), None, None)
                    break
            assert data.decode().count("server.") == number
        client.set("/kept", b"2")

        # The ensemble survives the loss of its first server.
        made.leader().kill()
        client.retry(client.set, "/kept", b"3")
        with updated:
            assert updated.wait_for(lambda: seen[-1:] == [b"3"], WAIT_SECONDS), seen
        assert client.client_id == session
        assert client.exists("/mine").ephemeralOwner == session[0]
        assert lock.is_acquired
        assert client.exists(f"{lock.path}/{lock.node}").ephemeralOwner == session[0]
        assert "LOST" not in states
    finally:
        client.stop()
        client.close()
        made.stop()


def test_a_standalone_server_refuses_a_members_directory(left: Filled, tmp_path: Path) -> None:
    with three(tmp_path) as servers:
        import_into(left, servers.members[0])
        start(servers, servers.members[0])
        member = servers.members[2]
        assert member.end() == 0
        config = (member.directory / "zoo.cfg").read_text().splitlines()
        alone = [line for line in config if not line.startswith("server.")]
        (member.directory / "zoo.cfg").write_text("\n".join(alone))
        member.start()
        assert "add the ensemble's lines server.N" in output_of_failed(member)
        # An export and an import make it a standalone server.
        logcore("export", member.data, tmp_path / "out")
        shutil.rmtree(member.data)
        logcore("import", tmp_path / "out", member.data)
        member.start()
        servers.wait_until_serving([member])
        assert member.mode() == "standalone"
        assert changed(left.seen, look_with_kazoo(member)) == {}
