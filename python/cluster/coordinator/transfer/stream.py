"""A file of Apache ZooKeeper's, read once from its beginning.

Memory grows with the bytes that are there, never with a length that the file claims.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .common import Damaged, decode_text

BYTES_MAX = 64 << 20
"""The longest string, data or record that is read. ZooKeeper's default ``jute.maxbuffer`` is 1 MiB."""

_CHUNK = 1 << 20
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")

Tell = Callable[[int], None]
"""Called with the number of bytes that are read."""


class Stream:
    """The bytes of a file, plain or unzipped, and their Adler-32. Damage raises :class:`.common.Damaged`."""

    def __init__(self, path: Path, file: BinaryIO, tell: Tell, zipped: bool = False) -> None:
        self._path = path
        self._raw = file
        self._file: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if zipped else file
        self._zipped = zipped
        self._tell = tell
        self._window = b""
        self._next = 0
        self._before = 0
        self._adler = 1
        self._summed = 0

    @property
    def position(self) -> int:
        """The offset of the next byte; in a zipped file, of the unzipped bytes."""
        return self._before + self._next

    def damaged(self, what: str, position: int | None = None) -> Damaged:
        """Returns an error at ``position``, or at the next byte."""
        place = self.position if position is None else position
        of = " of its unzipped content" if self._zipped else ""
        return Damaged(f"{self._path}, byte {place}{of}: {what}")

    def checksum(self) -> int:
        """Returns the Adler-32 of everything before the next byte."""
        self._adler = zlib.adler32(memoryview(self._window)[self._summed : self._next], self._adler)
        self._summed = self._next
        return self._adler

    def up_to(self, count: int) -> bytes:
        """Returns the next ``count`` bytes, without taking them; fewer at the end."""
        if self._next + count > len(self._window):
            self._fill(count)
        start = self._next
        self._next = min(start + count, len(self._window))
        return self._window[start : self._next]

    def take(self, count: int) -> bytes:
        """Returns the next ``count`` bytes."""
        found = self.up_to(count)
        if len(found) < count:
            raise self.damaged(f"the file ends {count - len(found)} bytes too early")
        return found

    def i32(self) -> int:
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def i64(self) -> int:
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def buffer(self) -> bytes | None:
        position = self.position
        length = self.i32()
        if length == -1:
            return None
        if not 0 <= length <= BYTES_MAX:
            raise self.damaged(f"{length} is not a length", position)
        return self.take(length)

    def text(self) -> str:
        position = self.position
        raw = self.buffer()
        if raw is None:
            raise self.damaged("a string is null", position)
        return decode_text(raw)

    def _fill(self, count: int) -> None:
        """Reads until the window has ``count`` bytes from the next one on, or the file ends."""
        self.checksum()
        parts = [self._window[self._next :]]
        have = len(parts[0])
        self._before += self._next
        while have < count:
            part = self._read()
            if not part:
                break
            parts.append(part)
            have += len(part)
        self._window, self._next, self._summed = b"".join(parts), 0, 0
        self._tell(self._raw.tell())

    def _read(self) -> bytes:
        try:
            return self._file.read(_CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.damaged(f"it cannot be unzipped: {error}") from error
