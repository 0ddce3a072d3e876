"""The data of a standalone server becomes an ensemble's, on real members over loopback.

If these fail, an ensemble begins without its server's data, with half of it or with two versions of it. Or a
crash on the way loses data.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.coordinator import CoordinatorError, CoordinatorServer, parse_configuration, replication_of
from cluster.coordinator.durability.directories import Directories
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.durability.snapshot import snapshot_path
from cluster.coordinator.ensemble.agreed import Agreed, Proposed
from cluster.coordinator.ensemble.own_data import OwnData, first_agreed
from cluster.coordinator.ensemble.quorum import SnapshotSink
from cluster.coordinator.ensemble.replication import EnsembleReplication
from cluster.coordinator.ensemble.snapshot import read, walk
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import CreateSession, Op, encode_create_session
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.machine import Machine, State
from cluster.coordinator.state.members import parse_members
from cluster.coordinator.state.sessions import first_session_id
from cluster.coordinator.state.tree import CONFIG, NodeState
from cluster.coordinator.transfer import begin_directory, load_directory, read_own
from cluster.coordinator.transfer.common import session_password
from tests.coordinator.conftest import StartCoordinator
from tests.coordinator.support import WAIT_SECONDS, LoopThread, RawClient
from tests.coordinator.test_transfer import SESSION, no_nodes, rich_state
from tests.ports import free_ports

from .states import fingerprint

pytestmark = pytest.mark.timeout(120)

MEMBERS = parse_members({"server.1": "a:1:2", "server.2": "b:1:2:observer"}).members


class Servers:
    """The members of one ensemble, by number."""

    def __init__(self, thread: LoopThread, directory: Path, count: int) -> None:
        self.thread = thread
        self.directory = directory
        ports = iter(free_ports(2 * count))
        self.lines = {
            f"server.{number}": f"127.0.0.1:{next(ports)}:{next(ports)}" for number in range(1, count + 1)
        }
        self.running: dict[int, CoordinatorServer] = {}

    def data(self, number: int) -> Path:
        return self.directory / f"member-{number}"

    def start(self, number: int, **settings: str) -> CoordinatorServer:
        data = self.data(number)
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        least = {"dataDir": str(data), "clientPort": "2181", "tickTime": "500", "initLimit": "40"}
        properties = least | {"syncLimit": "10", "standaloneEnabled": "false"} | self.lines | settings
        configuration = parse_configuration(properties)
        server = CoordinatorServer(
            data, settings=configuration.settings, replicate=replication_of(configuration)
        )
        self.thread.run(server.start())
        self.running[number] = server
        return server

    def stop(self, *numbers: int) -> None:
        for number in numbers or list(self.running):
            self.thread.run(self.running.pop(number).stop())

    def agreed(self, number: int) -> Agreed:
        replication = self.running[number].replication
        assert isinstance(replication, EnsembleReplication)
        return replication.agreed

    def create(self, number: int, path: str) -> int:
        """Creates a node through one member and returns the zxid.

        The member has then applied all earlier entries.
        """
        while True:
            self.thread.wait(lambda: self.running[number].is_serving)
            client = RawClient(self.running[number].port)
            # The member closes its clients when it installs the ensemble's state.
            with contextlib.closing(client), contextlib.suppress(ConnectionError):
                assert client.connect()[1]
                return create(client, path)

    def failure(self, number: int) -> str:
        failed = self.running[number].failed
        assert failed is not None
        self.thread.wait(failed.done)
        return str(failed.exception())


@pytest.fixture
def servers(loop_thread: LoopThread, tmp_path: Path) -> Iterator[Servers]:
    made = Servers(loop_thread, tmp_path, 3)
    yield made
    made.stop()


def one_of_each() -> State:
    """A state with every kind of node and value, and with sessions that outlive a test."""
    state = rich_state()
    return state._replace(sessions=[each._replace(timeout_ms=600_000) for each in state.sessions])


def nodes_of(state: State) -> dict[str, NodeState]:
    """All nodes except the configuration, which is the ensemble's own."""
    return {path: node for path, node in state.nodes if path != CONFIG}


def create(client: RawClient, path: str) -> int:
    """Creates a node and returns the zxid."""
    body = Writer().string(path).buffer(b"").acls(OPEN).i32(0).finish()
    _xid, zxid, error, _body = client.request(1, Op.CREATE, body)
    assert error == 0
    return zxid


def has(agreed: Agreed, path: str) -> bool:
    return agreed.machine.tree.find(path) is not None


def moved_away(data: Path) -> list[Path]:
    """The directories with the files of the former standalone server."""
    return sorted(data.glob("standalone.*"))


# ---- the begin of an ensemble ----


def test_all_members_get_the_data_of_one(servers: Servers) -> None:
    before = one_of_each()
    begin_directory(servers.data(2), before)
    for number in (1, 2, 3):
        servers.start(number)
    for number in (1, 2, 3):
        assert servers.create(number, f"/by-{number}") >> 32 > before.last_zxid >> 32
    servers.thread.wait(lambda: len({self.machine.last_zxid for self in map(servers.agreed, (1, 2, 3))}) == 1)
    for number in (1, 2, 3):
        agreed = servers.agreed(number)
        state = agreed.machine.export()
        now = nodes_of(state)
        for path, node in nodes_of(before).items():
            # Only the root has changed: it has more children.
            assert now[path]._replace(creations=0, pzxid=0) == node._replace(creations=0, pzxid=0), path
        assert set(before.sessions) <= set(state.sessions)
        configuration = dict(state.nodes)[CONFIG]
        assert configuration.data == agreed.configuration
        assert configuration.data.endswith(b"version=0")
        assert configuration.mzxid == before.last_zxid + 1

    # The session continues at another server, with its password only, and its node is deleted with it.
    stranger = RawClient(servers.running[1].port)
    assert stranger.connect(session_id=SESSION, password=b"p" * 16)[1] == 0
    stranger.close()
    client = RawClient(servers.running[3].port)
    found = client.connect(30_000, SESSION, session_password(SESSION), before.last_zxid)
    assert found[1] == SESSION
    assert client.request(2, Op.CLOSE_SESSION)[2] == 0
    client.close()
    servers.thread.wait(lambda: all(not has(servers.agreed(number), "/e") for number in (1, 2, 3)))
    assert has(servers.agreed(1), "/n")

    # The old files are in a directory of their own.
    assert not Directories.of(servers.data(2)).has_standalone_data()
    (kept,) = moved_away(servers.data(2))
    assert kept.name == f"standalone.{before.last_zxid:016x}"
    servers.stop()
    assert nodes_of(load_directory(kept)) == nodes_of(before)
    for number in (1, 2, 3):
        servers.start(number)
    servers.create(2, "/again")


def test_a_standalone_server_grows_to_three(servers: Servers, start_coordinator: StartCoordinator) -> None:
    alone = start_coordinator(servers.data(1))
    client = RawClient(alone.port)
    _timeout, session, password = client.connect()
    last = create(client, "/before")
    body = Writer().string("/mine").buffer(b"").acls(OPEN).i32(1).finish()
    assert client.request(2, Op.CREATE, body)[2] == 0
    client.close()
    alone.stop()
    before = load_directory(servers.data(1))
    line = {"server.1": servers.lines.pop("server.1")}
    others, servers.lines = servers.lines, line
    reconfigurable = {"reconfigEnabled": "true", "skipACL": "yes"}
    servers.start(1, **reconfigurable)
    servers.thread.wait(lambda: servers.running[1].is_serving)
    client = RawClient(servers.running[1].port)
    assert client.connect(10_000, session, password, last)[1] == session
    for number in (2, 3):
        name = f"server.{number}"
        servers.start(number, **reconfigurable, **{name: others[name]})
        (port,) = free_ports(1)
        joining = f"{name}={others[name]};127.0.0.1:{port}"
        body = Writer().string(joining).string(None).string(None).i64(-1).finish()
        # The change is refused until the new server has followed the leader for a moment.
        while (error := client.request(3, Op.RECONFIG, body)[2]) != 0:
            assert error == Code.NEW_CONFIG_NO_QUORUM
    servers.thread.wait(lambda: all(len(servers.agreed(number).members) == 3 for number in (1, 2, 3)))
    for number in (1, 2, 3):
        state = servers.agreed(number).machine.export()
        assert nodes_of(state) == nodes_of(before)
        assert {each.id for each in before.sessions} == {each.id for each in state.sessions}
    client.close()


# ---- refused begins ----


def test_two_members_with_data_do_not_start(servers: Servers) -> None:
    for number in (1, 3):
        begin_directory(servers.data(number), no_nodes(number))
    for number in (1, 2, 3):
        servers.start(number)
    for number in (1, 3):
        assert "have data of their own" in servers.failure(number)
    servers.stop(1, 3)
    # The data of both is unchanged.
    for number in (1, 3):
        assert load_directory(servers.data(number)).last_zxid == number
        assert moved_away(servers.data(number)) == []
    shutil.rmtree(servers.data(1))
    servers.start(1)
    servers.start(3)
    for number in (1, 2, 3):
        servers.create(number, f"/{number}")


def test_a_member_with_data_cannot_join_an_ensemble(servers: Servers) -> None:
    for number in (1, 2):
        servers.start(number)
    servers.create(1, "/there")
    begin_directory(servers.data(3), no_nodes(3))
    servers.start(3)
    assert "an ensemble without that data" in servers.failure(3)
    servers.stop(3)
    assert load_directory(servers.data(3)).last_zxid == 3
    for path in servers.data(3).iterdir():
        path.rename(servers.directory / path.name)
    servers.start(3)
    servers.create(3, "/joined")


def test_an_ensemble_does_not_begin_with_damaged_data(servers: Servers) -> None:
    """The only snapshot is damaged; neither kind of server may start with an empty state."""
    begin_directory(servers.data(1), no_nodes(7))
    path = snapshot_path(servers.data(1), 7)
    path.write_bytes(path.read_bytes()[:-1])
    servers.lines = {"server.1": servers.lines["server.1"]}
    servers.start(1)
    assert "cannot be read, and the logs end at 0x0" in servers.failure(1)
    servers.stop(1)
    assert not Directories.of(servers.data(1)).has_member_data()
    with pytest.raises(CoordinatorError, match="cannot be read, and the logs end at 0x0"):
        load_directory(servers.data(1))


def test_data_in_use_is_not_touched(servers: Servers, start_coordinator: StartCoordinator) -> None:
    start_coordinator(servers.data(1))
    with pytest.raises(CoordinatorError, match="is in use by another process"):
        servers.start(1)


# ---- crashes and interruptions ----


def test_without_a_majority_the_data_stays_usable_by_a_standalone_server(
    servers: Servers, start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, was_given = OwnData.give, threading.Event()

    def note(own: OwnData, sink: SnapshotSink, time_ms: int) -> None:
        give(own, sink, time_ms)
        was_given.set()

    monkeypatch.setattr(OwnData, "give", note)
    begin_directory(servers.data(1), no_nodes(5))
    servers.start(1)
    assert was_given.wait(WAIT_SECONDS)
    with pytest.raises(CoordinatorError, match="is in use by another process"):
        start_coordinator(servers.data(1))
    servers.stop(1)
    assert not Directories.of(servers.data(1)).has_member_data()
    alone = start_coordinator(servers.data(1))
    client = RawClient(alone.port)
    client.connect()
    last = create(client, "/added")
    client.close()
    alone.stop()
    # The ensemble begins with the later changes too.
    for number in (1, 2, 3):
        servers.start(number)
    assert servers.create(3, "/in-the-ensemble") > last
    assert has(servers.agreed(3), "/added")
    servers.stop()
    with pytest.raises(
        CoordinatorError, match=r"data of a member of an ensemble.*logcore coordinator export"
    ):
        start_coordinator(servers.data(1))


def with_logs(directory: Path) -> State:
    """Makes data in several files."""
    begin_directory(directory, no_nodes(7))
    log = TransactionLog(directory)
    machine, _behind = log.recover()
    for _ in range(3):
        machine.last_zxid += 1
        log.save(machine.export())
    log.close()
    return load_directory(directory)


def test_a_crash_while_files_are_moved_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_logs(tmp_path / "data")
    (tmp_path / "data" / "quorum").mkdir()
    (tmp_path / "data" / "quorum" / "vote").write_bytes(b"")
    steps = len([path for path in (tmp_path / "data").iterdir() if path.name.startswith(("snapshot", "log"))])
    assert steps > 3
    rename = Path.rename
    for step in range(steps + 1):
        data = tmp_path / f"data-{step}"
        shutil.copytree(tmp_path / "data", data)
        left = step

        def until_then(path: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                raise OSError("the crash")
            left -= 1
            return rename(path, target)

        own = OwnData(data, MEMBERS)
        assert own.take()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", until_then)
            own.put_away()
        assert Directories.of(data).has_member_data()
        assert moved_away(data) == [data / "standalone.tmp"]
        own = OwnData(data, MEMBERS)
        assert own.take() == (step < steps)
        own.put_away()
        (kept,) = moved_away(data)
        state = load_directory(kept)
        assert nodes_of(state) == nodes_of(before)
        assert state.last_zxid == before.last_zxid
        assert not Directories.of(data).has_standalone_data()


def test_half_of_the_files_are_refused(servers: Servers, start_coordinator: StartCoordinator) -> None:
    """A member was moving its files when it crashed, and its own data is gone."""
    data = servers.data(1)
    with_logs(data)
    (data / "standalone.tmp").mkdir()
    newest = max(data.glob("snapshot.*"))
    newest.rename(data / "standalone.tmp" / newest.name)
    with pytest.raises(CoordinatorError, match="has some of the data"):
        start_coordinator(data)
    with pytest.raises(CoordinatorError, match="has some of the data"):
        load_directory(data)
    servers.lines = {"server.1": servers.lines["server.1"]}
    servers.start(1)
    assert "has some of the data" in servers.failure(1)


def test_a_directory_is_a_members_if_it_has_a_members_data(tmp_path: Path) -> None:
    assert not Directories.of(tmp_path).has_member_data()
    quorum = tmp_path / "quorum"
    (quorum / "log").mkdir(parents=True)
    (quorum / "snapshots").mkdir()
    (quorum / "identity").write_bytes(b"x")
    assert Directories.of(tmp_path).has_member_data(), "an empty member's directory was not recognised"
    begin_directory_beside(tmp_path)
    (quorum / "log" / "0.log").write_bytes(b"")
    (quorum / "snapshots" / "0.part").write_bytes(b"x")
    assert not Directories.of(tmp_path).has_member_data()
    for name in ("vote", "purged", "log/0.log", "snapshots/1-0.snapshot"):
        before = (quorum / name).read_bytes() if (quorum / name).exists() else None
        (quorum / name).write_bytes(b"x")
        assert Directories.of(tmp_path).has_member_data(), name
        if before is None:
            (quorum / name).unlink()
        else:
            (quorum / name).write_bytes(before)
        assert not Directories.of(tmp_path).has_member_data(), name


def begin_directory_beside(directory: Path) -> None:
    begin_directory(directory / "elsewhere", no_nodes())
    for path in (directory / "elsewhere").glob("snapshot.*"):
        path.rename(directory / path.name)


# ---- the first state ----


def test_the_first_state_continues_the_servers() -> None:
    # A session id of a clock that was ahead.
    last_id = first_session_id(1_900_000_000_000, SESSION >> 56)
    before = rich_state()._replace(last_session_id=last_id)
    agreed = first_agreed(Machine(before), MEMBERS, 1_700_000_000_000)
    assert fingerprint(read(b"".join(walk(agreed)))) == fingerprint(agreed)
    assert [member.server_id for member in agreed.members] == [1], "an observer is a member from the begin"
    assert agreed.machine.last_zxid == before.last_zxid + 1
    # The first entry of the first leader.
    agreed.begin(2, 1, 1_700_000_000_001)
    birth = CreateSession(5000, b"p" * 16)
    body = encode_create_session(birth)
    for server_id in (SESSION >> 56, 3):
        proposed = Proposed(server_id, 0, 0, Op.CREATE_SESSION, Rules.NONE, (), birth, body)
        opened = agreed.apply(proposed.encode()).outcome.opened_session
        assert opened is not None
        assert opened.id >> 56 == server_id
        assert opened.id == last_id + 1 or server_id == 3
    assert agreed.machine.last_zxid == (before.last_zxid >> 32) + 1 << 32 | 2
    again = CreateSession(5000, session_password(SESSION))
    attach = Proposed(SESSION, 0, 0, Op.ATTACH, Rules.NONE, (), again, encode_create_session(again))
    assert agreed.apply(attach.encode()).attachment == 2


def test_too_few_remaining_zxids_are_refused() -> None:
    with pytest.raises(CoordinatorError, match="too few are left"):
        first_agreed(Machine(no_nodes((1 << 63) - 1)), MEMBERS, 0)


# ---- the export ----


def test_a_members_directory_is_exported(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    begin_directory(servers.data(1), one_of_each())
    for number in (1, 2, 3):
        servers.start(number)
    last = servers.create(2, "/last")
    servers.thread.wait(lambda: all(has(servers.agreed(number), "/last") for number in (1, 2, 3)))
    with pytest.raises(CoordinatorError, match="in use"):
        read_own(servers.data(1))
    expected = servers.agreed(1).machine.export()
    servers.stop()
    for number in (1, 2, 3):
        state, notes = read_own(servers.data(number))
        assert sorted(state.nodes) == sorted(expected.nodes)
        assert state.last_zxid >= last
        assert any("the data of one member" in note for note in notes)
    out = servers.directory / "out"
    assert main(["coordinator", "export", str(servers.data(3)), str(out)]) == 0
    assert "some that no majority had" in capsys.readouterr().out
    again = servers.directory / "again"
    assert main(["coordinator", "import", str(out), str(again)]) == 0
    assert "or start an ensemble" in capsys.readouterr().out
    assert nodes_of(load_directory(again)) == nodes_of(expected)
