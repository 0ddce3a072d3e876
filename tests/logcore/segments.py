"""Segments with transactions, made batch by batch, as a broker leaves or writes them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import logcore

ATTRIBUTES_AT = 21
CRC_AT = 17
TRANSACTIONAL = 0x10
CONTROL = 0x20
FIRST_TIME = 1000
"""The timestamp of the record at offset 0. Each later record has a later one; markers have none."""


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _with(batch: bytes, offset: int, attributes: int) -> bytes:
    """The batch with this offset and additional attributes."""
    out = bytearray(batch)
    struct.pack_into(">q", out, 0, offset)
    (own,) = struct.unpack_from(">h", out, ATTRIBUTES_AT)
    struct.pack_into(">h", out, ATTRIBUTES_AT, own | attributes)
    struct.pack_into(">I", out, CRC_AT, crc32c(bytes(out[ATTRIBUTES_AT:])))
    return bytes(out)


class TransactionalSegment:
    """The first segment of a log, and the records that a reader of committed records must find in it."""

    def __init__(self, directory: Path, compression: str = "none") -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.path = directory / f"{0:020}.log"
        self.path.touch()
        self.end = 0
        self.aborted: list[logcore.AbortedTransaction] = []
        self._compression = compression
        self._open: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._records: list[tuple[int, int | None, bytes]] = []
        """Offset, first offset of its transaction (None without one), value."""

    def plain(self, *values: bytes) -> None:
        """Appends records without a transaction."""
        self._records += [(self.end + number, None, value) for number, value in enumerate(values)]
        self._append(logcore.build_batch(self._timed(values), self._compression), 0, len(values))

    def write(self, producer_id: int, *values: bytes) -> None:
        """Appends records in the producer's transaction, which begins with them if none is open."""
        first = self._open.setdefault(producer_id, self.end)
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(values)
        self._records += [(self.end + number, first, value) for number, value in enumerate(values)]
        batch = logcore.build_batch(
            self._timed(values), self._compression, producer=(producer_id, 0, sequence)
        )
        self._append(batch, TRANSACTIONAL, len(values))

    def finish(self, producer_id: int, *, commit: bool) -> None:
        """Appends the transaction's marker. Like a broker, writes the .txnindex only later."""
        first = self._open.pop(producer_id)
        if not commit:
            self.aborted.append(logcore.AbortedTransaction(producer_id, first, self.end))
        marker = (struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0), None, 0)
        batch = logcore.build_batch([marker], producer=(producer_id, 0, -1))
        self._append(batch, TRANSACTIONAL | CONTROL, 1)

    def step(self, choose: random.Random) -> None:
        """Appends at random: records in and outside of transactions, or the end of a transaction."""
        values = [f"{self.end} {n} ".encode() * choose.randrange(1, 9) for n in range(choose.randrange(1, 4))]
        kind = choose.random()
        producer_id = choose.randrange(4)
        if kind < 0.2:
            self.plain(*values)
        elif kind < 0.65 or producer_id not in self._open:
            self.write(producer_id, *values)
        else:
            self.finish(producer_id, commit=choose.random() < 0.5)

    def stable(self) -> int:
        """The last stable offset."""
        return min([self.end, *self._open.values()])

    def committed(self, start: int = 0, end: int | None = None) -> list[tuple[int, bytes]]:
        """Offset and value of the committed records from `start` on, before `end` and the last stable
        offset.
        """
        gone = {entry.first_offset for entry in self.aborted}
        stop = min(self.stable(), self.end if end is None else end)
        return [(at, value) for at, first, value in self._records if start <= at < stop and first not in gone]

    def uncommitted(self) -> list[tuple[int, bytes]]:
        """Offset and value of all records."""
        return [(at, value) for at, _, value in self._records]

    def _timed(self, values: tuple[bytes, ...]) -> list[tuple[None, bytes, None, int]]:
        return [(None, value, None, FIRST_TIME + self.end + n) for n, value in enumerate(values)]

    def _append(self, batch: bytes, attributes: int, count: int) -> None:
        with self.path.open("ab") as file:
            file.write(_with(batch, self.end, attributes))
        self.end += count
