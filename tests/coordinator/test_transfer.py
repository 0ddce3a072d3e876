"""Moves from Apache ZooKeeper's directories to ours and back.

If these fail, a move changes a node, a version, an owner or a session, or overwrites data.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.coordinator import CoordinatorError
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.protocol.jute import Acl, Id, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN
from cluster.coordinator.state.machine import Machine, State
from cluster.coordinator.state.sessions import Session
from cluster.coordinator.state.tree import CONFIG, CONTAINER_OWNER, TTL_OWNER, NodeState
from cluster.coordinator.transfer import (
    begin_directory,
    load_directory,
    own,
    read_directory,
    write_directory,
)
from cluster.coordinator.transfer.common import decode_text, session_password
from cluster.coordinator.transfer.snapshots import write_snapshot

from .apache_files import (
    Leader,
    create_body,
    payload,
    write_directory_of,
    write_log,
)
from .conftest import StartCoordinator
from .support import RawClient

SESSION = 0x0100_0000_0000_0001


def comparable(state: State) -> State:
    return state._replace(nodes=sorted(state.nodes), sessions=sorted(state.sessions))


def quiet(*_progress: object) -> None: ...


def no_nodes(zxid: int = 0) -> State:
    return Machine().export()._replace(last_zxid=zxid)


def versioned(directory: Path, state: State) -> Path:
    """Makes the directory version-2 of a dataDir, with one snapshot."""
    inside = directory / "version-2"
    inside.mkdir(parents=True)
    write_snapshot(inside, state, quiet)
    return inside


def rich_state() -> State:
    """A state with every kind of node and value."""
    me = Session(SESSION, 30_000, session_password(SESSION))
    # Session ids of a server with number 200 are negative.
    negative = Session(-0x3800_0000_0000_0005, 4000, session_password(-0x3800_0000_0000_0005))
    nodes = dict(no_nodes().nodes)

    def add(path: str, **changed: object) -> None:
        plain = NodeState(b"x", OPEN, 1, 2, 3, 1000, 2000, 4, 0, 0, 0)
        nodes[path] = plain._replace(**changed)  # type: ignore[arg-type]

    add("/a", creations=(1 << 31) - 1, version=-2, acl_version=7, pzxid=0x2_0000_0009)
    add("/a/null", data=None)
    add("/a/empty", data=b"", acl=())
    add(
        "/a/ä-€",
        acl=(
            Acl(31, Id("digest", "ann:h")),
            Acl(1, Id("sasl", "\U0001f600@R")),
            Acl(1, Id("sasl", "\U0001f600@R")),
        ),
    )
    add("/a-b", data=bytes(range(256)) * 20_000)
    add("/c", owner=CONTAINER_OWNER, creations=5)
    add("/c/d")
    add("/t", owner=TTL_OWNER | 12345)
    add("/t/below")
    add("/e", owner=me.id)
    add("/n", owner=negative.id)
    return State(0x2_0000_0010, me.id, [me, negative], list(nodes.items()))


# ---- there and back ----


def test_an_export_and_import_change_nothing(tmp_path: Path) -> None:
    state = rich_state()
    notes = write_directory(tmp_path / "out", state)
    assert [note for note in notes if "TTL" in note]
    files = {path.name: path for path in (tmp_path / "out" / "version-2").iterdir()}
    assert sorted(files) == ["acceptedEpoch", "currentEpoch", "snapshot.0000000200000010"]
    assert files["currentEpoch"].read_text() == "2"
    moved = read_directory(tmp_path / "out")
    assert comparable(moved.state) == comparable(state)
    begin_directory(tmp_path / "ours", moved.state)
    ours = load_directory(tmp_path / "ours")
    # Our own snapshots are in jute, which has no characters outside the basic plane.
    emoji = [path for path, node in state.nodes if any("\U0001f600" in entry.id.id for entry in node.acl)]
    kept = [each for each in state.nodes if each[0] not in emoji]
    assert comparable(
        ours._replace(nodes=[each for each in ours.nodes if each[0] not in emoji])
    ) == comparable(state._replace(nodes=kept))


def test_a_zipped_snapshot_is_read(tmp_path: Path) -> None:
    inside = versioned(tmp_path, rich_state())
    (plain,) = inside.iterdir()
    (inside / "snapshot.200000010.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert comparable(read_directory(tmp_path).state) == comparable(rich_state())


def test_an_empty_tree_is_exported_and_imported(tmp_path: Path) -> None:
    assert write_directory(tmp_path / "out", no_nodes()) == []
    assert comparable(read_directory(tmp_path / "out").state) == comparable(no_nodes())


def test_session_passwords_are_those_of_javas_random() -> None:
    """The expected numbers are the first of ``new java.util.Random(0)``."""
    expected = struct.pack("<iiii", -1155484576, -723955400, 1033096058, -1690734402)
    assert session_password(0xB3415C00) == expected


def test_javas_encoding_of_surrogates_is_read() -> None:
    assert decode_text(b"a\xed\xa0\xbd\xed\xb8\x80b") == "a\U0001f600b"
    assert decode_text("ä\U0001f600".encode()) == "ä\U0001f600"
    assert decode_text(b"\xff!") == "\ufffd!"
    assert decode_text(b"\xed\xa0\xbd!") == "\ufffd!"


# ---- repairs ----


def test_nodes_of_ended_sessions_are_left_out(tmp_path: Path) -> None:
    state = rich_state()
    gone = [("/lost", NodeState(b"", OPEN, 1, 1, 1, 0, 0, 0, 0, 0, SESSION + 9))]
    strange = -5  # the owner of a node with a TTL above the maximum
    gone.append(("/strange", gone[0][1]._replace(owner=strange)))
    versioned(tmp_path, state._replace(nodes=[*state.nodes, *gone]))
    moved = read_directory(tmp_path)
    expected = dict(state.nodes)
    expected["/"] = expected["/"]._replace(pzxid=state.last_zxid)
    assert dict(moved.state.nodes) == expected
    assert any("/lost, /strange" in note for note in moved.notes)


def test_a_deleted_parents_descendants_are_left_out(tmp_path: Path) -> None:
    inside = versioned(tmp_path, rich_state())
    zxid = 0x2_0000_0011
    write_log(
        inside,
        zxid,
        [
            payload(zxid, Op.DELETE, Writer().string("/a").finish()),
            payload(zxid + 1, Op.CREATE, create_body("/a", creations=9)),
        ],
    )
    moved = read_directory(tmp_path)
    assert not [path for path, _node in moved.state.nodes if path.startswith("/a/")]
    assert any("3 nodes below deleted ones" in note for note in moved.notes)


def test_quotas_are_recounted_and_old_trees_get_a_configuration(tmp_path: Path) -> None:
    state = rich_state()
    nodes = {path: node for path, node in state.nodes if path != CONFIG}
    plain = NodeState(b"count=9,bytes=9", OPEN, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    for path in (
        "/zookeeper/quota/a",
        "/zookeeper/quota/a/zookeeper_limits",
        "/zookeeper/quota/a/zookeeper_stats",
    ):
        nodes[path] = plain
    versioned(tmp_path, state._replace(nodes=list(nodes.items())))
    moved = dict(read_directory(tmp_path).state.nodes)
    assert moved[CONFIG] == dict(no_nodes().nodes)[CONFIG]
    assert moved["/zookeeper/quota/a/zookeeper_stats"] == plain._replace(data=b"count=4,bytes=2")
    Machine(read_directory(tmp_path).state)


# ---- our directories ----


def test_existing_data_is_not_overwritten(tmp_path: Path, start_coordinator: StartCoordinator) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CoordinatorError, match="is a file"):
        begin_directory(tmp_path / "file", no_nodes())
    for into in (begin_directory, write_directory):
        with pytest.raises(CoordinatorError, match="not empty, it has file in it"):
            into(tmp_path, no_nodes())
    member = tmp_path / "member"
    member.mkdir()
    (member / "myid").write_text("1")
    begin_directory(member, no_nodes())
    with pytest.raises(CoordinatorError, match=r"not empty, it has snapshot\."):
        begin_directory(member, no_nodes())
    start_coordinator(member)
    with pytest.raises(CoordinatorError, match="in use"):
        load_directory(member)
    with pytest.raises(CoordinatorError, match="is not the data directory of a coordinator"):
        load_directory(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_only_one_of_two_imports_begins_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(TransactionLog):
        def __init__(self, directory: Path) -> None:
            begin_elsewhere(directory, no_nodes(7))
            super().__init__(directory)

    def begin_elsewhere(directory: Path, state: State) -> None:
        monkeypatch.setattr(own, "TransactionLog", TransactionLog)
        begin_directory(directory, state)

    monkeypatch.setattr(own, "TransactionLog", Late)
    with pytest.raises(CoordinatorError, match="not empty"):
        begin_directory(tmp_path / "ours", no_nodes(8))
    assert load_directory(tmp_path / "ours").last_zxid == 7


def test_an_export_that_zookeeper_would_refuse_is_not_written(tmp_path: Path) -> None:
    state = no_nodes()
    limits = ("/zookeeper/quota/zookeeper_limits", state.nodes[0][1])
    with pytest.raises(CoordinatorError, match="delete it first"):
        write_directory(tmp_path / "out", state._replace(nodes=[*state.nodes, limits]))
    assert not (tmp_path / "out").exists()
    stranger = Session(5, 4000, b"p" * 16)
    large = ("/large", state.nodes[0][1]._replace(data=bytes(3 << 20)))
    notes = write_directory(
        tmp_path / "out", state._replace(sessions=[stranger], nodes=[*state.nodes, large])
    )
    assert ["1 sessions began here" in notes[0], "-Djute.maxbuffer=3145728" in notes[1]] == [True, True]


def test_clients_sessions_continue_after_a_move(tmp_path: Path, start_coordinator: StartCoordinator) -> None:
    """ZooKeeper's password resumes a session; its node is deleted with it. Transaction ids continue."""
    write_directory(tmp_path / "apache", rich_state())
    begin_directory(tmp_path / "ours", read_directory(tmp_path / "apache").state)
    server = start_coordinator(tmp_path / "ours")
    client = RawClient(server.port)
    timeout, session, _password = client.connect(
        30_000, SESSION, session_password(SESSION), last_zxid=0x2_0000_0010
    )
    assert (timeout, session) == (30_000, SESSION)
    assert (
        client.request(1, Op.CREATE, Writer().string("/new").buffer(b"").acls(OPEN).i32(0).finish())[1]
        == 0x2_0000_0011
    )
    assert client.request(2, Op.CLOSE_SESSION)[1] == 0x2_0000_0012
    client.close()
    server.stop()
    state = load_directory(tmp_path / "ours")
    assert "/e" not in dict(state.nodes)
    assert "/n" in dict(state.nodes)
    assert state.last_zxid == 0x2_0000_0012


# ---- the command ----


def test_the_command_imports_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leader = Leader(12)
    leader.live(50)
    write_directory_of(leader, tmp_path / "apache", 20, 30)
    config = tmp_path / "zoo.cfg"
    config.write_text(f"dataDir={tmp_path}/ours\nclientPort=0\n")
    assert main(["coordinator", "import", str(tmp_path / "apache"), str(config)]) == 0
    nodes, sessions = len(leader.states[50]), len(leader.sessions[50])
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == f"imported {nodes} nodes and {sessions} sessions, up to zxid 0x32, into {tmp_path}/ours"
    )
    assert f"with {tmp_path}/ours as the dataDir of one voting server" in lines[1]
    assert comparable(load_directory(tmp_path / "ours")) == comparable(leader.state())
    assert main(["coordinator", "export", str(config), str(tmp_path / "back")]) == 0
    assert capsys.readouterr().out.startswith(
        f"exported {nodes} nodes and {sessions} sessions, up to zxid 0x32, into"
    )
    assert comparable(read_directory(tmp_path / "back").state) == comparable(leader.state())


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["import", "{}/none", "{}/new"], 2, "neither a directory nor HOST:PORT"),
        (["import", "{}", "{}/new"], 1, "has no snapshot of Apache ZooKeeper"),
        (["import", "{}", "{}/none.cfg"], 1, "there is no such file"),
        (["import", "{}", "{}"], 1, "not empty, it has there in it"),
        (["import", "{}"], 2, "required: DIR|zoo.cfg"),
        (["import", "127.0.0.1:1", "{}/new"], 1, "no server answers: 127.0.0.1:1: "),
        (["import", "127.0.0.1:1", "{}/new", "--lenient"], 2, "are for a directory"),
        (["import", "{}", "{}/new", "--credentials", "{}/there"], 2, "is for a running ensemble"),
        (
            ["import", "127.0.0.1:1", "{}/new", "--credentials", "{}/there"],
            2,
            "line 1 has a scheme but no credentials",
        ),
        (["export", "{}", "{}/new"], 1, "is not the data directory of a coordinator"),
        (["export", "{}/new", "{}"], 1, "not empty"),
        (["{}/import"], 2, "cannot be read: No such file"),
    ],
)
def test_an_impossible_command_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, expected: str
) -> None:
    (tmp_path / "there").write_text("digest\n")
    assert main(["coordinator", *(each.format(tmp_path) for each in arguments)]) == status
    errors = capsys.readouterr().err
    assert errors.startswith("logcore coordinator: ")
    assert expected in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_the_error_of_a_contradiction_names_lenient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = Leader(13)
    leader.live(20)
    inside = write_directory_of(leader, tmp_path / "apache", 0, 0, [11])
    (inside / "log.1").unlink()
    arguments = ["coordinator", "import", str(tmp_path / "apache"), str(tmp_path / "ours")]
    assert main(arguments) == 1
    assert "--lenient continues nevertheless" in capsys.readouterr().err
    assert main([*arguments, "--lenient"]) == 0
    assert "  note: " in capsys.readouterr().out
