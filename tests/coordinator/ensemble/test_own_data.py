"""The data of a server by itself becomes an ensemble's, on real members over loopback. If these fail, an
ensemble begins without what one of its servers had, with half of it, or with two kinds of it; or a crash in
the middle leaves nobody with the whole."""

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
    """Members of one ensemble by their numbers; ``start`` is given their settings."""

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
        """Has one member's client create a node, and returns the zxid; the member has all that was agreed
        on before, then."""
        while True:
            self.thread.wait(lambda: self.running[number].is_serving)
            client = RawClient(self.running[number].port)
            # It is closed when the state comes.
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
    """One of everything that a node can be, and sessions that outlive a test."""
    state = rich_state()
    return state._replace(sessions=[each._replace(timeout_ms=600_000) for each in state.sessions])


def nodes_of(state: State) -> dict[str, NodeState]:
    """All but the configuration, which is the ensemble's own."""
    return {path: node for path, node in state.nodes if path != CONFIG}


def create(client: RawClient, path: str) -> int:
    """Returns the zxid."""
    body = Writer().string(path).buffer(b"").acls(OPEN).i32(0).finish()
    _xid, zxid, error, _body = client.request(1, Op.CREATE, body)
    assert error == 0
    return zxid


def has(agreed: Agreed, path: str) -> bool:
    return agreed.machine.tree.find(path) is not None


def put_aside(data: Path) -> list[Path]:
    return sorted(data.glob("standalone.*"))


# ---- from one to all ----


def test_what_one_had_all_have(servers: Servers) -> None:
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
            # The root has more children; all else is what it was.
            assert now[path]._replace(creations=0, pzxid=0) == node._replace(creations=0, pzxid=0), path
        assert set(before.sessions) <= set(state.sessions)
        shown = dict(state.nodes)[CONFIG]
        assert shown.data == agreed.configuration
        assert shown.data.endswith(b"version=0")
        assert shown.mzxid == before.last_zxid + 1

    # The session goes on at another server, with its password only, and its node goes with it.
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

    # The files are where a server by itself finds them, and nothing else does.
    assert not Directories.of(servers.data(2)).has_standalone_data()
    (kept,) = put_aside(servers.data(2))
    assert kept.name == f"standalone.{before.last_zxid:016x}"
    servers.stop()
    assert nodes_of(load_directory(kept)) == nodes_of(before)
    for number in (1, 2, 3):
        servers.start(number)
    servers.create(2, "/again")


def test_one_server_by_itself_grows(servers: Servers, start_coordinator: StartCoordinator) -> None:
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
        # It is refused until the server has followed for a moment.
        while (error := client.request(3, Op.RECONFIG, body)[2]) != 0:
            assert error == Code.NEW_CONFIG_NO_QUORUM
    servers.thread.wait(lambda: all(len(servers.agreed(number).members) == 3 for number in (1, 2, 3)))
    for number in (1, 2, 3):
        state = servers.agreed(number).machine.export()
        assert nodes_of(state) == nodes_of(before)
        assert {each.id for each in before.sessions} == {each.id for each in state.sessions}
    client.close()


# ---- who must not begin ----


def test_two_with_data_refuse(servers: Servers) -> None:
    for number in (1, 3):
        begin_directory(servers.data(number), no_nodes(number))
    for number in (1, 2, 3):
        servers.start(number)
    for number in (1, 3):
        shown = servers.failure(number)
        assert "have data of their own" in shown
    servers.stop(1, 3)
    # Nothing has become of it, on either.
    for number in (1, 3):
        assert load_directory(servers.data(number)).last_zxid == number
        assert put_aside(servers.data(number)) == []
    shutil.rmtree(servers.data(1))
    servers.start(1)
    servers.start(3)
    for number in (1, 2, 3):
        servers.create(number, f"/{number}")


def test_data_joins_no_ensemble(servers: Servers) -> None:
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


def test_an_ensemble_does_not_begin_with_less_than_there_was(servers: Servers) -> None:
    """Its only snapshot is damaged: neither kind of server takes nothing for it."""
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


def test_data_in_use_is_left_alone(servers: Servers, start_coordinator: StartCoordinator) -> None:
    start_coordinator(servers.data(1))
    with pytest.raises(CoordinatorError, match="is in use by another process"):
        servers.start(1)


# ---- in the middle ----


def test_until_a_majority_is_there_a_server_by_itself_can_have_it(
    servers: Servers, start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, given = OwnData.give, threading.Event()

    def note(own: OwnData, sink: SnapshotSink, time_ms: int) -> None:
        give(own, sink, time_ms)
        given.set()

    monkeypatch.setattr(OwnData, "give", note)
    begin_directory(servers.data(1), no_nodes(5))
    servers.start(1)
    assert given.wait(WAIT_SECONDS)
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
    # What it has become meanwhile is what the ensemble begins with.
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
    """Data in more than one file."""
    begin_directory(directory, no_nodes(7))
    log = TransactionLog(directory)
    machine, _behind = log.recover()
    for _ in range(3):
        machine.last_zxid += 1
        log.save(machine.export())
    log.close()
    return load_directory(directory)


def test_files_are_moved_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert put_aside(data) == [data / "standalone.tmp"]
        own = OwnData(data, MEMBERS)
        assert own.take() == (step < steps)
        own.put_away()
        (kept,) = put_aside(data)
        state = load_directory(kept)
        assert nodes_of(state) == nodes_of(before)
        assert state.last_zxid == before.last_zxid
        assert not Directories.of(data).has_standalone_data()


def test_half_of_the_files_are_nobodys_data(servers: Servers, start_coordinator: StartCoordinator) -> None:
    """The member that they were moved for is gone."""
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


def test_what_makes_a_directory_a_members(tmp_path: Path) -> None:
    assert not Directories.of(tmp_path).has_member_data()
    quorum = tmp_path / "quorum"
    (quorum / "log").mkdir(parents=True)
    (quorum / "snapshots").mkdir()
    (quorum / "identity").write_bytes(b"x")
    assert Directories.of(tmp_path).has_member_data(), "with nothing beside it"
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


def test_the_first_state_goes_on_where_the_server_was() -> None:
    # Its clock was ahead.
    last_id = first_session_id(1_900_000_000_000, SESSION >> 56)
    before = rich_state()._replace(last_session_id=last_id)
    agreed = first_agreed(Machine(before), MEMBERS, 1_700_000_000_000)
    assert fingerprint(read(b"".join(walk(agreed)))) == fingerprint(agreed)
    assert [member.server_id for member in agreed.members] == [1], "observers join"
    assert agreed.machine.last_zxid == before.last_zxid + 1
    # The first leader's first.
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


def test_zxids_that_are_used_up_are_told() -> None:
    with pytest.raises(CoordinatorError, match="too few are left"):
        first_agreed(Machine(no_nodes((1 << 63) - 1)), MEMBERS, 0)


# ---- and out again ----


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
