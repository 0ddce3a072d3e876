"""The admin server.

If these fail, monitoring reads wrong fields, a stranger can take or replace all data, or bad input at the
port stops the coordinator.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from cluster.coordinator import AdminServer, CoordinatorError, parse_configuration
from cluster.coordinator.admin.commands import without_secrets
from cluster.coordinator.admin.java_json import indented
from cluster.coordinator.admin.server import AdminSettings
from cluster.coordinator.durability.local import LocalReplication
from cluster.coordinator.ports.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, HttpServer, Request, Response
from cluster.coordinator.ports.tls import TlsSettings
from cluster.coordinator.state.machine import State
from cluster.keystores import Store

from .certificates import Authority
from .conftest import Connect, StartCoordinator
from .support import WAIT_SECONDS, Coordinator, LoopThread

SETTINGS = AdminSettings("127.0.0.1", 0, rate_interval_ms=0)
TEXT = """\
# the server
dataDir=/data
ssl.keyStore.password = secret1
DigestAuthenticationProvider.superDigest=super:hash
snapCount=500
"""
PROPERTIES = {
    "dataDir": "/data",
    "ssl.keyStore.password": "secret1",
    "DigestAuthenticationProvider.superDigest": "super:hash",
    "snapCount": "500",
}
NAMES = [
    "configuration",
    "connection_stat_reset",
    "connections",
    "dirs",
    "dump",
    "environment",
    "get_trace_mask",
    "hash",
    "initial_configuration",
    "is_read_only",
    "last_snapshot",
    "leader",
    "monitor",
    "observer_connection_stat_reset",
    "observers",
    "restore",
    "ruok",
    "server_stats",
    "set_trace_mask",
    "snapshot",
    "stat_reset",
    "stats",
    "system_properties",
    "voting_view",
    "watch_summary",
    "watches",
    "watches_by_path",
    "zabstate",
]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Admin:
    """A running admin server."""

    def __init__(self, coordinator: Coordinator, settings: AdminSettings) -> None:
        self.coordinator = coordinator
        self.server = coordinator.thread.call(
            lambda: AdminServer(coordinator.server, settings, TEXT, PROPERTIES)
        )
        self.port = coordinator.thread.run(self.server.start())

    def ask(self, path: str, authorization: str = "", body: bytes | None = None, **options: Any) -> Answer:
        """Sends a GET, or a POST if there is a body."""
        scheme = options.pop("scheme", "http")
        request = urllib.request.Request(f"{scheme}://localhost:{self.port}{path}", body, **options)
        if authorization:
            request.add_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
                return Answer(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def command(self, name: str) -> Any:
        answer = self.ask(f"/commands/{name}")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json;charset=utf-8"
        return answer.data


StartAdmin = Callable[..., Admin]


@pytest.fixture
def start_admin(coordinator: Coordinator) -> Iterator[StartAdmin]:
    running: list[Admin] = []

    def start(settings: AdminSettings = SETTINGS, target: Coordinator | None = None) -> Admin:
        running.append(Admin(target or coordinator, settings))
        return running[-1]

    yield start
    for admin in running:
        admin.coordinator.thread.run(admin.server.stop())


@pytest.fixture
def admin(start_admin: StartAdmin) -> Admin:
    return start_admin()


# ---- commands ----


def test_the_index_links_to_every_command(admin: Admin) -> None:
    for path in ("/commands", "/commands/"):
        text = admin.ask(path).body.decode()
        assert text == "".join(f'<a href="/commands/{name}">{name}</a>\n<br/>\n' for name in NAMES)


def test_every_command_has_its_name_and_no_error(admin: Admin) -> None:
    for name in (name for name in NAMES if name not in ("restore", "snapshot", "leader", "set_trace_mask")):
        data = admin.command(name)
        assert list(data)[-2:] == ["command", "error"], data
        assert (data["command"], data["error"]) == (name, None)


def test_a_clients_work_shows_in_every_command(admin: Admin, client: KazooClient) -> None:
    client.create("/e", b"data", ephemeral=True)
    client.get("/e", watch=print)
    session = client.client_id[0]
    stats = admin.command("stats")
    assert stats["server_stats"]["server_state"] == "standalone"
    assert (stats["node_count"], stats["server_stats"]["last_processed_zxid"]) == (6, 2)
    assert [set(each) for each in stats["connections"]] == [
        {"remote_socket_address", "interest_ops", "outstanding_requests", "packets_received", "packets_sent"}
    ]
    [connection] = admin.command("cons")["connections"]
    assert (connection["session_id"], connection["last_operation"]) == (session, "GETD")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", connection["remote_socket_address"])
    dump = admin.command("dump")
    assert list(dump["expiry_time_to_session_ids"].values()) == [[session]]
    assert dump["session_id_to_ephemeral_paths"] == {str(session): ["/e"]}
    assert admin.command("wchc")["session_id_to_watched_paths"] == {str(session): ["/e"]}
    assert admin.command("wchp")["path_to_session_ids"] == {"/e": [session]}
    summary = admin.command("wchs")
    assert (summary["num_connections"], summary["num_paths"], summary["num_total_watches"]) == (1, 1, 1)
    monitor = admin.command("mntr")
    assert (monitor["znode_count"], monitor["watch_count"], monitor["server_state"]) == (6, 1, "standalone")
    assert monitor["cnt_updatelatency"] == 2
    assert admin.command("crst")["error"] is None
    assert admin.command("cons")["connections"][0]["last_operation"] == "NA"
    admin.command("srst")
    assert admin.command("mntr")["packets_received"] == 0


def test_settings_are_shown_without_secrets(admin: Admin, coordinator: Coordinator) -> None:
    configuration = admin.command("conf")
    assert (configuration["client_port"], configuration["tick_time"]) == (coordinator.port, 2000)
    text = admin.command("icfg")["initial_configuration"]
    assert text == TEXT.replace("secret1", "*****").replace("super:hash", "*****")
    properties = admin.command("sysp")
    assert properties["zookeeper.snapCount"] == "500"
    assert properties["zookeeper.ssl.keyStore.password"] == "*****"
    assert "zookeeper.dataDir" not in properties


@pytest.mark.parametrize("letter", ["\x85", "\x0b", "\u2028"])
def test_a_password_ends_with_its_line(letter: str) -> None:
    """Python splits lines at more characters than Java; a secret's part after one must be hidden too."""
    text = f"a=1\r\nssl.keyStore.password=x{letter}secret\\\n more\rb=2"
    assert without_secrets(text) == "a=1\r\nssl.keyStore.password=*****\n\rb=2"


def test_the_trace_mask_is_set_and_read(admin: Admin) -> None:
    assert admin.command("gtmk")["tracemask"] == 306
    assert admin.command("stmk?traceMask=5")["tracemask"] == 5
    assert admin.command("gtmk")["tracemask"] == 5
    assert admin.command("stmk")["error"] == "setTraceMask requires long traceMask argument"
    assert (
        admin.command("stmk?traceMask=x")["error"] == "setTraceMask requires long traceMask argument, got x"
    )


def test_unknown_commands_and_paths_are_refused(admin: Admin) -> None:
    assert admin.command("what") == {"command": "what", "error": "Unknown command: what"}
    assert admin.command("leader")["error"] == "server is not initialized"
    assert admin.ask("/").status == 404
    assert admin.ask("/commandsandmore").status == 404
    assert admin.ask("/commands/ruok", body=b"x").status == 405


def test_a_wrong_http_method_is_refused_after_the_other_checks(admin: Admin) -> None:
    """ZooKeeper checks the command first, then the credentials, then the method."""
    assert admin.ask("/commands", body=b"x").body == admin.ask("/commands").body
    assert admin.ask("/commands/what", body=b"x").data["error"] == "Unknown command: what"
    assert admin.ask("/commands/what", method="PUT").status == 405
    for command, body, allowed in (("restore", None, "POST"), ("snapshot", b"x", "GET, HEAD")):
        unknown = admin.ask(f"/commands/{command}", body=body)
        assert (unknown.status, unknown.data["error"]) == (401, "Auth info is missing for the command")
        known = admin.ask(f"/commands/{command}", "ip", body)
        assert (known.status, known.headers["Allow"]) == (405, allowed)


def test_a_server_that_does_not_serve_answers_an_error(admin: Admin, coordinator: Coordinator) -> None:
    coordinator.stop()
    assert admin.command("stat") == {
        "command": "stat",
        "error": "This ZooKeeper instance is not currently serving requests",
    }
    assert admin.command("envi")["error"] is None


def test_json_is_indented_as_jackson_does() -> None:
    value = {"a": [], "b": {}, "c": [1, "x"], "d": [{"e": None}], "f": {"g": True}, "h": 0.5, "i": 1e7}
    assert indented(value) == (
        '{\n  "a" : [ ],\n  "b" : { },\n  "c" : [ 1, "x" ],\n  "d" : [ {\n    "e" : null\n  } ],\n'
        '  "f" : {\n    "g" : true\n  },\n  "h" : 0.5,\n  "i" : 1.0E7\n}'
    )


# ---- snapshots ----


def test_a_restored_snapshot_survives_a_restart(
    admin: Admin, coordinator: Coordinator, connect: Connect, start_coordinator: StartCoordinator
) -> None:
    client = connect()
    client.create("/kept", b"before")
    snapshot = admin.ask("/commands/snapshot", "ip")
    assert snapshot.status == 200
    assert snapshot.headers["Content-Type"] == "application/octet-stream"
    assert int(snapshot.headers["snapshot_size"]) == len(snapshot.body)
    zxid = int(snapshot.headers["last_zxid"], 16)
    assert zxid == client.exists("/kept").czxid
    client.set("/kept", b"after")
    client.create("/gone")
    last = client.exists("/gone").czxid
    answer = admin.ask("/commands/restore", "ip", snapshot.body)
    assert (answer.status, answer.data) == (
        200,
        {"last_zxid": last + 1, "command": "restore", "error": None},
    )
    again = connect()
    assert again.get("/kept")[0] == b"before"
    assert again.exists("/gone") is None
    again.create("/later")
    assert again.exists("/later").czxid > last + 1, "a transaction id went back"
    assert admin.command("lsnp")["zxid"] == f"{last + 1:x}"
    client.stop()
    again.stop()
    coordinator.stop()
    restarted = connect(start_coordinator(coordinator.directory))
    assert restarted.get("/kept")[0] == b"before"
    assert sorted(restarted.get_children("/")) == ["kept", "later", "zookeeper"]


def test_a_snapshot_that_is_not_streamed_is_a_file_only(admin: Admin, coordinator: Coordinator) -> None:
    answer = admin.ask("/commands/snapshot?streaming=false", "ip")
    assert answer.data == {"command": "snapshot", "error": None}
    name = f"snapshot.{int(answer.headers['last_zxid'], 16):016x}"
    assert (coordinator.directory / name).stat().st_size == int(answer.headers["snapshot_size"])


def test_a_restore_is_completed_when_its_client_leaves(
    coordinator: Coordinator, connect: Connect, start_coordinator: StartCoordinator
) -> None:
    """After half a restore, a restart would apply later writes to the wrong state."""
    client = connect()
    client.create("/kept", b"before")
    server = coordinator.server

    async def leave() -> None:
        _zxid, path = await server.take_snapshot()
        restoring = asyncio.ensure_future(server.restore(path.read_bytes()))
        while server.is_serving:
            await asyncio.sleep(0)
        restoring.cancel()
        with suppress(asyncio.CancelledError):
            await restoring
        while not server.is_serving:
            await asyncio.sleep(0)

    client.set("/kept", b"after")
    coordinator.thread.run(leave())
    client.stop()
    later = connect()
    later.create("/later")
    later.stop()
    coordinator.stop()
    again = connect(start_coordinator(coordinator.directory))
    assert again.get("/kept")[0] == b"after"
    assert again.exists("/later")


def test_a_restore_that_cannot_be_saved_changes_nothing(coordinator: Coordinator, connect: Connect) -> None:
    client = connect()
    client.create("/kept")
    server = coordinator.server
    _zxid, path = coordinator.thread.run(server.take_snapshot())
    client.create("/later")

    assert isinstance(server.replication, LocalReplication)
    log = server.replication.log
    assert log is not None
    save = log.save

    def fail(state: State) -> None:
        save(state)  # the file exists, but may not survive a power failure
        raise OSError("no space")

    log.save = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        coordinator.thread.run(server.restore(path.read_bytes()))
    assert connect().exists("/later"), "the failed restore changed the state"


@pytest.mark.parametrize("garbage", [b"x", b"LCZNODES" + b"\0" * 100])
def test_an_invalid_snapshot_changes_nothing(admin: Admin, client: KazooClient, garbage: bytes) -> None:
    client.create("/kept")
    answer = admin.ask("/commands/restore", "ip", garbage)
    assert answer.status == 500
    assert answer.data["error"].startswith("not restored: ")
    assert client.exists("/kept")
    assert admin.ask("/commands/restore", "ip", b"").status == 400


def test_snapshots_need_credentials_and_permission(start_admin: StartAdmin, client: KazooClient) -> None:
    admin = start_admin()
    for authorization, status, error in (
        ("", 401, "Auth info is missing for the command"),
        ("none x", 401, "Not authenticated"),
        ("x509", 401, "Not authenticated"),
        ("digest", 401, "Not authenticated"),
        ("digest ann:secret", 200, None),
    ):
        answer = admin.ask("/commands/snapshot?streaming=false", authorization)
        assert (answer.status, answer.data["error"]) == (status, error), authorization
    client.set_acls("/", [make_digest_acl("ann", "secret", all=True), make_digest_acl("bob", "x", read=True)])
    for authorization, status in (("digest ann:secret", 200), ("digest bob:x", 403), ("ip", 403)):
        for name, body in (("snapshot?streaming=false", None), ("restore", b"")):
            answer = admin.ask(f"/commands/{name}", authorization, body)
            assert answer.status == (400 if body is not None and status == 200 else status), authorization


def test_the_rate_of_snapshots_is_limited(start_admin: StartAdmin, coordinator: Coordinator) -> None:
    admin = start_admin(replace(SETTINGS, rate_interval_ms=1000))
    assert admin.ask("/commands/snapshot", "ip").status == 200
    assert admin.ask("/commands/snapshot", "ip").status == 429
    assert admin.ask("/commands/restore", "ip", b"").status == 400, "restores share the limit of snapshots"
    coordinator.pass_time(1000)
    assert admin.ask("/commands/snapshot", "ip").status == 200
    closed = start_admin(replace(SETTINGS, takes_snapshots=False, restores=False))
    assert closed.ask("/commands/snapshot", "ip").status == 503
    assert closed.ask("/commands/restore", "ip", b"x").status == 503


# ---- the port ----


def send_raw(admin: Admin, data: bytes) -> bytes:
    """Sends the bytes and returns everything received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", admin.port), WAIT_SECONDS) as peer:
        with suppress(OSError):
            peer.sendall(data)
        answer = b""
        with suppress(OSError):
            while part := peer.recv(65536):
                answer += part
        return answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"what\r\n\r\n", 400),
        (b"GET /commands HTTP/2\r\n\r\n", 400),
        (b"GET /commands HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /commands HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /commands?" + b"a=1&" * 200 + b" HTTP/1.1\r\n\r\n", 400),
        (b"POST /commands/restore HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET /commands HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"x" * 3 * HEAD_BYTES_MAX, 431),
        (
            b"POST /commands/restore HTTP/1.1\r\nAuthorization: ip\r\nContent-Length: 99999999999999\r\n\r\n",
            413,
        ),
        (b"TRACE /commands HTTP/1.1\r\n\r\n", 405),
    ],
)
def test_malformed_http_is_refused(admin: Admin, data: bytes, status: int) -> None:
    if status == 405:
        data = data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert send_raw(admin, data).startswith(f"HTTP/1.1 {status} ".encode())
    assert admin.command("ruok")["error"] is None


def test_a_connection_is_kept_until_the_client_asks_to_close_it(admin: Admin) -> None:
    twice = (
        b"GET /commands/ruok HTTP/1.1\r\n\r\n" + b"HEAD /commands/ruok HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    answer = send_raw(admin, twice)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.count(b'"error"') == 1, "the answer to HEAD has a body"


def test_a_silent_client_is_cut_off(start_admin: StartAdmin) -> None:
    admin = start_admin(replace(SETTINGS, idle_ms=2000))
    for begun in (
        b"",
        b"GET /comm",
        PART_OF_A_BODY,
    ):
        assert b"200 OK" not in send_raw(admin, begun)
    assert admin.command("ruok")["error"] is None


PART_OF_A_BODY = b"POST /commands/restore HTTP/1.1\r\nAuthorization: ip\r\nContent-Length: 9\r\n\r\nx"


@pytest.fixture
def connect_to(request: pytest.FixtureRequest) -> Callable[[int, bytes], socket.socket]:
    """A factory of connections to a port that have sent ``begun``."""

    def connect(port: int, begun: bytes = b"") -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        request.addfinalizer(peer.close)
        peer.sendall(begun)
        return peer

    return connect


ConnectTo = Callable[..., socket.socket]


def has_ended(peer: socket.socket) -> bool:
    """Waits until the server has closed the connection."""
    with suppress(ConnectionResetError):
        while peer.recv(65536):
            pass
    return True


def is_open(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        peer.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    return False


# If this failed, a few silent connections could block the port for everyone.
@pytest.mark.parametrize("begun", [b"", b"GET /comm", PART_OF_A_BODY])
def test_a_new_connection_replaces_a_silent_one(
    start_admin: StartAdmin, connect_to: ConnectTo, begun: bytes
) -> None:
    admin = start_admin(replace(SETTINGS, idle_ms=3_600_000))
    for _ in range(3):
        silent = [connect_to(admin.port, begun) for _ in range(CONNECTIONS_MAX + 5)]
        for _ in range(5):
            assert admin.command("ruok")["error"] is None
        assert is_open(silent[-1]), "not the longest silent connection was replaced"


# If this failed, a few silent connections could block a port with TLS.
@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01", None])
def test_a_new_connection_replaces_one_that_is_silent_in_tls(
    start_admin: StartAdmin, connect_to: ConnectTo, tmp_path: Path, begun: bytes | None
) -> None:
    """``begun`` is None for a client that completes the handshake and sends nothing more."""
    authority = Authority(tmp_path)
    context = authority.client_context()
    tls = TlsSettings(
        Store(authority.issue("server", "/CN=localhost")), prefix="ssl.quorum.", client_auth="none"
    )
    admin = start_admin(replace(SETTINGS, idle_ms=3_600_000, tls=tls))

    def ask() -> bytes:
        with context.wrap_socket(connect_to(admin.port), server_hostname="localhost") as peer:
            peer.sendall(b"GET /commands/ruok HTTP/1.1\r\n\r\n")
            return peer.recv(15)

    for _ in range(3):
        silent = [connect_to(admin.port, begun or b"") for _ in range(CONNECTIONS_MAX)]
        if begun is None:
            silent = [context.wrap_socket(peer, server_hostname="localhost") for peer in silent]
        for _ in range(5):
            assert ask() == b"HTTP/1.1 200 OK"
        assert has_ended(silent[0])
        assert is_open(silent[-1])
        for peer in silent:
            peer.close()


class Slow:
    """A server that answers once the test sets ``may_end``."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self.begun = 0
        self.may_end = thread.call(asyncio.Event)
        self.server = HttpServer(self._answer, 3600.0)
        self.port = thread.run(self.server.start("127.0.0.1", 0))

    async def _answer(self, request: Request) -> Response:
        self.begun += 1
        if request.path == "/large":
            return Response(bytes(64 << 20))
        await self.may_end.wait()
        return Response(b"done")

    def begin(self, connect_to: ConnectTo, count: int) -> list[socket.socket]:
        """Opens ``count`` connections and waits until their requests are in progress."""
        before = self.begun
        asking = [connect_to(self.port, b"GET / HTTP/1.1\r\n\r\n") for _ in range(count)]
        self.thread.wait(lambda: self.begun == before + count)
        return asking


@pytest.fixture
def slow(loop_thread: LoopThread) -> Iterator[Slow]:
    slow = Slow(loop_thread)
    yield slow
    loop_thread.run(slow.server.stop())


# If this failed, many connections would cut off clients that wait for answers, or take unbounded memory.
def test_a_connection_with_a_request_in_progress_is_kept(slow: Slow, connect_to: ConnectTo) -> None:
    asking = slow.begin(connect_to, CONNECTIONS_MAX - 1)
    silent = connect_to(slow.port)
    asking += slow.begin(connect_to, 1)
    assert has_ended(silent), "the only silent connection was kept"
    assert has_ended(connect_to(slow.port)), "a connection above the limit was accepted"
    slow.thread.loop.call_soon_threadsafe(slow.may_end.set)
    for peer in asking:
        assert peer.recv(15) == b"HTTP/1.1 200 OK"
    slow.begin(connect_to, 3)
    assert has_ended(asking[0]), "not the longest silent connection was replaced"


# If this failed, clients that never read their large answers could block the port for everyone.
def test_a_new_connection_replaces_one_that_does_not_read(
    slow: Slow, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.coordinator.ports.http.UNREAD_SECONDS", 0.0)
    for _ in range(CONNECTIONS_MAX):
        connect_to(slow.port, b"GET /large HTTP/1.1\r\n\r\n")
    slow.thread.wait(lambda: slow.begun == CONNECTIONS_MAX)
    slow.begin(connect_to, 3)


def test_https_takes_a_clients_certificate(
    start_admin: StartAdmin, client: KazooClient, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server, ann = authority.issue("server", "/CN=localhost"), authority.issue("ann", "/CN=ann")
    tls = TlsSettings(Store(server), Store(authority.certificate), prefix="ssl.quorum.")
    admin = start_admin(replace(SETTINGS, tls=tls))
    context = authority.client_context(ann)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(
        f"https://localhost:{admin.port}/commands/snapshot", headers={"Authorization": "x509"}
    )
    with opener.open(request, timeout=WAIT_SECONDS) as response:
        assert response.status == 200
    assert send_raw(admin, b"GET /commands/ruok HTTP/1.1\r\n\r\n") == b""


def test_settings_of_the_admin_server_are_parsed() -> None:
    least = {"dataDir": "/data", "clientPort": "1"}
    assert parse_configuration(least).admin == AdminSettings("0.0.0.0", 8080, "/commands")
    assert parse_configuration(least | {"admin.enableServer": "false"}).admin is None
    changed = parse_configuration(
        least
        | {
            "admin.enableServer": "true",
            "admin.serverAddress": "127.0.0.1",
            "zookeeper.admin.serverPort": "8081",
            "admin.commandURL": "/admin/",
            "admin.idleTimeout": "5",
            "admin.rateLimiterIntervalInMS": "6",
            "admin.snapshot.enabled": "false",
            "admin.restore.enabled": "false",
            "admin.portUnification": "true",
            "ssl.quorum.keyStore.location": "/k",
        }
    )
    assert changed.warnings == ()
    tls = TlsSettings(Store(Path("/k")), client_auth="none", prefix="ssl.quorum.")
    assert changed.admin == AdminSettings("127.0.0.1", 8081, "/admin", 5, 6, False, False, tls, True)
    with pytest.raises(CoordinatorError, match=r"ssl\.quorum\.trustStore\.location is not set"):
        parse_configuration(
            least
            | {
                "admin.forceHttps": "true",
                "admin.needClientAuth": "true",
                "ssl.quorum.keyStore.location": "/k",
            }
        )


def test_a_used_port_stops_the_start_as_with_zookeeper(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "zoo.cfg"
        config.write_text(
            f"dataDir={tmp_path}/data\nclientPort=0\nclientPortAddress=127.0.0.1\n"
            f"admin.serverAddress=127.0.0.1\nadmin.serverPort={port}\n"
        )
        command = [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS * 2)
    assert done.returncode == 4
    assert done.stderr == (
        f"logcore coordinator: the admin server cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop what uses the port, choose another with admin.serverPort, or turn the admin server off with "
        "admin.enableServer=false\n"
    )
