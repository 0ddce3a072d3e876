"""Jute, ZooKeeper's wire encoding: primitives, and the records that requests and replies share.

Owns the conversion between bytes and values. Every length and count is checked against the bytes that remain
before memory is allocated; a wrong one raises :class:`JuteError`. Pure.

Layout (``zookeeper-jute``'s ``BinaryInputArchive``; all integers big-endian, two's complement)::

    int     4 bytes          long    8 bytes          boolean 1 byte, 0 or not
    buffer  int length, bytes; length -1 is null
    ustring as buffer; read as UTF-8, written from Java's chars: a character outside the basic plane takes
            twice three bytes
    vector  int count, elements; count -1 is null, any other negative one is empty
    Id      ustring scheme, ustring id
    ACL     int perms, Id
    Stat    czxid mzxid ctime mtime: long; version cversion aversion: int; ephemeralOwner: long;
            dataLength numChildren: int; pzxid: long  (68 bytes)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from ..errors import JuteError

MAX_BUFFER = 0xFFFFF
"""The largest frame in bytes: the default of ZooKeeper's ``jute.maxbuffer``."""

IDENTITIES_BYTES_MAX = 64 << 10
"""The most bytes of one connection's identities, which are part of each of its writes.

ZooKeeper has no limit.
"""

_KNOWN_BYTES = 1 << 10
"""Larger identities are not cached."""

_BEYOND_BASIC_PLANE = re.compile("[\U00010000-\U0010ffff]")

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_STAT = struct.Struct(">qqqqiiiqiiq")

T = TypeVar("T")


class Id(NamedTuple):
    """An identity: an authentication scheme, and a name in it."""

    scheme: str
    id: str


class Acl(NamedTuple):
    """The permissions of ``id``: a bit set of the constants in :mod:`cluster.coordinator.state.acl`."""

    perms: int
    id: Id


OPEN_ACL = Acl(31, Id("world", "anyone"))
"""All permissions for every client."""


class Stat(NamedTuple):
    """A znode's metadata as clients see it. Times are in milliseconds since 1970."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Reader:
    """Reads jute values from ``data``, never past its end."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position
        self._end = len(data)

    @property
    def remaining(self) -> int:
        """The number of bytes that are not read yet."""
        return self._end - self._position

    def _take(self, length: int) -> int:
        position = self._position
        if length > self._end - position:
            raise JuteError(f"{length} bytes needed at {position}, {self._end - position} remain")
        self._position = position + length
        return position

    def i16(self) -> int:
        """Two bytes. The transaction log has this type, jute does not."""
        value: int = _SHORT.unpack_from(self._data, self._take(2))[0]
        return value

    def i32(self) -> int:
        # As `_take`, without a call: each request has several ints.
        position = self._position
        if position + 4 > self._end:
            self._take(4)
        self._position = position + 4
        value: int = _INT.unpack_from(self._data, position)[0]
        return value

    def peek_i32(self) -> int:
        """The next int, which stays unread."""
        value = self.i32()
        self._position -= 4
        return value

    def i64(self) -> int:
        value: int = _LONG.unpack_from(self._data, self._take(8))[0]
        return value

    def boolean(self) -> bool:
        return self._data[self._take(1)] != 0

    def buffer(self) -> bytes | None:
        length = self.i32()
        position = self._position
        if not 0 <= length <= self._end - position:
            if length == -1:
                return None
            if length < 0:
                raise JuteError(f"a buffer of length {length}")
            self._take(length)
        self._position = position + length
        return self._data[position : position + length]

    def string(self) -> str | None:
        """A string or null. As in Java, bytes that are not UTF-8 read as U+FFFD."""
        raw = self.buffer()
        return None if raw is None else raw.decode("utf-8", "replace")

    def text(self) -> str:
        """A string; null reads as the empty string."""
        return self.string() or ""

    def vector(self, element: Callable[[], T], element_bytes_min: int) -> list[T] | None:
        """A vector or null. Each element has at least ``element_bytes_min`` bytes."""
        count = self.i32()
        if count == -1:
            return None
        if count * element_bytes_min > self.remaining:
            raise JuteError(f"a vector of {count} elements in {self.remaining} bytes")
        return [element() for _ in range(count)]

    def strings(self) -> list[str | None] | None:
        return self.vector(self.string, 4)

    def identity(self) -> Id:
        return Id(self.text(), self.text())

    def acl(self) -> Acl:
        return Acl(self.i32(), self.identity())

    def acls(self) -> list[Acl] | None:
        if self._data.startswith(_OPEN_BYTES, self._position):
            # Most nodes have this ACL, so it is not decoded again.
            self._position += len(_OPEN_BYTES)
            return [OPEN_ACL]
        return self.vector(self.acl, 12)

    def identities(self) -> tuple[Id, ...]:
        """vector<Id>. The same bytes come before each of a client's writes, so the result is cached."""
        start = self._position
        count = self.i32()
        if count * 8 > self.remaining:
            raise JuteError(f"a vector of {count} identities in {self.remaining} bytes")
        data, position = self._data, self._position
        try:
            for _ in range(2 * count):
                (length,) = _INT.unpack_from(data, position)
                position += 4 + max(length, 0)
        except struct.error:
            raise JuteError(f"an identity ends after {self._end} bytes") from None
        self._position = position
        known = _decode_identities if position - start <= _KNOWN_BYTES else _decode_identities.__wrapped__
        return known(data[start:position])

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        position = self._take(length)
        return self._data[position : position + length]

    def rest(self) -> bytes:
        """All bytes that are not read yet."""
        return self.take(self.remaining)

    def peek_rest(self) -> bytes:
        """All bytes that are not read yet, which stay unread."""
        return self._data[self._position :]


class Writer:
    """Appends jute values to ``out``."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray()

    def i16(self, value: int) -> Writer:
        self.out += _SHORT.pack(value)
        return self

    def i32(self, value: int) -> Writer:
        self.out += _INT.pack(value)
        return self

    def i64(self, value: int) -> Writer:
        self.out += _LONG.pack(value)
        return self

    def boolean(self, value: bool) -> Writer:
        self.out.append(1 if value else 0)
        return self

    def buffer(self, value: bytes | None) -> Writer:
        if value is None:
            self.out += b"\xff\xff\xff\xff"
        else:
            self.out += _INT.pack(len(value))
            self.out += value
        return self

    def string(self, value: str | None) -> Writer:
        return self.buffer(None if value is None else encode_text(value))

    def strings(self, values: Sequence[str]) -> Writer:
        self.i32(len(values))
        for value in values:
            self.string(value)
        return self

    def ids(self, values: Sequence[Id]) -> Writer:
        self.i32(len(values))
        for value in values:
            self.string(value.scheme).string(value.id)
        return self

    def acls(self, values: Sequence[Acl]) -> Writer:
        self.i32(len(values))
        for value in values:
            self.i32(value.perms).string(value.id.scheme).string(value.id.id)
        return self

    def stat(self, value: Stat) -> Writer:
        self.out += encode_stat(value)
        return self

    def finish(self) -> bytes:
        return bytes(self.out)


class PlainWriter(Writer):
    """Writes text as plain UTF-8, for data that is read again. Clients get surrogates, as from Java."""

    def string(self, value: str | None) -> Writer:
        return self.buffer(None if value is None else value.encode())


@lru_cache(maxsize=64)
def _decode_identities(data: bytes) -> tuple[Id, ...]:
    reader = Reader(data)
    return tuple(reader.vector(reader.identity, 8) or ())


@lru_cache(maxsize=64)
def encode_identities(identities: tuple[Id, ...]) -> bytes:
    """vector<Id> in plain UTF-8, for the log.

    Cached, because a client's are the same for each of its requests.
    """
    return PlainWriter().ids(identities).finish()


def encode_stat(value: Stat) -> bytes:
    return _STAT.pack(*value)


def encode_text(value: str) -> bytes:
    """Encodes a string as Java's jute does: each UTF-16 unit separately."""
    if value.isascii():
        return value.encode("ascii")
    return _BEYOND_BASIC_PLANE.sub(_surrogates, value).encode("utf-8", "surrogatepass")


def _surrogates(character: re.Match[str]) -> str:
    above = ord(character[0]) - 0x10000
    return chr(0xD800 + (above >> 10)) + chr(0xDC00 + (above & 0x3FF))


_OPEN_BYTES = Writer().acls([OPEN_ACL]).finish()


def frame(parts: Iterable[bytes]) -> bytes:
    """Returns one frame of a connection: an int length, then the parts."""
    payload = b"".join(parts)
    return _INT.pack(len(payload)) + payload
