"""The outcomes of writes, and replies and notifications as bytes.

Owns the encoding of everything that the server sends. Layouts are those of ``zookeeper.jute``. A reply is a
ReplyHeader{int xid, long zxid, int err} and, if err is 0, the body of its operation. Pure.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ..errors import Code
from .jute import Stat, Writer, encode_stat, frame
from .requests import Op

NOTIFICATION_XID = -1
PING_XID = -2
NO_ZXID = 0
"""In replies to auth and sasl, which are not part of the order of transactions."""
UNKNOWN_ZXID = -1
"""In replies to an unknown operation, and in notifications that a client missed while it was disconnected."""

_HEADER = struct.Struct(">iqi")
_FRAME = struct.Struct(">iiqi")
_SYNC_CONNECTED = 3
_OK = Code.OK


class Event(IntEnum):
    """The events of watches, with the numbers of ``Watcher.Event.EventType``."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Created(NamedTuple):
    """A node was created. ``stat`` is None if the reply has no Stat."""

    path: str
    stat: Stat | None


class Done(NamedTuple):
    """An operation succeeded whose reply has a Stat or no body."""

    op: Op
    stat: Stat | None = None


class Failed(NamedTuple):
    """A write was refused."""

    code: Code


class Begun(NamedTuple):
    """A change of the members has begun. A later command or entry ends it."""


class Reconfigured(NamedTuple):
    """The members' new configuration."""

    data: bytes
    stat: Stat


class MultiDone(NamedTuple):
    """One result for each operation.

    If one failed, nothing was done. As in ZooKeeper those before it are Failed(OK), those after
    Failed(RUNTIME_INCONSISTENCY).
    """

    results: list[Created | Done | Failed]


Result = Created | Done | Failed | MultiDone | Begun | Reconfigured


def reply(xid: int, zxid: int, code: Code, body: bytes = b"") -> bytes:
    """Returns a whole frame. An error has no body, except the error of a failed SASL login."""
    return _FRAME.pack(_HEADER.size + len(body), xid, zxid, code) + body


def connected(
    timeout_ms: int, session_id: int, password: bytes, sends_read_only: bool, is_read_only: bool = False
) -> bytes:
    """Returns the answer to a connect request. A timeout and an id of 0 mean that the session is over."""
    writer = Writer().i32(0).i32(timeout_ms).i64(session_id).buffer(password)
    if sends_read_only:
        writer.boolean(is_read_only)
    return frame((writer.finish(),))


def notification(event: Event, path: str | None, zxid: int) -> bytes:
    """Returns a WatcherEvent{int type, int state, ustring path} with the header of notifications."""
    body = Writer().i32(event).i32(_SYNC_CONNECTED).string(path).finish()
    return frame((_HEADER.pack(NOTIFICATION_XID, zxid, 0), body))


def encode_result(result: Result) -> tuple[Code, bytes]:
    """Returns the error code and the body for the outcome of a write."""
    if isinstance(result, Done):
        return _OK, encode_stat(result.stat) if result.stat is not None else b""
    if isinstance(result, Failed):
        return result.code, b""
    assert not isinstance(result, Begun), "a change of the members is answered when it ends"
    writer = Writer()
    if isinstance(result, Reconfigured):
        writer.buffer(result.data).stat(result.stat)
    elif isinstance(result, MultiDone):
        for part in result.results:
            _multi_part(writer, part)
        end_of_multi(writer)
    else:
        _body(writer, result)
    return _OK, writer.finish()


def multi_error(writer: Writer, code: Code) -> None:
    """Writes a refused operation of a multi: its header, then ErrorResponse{int err}."""
    _multi_header(writer, Op.ERROR, False, code).i32(code)


def multi_ok(writer: Writer, op: Op) -> None:
    """Writes the header of a successful operation of a multi. Its body follows."""
    _multi_header(writer, op, False, 0)


def end_of_multi(writer: Writer) -> None:
    _multi_header(writer, Op.ERROR, True, -1)


def _multi_header(writer: Writer, op: Op, done: bool, error: int) -> Writer:
    return writer.i32(op).boolean(done).i32(error)


def _multi_part(writer: Writer, part: Created | Done | Failed) -> None:
    if isinstance(part, Failed):
        multi_error(writer, part.code)
    elif isinstance(part, Created):
        multi_ok(writer, Op.CREATE if part.stat is None else Op.CREATE2)
        _body(writer, part)
    else:
        multi_ok(writer, part.op)
        if part.op is not Op.CHECK:  # CheckResult has no body
            _body(writer, part)


def _body(writer: Writer, result: Created | Done) -> None:
    if isinstance(result, Created):
        writer.string(result.path)
    if result.stat is not None:
        writer.stat(result.stat)
