"""A running ensemble, read as a client reads it.

Owns the requests, and the way to a nearly consistent view. First everything is read. Then the stat of every
node is read again, until none differs. A change shows in some stat, so at the begin of that last round
everything was as it was read. Notes tell what a client cannot see: the kinds of nodes, the sessions, and
nodes that it may not read.

Blocks. There is one connection to one server, with a few requests in flight.
"""

from __future__ import annotations

import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import Code, CoordinatorError, JuteError
from ..protocol.jute import Acl, Reader, Stat, Writer, frame
from ..protocol.requests import Op
from ..state.tree import ROOT, NodeState
from .common import Moved, Progress, some
from .draft import Draft, DraftNode
from .transactions import read_acls

TIMEOUT_S = 30.0
"""The timeout of an answer."""
ROUNDS = 5
"""The most rounds of reading stats again."""
_FRAME_BYTES_MAX = 128 << 20
_CHUNK = 1 << 20
_BATCH_BYTES = 16 << 10
"""Requests in flight. They fit into the socket's buffer, even if the server does not read."""
_STAT = struct.Struct(">qqqqiiiqiiq")
_REPLY = struct.Struct(">iqi")
_AUTH_XID = -4
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\[\]:,/]+):([0-9]{1,5})")


class Address(NamedTuple):
    host: str
    port: int


class Credentials(NamedTuple):
    """The arguments of zkCli.sh's ``addauth``."""

    scheme: str
    auth: bytes


def parse_addresses(text: str) -> list[Address]:
    """Parses ``host:port[,host:port...]``. Raises ValueError."""
    matches = [_ADDRESS.fullmatch(part.strip()) for part in text.split(",")]
    addresses = [Address(match[1].strip("[]"), int(match[2])) for match in matches if match is not None]
    if len(addresses) < len(matches) or any(not 0 < each.port <= 65535 for each in addresses):
        raise ValueError(f"{text!r} is not host:port[,host:port...]")
    return addresses


def read_ensemble(
    addresses: Sequence[Address],
    credentials: Iterable[Credentials] = (),
    *,
    progress: Progress = lambda *_told: None,
) -> Moved:
    """Returns the state that clients of the first answering server see, without ephemeral nodes: their
    sessions stay there.

    Raises CoordinatorError if no server answers, or if a node cannot be read completely. For its ACL that
    needs the permission ADMIN or the super user, because other clients do not see password hashes.
    """
    connection = _connect(addresses)
    try:
        for each in credentials:
            connection.authenticate(each)
        return _Walk(connection, progress).read()
    except (OSError, JuteError) as error:
        if isinstance(error, CoordinatorError):
            raise
        raise CoordinatorError(f"{connection.name} was being read, then: {error}") from error
    finally:
        connection.close()


class _Connection:
    """A session. Requests are answered in order."""

    def __init__(self, address: Address) -> None:
        self.name = f"{address.host}:{address.port}"
        self.zxid = 0
        self._xid = 0
        self._socket = socket.create_connection(address, TIMEOUT_S)
        try:
            self._handshake()
        except BaseException:
            self._socket.close()
            raise

    def _handshake(self) -> None:
        request = Writer().i32(0).i64(0).i32(int(TIMEOUT_S * 1000)).i64(0).buffer(bytes(16)).boolean(False)
        self._socket.sendall(frame([request.finish()]))
        reader = Reader(self._frame())
        reader.i32()
        if reader.i32() <= 0:
            raise CoordinatorError(f"{self.name} refuses a session")

    def authenticate(self, credentials: Credentials) -> None:
        body = Writer().i32(0).string(credentials.scheme).buffer(credentials.auth).finish()
        self._socket.sendall(frame([struct.pack(">ii", _AUTH_XID, Op.AUTH), body]))
        _reader, code = self.reply()
        if code != Code.OK:
            raise CoordinatorError(f"{self.name} refuses the credentials of scheme {credentials.scheme}")

    def send(self, requests: Iterable[tuple[Op, bytes]]) -> None:
        frames = []
        for op, body in requests:
            self._xid += 1
            frames.append(frame([struct.pack(">ii", self._xid, op), body]))
        self._socket.sendall(b"".join(frames))

    def reply(self) -> tuple[Reader, int]:
        """Returns the next answer's body and error."""
        data = self._frame()
        reader = Reader(data, _REPLY.size)
        if len(data) < _REPLY.size:
            raise CoordinatorError(
                f"{self.name} sent {len(data)} bytes, which are not an answer; is it ZooKeeper?"
            )
        _xid, zxid, code = _REPLY.unpack_from(data)
        self.zxid = max(self.zxid, zxid)
        return reader, code

    def ask(self, op: Op, body: bytes = b"") -> tuple[Reader, int]:
        self.send([(op, body)])
        return self.reply()

    def end_session(self) -> None:
        """Ends the session, which would otherwise last until its timeout."""
        self.ask(Op.CLOSE_SESSION)

    def close(self) -> None:
        self._socket.close()

    def _frame(self) -> bytes:
        length: int = struct.unpack(">i", self._exactly(4))[0]
        if not 0 <= length <= _FRAME_BYTES_MAX:
            raise CoordinatorError(f"{self.name} announces an answer of {length} bytes; is it ZooKeeper?")
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        """Reads exactly so many bytes. Memory grows with the bytes that arrive."""
        parts = []
        while count:
            part = self._socket.recv(min(count, _CHUNK))
            if not part:
                raise CoordinatorError(
                    f"{self.name} closed the connection: it does not serve (see zkServer.sh status), allows "
                    "no more connections from here, or requires TLS or credentials"
                )
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _connect(addresses: Sequence[Address]) -> _Connection:
    reasons = []
    for address in addresses:
        try:
            return _Connection(address)
        except (OSError, JuteError) as error:
            reasons.append(f"{address.host}:{address.port}: {error}")
    raise CoordinatorError(f"no server answers: {'; '.join(reasons)}")


class _Seen(NamedTuple):
    """A node from three answers. ``stat`` is that of the first, so that a change between them is noticed."""

    stat: Stat
    state: NodeState


class _Walk:
    def __init__(self, connection: _Connection, progress: Progress) -> None:
        self._connection = connection
        self._progress = progress
        self._nodes: dict[str, _Seen] = {}
        self._unreadable: set[str] = set()
        self._masked: set[str] = set()
        self._notes: list[str] = []

    def read(self) -> Moved:
        # Otherwise a follower may lack changes that the caller has seen elsewhere.
        _reader, code = self._connection.ask(Op.SYNC, Writer().string(ROOT).finish())
        self._require(code, (Code.OK,), ROOT)
        first = self._connection.zxid
        self._read([ROOT])
        moving = self._settle()
        if self._unreadable:
            raise CoordinatorError(
                f"{self._connection.name} refuses to read {len(self._unreadable)} nodes: "
                f"{some(self._unreadable)}; give the credentials of the super user "
                "(DigestAuthenticationProvider.superDigest), or read its data directory"
            )
        if ROOT not in self._nodes:
            raise CoordinatorError(f"{self._connection.name} has no root; is it ZooKeeper?")
        if self._masked:
            raise CoordinatorError(
                f"{self._connection.name} does not show the password hashes in the ACLs of "
                f"{len(self._masked)} nodes: {some(self._masked)}; give credentials with the permission "
                "ADMIN, or the super user's, or read its data directory"
            )
        if moving:
            self._notes.append(
                f"changes went on from zxid {first:#x} to {self._connection.zxid:#x}: the nodes were read at "
                f"different times, and {len(moving)} of them may have changed since: {some(moving)}"
            )
        self._connection.end_session()
        return self._moved()

    def _settle(self) -> list[str]:
        """Reads changed nodes again until none has changed, for some rounds.

        Returns those that changed in the last one.
        """
        changed: list[str] = []
        for _ in range(ROUNDS):
            changed = self._changed()
            if not changed:
                return []
            self._read(changed)
        return changed

    def _changed(self) -> list[str]:
        """Returns the nodes that have changed since they were read."""
        found = []
        asked = self._asked(list(self._nodes), lambda path: [(Op.EXISTS, _watchless(path))])
        for done, path in enumerate(asked):
            reader, code = self._connection.reply()
            self._require(code, (Code.OK, Code.NO_NODE), path)
            if code == Code.NO_NODE or _stat(reader) != self._nodes[path].stat:
                found.append(path)
            if done % 1000 == 0:
                self._progress("looking for changes", done, len(self._nodes))
        return found

    def _read(self, paths: Iterable[str]) -> None:
        """Reads these nodes, and all nodes below them that are not read yet."""
        queue = deque(paths)
        while queue:
            level = list(queue)
            queue.clear()
            asked = self._asked(
                level,
                lambda path: [
                    (Op.GET_DATA, _watchless(path)),
                    (Op.GET_ACL, Writer().string(path).finish()),
                    (Op.GET_CHILDREN2, _watchless(path)),
                ],
            )
            for path in asked:
                children = self._answered(path)
                queue += [child for child in children if child not in self._nodes]
                if len(self._nodes) % 1000 == 0:
                    self._progress("reading nodes", len(self._nodes), 0)

    def _asked(
        self, paths: Sequence[str], requests: Callable[[str], list[tuple[Op, bytes]]]
    ) -> Iterator[str]:
        """Sends the requests of each path, and yields the path when its answers come next."""
        waiting: deque[str] = deque()
        batch: list[tuple[Op, bytes]] = []
        size = 0
        for path in paths:
            mine = requests(path)
            length = sum(len(body) + 12 for _op, body in mine)
            if batch and size + length > _BATCH_BYTES:
                self._connection.send(batch)
                yield from waiting
                waiting.clear()
                batch, size = [], 0
            waiting.append(path)
            batch += mine
            size += length
        if batch:
            self._connection.send(batch)
            yield from waiting

    def _answered(self, path: str) -> list[str]:
        """Stores the node of the next three answers, or that it is missing or unreadable.

        Returns its children.
        """
        answers = [self._connection.reply() for _ in range(3)]
        for _reader, code in answers:
            self._require(code, (Code.OK, Code.NO_NODE, Code.NO_AUTH), path)
        codes = [code for _reader, code in answers]
        self._nodes.pop(path, None)
        self._unreadable.discard(path)
        self._masked.discard(path)
        if Code.NO_NODE in codes:
            return []
        if Code.NO_AUTH in codes:
            self._unreadable.add(path)
            return []
        data_reader, acl_reader, children_reader = (reader for reader, _code in answers)
        data, stat = data_reader.buffer(), _stat(data_reader)
        acl, acl_stat = read_acls(acl_reader), _stat(acl_reader)
        children = [_child(path, name or "") for name in children_reader.strings() or ()]
        below = _stat(children_reader)
        if any(_is_masked(entry) for entry in acl):
            self._masked.add(path)
        # A visible cversion is twice the creations minus the children. No node has so many creations that
        # doubling overflows.
        creations = ((below.cversion + below.num_children) & 0xFFFF_FFFF) >> 1
        state = NodeState(
            data,
            acl,
            stat.czxid,
            stat.mzxid,
            below.pzxid,
            stat.ctime,
            stat.mtime,
            stat.version,
            creations,
            acl_stat.aversion,
            stat.ephemeral_owner,
        )
        self._nodes[path] = _Seen(stat, state)
        return children

    def _require(self, code: int, expected: tuple[Code, ...], path: str) -> None:
        if code not in expected:
            known = Code(code).name if code in list(Code) else "an error"
            raise CoordinatorError(
                f"{self._connection.name} answers {known} ({code}) to a request for {path}"
            )

    def _moved(self) -> Moved:
        draft = Draft(self._connection.zxid)
        for path, seen in sorted(self._nodes.items()):
            try:
                draft.add(path, DraftNode(*seen.state))
            except ValueError:
                continue  # its parent was deleted meanwhile; both are among the changes
        self._notes.append(
            "clients cannot see which nodes are containers or have a TTL, so all are persistent here; they "
            "cannot see sessions either"
        )
        return draft.finish(self._notes)


def _child(path: str, name: str) -> str:
    return f"/{name}" if path == ROOT else f"{path}/{name}"


def _watchless(path: str) -> bytes:
    return Writer().string(path).boolean(False).finish()


def _stat(reader: Reader) -> Stat:
    return Stat(*_STAT.unpack(reader.take(_STAT.size)))


def _is_masked(entry: Acl) -> bool:
    return entry.id.scheme == "digest" and entry.id.id.endswith(":x")
