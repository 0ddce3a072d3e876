"""A member's snapshots, written while it serves, and read.

Owns the format. The quorum owns the file around it, with its checksum. :func:`walk` yields the bytes piece by
piece: they are of the state at its call, while later commands are applied. Pure. The walk runs on the event
loop, :func:`read` on any thread.

Format, version 3 (big-endian; ``buffer`` and ``vector`` as in :mod:`cluster.coordinator.protocol.jute`;
versions 1 and 4 are those of :mod:`cluster.coordinator.durability.snapshot`)::

    0   8 bytes  magic "LCZNODES"
    8   int      format version, 3
    12  long     index and long term of the last entry applied
    28  long     epoch, long counter: of the last zxid
    44  long     time of the last entry, in milliseconds
    52  ustring  members, as in ``/zookeeper/config``, long version of the configuration
    ..  boolean  whether a change of the members has begun, and if so:
                     long zxid, ustring members, boolean whether it is allowed
    ..  vector   last ids:   int first byte of a session's id, long last session id
    ..  vector   sessions:   long id, int timeout (ms), buffer password, long attachment
    ..  int      nodes, each as in version 4
"""

from __future__ import annotations

import struct
from collections.abc import Generator

from ..durability.snapshot import MAGIC, node_pieces, read_nodes
from ..errors import CoordinatorError, JuteError
from ..protocol.jute import PlainWriter, Reader
from ..state.machine import Machine, State
from ..state.members import Member, configured_members, members_text
from ..state.sessions import Session
from .agreed import Agreed, Reconfiguration

VERSION = 3

_HEAD = struct.Struct(">qqqqq")


def walk(agreed: Agreed) -> Generator[bytes, None, None]:
    """Yields the pieces of a snapshot of the present state.

    The iterator has to be read to its end, or closed.
    """
    writer = PlainWriter()
    writer.out += MAGIC
    writer.i32(VERSION)
    writer.out += _HEAD.pack(agreed.index, agreed.term, agreed.epoch, agreed.counter, agreed.time_ms)
    writer.string(members_text(agreed.members)).i64(agreed.version)
    asked = agreed.reconfiguration
    writer.boolean(asked is not None)
    if asked is not None:
        writer.i64(asked.zxid).string(members_text(asked.members)).boolean(asked.is_allowed)
    writer.i32(len(agreed.last_ids))
    for first, last in sorted(agreed.last_ids.items()):
        writer.i32(first).i64(last)
    sessions = sorted(agreed.machine.sessions.all())
    writer.i32(len(sessions))
    for session in sessions:
        writer.i64(session.id).i32(session.timeout_ms).buffer(session.password)
        writer.i64(agreed.attachments[session.id])
    writer.i32(len(agreed.machine.tree))
    return node_pieces(writer, agreed.machine.tree.walk())


def read(data: bytes) -> Agreed:
    """Returns the state of a snapshot. Raises JuteError, or ValueError if the nodes are not a tree."""
    if data[: len(MAGIC)] != MAGIC:
        raise JuteError("it does not begin like a snapshot")
    reader = Reader(data, len(MAGIC))
    version = reader.i32()
    if version != VERSION:
        raise JuteError(f"its format version is {version}, this program reads {VERSION}")
    agreed = Agreed()
    head = _HEAD.unpack(reader.take(_HEAD.size))
    agreed.index, agreed.term, agreed.epoch, agreed.counter, agreed.time_ms = head
    agreed.members, agreed.version = _members(reader), reader.i64()
    if reader.boolean():
        agreed.reconfiguration = Reconfiguration(reader.i64(), _members(reader), reader.boolean())
    agreed.last_ids = dict(reader.vector(lambda: (reader.i32(), reader.i64()), 12) or [])
    sessions = []
    for session, attachment in reader.vector(lambda: (_session(reader), reader.i64()), 24) or []:
        sessions.append(session)
        agreed.attachments[session.id] = attachment
    last_zxid = agreed.epoch << 32 | agreed.counter
    agreed.machine = Machine(State(last_zxid, 0, sessions, read_nodes(reader)))
    return agreed


def _members(reader: Reader) -> tuple[Member, ...]:
    try:
        return configured_members(reader.text().encode())
    except CoordinatorError as error:
        raise JuteError(f"its members: {error}") from None


def _session(reader: Reader) -> Session:
    return Session(reader.i64(), reader.i32(), reader.buffer() or b"")
