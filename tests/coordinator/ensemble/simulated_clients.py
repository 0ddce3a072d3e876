"""Random clients of a simulated ensemble, on transports in memory.

They check the order of their own answers.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.coordinator import CoordinatorServer
from cluster.coordinator.connection import Connection
from cluster.coordinator.protocol.jute import Reader, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN
from cluster.coordinator.state.tree import CONFIG

from .fake_quorum import MemberTuple

if TYPE_CHECKING:
    from .simulation import World

TIMEOUT_MS = 4000
PATHS = ("/a", "/b", "/c")


class MemoryTransport(asyncio.Transport):
    """The connection between a client and a server. Data arrives in order after a delay."""

    def __init__(self, world: World, connection: Connection, client: Link) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._world = world
        self._connection = connection
        self._client = client
        self._closing = False
        self._last = 0.0
        self._paused = False
        self._buffered: list[bytes] = []

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._world.loop.call_soon(self._drain)

    def _drain(self) -> None:
        while self._buffered and not self._paused and not self._closing:
            self._connection.data_received(self._buffered.pop(0))

    def write(self, data: Any) -> None:
        if not self._closing:
            self._world.deliver(self._client, self._client.receive, bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._world.loop.call_soon(self._connection.connection_lost, None)
            self._world.deliver(self._client, self._client.closed)

    def abort(self) -> None:
        self.close()

    def arrives(self, data: bytes) -> None:
        if self._closing:
            return
        if self._paused or self._buffered:
            self._buffered.append(data)
        else:
            self._connection.data_received(data)

    def lost(self) -> None:
        """The client has closed the connection."""
        if not self._closing:
            self._closing = True
            self._connection.connection_lost(None)


class Link:
    """A client's end of one connection."""

    def __init__(self, world: World, client: SimulatedClient, server: CoordinatorServer) -> None:
        self.world = world
        self.client = client
        self.is_open = True
        self.buffer = bytearray()
        self.last_delivery = 0.0
        self.last_arrival = 0.0
        connection = Connection(server)
        self.transport = MemoryTransport(world, connection, self)
        connection.connection_made(self.transport)

    def send(self, payload: bytes) -> None:
        if self.is_open:
            framed = struct.pack(">i", len(payload)) + payload
            self.last_arrival = max(
                self.last_arrival + 1e-6, self.world.loop.now + self.world.network_delay()
            )
            self.world.loop.call_at(self.last_arrival, self.transport.arrives, framed)

    def receive(self, data: bytes) -> None:
        if not self.is_open:
            return
        self.buffer += data
        while len(self.buffer) >= 4:
            length = struct.unpack_from(">i", self.buffer)[0]
            if len(self.buffer) < 4 + length:
                return
            frame = bytes(self.buffer[4 : 4 + length])
            del self.buffer[: 4 + length]
            self.client.received(self, frame)

    def closed(self) -> None:
        if self.is_open:
            self.is_open = False
            self.client.disconnected(self)

    def close(self, silently: bool = False) -> None:
        self.is_open = False
        if not silently:
            self.world.loop.call_later(self.world.network_delay(), self.transport.lost)


class Request(NamedTuple):
    xid: int
    op: Op
    path: str
    body: bytes
    sent: float
    sent_after: int
    """The highest zxid of any client's answer before this request was sent."""
    watch: bool


@dataclass
class Answer:
    request: Request
    session: int
    zxid: int
    error: int
    body: bytes
    at: float


def member_line(member: MemberTuple, observes: bool) -> str:
    number, host, quorum, election, _client, _observer = member
    return f"server.{number}={host}:{quorum}:{election}:{'observer' if observes else 'participant'}"


class SimulatedClient:
    """A client with random requests.

    Like ZooKeeper's client it pings after a third of its timeout without a request, and drops its connection
    after two thirds without an answer.
    """

    def __init__(self, world: World, name: str, only_reads: bool = False) -> None:
        self.world = world
        self.name = name
        self.only_reads = only_reads
        self.session = 0
        self.password = bytes(16)
        self.last_zxid = 0
        self.link: Link | None = None
        self.established = False
        self.pending: list[Request] = []
        self.answers: list[Answer] = []
        self.xid = 0
        self.last_received = self.last_sent = 0.0
        self.dead = False
        self.sessions: list[int] = []
        self.received_at: dict[int, list[float]] = {}
        """The times at which each session received something."""
        self.watching: dict[str, tuple[int, int]] = {}
        """For each path with a data watch, its mzxid and its version when the watch was set."""
        self.synced_after = 0
        self.read_only = False
        self.reaches = set(world.members)
        self.sent: dict[bytes, int] = {}
        """For each body of a create or a set, all of which differ, its position in the order of sending."""

    # ---- the wire ----

    def connect(self) -> None:
        members = [
            member
            for member in self.world.members.values()
            if member.server is not None and member.number in self.reaches
        ]
        if not members:
            return
        member = self.world.chance.choice(members)
        assert member.server is not None
        self.link = Link(self.world, self, member.server)
        self.established = False
        self.last_received = self.last_sent = self.world.loop.now
        flag = b"\1" if self.world.read_only else b"\0"
        self.link.send(
            struct.pack(">iqiqi", 0, self.last_zxid, TIMEOUT_MS, self.session, 16) + self.password + flag
        )

    def received(self, link: Link, frame: bytes) -> None:
        if link is not self.link or self.dead:
            return
        now = self.world.loop.now
        self.last_received = now
        if not self.established:
            _version, timeout, session, length = struct.unpack_from(">iiqi", frame)
            self.read_only = frame[20 + length] != 0
            if timeout == 0:
                # The server reports that the session has expired.
                self.world.reported_expired.append(self.session)
                self.session, self.password = 0, bytes(16)
                self.watching.clear()
                self.leave()
                return
            assert self.read_only or self.session in (0, session)
            self.established = True
            if not self.read_only:
                self.session, self.password = session, frame[20 : 20 + length]
                self.sessions.append(session)
                self.received_at.setdefault(session, []).append(now)
            if self.watching:
                watches = Writer().i64(self.last_zxid).strings(sorted(self.watching)).strings([]).strings([])
                self.link.send(Writer().i32(-8).i32(Op.SET_WATCHES).finish() + watches.finish())
            return
        if not self.read_only:
            self.received_at[self.session].append(now)
        xid, zxid, error = struct.unpack_from(">iqi", frame)
        if xid == -1:
            reader = Reader(frame[16:])
            _kind, _state, path = reader.i32(), reader.i32(), reader.text()
            self.watching.pop(path, None)
            return
        if xid in (-2, -8):
            return
        request = self.pending.pop(0)
        assert request.xid == xid, f"{self.name} received the answer to {xid} before that to {request}"
        self.answered(Answer(request, self.session, zxid, error, frame[16:], now))

    def answered(self, answer: Answer) -> None:
        request = answer.request
        if self.read_only:
            assert answer.error == -119 or request.op in (Op.GET_DATA, Op.CLOSE_SESSION)
            return
        assert answer.zxid >= self.last_zxid, f"{self.name} received an older zxid than before"
        self.last_zxid = answer.zxid
        self.answers.append(answer)
        if request.op in (Op.CREATE, Op.SET_DATA, Op.DELETE, Op.CLOSE_SESSION, Op.RECONFIG):
            assert answer.zxid > request.sent_after, (
                "a write has a smaller zxid than one that was answered before it was sent"
            )
            self.world.highest = max(self.world.highest, answer.zxid)
        elif request.op is Op.SYNC:
            self.synced_after = max(self.synced_after, request.sent_after)
        else:
            assert answer.zxid >= self.synced_after, (
                "a read after a sync is older than an answer before the sync"
            )
            if request.op is Op.GET_DATA and answer.error == 0:
                reader = Reader(answer.body)
                reader.buffer()
                _czxid, mzxid, _ctime, _mtime, version = (
                    reader.i64(),
                    reader.i64(),
                    reader.i64(),
                    reader.i64(),
                    reader.i32(),
                )
                seen = self.watching.get(request.path)
                assert seen is None or seen == (mzxid, version), (
                    f"{self.name} sees {request.path} of {mzxid:#x} before its watch's event, set at {seen}"
                )
                if request.watch:
                    self.watching[request.path] = (mzxid, version)
            elif request.op is Op.GET_DATA:
                assert request.path not in self.watching, "a watched node is gone before its event"
        if request.op is Op.CLOSE_SESSION:
            self.session, self.password = 0, bytes(16)
            self.watching.clear()
            self.leave()

    def disconnected(self, link: Link) -> None:
        if link is self.link:
            self.leave()

    def leave(self, silently: bool = False) -> None:
        """Drops the connection. Requests without an answer may or may not have been done."""
        if self.link is not None:
            self.link.close(silently)
        self.link = None
        self.established = False
        self.world.unanswered += len(self.pending)
        self.pending.clear()

    def request(self, op: Op, path: str = "", body: bytes = b"", watch: bool = False) -> None:
        assert self.link is not None
        self.xid += 1
        self.last_sent = self.world.loop.now
        self.pending.append(Request(self.xid, op, path, body, self.last_sent, self.world.highest, watch))
        if op in (Op.CREATE, Op.SET_DATA):
            self.sent[body] = len(self.sent)
        self.link.send(Writer().i32(self.xid).i32(op).finish() + body)

    # ---- random actions ----

    async def live(self, until: float) -> None:
        chance, loop = self.world.chance, self.world.loop
        while loop.now < until and not self.dead:
            if self.link is None:
                await asyncio.sleep(chance.uniform(0.01, 0.3))
                if self.link is None:
                    self.connect()
                continue
            silent_ms = (loop.now - self.last_received) * 1000
            if silent_ms >= TIMEOUT_MS * 2 / 3:
                self.leave()
                continue
            if self.established:
                self.do_something()
            await asyncio.sleep(chance.choice((0.001, 0.01, 0.1, 0.4)))
            if (
                self.established
                and self.link is not None
                and (loop.now - self.last_sent) * 1000 >= TIMEOUT_MS / 3 - 400
            ):
                self.last_sent = loop.now
                self.link.send(struct.pack(">ii", -2, Op.PING))

    def do_something(self) -> None:
        chance = self.world.chance
        if len(self.pending) >= 5:
            return
        path = chance.choice(PATHS)
        what = chance.uniform(0.5, 0.75) if self.only_reads and self.sent else chance.random()
        data = f"{self.name}-{self.xid}".encode()
        if what < 0.2:
            flags = chance.choice((0, 1, 1, 2))
            name = path if flags != 1 else f"/e-{self.name}-{chance.randrange(3)}"
            self.request(Op.CREATE, name, Writer().string(name).buffer(data).acls(OPEN).i32(flags).finish())
        elif what < 0.45:
            self.request(Op.SET_DATA, path, Writer().string(path).buffer(data).i32(-1).finish())
        elif what < 0.5:
            self.request(Op.DELETE, path, Writer().string(path).i32(-1).finish())
        elif what < 0.75:
            watch = chance.random() < 0.5
            self.request(Op.GET_DATA, path, Writer().string(path).boolean(watch).finish(), watch)
        elif what < 0.8:
            self.request(Op.SYNC, path, Writer().string(path).finish())
        elif what < 0.83:
            self.leave(silently=chance.random() < 0.3)
        elif what < 0.835 and not self.pending:
            self.request(Op.CLOSE_SESSION)
        elif what < 0.841:
            members = [each for each in self.world.ensemble.candidates if chance.random() < 0.6]
            text = ",".join(member_line(each, chance.random() < 0.2) for each in members)
            body = Writer().string(None).string(None).string(text).i64(-1).finish()
            self.request(Op.RECONFIG, CONFIG, body)
        elif what < 0.844:
            self.leave(silently=chance.random() < 0.5)
            self.dead = True
