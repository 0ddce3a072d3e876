"""Snapshots: the whole state of the machine in one file.

Owns the file format, and its atomic replacement. :func:`walk` yields the bytes piece by piece: they are of
the state at its call, while later commands are applied. A :class:`SnapshotFile` and the readers block, and
are used on a worker thread, or before service. :func:`write_in_turns` lets the event loop make the pieces,
and a thread write them. A crash while writing leaves a ``.tmp`` file, which is never read. A finished file is
whole (CRC-32) or refused. Its name is :data:`SNAPSHOT_PREFIX` and the zxid in 16 hexadecimal digits.

Format, version 4 (big-endian; ``buffer`` and ``vector`` as in :mod:`cluster.coordinator.protocol.jute`;
version 3 is that of :mod:`cluster.coordinator.ensemble.snapshot`)::

    0   8 bytes  magic "LCZNODES"
    8   int      format version, 4
    12  long     last zxid applied
    20  long     last session id given out
    28  vector   sessions:   long id, int timeout (ms), buffer password
    ..  int      nodes, each:
                     ustring path, buffer data (may be null), int number of the ACL,
                     vector<ACL> at the number's first use, long czxid, mzxid, pzxid, ctime, mtime,
                     int version, creations of children, ACL version, long ephemeral owner
    end-4 int    CRC-32 (IEEE) of everything before it

Version 1 can be read, too: it has a vector of all ACLs before the nodes, and none among them.
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
"""The nodes of one slice, which takes about 100 microseconds. A request may wait for that long."""
SLICE_BYTES = 64 << 10
"""A slice ends at this size, too."""
PAUSE_SECONDS = 0.001
"""Between two turns of writing, for other work of the event loop."""
_SLICES_PER_MS = 4
_TURN_SLICES = 128
_TURN_BYTES = 2 << 20
"""The limits of one turn."""

Nodes = Generator[tuple[str, NodeState], None, None]

_INT = struct.Struct(">i")
_NODE_TAIL = struct.Struct(">qqqqqiiiq")
_NODE_BYTES_MIN = 12 + _NODE_TAIL.size


def snapshot_path(directory: Path, zxid: int) -> Path:
    return directory / f"{SNAPSHOT_PREFIX}{zxid:016x}"


class SnapshotFile:
    """A snapshot that is being written. It has its name once it is finished."""

    def __init__(self, directory: Path, zxid: int) -> None:
        """Opens a temporary file. Raises OSError."""
        self.path = snapshot_path(directory, zxid)
        self._temporary = self.path.with_name(self.path.name + ".tmp")
        self._file: BinaryIO = open(self._temporary, "wb")  # noqa: SIM115 - `finish` or `abandon` closes it
        self._crc = 0

    def write(self, piece: bytes) -> None:
        """Appends a piece. Raises OSError."""
        self._crc = zlib.crc32(piece, self._crc)
        self._file.write(piece)

    def finish(self) -> Path:
        """Returns the file, which a crash cannot lose any more. Raises OSError."""
        self._file.write(struct.pack(">I", self._crc))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        sync_directory(self.path.parent)
        return self.path

    def abandon(self) -> None:
        """Removes the temporary file, which takes space that a full disk needs."""
        with contextlib.suppress(OSError):  # buffered data may not fit on the disk, either
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def write_snapshot(directory: Path, state: State) -> Path:
    """Writes the state. Returns its file, which a crash cannot lose any more. Raises OSError."""
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
    """Writes the pieces in a thread, in turns, between which the event loop does other work. Once it
    ``hurries`` there is no pause.

    Returns the result of ``finish``. Raises OSError.
    """
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
                busy = time.thread_time() - ended  # the time that the disk took does not count
            return await run(finish, file)
        except BaseException:
            file.abandon()
            raise
    finally:
        pieces.close()


def turn_of(pieces: Iterator[bytes], milliseconds: int) -> Iterator[bytes]:
    """Yields the pieces of one turn: one if the loop was idle since the last turn, four for each millisecond
    that it was busy.

    So a busy loop spends about a third of its time on the snapshot, and an idle one delays no request for
    long.
    """
    size = 0
    for piece in itertools.islice(pieces, min(max(milliseconds * _SLICES_PER_MS, 1), _TURN_SLICES)):
        yield piece
        size += len(piece)
        if size >= _TURN_BYTES:
            return


def read_snapshot(path: Path) -> State:
    """Returns the state of a file.

    Raises CoordinatorError if it is not whole, OSError if it cannot be read.
    """
    try:
        return decode(path.read_bytes())
    except JuteError as error:
        raise CoordinatorError(f"{path} is not a whole snapshot: {error}") from error


def walk(machine: Machine) -> Generator[bytes, None, None]:
    """Yields the pieces of a snapshot of the present state, without the checksum.

    The iterator has to be read to its end, or closed.
    """
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
    """Yields what the writer has, then the nodes."""
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
    """Returns the state of a snapshot of version 4 or 1. Raises JuteError."""
    if len(data) < len(MAGIC) + 8 or data[: len(MAGIC)] != MAGIC:
        raise JuteError("it does not begin like a snapshot")
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
    """Reads the nodes up to the end of the data. With ``all_acls`` there are no ACLs among them. Raises
    JuteError.

    There may be millions, so each is decoded without a call for each field.
    """
    count = reader.i32()
    data = reader.rest()
    if not 0 <= count <= len(data) // _NODE_BYTES_MIN:
        raise JuteError(f"it has {count} nodes in {len(data)} bytes")
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
        raise JuteError(f"a node ends after the file, or its path is not UTF-8: {error}") from error
    if position != len(data):
        raise JuteError(f"{len(data) - position} bytes remain after the last node")
    return nodes


def sync_directory(directory: Path) -> None:
    """Flushes a directory's entries to disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
