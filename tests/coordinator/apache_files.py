"""Writes dataDirs in Apache ZooKeeper's format, from random histories that our state machine has applied."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.replies import Created, Done, Failed, MultiDone
from cluster.coordinator.protocol.requests import (
    CONTAINER,
    EPHEMERAL,
    SEQUENTIAL,
    TTL,
    CreateSession,
    Op,
    decode_write,
    encode_create_session,
)
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.machine import Command, Machine, State
from cluster.coordinator.state.sessions import Session
from cluster.coordinator.state.tree import Kind, NodeState, kind_of, parent_of
from cluster.coordinator.transfer.common import session_password
from cluster.coordinator.transfer.snapshots import write_snapshot

LOG_HEADER = b"ZKLG" + struct.pack(">iq", 2, 0)
ACLS: tuple[tuple[Acl, ...], ...] = (
    OPEN,
    (Acl(31, Id("digest", "ann:hash")), Acl(1, Id("world", "anyone"))),
    (Acl(3, Id("ip", "127.0.0.1")),),
)


def payload(
    zxid: int, op: int, body: bytes, session: int = 1, time_ms: int = 0, digest: int | None = None
) -> bytes:
    """The log's bytes of one transaction."""
    head = struct.pack(">qiqqi", session, 7, zxid, time_ms or zxid * 1000, op)
    tail = b"" if digest is None else struct.pack(">iQ", 2, digest)
    return head + body + tail


def record(data: bytes) -> bytes:
    return struct.pack(">qi", zlib.adler32(data), len(data)) + data + b"B"


def write_log(directory: Path, first: int, payloads: Sequence[bytes], padding: int = 4096) -> Path:
    path = directory / f"log.{first:x}"
    path.write_bytes(LOG_HEADER + b"".join(map(record, payloads)) + bytes(padding))
    return path


def create_body(
    path: str,
    data: bytes | None = b"",
    acl: Sequence[Acl] = OPEN,
    ephemeral: bool = False,
    creations: int | None = -1,
) -> bytes:
    writer = Writer().string(path).buffer(data).acls(acl).boolean(ephemeral)
    return (writer if creations is None else writer.i32(creations)).finish()


def seal(data: bytes) -> bytes:
    return data + struct.pack(">qi", zlib.adler32(data), 1) + b"/"


def add_sections(path: Path, digest: tuple[int, int] | None = None, last_zxid: int | None = None) -> None:
    """Appends the sections that ZooKeeper 3.6 and 3.9 write after the nodes."""
    data = path.read_bytes()
    if digest is not None:
        data = seal(data + struct.pack(">qiQ", digest[0], 2, digest[1]))
    if last_zxid is not None:
        data = seal(data + struct.pack(">q", last_zxid))
    path.write_bytes(data)


def tree_digest(nodes: dict[str, NodeState]) -> int:
    """The digest of a whole tree: the sum over its nodes."""
    total = 0
    for path, node in nodes.items():
        if not path.startswith("/zookeeper/"):
            name = "" if path == "/" else path
            total += zlib.crc32(name.encode() + (node.data or b"") + struct.pack(">qqqqqiiiq", *node[2:]))
    return total % (1 << 64)


class Leader:
    """A server's history from its first transaction on.

    ``payloads`` has the logged bytes of each transaction, ``states`` the nodes after each zxid.
    """

    def __init__(self, seed: int, first_session: int = 0x0100_0000_0000_0001) -> None:
        self.chance = random.Random(seed)
        self.machine = Machine()
        self.payloads: list[bytes] = []
        self.states: list[dict[str, NodeState]] = [dict(self.machine.tree.export())]
        self.sessions: list[list[Session]] = [[]]
        self._next_session = first_session

    @property
    def zxid(self) -> int:
        return self.machine.last_zxid

    def live(self, transactions: int) -> None:
        while len(self.payloads) < transactions:
            self._one()

    def state(self, zxid: int | None = None) -> State:
        """The state after a transaction, by default the last."""
        at = self.zxid if zxid is None else zxid
        sessions = self.sessions[at]
        last = max((session.id for session in sessions), default=0)
        return State(at, last, sessions, list(self.states[at].items()))

    def fuzzy_state(self, begin: int, end: int) -> State:
        """A snapshot that was begun after transaction ``begin`` and finished after ``end``.

        Each node and its children's names are as they were at some moment between the two. Parents come
        before children.
        """
        found: list[tuple[str, NodeState]] = []
        now = begin

        def visit(path: str) -> None:
            nonlocal now
            now = min(end, now + self.chance.choice([0, 0, 1, 2, 5]))
            at_once = self.states[now]
            if path not in at_once:
                return
            found.append((path, at_once[path]))
            below = [other for other in at_once if other != "/" and parent_of(other) == path]
            self.chance.shuffle(below)
            for child in below:
                visit(child)

        visit("/")
        return self.state(begin)._replace(nodes=found)

    def _one(self) -> None:
        chance = self.chance
        kind = chance.randrange(20)
        open_sessions = [session.id for session in self.machine.sessions.all()]
        if not open_sessions or kind == 0:
            session, self._next_session = self._next_session, self._next_session + 1
            birth = CreateSession(chance.choice([4000, 9000]), session_password(session))
            self._do(Op.CREATE_SESSION, encode_create_session(birth), session)
            return
        session = chance.choice(open_sessions)
        if kind == 1:
            self._do(Op.CLOSE_SESSION, b"", session)
        elif kind < 10:
            self._do(*self._create(), session)
        elif kind < 14:
            self._do(Op.DELETE, Writer().string(self._path()).i32(-1).finish(), session)
        elif kind < 17:
            self._do(Op.SET_DATA, self._set_data(), session)
        elif kind < 18:
            body = Writer().string(self._path()).acls(chance.choice(ACLS)).i32(-1).finish()
            self._do(Op.SET_ACL, body, session)
        else:
            writer = Writer()
            for _ in range(chance.randrange(1, 4)):
                op, body = self._create() if chance.random() < 0.7 else (Op.SET_DATA, self._set_data())
                writer.i32(op).boolean(False).i32(-1)
                writer.out += body
            writer.i32(-1).boolean(True).i32(-1)
            self._do(Op.MULTI, writer.finish(), session)

    def _path(self) -> str:
        names = [self.chance.choice("abc") for _ in range(self.chance.choice([1, 1, 2, 2, 3]))]
        return "/" + "/".join(names)

    def _data(self) -> bytes | None:
        return self.chance.choice([None, b"", self.chance.randbytes(3)])

    def _set_data(self) -> bytes:
        return Writer().string(self._path()).buffer(self._data()).i32(-1).finish()

    def _create(self) -> tuple[Op, bytes]:
        op = self.chance.choice([Op.CREATE, Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL])
        flags = {Op.CREATE_CONTAINER: CONTAINER, Op.CREATE_TTL: TTL}.get(
            op, self.chance.choice([0, 0, EPHEMERAL, SEQUENTIAL])
        )
        writer = Writer().string(self._path()).buffer(self._data()).acls(self.chance.choice(ACLS)).i32(flags)
        return op, (writer.i64(60_000) if op is Op.CREATE_TTL else writer).finish()

    def _do(self, op: Op, body: bytes, session: int) -> None:
        machine = self.machine
        zxid = machine.last_zxid + 1
        ephemerals = machine.tree.ephemerals(session)
        command = Command(
            zxid, zxid * 1000, session, op, Rules.EXTENDED_TYPES, (), decode_write(op, Reader(body)), body
        )
        result = machine.apply(command).result
        nodes = dict(machine.tree.export())
        digest: int | None = tree_digest(nodes)
        if op is Op.CREATE_SESSION:
            logged = (op, body[:4])
        elif op is Op.CLOSE_SESSION:
            logged = (op, Writer().strings(ephemerals).finish())
        elif isinstance(result, Failed):
            logged, digest = (Op.ERROR, struct.pack(">i", result.code)), None
        elif isinstance(result, MultiDone):
            logged = (op, self._multi(command.request, result, nodes))
        else:
            logged = self._logged(op, command.request, result, nodes, 0)
        self.payloads.append(payload(zxid, *logged, session, digest=digest))
        self.states.append(nodes)
        self.sessions.append(machine.sessions.all())

    def _multi(self, request: object, result: MultiDone, nodes: dict[str, NodeState]) -> bytes:
        operations = getattr(request, "operations")  # noqa: B009
        if any(isinstance(part, Failed) for part in result.results):
            parts = [(Op.ERROR, struct.pack(">i", -2) + b"remains") for _ in operations]
        else:
            parts = []
            for number, (operation, part) in enumerate(zip(operations, result.results, strict=True)):
                later = [each for each in result.results[number + 1 :] if isinstance(each, Created)]
                siblings = sum(
                    1
                    for each in later
                    if isinstance(part, Created) and parent_of(each.path) == parent_of(part.path)
                )
                op = operation.op if isinstance(part, Created) else Op.SET_DATA
                assert not isinstance(part, Failed)
                parts.append(self._logged(op, operation, part, nodes, siblings))
        writer = Writer().i32(len(parts))
        for op, body in parts:
            writer.i32(op).buffer(body)
        return writer.finish()

    def _logged(
        self,
        op: Op,
        request: object,
        result: Created | Done,
        nodes: dict[str, NodeState],
        siblings_later: int,
    ) -> tuple[Op, bytes]:
        """The logged operation and body of one request; a log has results, not requests."""
        if isinstance(result, Created):
            node = nodes[result.path]
            creations = nodes[parent_of(result.path)].creations - siblings_later
            data = getattr(request, "data")  # noqa: B009
            if kind_of(node.owner) is Kind.CONTAINER:
                body = Writer().string(result.path).buffer(data).acls(node.acl).i32(creations).finish()
                return Op.CREATE_CONTAINER, body
            if kind_of(node.owner) is Kind.TTL:
                body = (
                    Writer()
                    .string(result.path)
                    .buffer(data)
                    .acls(node.acl)
                    .i32(creations)
                    .i64(60_000)
                    .finish()
                )
                return Op.CREATE_TTL, body
            return op, create_body(result.path, data, node.acl, node.owner != 0, creations)
        path = getattr(request, "path")  # noqa: B009
        if op is Op.DELETE:
            return op, Writer().string(path).finish()
        assert result.stat is not None
        if op is Op.SET_DATA:
            data = getattr(request, "data")  # noqa: B009
            return op, Writer().string(path).buffer(data).i32(result.stat.version).finish()
        return op, Writer().string(path).acls(nodes[path].acl).i32(result.stat.aversion).finish()


def write_directory_of(
    leader: Leader, directory: Path, begin: int, end: int, log_starts: Sequence[int] = (1,)
) -> Path:
    """Writes a dataDir with a fuzzy snapshot from ``begin`` to ``end`` and all logs."""
    versioned = directory / "version-2"
    versioned.mkdir(parents=True)
    snapshot = write_snapshot(versioned, leader.fuzzy_state(begin, end), lambda *_told: None)
    digest = (end, tree_digest(leader.states[end])) if end else (0, 0)
    add_sections(snapshot, digest, end)
    starts = sorted({1, *log_starts})
    for number, first in enumerate(starts):
        next_first = starts[number + 1] if number + 1 < len(starts) else len(leader.payloads) + 1
        write_log(versioned, first, leader.payloads[first - 1 : next_first - 1])
    return versioned
