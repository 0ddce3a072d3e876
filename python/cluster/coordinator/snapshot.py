"""Snapshots: the whole state of the machine in one file.

Owns the file format and its atomic replacement; knows nothing of the log. Functions block and are called
from a worker thread (writing) or before service (reading). A crash while writing leaves a ``.tmp`` file
that nobody reads; a finished file is either whole (CRC-32) or refused. A path is under :data:`NAME_PREFIX`
plus the zxid in 16 hex digits.

Format, version 1 (big-endian; ``buffer`` and ``vector`` as in :mod:`.jute`)::

    0   8 bytes  magic "LCZNODES"
    8   int      format version, 1
    12  long     last zxid applied
    20  long     last session id given
    28  vector   sessions:   long id, int timeout (ms), buffer password
    ..  vector   ACLs:       vector<ACL>; nodes name them by position
    ..  vector   nodes:      ustring path, buffer data (null allowed), int ACL's position,
                             long czxid, mzxid, pzxid, ctime, mtime,
                             int version, creations of children, ACL version, long ephemeral owner
    end-4 int    CRC-32 (IEEE) of everything before it
"""

from __future__ import annotations

import os
import struct
import zlib
from functools import partial
from pathlib import Path

from .acl import stored
from .errors import CoordinatorError, JuteError
from .jute import Acl, Reader, Writer
from .machine import State
from .sessions import Session
from .tree import NodeState

NAME_PREFIX = "snapshot."
MAGIC = b"LCZNODES"
VERSION = 1

_INT = struct.Struct(">i")
_NODE_TAIL = struct.Struct(">iqqqqqiiiq")
_NODE_BYTES_MIN = 8 + _NODE_TAIL.size


class PlainWriter(Writer):
    """Writes text as plain UTF-8. What clients are sent has surrogates, as from Java, which nobody reads back."""

    def string(self, value: str | None) -> Writer:
        return self.buffer(None if value is None else value.encode())


def snapshot_path(directory: Path, zxid: int) -> Path:
    return directory / f"{NAME_PREFIX}{zxid:016x}"


def write_snapshot(directory: Path, state: State) -> Path:
    """Writes the state and returns its file, which a crash can no longer lose. Raises OSError."""
    path = snapshot_path(directory, state.last_zxid)
    temporary = path.with_name(path.name + ".tmp")
    data = encode(state)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        # On a full disk half a snapshot takes the room that others wait for.
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(directory)
    return path


def read_snapshot(path: Path) -> State:
    """The state of a file. Raises CoordinatorError when it is not whole, OSError when it cannot be read."""
    try:
        return decode(path.read_bytes())
    except JuteError as error:
        raise CoordinatorError(f"{path} is no whole snapshot: {error}") from error


def encode(state: State) -> bytes:
    writer = PlainWriter()
    writer.out += MAGIC
    writer.i32(VERSION).i64(state.last_zxid).i64(state.last_session_id).i32(len(state.sessions))
    for session in state.sessions:
        writer.i64(session.id).i32(session.timeout_ms).buffer(session.password)
    acls: dict[tuple[Acl, ...], int] = {}
    for _path, node in state.nodes:
        acls.setdefault(node.acl, len(acls))
    writer.i32(len(acls))
    for acl in acls:
        writer.acls(acl)
    writer.i32(len(state.nodes))
    for path, node in state.nodes:
        writer.string(path).buffer(node.data)
        writer.out += _NODE_TAIL.pack(acls[node.acl], *node[2:])
    writer.out += struct.pack(">I", zlib.crc32(writer.out))
    return writer.finish()


def decode(data: bytes) -> State:
    """Raises JuteError for anything :func:`encode` did not make."""
    if len(data) < len(MAGIC) + 8 or data[: len(MAGIC)] != MAGIC:
        raise JuteError("it does not begin as one")
    if struct.unpack(">I", data[-4:])[0] != zlib.crc32(memoryview(data)[:-4]):
        raise JuteError("its checksum is wrong")
    reader = Reader(data[:-4], len(MAGIC))
    version = reader.i32()
    if version != VERSION:
        raise JuteError(f"its format version is {version}, this program reads {VERSION}")
    last_zxid, last_session_id = reader.i64(), reader.i64()
    sessions = reader.vector(lambda: Session(reader.i64(), reader.i32(), reader.buffer() or b""), 16) or []
    acls = [stored(acl or ()) for acl in reader.vector(reader.acls, 4) or []]
    return State(last_zxid, last_session_id, sessions, _nodes(reader, acls))


def _nodes(reader: Reader, acls: list[tuple[Acl, ...]]) -> list[tuple[str, NodeState]]:
    """The vector of nodes, which ends the file. There may be millions: each is read without a call for each field."""
    count = reader.i32()
    data = reader.rest()
    if not 0 <= count <= len(data) // _NODE_BYTES_MIN:
        raise JuteError(f"a vector of {count} nodes in {len(data)} bytes")
    int_at, tail_at, tail_size = _INT.unpack_from, _NODE_TAIL.unpack_from, _NODE_TAIL.size
    node_of = partial(tuple.__new__, NodeState)
    nodes = []
    position = 0
    try:
        for _ in range(count):
            (length,) = int_at(data, position)
            start = position + 4
            position = start + length
            path = data[start:position].decode()
            (size,) = int_at(data, position)
            start = position + 4
            position = start + max(size, 0)
            acl, *rest = tail_at(data, position)
            if length < 0 or size < -1 or not 0 <= acl < len(acls):
                raise JuteError(f"{path} has {size} bytes and ACL {acl} of {len(acls)}")
            content = None if size < 0 else data[start:position]
            position += tail_size
            nodes.append((path, node_of((content, acls[acl], *rest))))
    except (struct.error, UnicodeDecodeError) as error:
        raise JuteError(f"a node ends beyond the file or has no name: {error}") from error
    if position != len(data):
        raise JuteError(f"{len(data) - position} bytes remain behind the last node")
    return nodes


def sync_directory(directory: Path) -> None:
    """Makes names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
