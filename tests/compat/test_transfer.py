"""Moves from Apache ZooKeeper 3.9.4 to our coordinator and back, through data directories and over the
network.

Every node's data, stat and ACL is compared as clients see it, and sessions must go on. If these fail, a move
changes or loses data, or Apache ZooKeeper does not start on our export.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.cli import main
from cluster.coordinator import DataDirectoryError, Settings, parse_configuration
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Stat, Writer
from cluster.coordinator.protocol.requests import CONTAINER, EPHEMERAL, SEQUENTIAL, TTL, Op
from cluster.coordinator.running import require_directories
from cluster.coordinator.state.acl import Rules, digest_identity
from cluster.coordinator.state.machine import Machine, State
from cluster.coordinator.state.tree import CONFIG, Kind, kind_of
from cluster.coordinator.transfer import begin_directory, load_directory, read_directory
from tests.compat.apache import JavaServer
from tests.compat.conftest import peer_jars
from tests.compat.test_zookeeper import (
    MALFORMED,
    NEVER_MS,
    OPEN,
    SUPER,
    History,
    auth,
    check,
    create,
    delete,
    multi,
    read,
    set_acl,
    set_data,
)
from tests.compat.zookeeper_peer import (
    TICK_MS,
    Request,
    Side,
    apache_zookeeper,
    our_coordinator,
    wait_until_serving,
)
from tests.coordinator.support import RawClient
from tests.ports import free_port

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

ANN = digest_identity(b"ann:secret")
PROPERTIES = {
    "zookeeper.DigestAuthenticationProvider.superDigest": digest_identity(SUPER).id,
    "zookeeper.extendedTypesEnabled": "true",
    "znode.container.checkIntervalMs": str(NEVER_MS),
}
SETTINGS = Settings(
    tick_time_ms=TICK_MS,
    max_client_connections=0,
    super_digest=digest_identity(SUPER).id,
    container_check_interval_ms=NEVER_MS,
    rules=Rules.EXTENDED_TYPES,
)
SEEDS = range(5)
REQUESTS = 150

Seen = dict[str, tuple[bytes | None, Stat, tuple[Acl, ...]]]


class OpenSession(NamedTuple):
    """An open session that owns an ephemeral node."""

    id: int
    password: bytes
    timeout_ms: int
    path: str


# ---- writing and reading the data ----


def request_ok(client: RawClient, request: Request) -> tuple[int, Reader]:
    """Sends a request that must succeed. Returns the answer's zxid and body."""
    _xid, zxid, error, body = client.request(1, request.op, request.body)
    assert error == 0, f"{request} failed with error {error}"
    return zxid, Reader(body)


def logged_in(port: int) -> RawClient:
    client = RawClient(port)
    client.connect(timeout_ms=20 * TICK_MS)
    assert client.request(-4, Op.AUTH, auth("digest", SUPER).body)[2] == 0
    return client


def fill(port: int, seeds: Iterable[int] = SEEDS) -> None:
    """Makes every kind of node and of transaction, then plays a random history for each seed."""
    client = logged_in(port)
    limits = "/zookeeper/quota/kinds"
    for request in (
        create("/kinds", b"x"),
        create("/kinds/null", None),
        create("/kinds/empty", b""),
        create("/kinds/large", bytes(range(256)) * 2000),
        create("/kinds/ä-€-\u4e2d", "ü".encode()),
        create("/kinds/ann", b"a", [Acl(31, ANN), Acl(1, Id("world", "anyone"))]),
        create("/kinds/address", b"a", [Acl(31, Id("ip", "127.0.0.0/8"))]),
        create("/kinds/container", flags=CONTAINER, op=Op.CREATE_CONTAINER),
        create("/kinds/container/below"),
        create("/kinds/ttl", flags=TTL, op=Op.CREATE_TTL, ttl_ms=3_600_000),
        create("/kinds/ttl/below"),
        *(create("/kinds/s-", flags=SEQUENTIAL) for _ in range(4)),
        delete("/kinds/s-0000000009"),
        *(set_data("/kinds", bytes([number])) for number in range(5)),
        set_acl("/kinds/empty", [Acl(31, ANN), *OPEN]),
        set_acl("/kinds/empty", [*OPEN]),
        multi(
            create("/kinds/multi"),
            create("/kinds/multi/a", flags=SEQUENTIAL, op=Op.CREATE2),
            set_data("/kinds/multi", b"m"),
            check("/kinds/multi", 1),
            create("/kinds/multi/b"),
            delete("/kinds/multi/b"),
        ),
        multi(create("/kinds/failed"), check("/kinds", 99)),
        create(limits),
        create(f"{limits}/zookeeper_limits", b"count=1000,bytes=-1"),
        create(f"{limits}/zookeeper_stats", b"count=0,bytes=0"),
        create("/kinds/counted", b"12345"),
    ):
        client.request(1, request.op, request.body)
    request_ok(client, Request(Op.CLOSE_SESSION))
    client.close()
    for seed in seeds:
        history = History(seed, True, MALFORMED)
        side = Side([("127.0.0.1", port)], 3)
        side.do(0, [create(history.root)])
        for _ in range(REQUESTS):
            side.do(history._chance.randrange(3), [history.request()])
        side.close()


def open_session(port: int) -> OpenSession:
    """Opens a session with a node and leaves it open, as a client does whose server ends."""
    client = RawClient(port)
    timeout_ms, session, password = client.connect(timeout_ms=10 * TICK_MS)
    request_ok(client, create(f"/held-{session:x}", b"mine", flags=EPHEMERAL))
    client.close()
    return OpenSession(session, password, timeout_ms, f"/held-{session:x}")


def read_everything(port: int) -> tuple[Seen, int]:
    """Every node as the super user sees it, and the zxid of the end of the reader's session."""
    client = logged_in(port)
    seen: Seen = {}
    paths = ["/"]
    while paths:
        path = paths.pop()
        _zxid, data_reader = request_ok(client, read(Op.GET_DATA, path))
        _zxid, acl_reader = request_ok(client, read(Op.GET_ACL, path))
        _zxid, children_reader = request_ok(client, read(Op.GET_CHILDREN, path))
        stat = request_ok(client, read(Op.EXISTS, path))[1]
        seen[path] = data_reader.buffer(), _stat(stat), tuple(acl_reader.acls() or ())
        paths += [f"{path.rstrip('/')}/{name}" for name in children_reader.strings() or ()]
    zxid, _reader = request_ok(client, Request(Op.CLOSE_SESSION))
    client.close()
    return seen, zxid


def _stat(reader: Reader) -> Stat:
    times = [reader.i64() for _ in range(4)]
    versions = [reader.i32() for _ in range(3)]
    return Stat._make([*times, *versions, reader.i64(), reader.i32(), reader.i32(), reader.i64()])


def differences(first: Seen, second: Seen) -> dict[str, Any]:
    return {
        path: (first.get(path), second.get(path))
        for path in first.keys() | second.keys()
        if first.get(path) != second.get(path)
    }


def logcore(*arguments: object) -> None:
    assert main(["coordinator", *map(str, arguments)]) == 0


def comparable(state: State) -> State:
    return state._replace(nodes=sorted(state.nodes), sessions=sorted(state.sessions))


def check_session(port: int, session: OpenSession, last_zxid: int) -> None:
    """Checks that the session goes on with its password only and still has its node; then ends it.

    The node must be deleted with the session.
    """
    other = RawClient(port)
    assert other.connect(session.timeout_ms, session.id, bytes(16), last_zxid)[1] == 0
    other.close()
    client = RawClient(port)
    assert client.connect(session.timeout_ms, session.id, session.password, last_zxid) == (
        session.timeout_ms,
        session.id,
        session.password,
    )
    assert request_ok(client, read(Op.GET_DATA, session.path))[1].buffer() == b"mine"
    request_ok(client, Request(Op.CLOSE_SESSION))
    client.close()
    client = RawClient(port)
    client.connect()
    assert client.request(1, Op.EXISTS, read(Op.EXISTS, session.path).body)[2] == -101
    client.close()


@contextlib.contextmanager
def ours_on(directory: Path) -> Iterator[int]:
    with our_coordinator(directory, SETTINGS) as port:
        yield port


class Member(NamedTuple):
    port: int
    directory: Path


@contextlib.contextmanager
def apache_ensemble(directory: Path, begins_with: Path | None = None) -> Iterator[list[Member]]:
    """Starts three servers, each with a copy of the dataDir ``begins_with``; kills them at the end."""
    ports = [(free_port(), free_port(), free_port()) for _ in range(3)]
    servers: list[JavaServer] = []
    members: list[Member] = []
    try:
        for number, (client_port, _quorum_port, _election_port) in enumerate(ports, 1):
            data = directory / str(number)
            if begins_with is not None:
                shutil.copytree(begins_with, data)
            data.mkdir(parents=True, exist_ok=True)
            (data / "myid").write_text(str(number))
            lines = {
                "dataDir": str(data),
                "clientPort": str(client_port),
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
                "maxClientCnxns": "0",
                "tickTime": "2000",
                "maxSessionTimeout": str(20 * TICK_MS),
                "initLimit": "20",
                "syncLimit": "20",
            } | {
                f"server.{each}": f"127.0.0.1:{two}:{three}"
                for each, (_one, two, three) in enumerate(ports, 1)
            }
            config = directory / f"{number}.cfg"
            config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            servers.append(
                JavaServer(
                    "-Xmx128m",
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                    str(config),
                    jars=peer_jars("zookeeper-3.9.4"),
                    options=[f"-D{name}={value}" for name, value in PROPERTIES.items()],
                )
            )
            members.append(Member(client_port, data))
        for server, member in zip(servers, members, strict=True):
            wait_until_serving(server, member.port)
        yield members
    finally:
        for server in servers:
            server.stop(signal.SIGKILL)


class Filled(NamedTuple):
    directory: Path
    seen: Seen
    zxid: int
    session: OpenSession


WAYS = {
    "stopped": ({}, signal.SIGTERM),
    "killed": ({}, signal.SIGKILL),
    # Fuzzy snapshots, which are taken while transactions are applied.
    "many-snapshots": ({"zookeeper.snapCount": "40"}, signal.SIGKILL),
    "zipped": ({"zookeeper.snapCount": "40", "zookeeper.snapshot.compression.method": "gz"}, signal.SIGTERM),
    "as-3.5": (
        {
            "zookeeper.snapCount": "40",
            "zookeeper.digest.enabled": "false",
            "zookeeper.serializeLastProcessedZxid.enabled": "false",
            "zookeeper.closeSessionTxn.enabled": "false",
        },
        signal.SIGKILL,
    ),
}
"""The settings of Apache ZooKeeper, and the signal that ends it."""


@pytest.fixture(scope="module", params=WAYS)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The directory that an ended Apache ZooKeeper left, its last state, and an open session."""
    properties, how = WAYS[request.param]
    directory = tmp_path_factory.mktemp(f"left-{request.param}")
    with apache_zookeeper(directory, {}, PROPERTIES | properties, how=how) as port:
        session = open_session(port)
        fill(port)
        seen, zxid = read_everything(port)
    assert len(seen) > 50
    return Filled(directory / "zookeeper", seen, zxid, session)


def is_whole(snapshot: Path) -> bool:
    """Whether the snapshot is complete. Apache's server does not complete it before it stops."""
    data = snapshot.read_bytes()
    if snapshot.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except EOFError:
            return False
    return data.endswith(b"\0\0\0\x01/")  # `SnapStream.isValidSnapshot`


# ---- through data directories ----


def test_an_import_has_everything_that_apache_left(filled: Filled, tmp_path: Path) -> None:
    with pytest.raises(
        DataDirectoryError,
        match=r"version-2 has the data of Apache ZooKeeper, .*`logcore coordinator import ",
    ):
        require_directories(parse_configuration({"dataDir": str(filled.directory), "clientPort": "0"}))
    logcore("import", filled.directory, tmp_path / "coordinator")
    state = load_directory(tmp_path / "coordinator")
    assert state.last_zxid == filled.zxid
    kinds = {path: kind_of(node.owner) for path, node in state.nodes}
    assert (kinds["/kinds/container"], kinds["/kinds/ttl"]) == (Kind.CONTAINER, Kind.TTL)
    with ours_on(tmp_path) as port:
        seen, zxid = read_everything(port)
        assert differences(filled.seen, seen) == {}
        assert zxid == filled.zxid + 2, "more was written than the begin and the end of one session"
        check_session(port, filled.session, filled.zxid)


def test_an_export_gives_apache_its_own_data_and_ours(filled: Filled, tmp_path: Path) -> None:
    logcore("import", filled.directory, tmp_path / "coordinator")
    with ours_on(tmp_path) as port:
        # The same histories again; many requests fail because their nodes exist.
        fill(port)
        session = open_session(port)
        client = logged_in(port)
        request_ok(client, create("/added-here", b"new", flags=SEQUENTIAL))
        request_ok(client, Request(Op.CLOSE_SESSION))
        client.close()
        expected, zxid = read_everything(port)
    logcore("export", tmp_path / "coordinator", tmp_path / "zookeeper")
    with apache_zookeeper(tmp_path, {}, PROPERTIES) as port:
        seen, _zxid = read_everything(port)
        assert differences(expected, seen) == {}
        assert session.path in seen
        check_session(port, filled.session, zxid)
    again = read_directory(tmp_path / "zookeeper")
    assert again.state.last_zxid > zxid
    assert not any("digest" in note for note in again.notes)


def test_an_export_and_import_change_nothing(filled: Filled, tmp_path: Path) -> None:
    logcore("import", filled.directory, tmp_path / "first")
    logcore("export", tmp_path / "first", tmp_path / "out")
    logcore("import", tmp_path / "out", tmp_path / "second")
    first, second = load_directory(tmp_path / "first"), load_directory(tmp_path / "second")
    assert comparable(first) == comparable(second)


def test_every_snapshot_with_the_later_logs_gives_the_same_state(filled: Filled, tmp_path: Path) -> None:
    """A snapshot taken while the server runs needs the log to be consistent, so each is tried as the newest.

    An incomplete last snapshot is skipped with a note.
    """
    inside = filled.directory / "version-2"
    names = sorted(inside.glob("snapshot.*"), key=lambda path: int(path.name.split(".")[1], 16))
    expected = comparable(read_directory(filled.directory).state)
    for number in range(len(names)):
        copy = tmp_path / str(number)
        copy.mkdir()
        for path in (*names[: number + 1], *inside.glob("log.*")):
            (copy / path.name).symlink_to(path)
        moved = read_directory(copy)
        assert comparable(moved.state) == expected
        if number == len(names) - 1 and not is_whole(names[number]):
            assert [note.split(": ")[0] for note in moved.notes] == ["skipped a snapshot"]
            assert names[number].name in moved.notes[0]
        else:
            assert moved.notes == []


def test_data_that_was_never_apaches_can_be_exported(tmp_path: Path) -> None:
    """Its special nodes, sessions and zxids are our coordinator's own."""
    with ours_on(tmp_path) as port:
        fill(port)
        session = open_session(port)
        expected, _zxid = read_everything(port)
    logcore("export", tmp_path / "coordinator", tmp_path / "zookeeper")
    with apache_zookeeper(tmp_path, {}, PROPERTIES) as port:
        assert differences(expected, read_everything(port)[0]) == {}
        client = RawClient(port)
        connected = client.connect(session.timeout_ms, session.id, session.password)
        assert connected[1] == 0, "Apache accepted the random password of our session"
        client.close()


# If this failed, a parent from an old ZooKeeper would have a wrong cversion, or one that no client can read.
def test_a_cversion_wraps_as_apaches_int(tmp_path: Path) -> None:
    creations = {"min": -(1 << 31), "low": -(1 << 30) - 1, "minus": -1, "high": 1 << 30, "max": (1 << 31) - 1}
    machine = Machine()
    plain = machine.tree.node("/").state
    nodes = [(f"/{name}", plain._replace(creations=number)) for name, number in creations.items()]
    state = machine.export()
    begin_directory(
        tmp_path / "coordinator", state._replace(nodes=[*state.nodes, *nodes], last_zxid=0x1_0000_0000)
    )
    logcore("export", tmp_path / "coordinator", tmp_path / "zookeeper")

    def seen(port: int) -> list[tuple[str | None, int, bool]]:
        """For each parent, before and after a create: the child, the cversion, whether the pzxid changed."""
        client = logged_in(port)
        found: list[tuple[str | None, int, bool]] = []
        for name in creations:
            _zxid, stat = request_ok(client, read(Op.EXISTS, f"/{name}"))
            found.append((None, _stat(stat).cversion, False))
            _zxid, child = request_ok(client, create(f"/{name}/s-", flags=SEQUENTIAL))
            _zxid, stat = request_ok(client, read(Op.EXISTS, f"/{name}"))
            after = _stat(stat)
            found.append((child.string(), after.cversion, after.pzxid > plain.pzxid))
        client.close()
        return found

    with ours_on(tmp_path) as port:
        ours = seen(port)
    with apache_zookeeper(tmp_path, {}, PROPERTIES) as port:
        assert seen(port) == ours


def test_every_write_that_a_killed_apache_acknowledged_is_imported(tmp_path: Path) -> None:
    """The server is killed during writes and snapshots."""
    properties = PROPERTIES | {"zookeeper.snapCount": "100"}
    answered = 1000
    with apache_zookeeper(tmp_path, {"preAllocSize": "64"}, properties, how=signal.SIGKILL) as port:
        client = RawClient(port)
        client.connect(timeout_ms=20 * TICK_MS)
        request_ok(client, create("/k"))
        body = create("/k/n", b"x" * 100, flags=SEQUENTIAL).body
        for _ in range(4 * answered):
            client.send(Writer().i32(1).i32(Op.CREATE).finish() + body)
        for number in range(answered):
            assert client.reply()[2] == 0, f"create {number}"
    client.close()
    moved = read_directory(tmp_path / "zookeeper")
    nodes = dict(moved.state.nodes)
    children = sorted(path for path in nodes if path.startswith("/k/"))
    assert answered <= len(children) <= 4 * answered
    assert children == [f"/k/n{number:010d}" for number in range(len(children))]
    assert nodes["/k"].creations == len(children)
    assert nodes["/k"].pzxid == moved.state.last_zxid == nodes[children[-1]].czxid
    assert not any("missing" in note for note in moved.notes)


def test_a_members_data_moves_to_ours_and_back_to_every_member(tmp_path: Path) -> None:
    """The epoch in the zxids must grow with each move."""
    with apache_ensemble(tmp_path / "theirs") as members:
        session = open_session(members[0].port)
        # No random histories: Apache's ensemble stops committing after a malformed write.
        fill(members[0].port, ())
        expected, zxid = read_everything(members[0].port)
        for member in members[1:]:
            client = logged_in(member.port)
            request_ok(client, read(Op.SYNC, "/"))
            client.close()
    assert zxid >> 32 > 0
    moved = [read_directory(member.directory) for member in members]
    best = max(range(len(members)), key=lambda number: moved[number].state.last_zxid)
    assert any("the data of one member" in note for note in moved[best].notes)
    logcore("import", members[best].directory, tmp_path / "coordinator")
    state = load_directory(tmp_path / "coordinator")
    assert state.last_zxid >= zxid
    with ours_on(tmp_path) as port:
        seen, last = read_everything(port)
        # Members write the configuration node at their start, and do not log it.
        assert differences({**expected, CONFIG: seen[CONFIG]}, seen) == {}
        assert last >> 32 == zxid >> 32
    logcore("export", tmp_path / "coordinator", tmp_path / "out")
    with apache_ensemble(tmp_path / "again", tmp_path / "out") as members:
        for member in members:
            client = logged_in(member.port)
            request_ok(client, read(Op.SYNC, "/"))
            client.close()
            seen, after = read_everything(member.port)
            assert differences({**expected, CONFIG: seen[CONFIG]}, seen) == {}
            assert after >> 32 > last >> 32
        check_session(members[1].port, session, last)


# ---- over the network ----


def test_an_import_from_a_running_apache_has_every_readable_node(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(f"digest {SUPER.decode()}\n")
    with apache_zookeeper(tmp_path, {}, PROPERTIES) as port:
        fill(port)
        session = open_session(port)
        expected, _zxid = read_everything(port)
        arguments = ["coordinator", "import", f"127.0.0.1:{port}", str(tmp_path / "coordinator")]
        assert main(arguments) == 1, "the import succeeded without credentials for every node"
        assert not (tmp_path / "coordinator").exists()
        logcore(*arguments[1:], "--credentials", credentials)
    with ours_on(tmp_path) as port:
        seen, _zxid = read_everything(port)
    assert session.path in expected
    for path in [path for path, (_data, stat, _acl) in expected.items() if stat.ephemeral_owner != 0]:
        # The import leaves ephemeral nodes out, as if they were deleted.
        del expected[path]
        parent = path.rpartition("/")[0] or "/"
        data, stat, acl = expected[parent]
        pzxid = seen[parent][1].pzxid
        assert pzxid >= stat.pzxid
        fewer = stat._replace(cversion=stat.cversion + 1, num_children=stat.num_children - 1, pzxid=pzxid)
        expected[parent] = data, fewer, acl
    assert differences(expected, seen) == {}
