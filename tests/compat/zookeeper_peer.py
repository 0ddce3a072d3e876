"""Starts Apache ZooKeeper 3.9 and our coordinator, sends requests and makes the answers comparable."""

from __future__ import annotations

import contextlib
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cluster.coordinator import CoordinatorServer, Settings
from cluster.coordinator.protocol.jute import Reader, Writer
from cluster.coordinator.protocol.requests import Op
from tests.compat.apache import START_TIMEOUT, JavaServer
from tests.compat.conftest import peer_jars
from tests.coordinator.support import LoopThread, RawClient
from tests.ports import free_port

PING_XID = -2
SYNC_XID = -3
NOTIFICATION_XID = -1
TICK_MS = 30_000
"""Long, so that no session expires during a history."""


@contextlib.contextmanager
def apache_zookeeper(
    directory: Path,
    settings: dict[str, str],
    properties: dict[str, str],
    peer: str = "zookeeper-3.9.4",
    how: signal.Signals = signal.SIGTERM,
) -> Iterator[int]:
    """Starts a standalone server with its data below ``directory`` and yields its port.

    ``properties``: Java system properties. ``peer``: the folder of its jars. ``how``: the signal that ends
    it.
    """
    port = free_port()
    lines = {
        "dataDir": str(directory / "zookeeper"),
        "clientPort": str(port),
        "clientPortAddress": "127.0.0.1",
        "admin.enableServer": "false",
        "maxClientCnxns": "0",
        "tickTime": str(TICK_MS),
        "4lw.commands.whitelist": "*",
    } | settings
    config = directory / "zoo.cfg"
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    server = JavaServer(
        "-Xmx256m",
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config),
        jars=peer_jars(peer),
        options=[f"-D{name}={value}" for name, value in properties.items()],
    )
    try:
        wait_until_serving(server, port)
        yield port
    finally:
        server.stop(how)


def wait_until_serving(server: JavaServer, port: int) -> None:
    """Polls until the server opens a session. Raises AssertionError if its process ends."""
    end = time.monotonic() + START_TIMEOUT
    while not _answers(port):
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.05)
            raise AssertionError(f"Apache ZooKeeper ended; its output:\n{server.output()[-4000:]}")
        if time.monotonic() > end:
            raise AssertionError(f"Apache ZooKeeper did not start; its output:\n{server.output()[-4000:]}")


def _answers(port: int) -> bool:
    """Whether a session can be opened. It is closed again, because it would expire during a history."""
    try:
        client = RawClient(port)
        try:
            return client.connect()[1] != 0 and client.request(1, Op.CLOSE_SESSION)[2] == 0
        finally:
            client.close()
    except OSError:
        return False


@contextlib.contextmanager
def our_coordinator(directory: Path, settings: Settings, host: str = "127.0.0.1") -> Iterator[int]:
    """Starts our coordinator with its data below ``directory`` and yields its port."""
    thread = LoopThread()
    server = CoordinatorServer(directory / "coordinator", host, settings=settings)
    try:
        port = thread.run(server.start())
        yield port
        thread.run(server.stop())
    finally:
        thread.close()


def comparable(answer: str) -> str:
    """A four-letter word's answer without the parts that differ between any two servers.

    Empty sets of sessions are removed: ZooKeeper lists a set until its time even if requests have emptied it.
    """
    answer, title, connections = answer.partition("Connections dump:\n")
    for pattern, instead in (
        (r"(?m)^0 expire at .*:\n", ""),
        (r"version: .*", "version"),
        (r"expire at .*:", "expire"),
        (r" /127.*\n", "CLIENT\n"),
        (r"=/.*", "=PATH"),
        (r"0x[0-9a-f]+|-?\d+\.\d+|-?\d+|(?<=version=).*", "N"),
    ):
        answer = re.sub(pattern, instead, answer)
    return f"{answer}{title}{_one_set(connections)}" if title else answer


def _one_set(answer: str) -> str:
    """The lines of all sets of expiring connections, as one set.

    The sizes of the sets depend on the clock: a set of ZooKeeper's spans 10 s, one of ours a tick.
    """
    found = re.fullmatch(
        r"Connections Sets \((\d+)\)/\((\d+)\):\n((?:\d+ expire at .*\n(?:\tip: .*\n)*)*)", answer
    )
    assert found is not None, answer
    sets = [each.splitlines() for each in re.findall(r"\d+ expire at .*\n(?:\tip: .*\n)*", found[3])]
    for when, *lines in sets:
        assert re.fullmatch(rf"{len(lines)} expire at \w{{3}} \w{{3}} \d\d [\d:]{{8}} \w+ \d{{4}}:", when), (
            answer
        )
    listed = sorted(line for _when, *lines in sets for line in lines)
    assert (len(sets), len(listed)) == (int(found[1]), int(found[2])), answer
    return re.sub(r"(ip: /.*):\d+ ", r"\1:PORT ", re.sub(r"0x[1-9a-f][0-9a-f]*", "ID", "\n".join(listed)))


class Request(NamedTuple):
    """A client's request: an operation and its body."""

    op: int
    body: bytes = b""


class Reply(NamedTuple):
    """A comparable answer: transaction ids are relative to the history's start, sessions are numbered."""

    xid: int
    zxid: int
    error: int
    value: Any


class Side:
    """One implementation's servers (host and port each) and the history's clients, spread over them."""

    def __init__(
        self,
        servers: Sequence[tuple[str, int]],
        clients: int,
        lingers: bool = False,
        counts_reconnects: bool = False,
    ) -> None:
        """``lingers``: a connection may stay open after its session is closed, as on members of Apache's
        ensemble. ``counts_reconnects``: a session's reconnect takes a transaction id, as in an ensemble of
        ours.
        """
        self._servers = servers
        self._lingers = lingers
        self._sessions: dict[int, int] = {0: 0}
        self._held: dict[int, tuple[int, bytes]] = {}
        self._newest = 0
        self._counts_reconnects = counts_reconnects
        self._reconnects: list[int] = []
        self._clients = [self._open(number) for number in range(clients)]
        self._xid = 0
        self._base = 0
        self._base = self._clients[0].request(0, Op.SYNC, Writer().string("/").finish())[1]

    def close(self) -> None:
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.send(struct.pack(">ii", 1, Op.CLOSE_SESSION))
                client.read_all()
            client.close()

    def do(self, number: int, requests: Sequence[Request], ends: bool = False) -> list[list[Reply | str]]:
        """Sends the requests in one go and returns everything each client received, client ``number`` first.

        ``ends``: the last request makes the server close the connection. A closed connection is replaced.
        """
        asked: dict[int, int] = {}
        frames = b""
        for request in requests:
            self._xid += 1
            asked[self._xid] = request.op
            payload = struct.pack(">ii", self._xid, request.op) + request.body
            frames += struct.pack(">i", len(payload)) + payload
        with contextlib.suppress(OSError):
            self._clients[number].socket.sendall(frames)
        heard = [self._heard(number, asked, ends)]
        if self._lingers and requests[-1].op == Op.CLOSE_SESSION and heard[0][-1:] != ["closed"]:
            heard[0].append(self._replace(number))
        heard += [self._heard(each, asked, False, is_another=True) for each in self._others(number)]
        return [_settled(each) for each in heard] if Op.CLOSE_SESSION in asked.values() else heard

    def come_back(
        self, number: int, requests: Callable[[Callable[[int], int]], Sequence[Request]]
    ) -> list[list[Reply | str]]:
        """Like :meth:`do`, on a new connection of the client's session.

        ``requests`` gets a function that returns the newest transaction id of ``ago`` transactions ago.
        """
        self._clients[number].close()
        host, port = self._servers[number % len(self._servers)]
        session, password = self._held[number]
        client = self._clients[number] = RawClient(port, host)
        assert client.connect(20 * TICK_MS, session, password)[1] == session
        if self._counts_reconnects:
            self._reconnects.append(self._newest + 1)
        return self.do(number, requests(self._before))

    def _before(self, ago: int) -> int:
        zxid = self._since(self._newest) - ago + self._base
        for reconnect in self._reconnects:
            zxid += reconnect <= zxid
        return zxid

    def _others(self, number: int) -> list[int]:
        return [each for each in range(len(self._clients)) if each != number]

    def _open(self, number: int) -> RawClient:
        host, port = self._servers[number % len(self._servers)]
        client = RawClient(port, host)
        _timeout, session, password = client.connect(timeout_ms=20 * TICK_MS)
        self._held[number] = session, password
        self._sessions[session] = len(self._sessions)
        return client

    def _replace(self, number: int) -> str:
        """Opens another session for the client and returns "closed", the entry for its old connection."""
        self._clients[number].close()
        self._clients[number] = self._open(number)
        return "closed"

    def _heard(
        self, number: int, asked: dict[int, int], ends: bool, is_another: bool = False
    ) -> list[Reply | str]:
        """Everything received up to the connection's end or the answer to a ping, which comes last in any
        case.

        A client on another server waits for a sync's answer instead, because its server may be behind.
        """
        client = self._clients[number]
        heard: list[Reply | str] = []
        if not ends:
            with contextlib.suppress(OSError):
                if is_another and len(self._servers) > 1:
                    client.send(struct.pack(">ii", SYNC_XID, Op.SYNC) + Writer().string("/").finish())
                else:
                    client.send(struct.pack(">ii", PING_XID, Op.PING))
        while True:
            frame = client.receive()
            if not frame:
                return [*heard, self._replace(number)]
            xid, zxid, error = struct.unpack_from(">iqi", frame)
            if xid in (PING_XID, SYNC_XID):
                return heard
            self._newest = max(self._newest, zxid)
            value = self._decode(xid, asked.get(xid, 0), error, frame[16:])
            heard.append(Reply(xid, self._since(zxid), error, value))

    def _since(self, zxid: int) -> int:
        return zxid - self._base - sum(each <= zxid for each in self._reconnects) if zxid > 0 else zxid

    def _decode(self, xid: int, op: int, error: int, body: bytes) -> Any:
        reader = Reader(body)
        if xid == NOTIFICATION_XID:
            value: Any = (reader.i32(), reader.i32(), reader.string())
        elif error != 0 and (op not in (Op.SASL, Op.MULTI_READ) or not body):
            value = None
        else:
            value = self._body(op, reader)
        return value, reader.rest()

    def _body(self, op: int, reader: Reader) -> Any:
        match op:
            case Op.CREATE | Op.SYNC:
                return reader.string()
            case Op.CREATE2 | Op.CREATE_CONTAINER | Op.CREATE_TTL:
                return reader.string(), self._stat(reader)
            case Op.EXISTS | Op.SET_DATA | Op.SET_ACL:
                return self._stat(reader)
            case Op.GET_DATA:
                return reader.buffer(), self._stat(reader)
            case Op.GET_ACL:
                return sorted(reader.acls() or []), self._stat(reader)
            case Op.GET_CHILDREN | Op.GET_EPHEMERALS:
                return sorted(reader.strings() or [], key=str)
            case Op.GET_CHILDREN2:
                return sorted(reader.strings() or [], key=str), self._stat(reader)
            case Op.GET_ALL_CHILDREN_NUMBER | Op.ADD_WATCH:
                return reader.i32()
            case Op.WHO_AM_I:
                return sorted(reader.identities())
            case Op.SASL:
                return reader.buffer()
            case Op.MULTI | Op.MULTI_READ:
                return self._multi(reader)
            case _:
                return None

    def _multi(self, reader: Reader) -> list[Any]:
        results: list[Any] = []
        while True:
            op, done, error = reader.i32(), reader.boolean(), reader.i32()
            if done:
                return [*results, (op, error)]
            value = reader.i32() if op == Op.ERROR else None if op == Op.CHECK else self._body(op, reader)
            results.append((op, error, value))

    def _stat(self, reader: Reader) -> Any:
        czxid, mzxid, ctime, mtime = reader.i64(), reader.i64(), reader.i64(), reader.i64()
        versions = (reader.i32(), reader.i32(), reader.i32())
        owner, length, children, pzxid = reader.i64(), reader.i32(), reader.i32(), reader.i64()
        return {
            # Reconnects before the history have transaction ids in only one of the two.
            "zxids": [max(self._since(zxid), -1) for zxid in (czxid, mzxid, pzxid)],
            "times": (ctime > 0, mtime >= ctime),
            "versions": versions,
            "owner": self._sessions.get(owner, owner),
            "length": length,
            "children": children,
        }


def _settled(heard: list[Reply | str]) -> list[Reply | str]:
    """The received frames with the notifications sorted: Apache deletes a session's nodes in hash order."""
    notifications = [each for each in heard if isinstance(each, Reply) and each.xid == NOTIFICATION_XID]
    return [*sorted(notifications, key=str), *(each for each in heard if each not in notifications)]
