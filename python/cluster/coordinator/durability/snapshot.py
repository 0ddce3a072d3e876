"""Snapshots: the whole state of the machine in one file.

Owns the file format and its atomic replacement; knows nothing of the log. :func:`walk` gives the bytes piece by piece: they are of
the state at its call, however much is applied meanwhile. A :class:`SnapshotFile` and what reads one block, and are used from a worker
thread or before service; :func:`write_in_turns` brings the two together on the event loop. A crash while writing leaves a ``.tmp``
file that nobody reads; a finished file is either whole (CRC-32) or refused. A path is under :data:`SNAPSHOT_PREFIX` plus the zxid in
16 hex digits.

Format, version 4 (big-endian; ``buffer`` and ``vector`` as in :mod:`.jute`; versions 2 and 3 are :mod:`.walk`'s)::

    0   8 bytes  magic "LCZNODES"
    8   int      format version, 4
    12  long     last zxid applied
    20  long     last session id given
    28  vector   sessions:   long id, int timeout (ms), buffer password
    ..  int      nodes, each:
                             ustring path, buffer data (null allowed), int ACL's number; vector<ACL> if no node had it before,
                             long czxid, mzxid, pzxid, ctime, mtime,
                             int version, creations of children, ACL version, long ephemeral owner
    end-4 int    CRC-32 (IEEE) of everything before it

Version 1 is read, too: it has a vector of all ACLs before the nodes, and none among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ..errors import CoordinatorError, JuteError
from ..protocol.jute import Acl, PlainWriter, Reader
from ..state.acl import stored
from ..state.machine import Machine, State
from ..state.sessions import Session
from ..state.tree import NodeState

SNAPSHOT_PREFIX = "snapshot."
MAGIC = b"LCZNODES"
VERSION = 4
SLICE_NODES = 64
"""So many nodes are written at once: 100 microseconds or so, by which whoever asks meanwhile waits longer."""
SLICE_BYTES = 64 << 10
"""Or fewer, if they have this much."""
PAUSE_SECONDS = 0.001
"""Between two turns at writing, for everybody else."""
_SLICES_PER_MS = 4
_TURN_SLICES = 128
_TURN_BYTES = 2 << 20
"""What is written in one turn at most: so many slices, and none behind so many bytes."""

Nodes = Generator[tuple[str, NodeState], None, None]

_INT = struct.Struct(">i")
_NODE_TAIL = struct.Struct(">qqqqqiiiq")
_NODE_BYTES_MIN = 12 + _NODE_TAIL.size


def snapshot_path(directory: Path, zxid: int) -> Path:
    return directory / f"{SNAPSHOT_PREFIX}{zxid:016x}"


class SnapshotFile:
    """A snapshot that is being written; nobody takes it for one before it is finished."""

    def __init__(self, directory: Path, zxid: int) -> None:
        """Raises OSError."""
        self.path = snapshot_path(directory, zxid)
        self._temporary = self.path.with_name(self.path.name + ".tmp")
        self._file: BinaryIO = open(self._temporary, "wb")  # noqa: SIM115 - it is closed by its end
        self._crc = 0

    def write(self, piece: bytes) -> None:
        """Raises OSError."""
        self._crc = zlib.crc32(piece, self._crc)
        self._file.write(piece)

    def finish(self) -> Path:
        """Its file, which a crash can no longer lose. Raises OSError."""
        self._file.write(struct.pack(">I", self._crc))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        sync_directory(self.path.parent)
        return self.path

    def abandon(self) -> None:
        """Removes what there is of it: on a full disk half a snapshot takes the room that others wait for."""
        with contextlib.suppress(OSError):  # the rest of it may have no room, either
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def write_snapshot(directory: Path, state: State) -> Path:
    """Writes the state and returns its file, which a crash can no longer lose. Raises OSError."""
    file = SnapshotFile(directory, state.last_zxid)
    try:
        for piece in _pieces_of(state):
            file.write(piece)
        return file.finish()
    except BaseException:
        file.abandon()
        raise


async def write_in_turns(
    begin: Callable[[], SnapshotFile],
    pieces: Generator[bytes, None, None],
    finish: Callable[[SnapshotFile], Path],
    executor: Executor | None,
    hurries: Callable[[], bool],
) -> Path:
    """Writes the pieces in a thread, in turns: in between the event loop is everybody else's, a little less once it ``hurries``.
    Returns what ``finish`` does. Raises OSError."""
    loop = asyncio.get_running_loop()
    run = partial(loop.run_in_executor, executor)
    try:
        file = await run(begin)
        busy = 0.0
        try:
            while turn := b"".join(turn_of(pieces, max(int(busy * 1000), int(hurries())))):
                ended = time.thread_time()
                await run(file.write, turn)
                if not hurries():
                    await asyncio.sleep(PAUSE_SECONDS)
                busy = time.thread_time() - ended  # what the disk takes is not the loop's
            return await run(finish, file)
        except BaseException:
            file.abandon()
            raise
    finally:
        pieces.close()


def turn_of(pieces: Iterator[bytes], milliseconds: int) -> Iterator[bytes]:
    """What is written in a turn, when the loop was others' for so long since the last: four slices for each millisecond, a third of a
    busy loop's time, and one where it was not busy, so that nobody waits long. Nothing once there is nothing left."""
    size = 0
    for piece in itertools.islice(pieces, min(max(milliseconds * _SLICES_PER_MS, 1), _TURN_SLICES)):
        yield piece
        size += len(piece)
        if size >= _TURN_BYTES:
            return


def read_snapshot(path: Path) -> State:
    """The state of a file. Raises CoordinatorError when it is not whole, OSError when it cannot be read."""
    try:
        return decode(path.read_bytes())
    except JuteError as error:
        raise CoordinatorError(f"{path} is no whole snapshot: {error}") from error


def walk(machine: Machine) -> Generator[bytes, None, None]:
    """The pieces of a snapshot of the state as it is now, all but the checksum. The iterator is to be read to its end or closed."""
    sessions = machine.sessions
    head = _head(machine.last_zxid, sessions.last_id, sessions.all(), len(machine.tree))
    return node_pieces(head, machine.tree.walk())


def encode(state: State) -> bytes:
    data = b"".join(_pieces_of(state))
    return data + struct.pack(">I", zlib.crc32(data))


def _pieces_of(state: State) -> Generator[bytes, None, None]:
    head = _head(state.last_zxid, state.last_session_id, state.sessions, len(state.nodes))
    return node_pieces(head, (each for each in state.nodes))


def _head(last_zxid: int, last_session_id: int, sessions: list[Session], nodes: int) -> PlainWriter:
    writer = PlainWriter()
    writer.out += MAGIC
    writer.i32(VERSION).i64(last_zxid).i64(last_session_id).i32(len(sessions))
    for session in sessions:
        writer.i64(session.id).i32(session.timeout_ms).buffer(session.password)
    writer.i32(nodes)
    return writer


def node_pieces(writer: PlainWriter, nodes: Nodes) -> Generator[bytes, None, None]:
    """What is written already, then the nodes."""
    acls: dict[tuple[Acl, ...], int] = {}
    since = 0
    try:
        for path, node in nodes:
            is_new = node.acl not in acls
            writer.string(path).buffer(node.data).i32(acls.setdefault(node.acl, len(acls)))
            if is_new:
                writer.acls(node.acl)
            writer.out += _NODE_TAIL.pack(*node[2:])
            since += 1
            if since >= SLICE_NODES or len(writer.out) >= SLICE_BYTES:
                yield bytes(writer.out)
                writer.out.clear()
                since = 0
        yield bytes(writer.out)
    finally:
        nodes.close()


def decode(data: bytes) -> State:
    """Raises JuteError for anything :func:`encode` did not make, of this version or of the first."""
    if len(data) < len(MAGIC) + 8 or data[: len(MAGIC)] != MAGIC:
        raise JuteError("it does not begin as one")
    if struct.unpack(">I", data[-4:])[0] != zlib.crc32(memoryview(data)[:-4]):
        raise JuteError("its checksum is wrong")
    reader = Reader(data[:-4], len(MAGIC))
    version = reader.i32()
    if version not in (1, VERSION):
        raise JuteError(f"its format version is {version}, this program reads 1 and {VERSION}")
    last_zxid, last_session_id = reader.i64(), reader.i64()
    sessions = reader.vector(lambda: Session(reader.i64(), reader.i32(), reader.buffer() or b""), 16) or []
    acls = reader.vector(reader.acls, 4) or [] if version == 1 else None
    return State(last_zxid, last_session_id, sessions, read_nodes(reader, acls))


def read_nodes(reader: Reader, all_acls: list[list[Acl] | None] | None = None) -> list[tuple[str, NodeState]]:
    """What :func:`node_pieces` wrote, to the end of the data; with ``all_acls`` none are among the nodes. Raises JuteError.

    There may be millions: each is read without a call for each field.
    """
    count = reader.i32()
    data = reader.rest()
    if not 0 <= count <= len(data) // _NODE_BYTES_MIN:
        raise JuteError(f"a vector of {count} nodes in {len(data)} bytes")
    acls = [stored(acl or ()) for acl in all_acls or ()]
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
            content = None if size < 0 else data[start:position]
            (acl,) = int_at(data, position)
            position += 4
            if acl == len(acls) and all_acls is None:
                inside = Reader(data, position)
                acls.append(stored(inside.acls() or ()))
                position = len(data) - inside.remaining
            if length < 0 or size < -1 or not 0 <= acl < len(acls):
                raise JuteError(f"{path} has {size} bytes and ACL {acl} of {len(acls)}")
            nodes.append((path, node_of((content, acls[acl], *tail_at(data, position)))))
            position += tail_size
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
