"""What the clients' programs write, and what a reader must have found.

Record i is made of i alone, so that a program in any language makes the same ones (`Piped.java`,
`franz-go/main.go`):

    key      none when i mod 10 = 9, else "key-" and i mod 5003 in decimal
    value    none when i mod 100 = 50, else i as int64, big-endian, and then n bytes, the j-th of them
             (i + j) mod 256;
             n is 10,000 when i mod 1000 = 999, else 37 i mod 200
    headers  "index": i in decimal; then "empty": no bytes, when i mod 3 = 0

They are sent in the order of i; the client's own partitioner places them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

LARGE = 10_000
_CYCLE = bytes(range(256)) * (2 + LARGE // 256)


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Found(NamedTuple):
    """A record with its partition and offset."""

    partition: int
    offset: int
    record: Record


@functools.cache
def record(index: int) -> Record:
    key = None if index % 10 == 9 else b"key-%d" % (index % 5003)
    size = LARGE if index % 1000 == 999 else index * 37 % 200
    start = index % 256
    value = None if index % 100 == 50 else index.to_bytes(8) + _CYCLE[start : start + size]
    headers = (("index", b"%d" % index), *((("empty", b""),) if index % 3 == 0 else ()))
    return Record(key, value, headers)


@dataclass
class Ledger:
    """The records that one reader found: each of the first `count`, as it was sent, once, and in order within
    its partition.
    """

    count: int
    ends: dict[int, int] = field(default_factory=dict)
    """By partition, the offset after the last record."""
    _newest: dict[int, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def take(self, found: Found) -> None:
        partition, offset, got = found
        where = f"partition {partition}, offset {offset}"
        index = _index_of(got)
        assert index is not None, f"{where}: no such record was sent: {got}"
        assert index < self.count, f"{where}: record {index} was never sent"
        assert got == record(index), f"{where}: record {index} is not as it was sent"
        assert index not in self._seen, f"{where}: record {index} is repeated"
        assert offset == self.ends.get(partition, 0), f"{where}: {self.ends.get(partition, 0)} was expected"
        assert index > self._newest.get(partition, -1), f"{where}: record {index} comes after a later one"
        self._seen.add(index)
        self.ends[partition] = offset + 1
        self._newest[partition] = index

    def close(self) -> None:
        lost = sorted(set(range(self.count)) - self._seen)
        assert not lost, f"{len(lost)} of {self.count} records are missing, the first is {lost[0]}"


def _index_of(got: Record) -> int | None:
    for name, value in got.headers:
        if name == "index" and value is not None and value.isdigit():
            return int(value)
    return None
