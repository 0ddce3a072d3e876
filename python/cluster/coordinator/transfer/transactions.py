"""Transactions as Apache ZooKeeper logs them: what a request did, not what it asked for.

Owns their layout (``zookeeper.jute``, ``SerializeUtils.deserializeTxn``). Pure. A payload is a TxnHeader{long
session id, int cxid, long zxid, long time (ms), int type}, the record of its type, and if the leader had
digests on a TxnDigest{int version, long digest of the tree afterwards}::

    create 1, create2 15     ustring path, buffer data, vector<ACL>, boolean ephemeral, int parent's creations
                             (type 1 before 3.4: without the last)
    createContainer 19       path, data, ACLs, int parent's creations
    createTTL 21             path, data, ACLs, int parent's creations, long TTL (ms)
    delete 2, deleteContainer 20   path
    setData 5, reconfig 16   path, buffer data, int version afterwards
    setACL 7                 path, vector<ACL>, int version afterwards
    check 13                 path, int version
    multi 14                 vector of {int type, buffer record}; with an error in it nothing of it was done
    createSession -10        int timeout (ms)
    closeSession -11         nothing, or vector<ustring> of the deleted nodes
    error -1                 int error
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import JuteError
from ..protocol.jute import Acl, Id, Reader
from ..protocol.requests import Op
from ..state.tree import CONTAINER_OWNER, TTL_OWNER
from .common import decode_text

_DIGEST_VERSION = 2
_DIGEST_BYTES = 12
_64_BITS = (1 << 64) - 1
_IN_MULTI = frozenset(
    {
        Op.CREATE,
        Op.CREATE2,
        Op.CREATE_CONTAINER,
        Op.CREATE_TTL,
        Op.DELETE,
        Op.DELETE_CONTAINER,
        Op.SET_DATA,
        Op.CHECK,
    }
)


class CreateTxn(NamedTuple):
    """``owner`` is as in a NodeState. ``parent_creations`` is the number afterwards, -1 for one more than
    before. ``mends_parent``: it counts even if the node exists."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    owner: int
    parent_creations: int
    mends_parent: bool


class DeleteTxn(NamedTuple):
    path: str


class SetDataTxn(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetAclTxn(NamedTuple):
    path: str
    acl: tuple[Acl, ...]
    version: int


class CreateSessionTxn(NamedTuple):
    timeout_ms: int


class CloseSessionTxn(NamedTuple):
    paths: tuple[str, ...]


Change = CreateTxn | DeleteTxn | SetDataTxn | SetAclTxn | CreateSessionTxn | CloseSessionTxn


class Transaction(NamedTuple):
    """``changes`` are in order; an error has none.

    ``digest`` is that of the tree afterwards, if the log has it.
    """

    session_id: int
    zxid: int
    time_ms: int
    changes: tuple[Change, ...]
    digest: int | None = None


def decode_transaction(payload: bytes) -> Transaction:
    """Raises JuteError."""
    reader = Reader(payload)
    session_id = reader.i64()
    reader.i32()  # cxid, the client's number of the request
    zxid, time_ms, op = reader.i64(), reader.i64(), reader.i32()
    changes = _changes(op, reader, session_id)
    digest = None
    if reader.remaining >= _DIGEST_BYTES and reader.i32() == _DIGEST_VERSION:
        digest = reader.i64() & _64_BITS
    return Transaction(session_id, zxid, time_ms, changes, digest)


def _changes(op: int, reader: Reader, session_id: int) -> tuple[Change, ...]:
    match op:
        case Op.CREATE | Op.CREATE2 | Op.CREATE_CONTAINER | Op.CREATE_TTL:
            return (_create(op, reader, session_id),)
        case Op.DELETE | Op.DELETE_CONTAINER:
            return (DeleteTxn(_path(reader)),)
        case Op.SET_DATA | Op.RECONFIG:
            return (SetDataTxn(_path(reader), reader.buffer(), reader.i32()),)
        case Op.SET_ACL:
            return (SetAclTxn(_path(reader), read_acls(reader), reader.i32()),)
        case Op.CREATE_SESSION:
            return (CreateSessionTxn(reader.i32()),)
        case Op.CLOSE_SESSION:
            return (_close_session(reader),)
        case Op.MULTI:
            return _multi(reader, session_id)
        case Op.CHECK:
            _path(reader)
            reader.i32()
            return ()
        case Op.ERROR:
            reader.i32()
            return ()
        case _:
            raise JuteError(f"{op} is not a type of transaction")


def _create(op: int, reader: Reader, session_id: int) -> CreateTxn:
    path, data, acl = _path(reader), reader.buffer(), read_acls(reader)
    owner = 0
    if op == Op.CREATE_CONTAINER:
        owner = CONTAINER_OWNER
    elif op != Op.CREATE_TTL and reader.boolean():
        owner = session_id
    creations = -1 if op == Op.CREATE and reader.remaining < 4 else reader.i32()
    if op == Op.CREATE_TTL:
        owner = TTL_OWNER | reader.i64()
    return CreateTxn(path, data, acl, owner, creations, op == Op.CREATE)


def _close_session(reader: Reader) -> CloseSessionTxn:
    if reader.remaining == _DIGEST_BYTES and reader.peek_i32() == _DIGEST_VERSION:
        return CloseSessionTxn(())  # two paths would take more
    if reader.remaining == 0:
        return CloseSessionTxn(())
    return CloseSessionTxn(tuple(reader.vector(lambda: _path(reader), 4) or ()))


def _multi(reader: Reader, session_id: int) -> tuple[Change, ...]:
    parts = reader.vector(lambda: (reader.i32(), reader.buffer()), 8) or []
    if any(op == Op.ERROR for op, _record in parts):
        return ()
    changes: list[Change] = []
    for op, record in parts:
        if op not in _IN_MULTI or record is None:
            raise JuteError(f"{op} is not a type of transaction in a multi")
        changes += _changes(op, Reader(record), session_id)
    return tuple(changes)


def _path(reader: Reader) -> str:
    path = _text(reader)
    if not path.startswith("/"):
        raise JuteError(f"{path!r} is not a path")
    return path


def _text(reader: Reader) -> str:
    return decode_text(reader.buffer() or b"")


def read_acls(reader: Reader) -> tuple[Acl, ...]:
    """Reads an ACL. Null is an empty one."""
    entries = reader.vector(lambda: Acl(reader.i32(), Id(_text(reader), _text(reader))), 12)
    return tuple(entries or ())
