"""A simulated ensemble: real servers over :mod:`.fake_quorum`, scripted clients on transports in memory, an
event loop whose time passes only when nothing is to be done. One seed, one history."""

from __future__ import annotations

import asyncio
import random
import selectors
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.coordinator import CoordinatorServer, Settings
from cluster.coordinator.connection import Connection
from cluster.coordinator.durability import snapshot
from cluster.coordinator.ensemble.agreed import Agreed, decode_proposed
from cluster.coordinator.ensemble.replication import EnsembleReplication
from cluster.coordinator.ensemble.snapshot import read, walk
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Reader, Writer
from cluster.coordinator.protocol.replies import Begun, encode_result
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.members import Member
from cluster.coordinator.state.tree import CONFIG

from .fake_quorum import Delays, FakeEnsemble, FakeQuorum, MemberTuple, Sink
from .states import fingerprint

TICK_MS = 1000
TIMEOUT_MS = 4000
PATHS = ("/a", "/b", "/c")


class VirtualSelector(selectors.DefaultSelector):
    """Does not wait: time passes instead."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen any more")
        if not ready and timeout is not None and timeout > 0:
            self.loop.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 0.0
        selector = VirtualSelector()
        selector.loop = self
        super().__init__(selector)
        self.set_default_executor(InlineExecutor())

    def time(self) -> float:
        return self.now


class InlineExecutor(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, offset_ms: int) -> None:
        self.loop = loop
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.offset_ms + int(self.loop.now * 1000)

    def monotonic_ms(self) -> int:
        return self.offset_ms + int(self.loop.now * 1000)


class CheckedSink(Sink):
    """What a walk writes is the state at its beginning."""

    expected: tuple[object, ...]

    def finish(self) -> None:
        assert fingerprint(read(bytes(self.data))) == self.expected, "the walk is not the state at its index"
        self.quorum.ensemble.walks += 1
        super().finish()


class CheckedQuorum(FakeQuorum):
    replication: EnsembleReplication

    def snapshot_begin(self, index: int) -> Sink:
        sink = super().snapshot_begin(index)
        checked = CheckedSink(sink.quorum, sink.index, sink.counted)
        checked.expected = fingerprint(self.replication.agreed)
        return checked


@dataclass
class SimulatedMember:
    """A server; ``start`` and ``stop`` are a process's."""

    world: World
    number: int
    server: CoordinatorServer | None = None
    quorum: CheckedQuorum | None = None

    async def start(self, wiped: bool = False) -> None:
        world = self.world
        quorum = self.quorum = CheckedQuorum(world.ensemble, self.number, world.room, wiped)

        def replicate(service: Any) -> EnsembleReplication:
            replication = EnsembleReplication(
                service,
                lambda: quorum,
                server_id=self.number,
                sync_limit=world.sync_limit,
                directory=world.directory / str(self.number),
                exports=world.directory,
                chance=world.chance,
            )
            quorum.replication = replication
            return replication

        settings = Settings(
            tick_time_ms=TICK_MS,
            max_client_connections=0,
            snapshot_transactions=world.snapshot_every,
            read_only_mode=world.read_only,
            reconfig_enabled=True,
            rules=Rules.SKIP_ACL | Rules.ONE_VOTER,
        )
        clock = SimulatedClock(world.loop, self.number * 1_000_003)
        server = CoordinatorServer(
            world.directory, port=-1, settings=settings, clock=clock, replicate=replicate
        )
        await server.start()
        self.server = server

    async def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop()
            self.world.require_alive(server)

    @property
    def agreed(self) -> Agreed:
        assert self.server is not None
        replication = self.server.replication
        assert isinstance(replication, EnsembleReplication)
        return replication.agreed


class MemoryTransport(asyncio.Transport):
    """A client's way to a server and back; what is sent arrives in order, some time later."""

    def __init__(self, world: World, connection: Connection, client: Link) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._world = world
        self._connection = connection
        self._client = client
        self._closing = False
        self._last = 0.0
        self._paused = False
        self._held: list[bytes] = []

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
        while self._held and not self._paused and not self._closing:
            self._connection.data_received(self._held.pop(0))

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
        if self._paused or self._held:
            self._held.append(data)
        else:
            self._connection.data_received(data)

    def lost(self) -> None:
        """The client has closed it."""
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
    """The highest zxid that anybody was answered before."""
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
    """Does as it likes, and as ZooKeeper's client does: pings each third of its timeout, gives up after
    two thirds of it."""

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
        self.heard = self.output = 0.0
        self.dead = False
        self.sessions: list[int] = []
        self.heard_of: dict[int, list[float]] = {}
        self.watching: dict[str, tuple[int, int]] = {}
        """Of a path with a data watch: its mzxid when it was set, and its version."""
        self.synced_after = 0
        self.read_only = False
        self.reaches = set(world.members)
        self.sent: dict[bytes, int] = {}
        """Of the bodies of creates and changes, which are all different, the order in which they were
        sent."""

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
        self.heard = self.output = self.world.loop.now
        flag = b"\1" if self.world.read_only else b"\0"
        self.link.send(
            struct.pack(">iqiqi", 0, self.last_zxid, TIMEOUT_MS, self.session, 16) + self.password + flag
        )

    def received(self, link: Link, frame: bytes) -> None:
        if link is not self.link or self.dead:
            return
        now = self.world.loop.now
        self.heard = now
        if not self.established:
            _version, timeout, session, length = struct.unpack_from(">iiqi", frame)
            self.read_only = frame[20 + length] != 0
            if timeout == 0:
                # The session is over.
                self.world.told_over.append((self.session, now))
                self.session, self.password = 0, bytes(16)
                self.watching.clear()
                self.leave()
                return
            assert self.read_only or self.session in (0, session)
            self.established = True
            if not self.read_only:
                self.session, self.password = session, frame[20 : 20 + length]
                self.sessions.append(session)
                self.heard_of.setdefault(session, []).append(now)
            if self.watching:
                watches = Writer().i64(self.last_zxid).strings(sorted(self.watching)).strings([]).strings([])
                self.link.send(Writer().i32(-8).i32(Op.SET_WATCHES).finish() + watches.finish())
            return
        if not self.read_only:
            self.heard_of[self.session].append(now)
        xid, zxid, error = struct.unpack_from(">iqi", frame)
        if xid == -1:
            reader = Reader(frame[16:])
            _kind, _state, path = reader.i32(), reader.i32(), reader.text()
            self.watching.pop(path, None)
            return
        if xid in (-2, -8):
            return
        request = self.pending.pop(0)
        assert request.xid == xid, f"{self.name} was answered {xid} before {request}"
        self.answered(Answer(request, self.session, zxid, error, frame[16:], now))

    def answered(self, answer: Answer) -> None:
        request = answer.request
        if self.read_only:
            assert answer.error == -119 or request.op in (Op.GET_DATA, Op.CLOSE_SESSION)
            return
        assert answer.zxid >= self.last_zxid, f"{self.name} was taken back in time"
        self.last_zxid = answer.zxid
        self.answers.append(answer)
        if request.op in (Op.CREATE, Op.SET_DATA, Op.DELETE, Op.CLOSE_SESSION, Op.RECONFIG):
            assert answer.zxid > request.sent_after, (
                "a write came before one that was answered before it was sent"
            )
            self.world.highest = max(self.world.highest, answer.zxid)
        elif request.op is Op.SYNC:
            self.synced_after = max(self.synced_after, request.sent_after)
        else:
            assert answer.zxid >= self.synced_after, (
                "a read behind a sync is older than what was answered before"
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
                    f"{self.name} sees {request.path} of {mzxid:#x} before the event of what it watches, "
                    f"{seen}"
                )
                if request.watch:
                    self.watching[request.path] = (mzxid, version)
            elif request.op is Op.GET_DATA:
                assert request.path not in self.watching, "it is gone, and the event did not come before"
        if request.op is Op.CLOSE_SESSION:
            self.world.closed[self.session] = answer.at
            self.session, self.password = 0, bytes(16)
            self.watching.clear()
            self.leave()

    def disconnected(self, link: Link) -> None:
        if link is self.link:
            self.leave()

    def leave(self, silently: bool = False) -> None:
        """What is not answered may or may not have been done."""
        if self.link is not None:
            self.link.close(silently)
        self.link = None
        self.established = False
        self.world.unanswered += len(self.pending)
        self.pending.clear()

    def request(self, op: Op, path: str = "", body: bytes = b"", watch: bool = False) -> None:
        assert self.link is not None
        self.xid += 1
        self.output = self.world.loop.now
        self.pending.append(Request(self.xid, op, path, body, self.output, self.world.highest, watch))
        if op in (Op.CREATE, Op.SET_DATA):
            self.sent[body] = len(self.sent)
        self.link.send(Writer().i32(self.xid).i32(op).finish() + body)

    # ---- what it does ----

    async def live(self, until: float) -> None:
        chance, loop = self.world.chance, self.world.loop
        while loop.now < until and not self.dead:
            if self.link is None:
                await asyncio.sleep(chance.uniform(0.01, 0.3))
                if self.link is None:
                    self.connect()
                continue
            silent_ms = (loop.now - self.heard) * 1000
            if silent_ms >= TIMEOUT_MS * 2 / 3:
                self.leave()
                continue
            if self.established:
                self.do_something()
            await asyncio.sleep(chance.choice((0.001, 0.01, 0.1, 0.4)))
            if (
                self.established
                and self.link is not None
                and (loop.now - self.output) * 1000 >= TIMEOUT_MS / 3 - 400
            ):
                self.output = loop.now
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
            self.world.deaths.append((self.session, self.world.loop.now))


@dataclass
class World:
    """Everything of one seed."""

    seed: int
    directory: Path
    members_count: int = 3
    observers_count: int = 0
    clients_count: int = 5
    seconds: float = 25.0
    read_only: bool = False
    loop: SimulatedLoop = field(default_factory=SimulatedLoop)
    highest: int = 0
    unanswered: int = 0
    reconfigured: int = 0
    room: int = 1000
    snapshot_every: int = 1000
    told_over: list[tuple[int, float]] = field(default_factory=list)
    closed: dict[int, float] = field(default_factory=dict)
    deaths: list[tuple[int, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.room = self.chance.choice((8, 1000))
        self.snapshot_every = self.chance.choice((40, 400))
        self.sync_limit = self.chance.choice((2, 20))
        delays = Delays(delivery=self.chance.choice(((0.0005, 0.006), (0.0005, 0.1), (0.0005, 0.6))))
        ids = range(1, self.members_count + 1)
        observers = range(self.members_count + 1, self.members_count + self.observers_count + 1)
        clock = SimulatedClock(self.loop, 0)
        self.ensemble = FakeEnsemble(
            self.loop, list(ids), self.chance, clock.wall_ms, delays, observers=list(observers)
        )
        self.members = {number: SimulatedMember(self, number) for number in [*ids, *observers]}
        self.clients = [
            SimulatedClient(self, f"c{number}", only_reads=number < 2) for number in range(self.clients_count)
        ]

    def network_delay(self) -> float:
        return self.chance.uniform(0.0002, 0.003)

    def deliver(self, link: Link, call: Callable[..., None], *arguments: object) -> None:
        link.last_delivery = max(link.last_delivery + 1e-6, self.loop.now + self.network_delay())
        self.loop.call_at(link.last_delivery, call, *arguments)

    def require_alive(self, server: CoordinatorServer) -> None:
        assert server.failed is not None
        if server.failed.done():
            server.failed.result()

    # ---- the history ----

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot, "SLICE_NODES", 2)
            self._run()

    def _run(self) -> None:
        self.loop.set_exception_handler(self._went_wrong)
        try:
            self._complete(self._history())
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    def _went_wrong(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}")
        if isinstance(error, BaseException):
            self.failure = error
        self.loop.stop()

    def _complete(self, history: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(history)
        try:
            self.loop.run_until_complete(task)
        except RuntimeError:
            if not self.errors:
                raise
        if self.errors:
            task.cancel()
            raise AssertionError(self.errors[0]) from getattr(self, "failure", None)

    async def _end(self) -> None:
        for client in self.clients:
            client.dead = True
        for member in self.members.values():
            if member.server is not None:
                await member.server.stop()

    async def _history(self) -> None:
        for member in self.members.values():
            await member.start()
        lives = [self.loop.create_task(client.live(self.loop.now + self.seconds)) for client in self.clients]
        nemesis = self.loop.create_task(self._nemesis(self.loop.now + self.seconds - 5))
        for task in (*lives, nemesis):
            await task
        await self._heal()
        for client in self.clients:
            client.dead = True
            client.leave()
        await asyncio.sleep(3 * TIMEOUT_MS / 1000)
        await self._settle()
        self.check()

    async def _nemesis(self, until: float) -> None:
        ensemble, chance = self.ensemble, self.chance
        while self.loop.now < until:
            await asyncio.sleep(chance.uniform(0.1, 4.0))
            what = chance.random()
            number = chance.choice(sorted(self.members))
            member = self.members[number]
            if what < 0.3:
                ensemble.depose()
            elif what < 0.6:
                ensemble.cut ^= {number}
                # Who is with it may be cut off from the others, too.
                for client in self.clients:
                    alone = number in ensemble.cut and chance.random() < 0.5
                    client.reaches = {number} if alone else set(self.members)
                ensemble.changed()
            elif what < 0.7:
                ensemble.cut = (
                    set() if ensemble.cut else set(list(self.members)[: len(self.members) // 2 + 1])
                )
                ensemble.changed()
            elif what < 0.9:
                if member.server is None:
                    await member.start(wiped=chance.random() < 0.5)
                else:
                    await member.stop()
            for each in self.members.values():
                if each.server is not None:
                    self.require_alive(each.server)

    async def _heal(self) -> None:
        self.ensemble.cut = set()
        for client in self.clients:
            client.reaches = set(self.members)
        for member in self.members.values():
            if member.server is None:
                await member.start()
        self.ensemble.changed()

    async def _settle(self) -> None:
        """Until everybody has everything."""
        for _ in range(1000):
            if all(member.agreed.index == len(self.ensemble.log) - 1 for member in self.members.values()):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(
            f"not everybody has all {len(self.ensemble.log)} entries: "
            f"{[member.agreed.index for member in self.members.values()]}"
        )

    # ---- checks ----

    def check(self) -> None:
        for member in self.members.values():
            assert member.server is not None
            self.require_alive(member.server)
        replayed = Replay(self)
        self.reconfigured = replayed.reconfigured
        prints = {member.number: fingerprint(member.agreed) for member in self.members.values()}
        for number, found in prints.items():
            assert found == fingerprint(replayed.agreed), f"member {number} is not in the state of the log"
        whole = read(b"".join(walk(replayed.agreed)))
        assert fingerprint(whole) == fingerprint(replayed.agreed)
        for client in self.clients:
            written = 0
            for answer in client.answers:
                replayed.check(client, answer)
                if answer.request.op in (Op.CREATE, Op.SET_DATA, Op.DELETE, Op.CLOSE_SESSION, Op.RECONFIG):
                    assert answer.zxid > written, "a client's writes took effect in another order"
                    written = answer.zxid
            order = [client.sent[body] for body in replayed.effective if body in client.sent]
            assert order == sorted(order), f"{client.name}'s requests took effect in the order {order}"
        # Of nobody who is dead anything is left.
        assert not len(replayed.agreed.machine.sessions), "sessions are left whose clients are gone"
        assert not replayed.agreed.machine.tree.ephemeral_count()
        for session, at in replayed.expired:
            for client in self.clients:
                times = [heard for heard in client.heard_of.get(session, ()) if heard <= at]
                if times:
                    silent_ms = (at - times[-1]) * 1000
                    assert silent_ms >= TIMEOUT_MS * 2 / 3, (
                        f"{client.name} heard {silent_ms:.0f} ms before its session {session:#x} ended"
                    )
        for session, _at in self.told_over:
            assert session in replayed.over, f"session {session:#x} was said to be over, and is not"


class Replay:
    """The log, applied once more."""

    def __init__(self, world: World) -> None:
        self.agreed = Agreed()
        self.done: dict[int, tuple[int, Op, bytes, int, bytes]] = {}
        self.states: dict[str, list[tuple[int, tuple[bytes | None, int, int] | None]]] = {}
        self.expired: list[tuple[int, float]] = []
        self.over: set[int] = set()
        self.effective: list[bytes] = []
        self.reconfigured = 0
        for entry in world.ensemble.log:
            self.agreed.begin(entry.index, entry.term, entry.time_ms)
            for _member, _ticket, data in entry.commands:
                applied = self.agreed.apply(data)
                command, outcome = applied.command, applied.outcome
                if isinstance(outcome.result, Begun):
                    continue
                code, body = encode_result(outcome.result)
                self.done[command.zxid] = (command.session_id, command.op, command.body, code, body)
                if code not in (Code.SESSION_MOVED, Code.SESSION_EXPIRED):
                    self.effective.append(command.body)
                if outcome.closed_session:
                    self.over.add(outcome.closed_session)
                    if decode_proposed(data).term:
                        self.expired.append((outcome.closed_session, entry.at))
                for change in outcome.changes:
                    node = self.agreed.machine.tree.find(change.path)
                    state = None if node is None else (node.state.data, node.state.mzxid, node.state.version)
                    self.states.setdefault(change.path, []).append((command.zxid, state))
            if entry.members is not None:
                changed = self.agreed.apply_members([Member(*each) for each in entry.members])
                if changed is not None:
                    code, body = encode_result(changed.outcome.result)
                    self.done[changed.command.zxid] = (0, Op.RECONFIG, b"", code, body)
                    self.reconfigured += changed.ends_reconfig

    def check(self, client: SimulatedClient, answer: Answer) -> None:
        request = answer.request
        if request.op in (Op.CREATE, Op.SET_DATA, Op.DELETE, Op.CLOSE_SESSION):
            session, op, body, code, result = self.done[answer.zxid]
            assert (session, op, body) == (answer.session, request.op, request.body), (
                f"{client.name} was answered somebody else's transaction {answer.zxid:#x}"
            )
            assert (answer.error, answer.body) == (code, result)
        elif request.op is Op.RECONFIG:
            _session, op, _body, code, result = self.done[answer.zxid]
            assert op in (Op.RECONFIG, Op.END_RECONFIG)
            assert (answer.error, answer.body) == (code, result), (
                "a change of the members has another's answer"
            )
        elif request.op is Op.GET_DATA:
            expected = None
            for zxid, state in self.states.get(request.path, ()):
                if zxid <= answer.zxid:
                    expected = state
            if expected is None:
                assert answer.error == -101, f"{request.path} was not there at {answer.zxid:#x}"
            else:
                reader = Reader(answer.body)
                data = reader.buffer()
                _czxid, mzxid, _ctime, _mtime, version = (
                    reader.i64(),
                    reader.i64(),
                    reader.i64(),
                    reader.i64(),
                    reader.i32(),
                )
                assert (data, mzxid, version) == expected
