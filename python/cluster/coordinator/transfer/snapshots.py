"""Apache ZooKeeper's snapshots, read and written.

Owns their layout (``FileSnap``, ``DataTree.serialize``). ``snapshot.<zxid in hex>``, zipped with ``.gz``. The
zxid is the last one applied when the writing began. Big-endian, strings and data as in
:mod:`cluster.coordinator.protocol.jute`::

    0   int    magic "ZKSN"
    4   int    version, 2;  long database's id, -1 (never checked)
    16  int    sessions:  long id, int timeout (ms)
    ..  int    ACLs:      long number, vector<ACL>; -1 is the open ACL, which is not listed
    ..  nodes, parents first, the root's path empty:
               ustring path, buffer data (null allowed), long ACL's number, long czxid, mzxid, ctime, mtime,
               int version, creations of children, ACL version, long owner, pzxid
    ..  ustring "/", which ends them
    ..  seal:  long Adler-32 of everything before it, ustring "/"
    ..  long zxid, int version, long digest of the tree, when the writing ended; seal   (since 3.6, if on)
    ..  long last zxid when the writing ended; seal                                     (since 3.9, if on)

A written snapshot has only the first seal. So every version can read it under all settings: a section that it
does not expect would be damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..durability.snapshot import MAGIC as OWN_MAGIC
from ..durability.snapshot import sync_directory
from ..protocol.jute import Acl, Id, Writer
from ..state import acl as access
from ..state.machine import State
from ..state.tree import ROOT, NodeState
from .common import Damaged, Progress
from .draft import Draft, DraftNode
from .stream import Stream, Tell

MAGIC = b"ZKSN"
_HEADER = MAGIC + struct.pack(">iq", 2, -1)
_OPEN = -1
_END_OF_NODES = "/"
_SEAL_BYTES = 13
_DIGEST_VERSION = 2
_64_BITS = (1 << 64) - 1
_NODE = struct.Struct(">qqqqqiiiqq")
_DIGEST = struct.Struct(">qiq")
_CHUNK = 1 << 20
_SECTIONS_BYTES_MAX = 4096


class Snapshot(NamedTuple):
    """A snapshot. It was written while the server served, so its state is consistent only with every
    transaction up to ``through``. ``digest`` is that of the tree after ``through``, if the file has it."""

    draft: Draft
    through: int
    digest: int | None


def read_snapshot(path: Path, zxid: int, tell: Tell) -> Snapshot:
    """Reads the snapshot that was begun at ``zxid``. Raises Damaged if it is not whole, OSError."""
    if path.suffix == ".snappy":
        raise Damaged(f"{path} is compressed with snappy, which cannot be read here")
    with path.open("rb") as file:
        stream = Stream(path, file, tell, zipped=path.suffix == ".gz")
        header = stream.up_to(len(_HEADER))
        if header.startswith(OWN_MAGIC):
            raise stream.damaged("this is a snapshot of this coordinator, which needs no import", 0)
        if len(header) < len(_HEADER) or not header.startswith(MAGIC):
            raise stream.damaged("it does not begin like a snapshot of Apache ZooKeeper", 0)
        draft = Draft(zxid, _sessions(stream))
        _read_nodes(stream, draft, _acls(stream))
        _check_seal(stream)
        return _after_nodes(stream, draft)


def _sessions(stream: Stream) -> dict[int, int]:
    return {stream.i64(): stream.i32() for _ in range(stream.i32())}


def _acls(stream: Stream) -> dict[int, tuple[Acl, ...]]:
    acls: dict[int, tuple[Acl, ...]] = {_OPEN: access.OPEN}
    for _ in range(stream.i32()):
        number, position, count = stream.i64(), stream.position, stream.i32()
        if count < 0:
            raise stream.damaged("an ACL is null", position)
        acls[number] = tuple(Acl(stream.i32(), Id(stream.text(), stream.text())) for _ in range(count))
    return acls


def _read_nodes(stream: Stream, draft: Draft, acls: dict[int, tuple[Acl, ...]]) -> None:
    while True:
        position = stream.position
        path = stream.text()
        if path == _END_OF_NODES:
            break
        data = stream.buffer()
        acl, czxid, mzxid, ctime, mtime, version, creations, acl_version, owner, pzxid = _NODE.unpack(
            stream.take(_NODE.size)
        )
        numbers = (czxid, mzxid, pzxid, ctime, mtime, version, creations, acl_version, owner)
        try:
            draft.add(path or ROOT, DraftNode(data, acls.get(acl, acl), *numbers))
        except ValueError as error:
            raise stream.damaged(f"a node is not possible: {error}", position) from error
    if ROOT not in draft.nodes:
        raise stream.damaged("there is no root", position)


def _check_seal(stream: Stream) -> None:
    position, expected = stream.position, stream.checksum()
    if stream.take(_SEAL_BYTES) != _seal(expected):
        raise stream.damaged("the checksum of everything before it is wrong", position)


def _after_nodes(stream: Stream, draft: Draft) -> Snapshot:
    """Reads the two optional sections after the nodes. A right seal shows that a section is there."""
    position, checksum = stream.position, stream.checksum()
    rest = stream.up_to(_SECTIONS_BYTES_MAX)
    through, digest = draft.last_zxid, None

    def sealed(end: int) -> bool:
        return rest[end : end + _SEAL_BYTES] == _seal(zlib.adler32(rest[:end], checksum))

    read = 0
    if sealed(_DIGEST.size):
        zxid, version, value = _DIGEST.unpack_from(rest)
        # A digest from before the snapshot was begun is that of another tree, and one of zxid 0 has no
        # meaning.
        if zxid >= max(through, 1) and version == _DIGEST_VERSION:
            digest = value & _64_BITS
        through = max(through, zxid)
        read = _DIGEST.size + _SEAL_BYTES
    elif sealed(
        end := _old_digest_bytes(rest)
    ):  # 3.6.0 has another function, and its value in hexadecimal digits
        through = max(through, *struct.unpack_from(">q", rest))
        read = end + _SEAL_BYTES
    if sealed(read + 8):
        last = struct.unpack_from(">q", rest, read)[0]
        if last > through:
            through, digest = last, None
        read += 8 + _SEAL_BYTES
    if read != len(rest):
        raise stream.damaged("the checksum of the data after its nodes is wrong", position + read)
    return Snapshot(draft, through, digest)


def _old_digest_bytes(rest: bytes) -> int:
    if len(rest) < 16:
        return len(rest)
    length: int = struct.unpack_from(">i", rest, 12)[0]
    return 16 + length if 0 <= length <= len(rest) else len(rest)


def _seal(checksum: int) -> bytes:
    return struct.pack(">qi", checksum, 1) + b"/"


def write_snapshot(directory: Path, state: State, progress: Progress) -> Path:
    """Writes a snapshot that Apache ZooKeeper reads, from 3.5 on. Returns its file, which a crash cannot lose
    any more.

    The name has all 16 digits. ZooKeeper writes a snapshot of the same zxid at its start, with fewer digits,
    and does not overwrite this one. Raises OSError.
    """
    path = directory / f"snapshot.{state.last_zxid:016x}"
    # ZooKeeper would read a file "snapshot.1.tmp" as a snapshot.
    temporary = directory / f".{path.name}.tmp"
    with temporary.open("wb") as file:
        _write(file, state, progress)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(directory)
    return path


def _write(file: BinaryIO, state: State, progress: Progress) -> None:
    nodes = sorted(state.nodes)  # a parent comes before its children
    acls: dict[tuple[Acl, ...], int] = {access.OPEN: _OPEN}
    for _path, node in nodes:
        acls.setdefault(node.acl, len(acls))
    writer = Writer()
    writer.out += _HEADER
    writer.i32(len(state.sessions))
    for session in state.sessions:
        writer.i64(session.id).i32(session.timeout_ms)
    writer.i32(len(acls) - 1)
    for acl, number in acls.items():
        if number != _OPEN:
            _write_acl(writer.i64(number), acl)
    checksum = 1
    for done, (path, node) in enumerate(nodes):
        _write_node(writer, "" if path == ROOT else path, node, acls[node.acl])
        if len(writer.out) >= _CHUNK:
            checksum = zlib.adler32(writer.out, checksum)
            file.write(writer.out)
            writer.out.clear()
            progress("writing nodes", done, len(nodes))
    _text(writer, _END_OF_NODES)
    checksum = zlib.adler32(writer.out, checksum)
    file.write(writer.out + _seal(checksum))
    progress("writing nodes", len(nodes), len(nodes))


def _write_acl(writer: Writer, acl: tuple[Acl, ...]) -> None:
    writer.i32(len(acl))
    for entry in acl:
        writer.i32(entry.perms)
        _text(writer, entry.id.scheme)
        _text(writer, entry.id.id)


def _write_node(writer: Writer, path: str, node: NodeState, acl: int) -> None:
    _text(writer, path)
    writer.buffer(node.data)
    writer.out += _NODE.pack(
        acl,
        node.czxid,
        node.mzxid,
        node.ctime,
        node.mtime,
        node.version,
        node.creations,
        node.acl_version,
        node.owner,
        node.pzxid,
    )


def _text(writer: Writer, value: str) -> None:
    """Writes plain UTF-8.

    Java does not read its own encoding of characters outside the basic plane correctly.
    """
    writer.buffer(value.encode("utf-8", "replace"))
