"""The requests of ZooKeeper's client protocol, as values, and how they are read from a frame.

Owns operation numbers (``ZooDefs.OpCode``), one tuple per request and :func:`decode_request`. Knows nothing
of connections, of the tree, or of who asks. A request body is either one of these or a :class:`JuteError`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeVar

from .errors import JuteError
from .jute import Acl, Reader, Writer

T = TypeVar("T")


class Op(IntEnum):
    """Operation numbers; negative ones never arrive from clients except CLOSE_SESSION."""

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
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    ERROR = -1


class ConnectRequest(NamedTuple):
    """First frame of a connection. ``sends_read_only``: clients since 3.4 send the flag and expect it
    back."""

    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes
    sends_read_only: bool


class Create(NamedTuple):
    path: str
    data: bytes | None
    acl: list[Acl]
    flags: int
    with_stat: bool


class Delete(NamedTuple):
    path: str
    version: int


class SetData(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    path: str
    acl: list[Acl]
    version: int


class Check(NamedTuple):
    path: str
    version: int


class Multi(NamedTuple):
    operations: list[Create | Delete | SetData | Check]


class CreateSession(NamedTuple):
    timeout_ms: int
    password: bytes


class CloseSession(NamedTuple):
    pass


class Exists(NamedTuple):
    path: str
    watch: bool


class GetData(NamedTuple):
    path: str
    watch: bool


class GetChildren(NamedTuple):
    path: str
    watch: bool
    with_stat: bool


class GetAcl(NamedTuple):
    path: str


class Sync(NamedTuple):
    path: str


class Ping(NamedTuple):
    pass


class Auth(NamedTuple):
    scheme: str
    credentials: bytes


class SetWatches(NamedTuple):
    relative_zxid: int
    data: list[str]
    exist: list[str]
    child: list[str]
    persistent: list[str]
    recursive: list[str]


class AddWatch(NamedTuple):
    path: str
    recursive: bool


class FindWatches(NamedTuple):
    """checkWatches and, with ``remove``, removeWatches. ``kind``: 1 children, 2 data, 3 any."""

    path: str
    kind: int
    remove: bool


class MultiRead(NamedTuple):
    operations: list[GetData | GetChildren]


class GetEphemerals(NamedTuple):
    prefix: str


class CountDescendants(NamedTuple):
    path: str


class WhoAmI(NamedTuple):
    pass


class Unknown(NamedTuple):
    """An operation this server does not have."""

    op: int


Write = Create | Delete | SetData | SetAcl | Check | Multi | CreateSession | CloseSession
"""What changes the tree, a session, or must be ordered with such: goes through the transaction log."""

Read = (
    Exists
    | GetData
    | GetChildren
    | GetAcl
    | Sync
    | Ping
    | Auth
    | SetWatches
    | AddWatch
    | FindWatches
    | MultiRead
    | GetEphemerals
    | CountDescendants
    | WhoAmI
    | Unknown
)
"""What is answered from this server's applied state."""


def decode_connect(body: bytes) -> ConnectRequest:
    """The connect request, with or without its trailing readOnly flag."""
    reader = Reader(body)
    reader.i32()  # protocolVersion, always 0
    last_zxid_seen, timeout_ms, session_id = reader.i64(), reader.i32(), reader.i64()
    password = reader.buffer() or b""
    sends_read_only = reader.remaining > 0
    if sends_read_only:
        reader.boolean()
    return ConnectRequest(last_zxid_seen, timeout_ms, session_id, password, sends_read_only)


def decode_request(op: int, reader: Reader) -> Write | Read:
    """The request with operation number ``op`` whose body ``reader`` stands at."""
    decoder = _DECODERS.get(op)
    return Unknown(op) if decoder is None else decoder(reader)


def _create(reader: Reader) -> Create:
    return Create(reader.string(), reader.buffer(), reader.acls(), reader.i32(), False)


def _create2(reader: Reader) -> Create:
    return Create(reader.string(), reader.buffer(), reader.acls(), reader.i32(), True)


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


def _auth(reader: Reader) -> Auth:
    reader.i32()  # type, unused since the beginning
    return Auth(reader.string(), reader.buffer() or b"")


def _set_watches(reader: Reader) -> SetWatches:
    return SetWatches(reader.i64(), reader.strings(), reader.strings(), reader.strings(), [], [])


def _set_watches2(reader: Reader) -> SetWatches:
    first = _set_watches(reader)
    return first._replace(persistent=reader.strings(), recursive=reader.strings())


def _add_watch(reader: Reader) -> AddWatch:
    path, mode = reader.string(), reader.i32()
    if mode not in (0, 1):
        raise JuteError(f"addWatch mode {mode}")
    return AddWatch(path, mode == 1)


def _find_watches(reader: Reader, remove: bool) -> FindWatches:
    path, kind = reader.string(), reader.i32()
    if kind not in (1, 2, 3):
        raise JuteError(f"watcher type {kind}")
    return FindWatches(path, kind, remove)


_IN_MULTI: dict[int, Callable[[Reader], Create | Delete | SetData | Check]] = {
    Op.CREATE: _create,
    Op.CREATE2: _create2,
    Op.DELETE: _delete,
    Op.SET_DATA: _set_data,
    Op.CHECK: _check,
}

_IN_MULTI_READ: dict[int, Callable[[Reader], GetData | GetChildren]] = {
    Op.GET_DATA: _get_data,
    Op.GET_CHILDREN: _get_children,
}


def _operations(reader: Reader, decoders: dict[int, Callable[[Reader], T]]) -> list[T]:
    """MultiHeader{int type, boolean done, int err}, operation, ..., until a header with done."""
    operations: list[T] = []
    while True:
        op, done, _error = reader.i32(), reader.boolean(), reader.i32()
        if done:
            return operations
        decoder = decoders.get(op)
        if decoder is None:
            raise JuteError(f"operation {op} inside a multi")
        operations.append(decoder(reader))


_DECODERS: dict[int, Callable[[Reader], Write | Read]] = {
    Op.CREATE: _create,
    Op.CREATE2: _create2,
    Op.DELETE: _delete,
    Op.SET_DATA: _set_data,
    Op.SET_ACL: lambda reader: SetAcl(reader.string(), reader.acls(), reader.i32()),
    Op.CHECK: _check,
    Op.MULTI: lambda reader: Multi(_operations(reader, _IN_MULTI)),
    Op.CLOSE_SESSION: lambda reader: CloseSession(),
    Op.CREATE_SESSION: lambda reader: CreateSession(reader.i32(), reader.buffer() or b""),
    Op.EXISTS: lambda reader: Exists(reader.string(), reader.boolean()),
    Op.GET_DATA: _get_data,
    Op.GET_CHILDREN: _get_children,
    Op.GET_CHILDREN2: lambda reader: GetChildren(reader.string(), reader.boolean(), True),
    Op.GET_ACL: lambda reader: GetAcl(reader.string()),
    Op.SYNC: lambda reader: Sync(reader.string()),
    Op.PING: lambda reader: Ping(),
    Op.AUTH: _auth,
    Op.SET_WATCHES: _set_watches,
    Op.SET_WATCHES2: _set_watches2,
    Op.ADD_WATCH: _add_watch,
    Op.CHECK_WATCHES: lambda reader: _find_watches(reader, False),
    Op.REMOVE_WATCHES: lambda reader: _find_watches(reader, True),
    Op.MULTI_READ: lambda reader: MultiRead(_operations(reader, _IN_MULTI_READ)),
    Op.WHO_AM_I: lambda reader: WhoAmI(),
    Op.GET_EPHEMERALS: lambda reader: GetEphemerals(reader.string()),
    Op.GET_ALL_CHILDREN_NUMBER: lambda reader: CountDescendants(reader.string()),
}


def encode_create_session(request: CreateSession) -> bytes:
    """The body under which a session's birth is logged: int timeout in milliseconds, buffer password."""
    return Writer().i32(request.timeout_ms).buffer(request.password).finish()
