"""kazoo and zkCli change the members of a running ensemble.

If these fail, adding, removing or replacing a server disturbs its clients, or a restarted server does not
know its ensemble.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadArgumentsError,
    BadVersionError,
    ConnectionLoss,
    MarshallingError,
    NewConfigNoQuorumError,
    NoAuthError,
    ZookeeperError,
)

from cluster.properties import parse_properties
from tests.compat.conftest import KAFKA_LIBS, peer_jars
from tests.coordinator.support import WAIT_SECONDS

from .members import MAKERS_OF_ENSEMBLES, OURS, PEER, Ensemble, Member, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]
CONFIG = "/zookeeper/config"
SETTINGS = {
    "tickTime": "500",
    "initLimit": "10",
    "reconfigEnabled": "true",
    # super:test
    "DigestAuthenticationProvider.superDigest": "super:D/InIHSb7yEEbrWz8b9l71RjZJU=",
}
NAMES = [maker.name for maker in MAKERS_OF_ENSEMBLES]


@pytest.fixture(params=MAKERS_OF_ENSEMBLES, ids=NAMES)
def growing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    """Three members, and two servers that can join."""
    with ensemble(request.param, tmp_path, 5, SETTINGS, founders=3) as running:
        yield running


class Client:
    """A kazoo client that records its states. It is the super user, or nobody with an empty ``user``."""

    def __init__(self, members: Sequence[Member], user: str = "super:test") -> None:
        hosts = ",".join(member.hosts for member in members)
        self.kazoo = KazooClient(hosts, timeout=20.0, randomize_hosts=False)
        self.states: list[str] = []
        self.kazoo.start(WAIT_SECONDS)
        if user:
            self.kazoo.add_auth("digest", user)
        self.kazoo.add_listener(lambda state: self.states.append(str(state)))

    def __enter__(self) -> KazooClient:
        return self.kazoo

    def __exit__(self, *_error: object) -> None:
        self.kazoo.stop()
        self.kazoo.close()


def listed(data: bytes) -> list[int]:
    return [int(line.split("=")[0].split(".")[1]) for line in data.decode().splitlines()[:-1]]


def wait_until(member: Member, what: str, expected: object, seen: object = None) -> None:
    """Polls a member until its mode, its configuration node or its files are as expected."""
    end = time.monotonic() + WAIT_SECONDS
    while seen != expected:
        assert time.monotonic() < end, (
            f"member {member.number + 1}: {what} is {seen}, not {expected}: {member.output()}"
        )
        assert not member.ends_within(0.02), member.output()
        seen = _state(member, what)


def _state(member: Member, what: str) -> object:
    if what == "mode":
        return member.mode()
    if what == "files":
        settings = parse_properties((member.directory / "zoo.cfg").read_text())
        return parse_properties(Path(settings.get("dynamicConfigFile", "/dev/null")).read_text())
    with Client([member], "") as client:
        return listed(client.get(CONFIG)[0])


def lines_of(data: bytes) -> dict[str, str]:
    lines = parse_properties(data.decode())
    del lines["version"]
    return lines


def test_an_ensemble_grows_and_shrinks_while_it_serves(growing: Ensemble) -> None:
    founders, joiners = growing.members[:3], growing.members[3:]
    busy = Client(growing.members[:1])
    over = threading.Event()
    versions: list[int] = []

    def write() -> None:
        while not over.is_set():
            versions.append(busy.kazoo.set("/n", b"x").version)

    with busy as client, Client(founders[1:]) as admin:
        client.create("/n", b"")
        client.create("/e", b"", ephemeral=True)
        writing = threading.Thread(target=write)
        writing.start()
        fired = threading.Event()
        client.get(CONFIG, watch=lambda _event: fired.set())
        data, stat = admin.reconfig(",".join(member.line() for member in joiners), None, None)
        assert listed(data) == [1, 2, 3, 4, 5]
        assert data.decode().splitlines()[-1] == f"version={stat.mzxid:x}"
        assert fired.wait(WAIT_SECONDS)
        for member in growing.members:
            wait_until(member, "configuration", [1, 2, 3, 4, 5])
            wait_until(member, "files", lines_of(data))
        # Three of the five are a majority, so two may die; not the writing client's member.
        gone = [member for member in growing.members[1:] if member.mode() != "leader"][:2]
        for member in gone:
            member.kill()
        before = len(versions)
        admin_elsewhere = Client([member for member in growing.members if member not in gone])
        with admin_elsewhere as other:
            other.create("/behind", b"")
            for member in gone:
                member.start()
            growing.wait_until_serving(gone)
            data, _stat = other.reconfig(None, "4,5", None, from_config=stat.mzxid)
            assert listed(data) == [1, 2, 3]
            with pytest.raises(BadVersionError):
                other.reconfig(None, "3", None, from_config=stat.mzxid)
        for member in founders:
            wait_until(member, "files", lines_of(data))
        over.set()
        writing.join(WAIT_SECONDS)
        assert len(versions) > before
        assert versions == list(range(1, len(versions) + 1)), "a write was lost or done twice"
        if growing.maker is OURS:
            assert busy.states == [], "the client lost its connection"
        assert client.exists("/e").ephemeralOwner == client.client_id[0]


@pytest.fixture(params=MAKERS_OF_ENSEMBLES, ids=NAMES)
def four(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    with ensemble(request.param, tmp_path, 4, SETTINGS, founders=3) as running:
        yield running


def test_the_leader_is_removed_and_another_server_takes_its_place(four: Ensemble) -> None:
    leader, joiner = four.leader(), four.members[3]
    others = [member for member in four.members[:3] if member is not leader]
    with Client(others) as client:
        client.create("/e", b"", ephemeral=True)
        rest = sorted({1, 2, 3, 4} - {leader.number + 1})
        try:
            data, _stat = client.reconfig(joiner.line(), str(leader.number + 1), None)
            assert listed(data) == rest
        except ConnectionLoss:
            # Apache's followers close their clients when another leads.
            assert four.maker is not OURS, "the client lost its connection"
        for member in (*others, joiner):
            wait_until(member, "configuration", rest)
        assert client.retry(client.set, "/e", b"1").version == 1
        four.wait_until_serving([*others, joiner])
        # The old leader may now be stopped: the others are a majority without it.
        wait_until(leader, "mode", "follower")
        leader.kill()
        others[1].kill()
        assert client.retry(client.set, "/e", b"2").version == 2
        others[1].start()
        four.wait_until_serving([others[1]])
        # Its own configuration file has no line for it any more, so it does not start.
        if four.maker is OURS:
            leader.start()
            assert leader.ends_within(WAIT_SECONDS)
            assert f"has the number {leader.number + 1}, and there are lines only for" in leader.output()


@pytest.fixture(params=MAKERS_OF_ENSEMBLES, ids=NAMES)
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    with ensemble(request.param, tmp_path, 3, SETTINGS) as running:
        yield running


class Writing:
    """Writes to a node without pause until :meth:`end`."""

    def __init__(self, client: KazooClient, path: str) -> None:
        self._client, self._path = client, path
        self._versions: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        client.create(path, b"")
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._versions.append(self._client.retry(self._client.set, self._path, b"x").version)

    def end(self) -> list[int]:
        """Stops, and returns the versions that it made."""
        self._over.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self._versions


@pytest.mark.parametrize("way", ["at once", "removed and added"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_server_moves_to_other_addresses(three: Ensemble, role: str, way: str) -> None:
    moved = three.member_as(role)
    others = [member for member in three.members if member is not moved]
    before = moved.addresses
    guest, neighbour = Client([moved, *others]), Client(others[:1])
    with guest as at_moved, neighbour as client:
        at_moved.create("/e", b"", ephemeral=True)
        writing = [Writing(at_moved, "/at-moved"), Writing(client, "/n")]
        with Client(others[1:]) as admin:
            moved.addresses = three.network.addresses(1)[0]
            if way == "removed and added":
                data = admin.retry(admin.reconfig, None, str(moved.number + 1), None)[0]
                assert listed(data) == [other.number + 1 for other in others]
            data = admin.retry(admin.reconfig, moved.line(), None, None)[0]
        assert listed(data) == [1, 2, 3]
        assert moved.line() in data.decode().splitlines()
        # It serves at its new address, and its old ports are closed.
        three.wait_until_serving([moved])
        end = time.monotonic() + WAIT_SECONDS
        for port in (before.clients, before.quorum, before.election):
            while listens(before.host, port):
                assert time.monotonic() < end, f"it still listens on {port}"
                assert not moved.ends_within(0.02)
        for member in three.members:
            wait_until(member, "files", lines_of(data))
        made = [each.end() for each in writing]
        if three.maker is OURS:
            expected = [list(range(1, len(versions) + 1)) for versions in made]
            assert made == expected, "a write was lost or done twice"
            assert guest.states == neighbour.states == [], "a client lost its connection"
        assert client.retry(client.exists, "/e").ephemeralOwner == at_moved.client_id[0]
        # It votes: together with one of the others it is a majority.
        others[1].kill()
        client.retry(client.set, "/e", b"voted")
        others[1].start()
        three.wait_until_serving([others[1]])
    for member in three.members:
        member.kill()
    for member in three.members:
        member.start()
    three.wait_until_serving()
    for member in three.members:
        with Client([member]) as client:
            client.sync("/")
            assert client.get(CONFIG)[0] == data
            client.set("/n", b"after the restart")
        assert _state(member, "files") == lines_of(data)
    assert not listens(before.host, before.clients)


def listens(host: str, port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, port), WAIT_SECONDS):
        return True
    return False


def test_refusals_have_zookeepers_error_codes(four: Ensemble) -> None:
    joiner = four.members[3]
    refused: list[tuple[tuple[str | None, str | None, str | None, int], type[ZookeeperError]]] = [
        (("server.4=127.0.0.1:1:2", None, None, -1), BadArgumentsError),
        (("4", None, None, -1), BadArgumentsError),
        ((joiner.line("leader"), None, None, -1), BadArgumentsError),
        (("server.7=10.0.0.7:1:2;3,server.8=10.0.0.7:1:4;5", None, None, -1), BadArgumentsError),
        (("server.7=127.0.0.1:1:70000;3", None, None, -1), MarshallingError),
        ((None, "x", None, -1), MarshallingError),
        ((None, "2,3", None, -1), BadArgumentsError),
        ((None, None, "server.1=a", -1), BadArgumentsError),
        ((None, None, "server.1=127.0.0.1:1:2:observer", -1), MarshallingError),
        ((None, None, "tickTime=1", -1), BadArgumentsError),
        ((None, "3", None, 77), BadVersionError),
        (
            (None, None, "server.1=127.0.0.1:1:2,server.7=127.0.0.1:3:4,server.8=127.0.0.1:5:6", -1),
            NewConfigNoQuorumError,
        ),
    ]
    with Client(four.members[:1]) as client, Client(four.members[1:2], "") as nobody:
        for arguments, error in refused:
            with pytest.raises(error):
                client.reconfig(*arguments)
            with pytest.raises(error):
                nobody.reconfig(*arguments)
        with pytest.raises(NoAuthError):
            nobody.reconfig(joiner.line(), None, None)
        assert listed(client.reconfig(None, "9", None)[0]) == [1, 2, 3]


def zkcli(member: Member, script: str) -> str:
    options = next(peer_jars(KAFKA_LIBS.name).glob("commons-cli-*.jar"))
    java = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    done = subprocess.run(
        [
            *java,
            "-cp",
            f"{peer_jars(PEER)}/*:{options}",
            "org.apache.zookeeper.ZooKeeperMain",
            "-server",
            member.hosts,
        ],
        input=f"addauth digest super:test\n{script}quit\n",
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS * 2,
    )
    return done.stdout + done.stderr


def test_zkcli_replaces_a_server_whose_machine_is_lost(four: Ensemble) -> None:
    lost, joiner = four.followers()[0], four.members[3]
    if lost is joiner:
        lost = four.followers()[1]
    lost.kill()
    shutil.rmtree(lost.data)
    member = next(each for each in four.members[:3] if each is not lost)
    output = zkcli(
        member, f"reconfig -remove {lost.number + 1} -add {joiner.line()}\nconfig\nreconfig -remove 9 -v 1\n"
    )
    rest = sorted({1, 2, 3, 4} - {lost.number + 1})
    assert "Committed new configuration:" in output
    assert output.count(joiner.line()) == 2
    assert "version No is not valid" in output
    for each in four.members:
        if each is not lost:
            wait_until(each, "configuration", rest)
