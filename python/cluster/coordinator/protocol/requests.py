"""The requests of ZooKeeper's client protocol, as values, and how they are decoded.

Owns the operation numbers (``ZooDefs.OpCode``), a tuple for each request, and the functions ``decode_*``. A
body that is not a request raises :class:`JuteError`. A path may be null; only some requests refuse that.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

from ..errors import Code, JuteError, MissingValueError
from .jute import Acl, Reader, Writer

T = TypeVar("T")


class Op(IntEnum):
    """The operation numbers. Clients send only positive ones, and CLOSE_SESSION.

    ERROR is a write that was refused before it reached the log, and takes a transaction id nevertheless.
    ZooKeeper does not have the last two in an ensemble's log: ATTACH moves a session to a connection,
    END_RECONFIG is the leader's refusal of a change of the members.
    """

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    ATTACH = -12
    END_RECONFIG = -13
    ERROR = -1


_OPS = {op.value: op for op in Op}


def op_of(number: int) -> Op:
    """Returns the operation with this number. Raises JuteError if there is none."""
    op = _OPS.get(number)
    if op is None:
        raise JuteError(f"there is no operation {number}")
    return op


OPERATION_NAMES: dict[int, str] = {
    Op.CREATE_SESSION: "SESS",
    Op.CREATE: "CREA",
    Op.CREATE2: "CREA",
    Op.CREATE_CONTAINER: "CREA",
    Op.CREATE_TTL: "CREA",
    Op.DELETE: "DELE",
    Op.DELETE_CONTAINER: "DELE",
    Op.EXISTS: "EXIS",
    Op.GET_DATA: "GETD",
    Op.SET_DATA: "SETD",
    Op.GET_ACL: "GETA",
    Op.SET_ACL: "SETA",
    Op.GET_CHILDREN: "GETC",
    Op.GET_CHILDREN2: "GETC",
    Op.GET_ALL_CHILDREN_NUMBER: "GETACN",
    Op.GET_EPHEMERALS: "GETE",
    Op.SYNC: "SYNC",
    Op.PING: "PING",
    Op.MULTI: "MULT",
    Op.MULTI_READ: "MLTR",
    Op.RECONFIG: "RECO",
    Op.CHECK_WATCHES: "CHKW",
    Op.REMOVE_WATCHES: "REMW",
    Op.SET_WATCHES: "SETW",
    Op.SET_WATCHES2: "STW2",
    Op.ADD_WATCH: "ADDW",
    Op.WHO_AM_I: "HOMI",
    Op.CLOSE_SESSION: "CLOS",
}
"""The operations' names in ``cons`` (``Request.op2String``)."""

EPHEMERAL = 1
SEQUENTIAL = 2
CONTAINER = 4
TTL = 5
TTL_SEQUENTIAL = 6
"""The values of a create's ``flags`` (``CreateMode``). 3 is an ephemeral sequential node."""

MAX_TTL_MS = 0xFF_FFFF_FFFF
"""The longest life of a node with a TTL: 40 bits (``EphemeralType.TTL``)."""


class ConnectRequest(NamedTuple):
    """The first frame of a connection.

    ``sends_read_only``: clients since 3.4 send the flag, and expect it in the answer.
    """

    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes
    sends_read_only: bool


class Create(NamedTuple):
    """``op`` is CREATE, CREATE2, CREATE_CONTAINER or CREATE_TTL, and decides the kind of node."""

    path: str | None
    data: bytes | None
    acl: list[Acl]
    flags: int
    op: Op = Op.CREATE
    ttl_ms: int = -1

    @property
    def with_stat(self) -> bool:
        """Whether the reply has a Stat."""
        return self.op is not Op.CREATE


class Delete(NamedTuple):
    path: str | None
    version: int


class SetData(NamedTuple):
    path: str | None
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    path: str | None
    acl: list[Acl]
    version: int


class Check(NamedTuple):
    path: str | None
    version: int


class DeleteContainer(NamedTuple):
    """Deletes a container or a node with a TTL, if it has no children."""

    path: str | None


class Multi(NamedTuple):
    operations: list[Create | Delete | SetData | Check]


class CreateSession(NamedTuple):
    """The request of CREATE_SESSION and ATTACH."""

    timeout_ms: int
    password: bytes


class CloseSession(NamedTuple):
    pass


class Refuse(NamedTuple):
    """A write that was refused before it reached the log."""

    code: Code


class EndReconfig(NamedTuple):
    """Refuses the change of the members that the transaction ``zxid`` asked for."""

    zxid: int
    code: Code


class Exists(NamedTuple):
    path: str | None
    watch: bool


class GetData(NamedTuple):
    path: str | None
    watch: bool


class GetChildren(NamedTuple):
    path: str | None
    watch: bool
    with_stat: bool


class GetAcl(NamedTuple):
    path: str | None


class Sync(NamedTuple):
    path: str | None


class Ping(NamedTuple):
    pass


class Auth(NamedTuple):
    scheme: str
    credentials: bytes | None


class Sasl(NamedTuple):
    token: bytes


class SetWatches(NamedTuple):
    """A null list is refused when its watches are set.

    The first version has no ``persistent`` and ``recursive``.
    """

    relative_zxid: int
    data: list[str | None] | None
    exist: list[str | None] | None
    child: list[str | None] | None
    persistent: list[str | None] | None
    recursive: list[str | None] | None


class AddWatch(NamedTuple):
    path: str | None
    recursive: bool


class FindWatches(NamedTuple):
    """checkWatches and, with ``remove``, removeWatches.

    ``kind`` is a :class:`cluster.coordinator.state.watches.WatcherType`.
    """

    path: str | None
    kind: int
    remove: bool


class MultiRead(NamedTuple):
    """``is_refused``: it has operations that are writes."""

    operations: list[GetData | GetChildren]
    is_refused: bool = False


class GetEphemerals(NamedTuple):
    prefix: str | None


class CountDescendants(NamedTuple):
    path: str | None


class WhoAmI(NamedTuple):
    pass


class Reconfig(NamedTuple):
    """Changes the members of an ensemble. Its texts are as in a dynamic configuration file."""

    joining: str | None
    leaving: str | None
    members: str | None
    version: int


Write = (
    Create
    | Delete
    | SetData
    | SetAcl
    | Check
    | DeleteContainer
    | Multi
    | CreateSession
    | CloseSession
    | Reconfig
    | EndReconfig
    | Refuse
)
"""Requests that go through the transaction log: they change the tree or a session, or need a place in that
order."""

Read = (
    Exists
    | GetData
    | GetChildren
    | GetAcl
    | Sync
    | Ping
    | SetWatches
    | AddWatch
    | FindWatches
    | MultiRead
    | GetEphemerals
    | CountDescendants
    | WhoAmI
)
"""Requests that are answered from this server's applied state."""

WRITES: Mapping[int, Op] = {
    op: op
    for op in (
        Op.CREATE,
        Op.CREATE2,
        Op.CREATE_CONTAINER,
        Op.CREATE_TTL,
        Op.DELETE,
        Op.DELETE_CONTAINER,
        Op.SET_DATA,
        Op.SET_ACL,
        Op.MULTI,
        Op.RECONFIG,
        Op.CLOSE_SESSION,
    )
}
"""Writes that clients may send, by their numbers."""

READS = frozenset(
    {
        Op.EXISTS,
        Op.GET_DATA,
        Op.GET_CHILDREN,
        Op.GET_CHILDREN2,
        Op.GET_ACL,
        Op.SYNC,
        Op.PING,
        Op.SET_WATCHES,
        Op.SET_WATCHES2,
        Op.ADD_WATCH,
        Op.CHECK_WATCHES,
        Op.REMOVE_WATCHES,
        Op.MULTI_READ,
        Op.GET_EPHEMERALS,
        Op.GET_ALL_CHILDREN_NUMBER,
        Op.WHO_AM_I,
    }
)
"""Reads that clients may send."""


def decode_connect(body: bytes) -> ConnectRequest:
    """Decodes the connect request, with or without its last field, the readOnly flag."""
    reader = Reader(body)
    reader.i32()  # protocolVersion, always 0
    last_zxid_seen, timeout_ms, session_id = reader.i64(), reader.i32(), reader.i64()
    password = reader.buffer() or b""
    sends_read_only = reader.remaining > 0
    if sends_read_only:
        reader.boolean()
    return ConnectRequest(last_zxid_seen, timeout_ms, session_id, password, sends_read_only)


def accepts_read_only(body: bytes) -> bool:
    """Whether the connect request has the readOnly flag set: the client accepts a read-only server."""
    request = decode_connect(body)
    return request.sends_read_only and body[28 + len(request.password)] != 0


def decode_write(op: int, reader: Reader) -> Write:
    """Decodes the body of a write. Raises JuteError."""
    decoder = _WRITES.get(op)
    if decoder is None:
        raise JuteError(f"operation {op} is not a write")
    return decoder(reader)


def decode_read(op: int, reader: Reader) -> Read:
    """Decodes the body of a read. Raises JuteError."""
    decoder = _READS.get(op)
    if decoder is None:
        raise JuteError(f"operation {op} is not a read")
    return decoder(reader)


def decode_auth(reader: Reader) -> Auth:
    reader.i32()  # type, which was never used
    return Auth(reader.text(), reader.buffer())


def decode_sasl(reader: Reader) -> Sasl:
    token = reader.buffer()
    if token is None:
        raise JuteError("the SASL token is null")
    return Sasl(token)


def _create(reader: Reader, op: Op = Op.CREATE) -> Create:
    return Create(reader.string(), reader.buffer(), reader.acls() or [], reader.i32(), op)


def _create_ttl(reader: Reader) -> Create:
    return _create(reader, Op.CREATE_TTL)._replace(ttl_ms=reader.i64())


def _delete(reader: Reader) -> Delete:
    return Delete(reader.string(), reader.i32())


def _set_data(reader: Reader) -> SetData:
    return SetData(reader.string(), reader.buffer(), reader.i32())


def _check(reader: Reader) -> Check:
    return Check(reader.string(), reader.i32())


def _get_data(reader: Reader) -> GetData:
    return GetData(reader.string(), reader.boolean())


def _get_children(reader: Reader) -> GetChildren:
    return GetChildren(reader.string(), reader.boolean(), False)


def _set_watches(reader: Reader) -> SetWatches:
    return SetWatches(reader.i64(), reader.strings(), reader.strings(), reader.strings(), [], [])


def _set_watches2(reader: Reader) -> SetWatches:
    first = _set_watches(reader)
    return first._replace(persistent=reader.strings(), recursive=reader.strings())


def _add_watch(reader: Reader) -> AddWatch:
    path, mode = reader.string(), reader.i32()
    if mode not in (0, 1):
        raise JuteError(f"addWatch has no mode {mode}")
    return AddWatch(path, mode == 1)


def _find_watches(reader: Reader, remove: bool) -> FindWatches:
    path, kind = reader.string(), reader.i32()
    if not 1 <= kind <= 5:
        raise JuteError(f"there is no watcher type {kind}")
    return FindWatches(path, kind, remove)


# In a multi a create's flags decide while it is decoded (MultiOperationRecord, Op.Create): those of a
# container make one in every operation, and those of a TTL are only for createTTL.


def _create_in_multi(reader: Reader, op: Op) -> Create:
    path, data, acl, flags = reader.string(), reader.buffer(), reader.acls(), reader.i32()
    if acl is None:
        raise MissingValueError("a create in a multi has no ACL")
    if not 0 <= flags <= CONTAINER:
        raise JuteError(f"a create in a multi cannot have the flags {flags}")
    return Create(path, data, acl, flags, Op.CREATE_CONTAINER if flags == CONTAINER else op)


def _create_ttl_in_multi(reader: Reader) -> Create:
    path, data, acl, flags, ttl_ms = (
        reader.string(),
        reader.buffer(),
        reader.acls(),
        reader.i32(),
        reader.i64(),
    )
    if acl is None:
        raise MissingValueError("a create in a multi has no ACL")
    if flags in (TTL, TTL_SEQUENTIAL):
        return Create(path, data, acl, flags, Op.CREATE_TTL, ttl_ms)
    return Create(path, data, acl, flags, Op.CREATE_CONTAINER if flags == CONTAINER else Op.CREATE)


_IN_MULTI: dict[int, Callable[[Reader], Create | Delete | SetData | Check]] = {
    Op.CREATE: lambda reader: _create_in_multi(reader, Op.CREATE),
    Op.CREATE2: lambda reader: _create_in_multi(reader, Op.CREATE2),
    Op.CREATE_CONTAINER: lambda reader: _create_in_multi(reader, Op.CREATE_CONTAINER),
    Op.CREATE_TTL: _create_ttl_in_multi,
    Op.DELETE: _delete,
    Op.SET_DATA: _set_data,
    Op.CHECK: _check,
}

_IN_MULTI_READ: dict[int, Callable[[Reader], GetData | GetChildren]] = {
    Op.GET_DATA: _get_data,
    Op.GET_CHILDREN: _get_children,
}


def _operations(reader: Reader, decoders: dict[int, Callable[[Reader], T]]) -> list[T]:
    """Decodes MultiHeader{int type, boolean done, int err} and operation, until a header with done."""
    operations: list[T] = []
    while True:
        op, done, _error = reader.i32(), reader.boolean(), reader.i32()
        if done:
            return operations
        decoder = decoders.get(op)
        if decoder is None:
            raise JuteError(f"operation {op} cannot be in a multi")
        operations.append(decoder(reader))


def _multi_read(reader: Reader) -> MultiRead:
    if reader.peek_i32() in _IN_MULTI:
        _operations(reader, _IN_MULTI)
        return MultiRead([], is_refused=True)
    return MultiRead(_operations(reader, _IN_MULTI_READ))


def _code(reader: Reader) -> Code:
    code = reader.i32()
    try:
        return Code(code)
    except ValueError:
        raise JuteError(f"there is no error code {code}") from None


_WRITES: dict[int, Callable[[Reader], Write]] = {
    Op.CREATE: _create,
    Op.CREATE2: lambda reader: _create(reader, Op.CREATE2),
    Op.CREATE_CONTAINER: lambda reader: _create(reader, Op.CREATE_CONTAINER),
    Op.CREATE_TTL: _create_ttl,
    Op.DELETE: _delete,
    Op.DELETE_CONTAINER: lambda reader: DeleteContainer(reader.string()),
    Op.SET_DATA: _set_data,
    Op.SET_ACL: lambda reader: SetAcl(reader.string(), reader.acls() or [], reader.i32()),
    Op.CHECK: _check,
    Op.MULTI: lambda reader: Multi(_operations(reader, _IN_MULTI)),
    Op.RECONFIG: lambda reader: Reconfig(reader.string(), reader.string(), reader.string(), reader.i64()),
    Op.CLOSE_SESSION: lambda reader: CloseSession(),
    Op.CREATE_SESSION: lambda reader: CreateSession(reader.i32(), reader.buffer() or b""),
    Op.ERROR: lambda reader: Refuse(_code(reader)),
    Op.END_RECONFIG: lambda reader: EndReconfig(reader.i64(), _code(reader)),
}

_READS: dict[int, Callable[[Reader], Read]] = {
    Op.EXISTS: lambda reader: Exists(reader.string(), reader.boolean()),
    Op.GET_DATA: _get_data,
    Op.GET_CHILDREN: _get_children,
    Op.GET_CHILDREN2: lambda reader: GetChildren(reader.string(), reader.boolean(), True),
    Op.GET_ACL: lambda reader: GetAcl(reader.string()),
    Op.SYNC: lambda reader: Sync(reader.string()),
    Op.PING: lambda reader: Ping(),
    Op.SET_WATCHES: _set_watches,
    Op.SET_WATCHES2: _set_watches2,
    Op.ADD_WATCH: _add_watch,
    Op.CHECK_WATCHES: lambda reader: _find_watches(reader, False),
    Op.REMOVE_WATCHES: lambda reader: _find_watches(reader, True),
    Op.MULTI_READ: _multi_read,
    Op.WHO_AM_I: lambda reader: WhoAmI(),
    Op.GET_EPHEMERALS: lambda reader: GetEphemerals(reader.string()),
    Op.GET_ALL_CHILDREN_NUMBER: lambda reader: CountDescendants(reader.string()),
}


def encode_create_session(request: CreateSession) -> bytes:
    """Returns the body for the log: int timeout in milliseconds, buffer password."""
    return Writer().i32(request.timeout_ms).buffer(request.password).finish()


def encode_refusal(code: Code) -> bytes:
    """Returns the body for the log: int error."""
    return Writer().i32(code).finish()


def encode_end_reconfig(request: EndReconfig) -> bytes:
    """Returns the body for the log: long zxid, int error."""
    return Writer().i64(request.zxid).i32(request.code).finish()


def encode_reconfig(request: Reconfig) -> bytes:
    """Returns the body as clients send it."""
    writer = Writer().string(request.joining).string(request.leaving).string(request.members)
    return writer.i64(request.version).finish()
