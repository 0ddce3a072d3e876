"""Partitions written by another project's encoder, so that no test of our reader depends on our writer."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    """A record as a reader must return it; the timestamp is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode(records: list[Record], codec: str = "none") -> bytes:
    """One batch of format 2 whose offsets begin at the first record's."""
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], 0, -1, -1, -1, 1 << 30)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytearray(builder.build())
    # A broker would set the base offset, which is not part of the checksum.
    struct.pack_into(">q", batch, 0, records[0].offset)
    return bytes(batch)


def encode_legacy(records: list[Record], magic: int) -> bytes:
    """Messages of format 0 or 1, not compressed."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 30)
    for record in records:
        builder.append(record.offset, record.timestamp if magic else None, record.key, record.value)
    return bytes(builder.build())


def write_segment(directory: Path, base_offset: int, data: bytes) -> None:
    """A segment file without indexes, as if they had been deleted."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{base_offset:020}.log").write_bytes(data)


def sample(count: int, first: int = 0) -> list[Record]:
    """Records with and without keys, values and headers."""
    return [
        Record(
            offset,
            1_700_000_000_000 + offset * 1000,
            None if offset % 5 == 0 else f"key{offset}".encode(),
            None if offset % 7 == 0 else b"value" * (offset % 11),
            (("trace", str(offset).encode()), ("empty", None), ("trace", b"")) if offset % 3 == 0 else (),
        )
        for offset in range(first, first + count)
    ]


def write_partition(directory: Path, records: list[Record], codec: str = "none", per_batch: int = 7) -> None:
    """The records in batches of `per_batch`, half of them in a second segment."""
    cut = len(records) // 2
    for part in (records[:cut], records[cut:]):
        if part:
            batches = [part[at : at + per_batch] for at in range(0, len(part), per_batch)]
            write_segment(directory, part[0].offset, b"".join(encode(batch, codec) for batch in batches))
