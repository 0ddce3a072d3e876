"""Reads the files of a segment for `logcore dump-log`: index entries, and facts about batches and control
records.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cluster.cli._common import CommandError

if TYPE_CHECKING:
    from logcore._native import SegmentBatch

# Snapshots of KRaft's metadata have batches, as logs have.
CHECKPOINT = ".checkpoint"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"

NO_LIMIT = 2**31 - 1
"""The default of --max-bytes."""

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}


@dataclass(frozen=True)
class OffsetEntry:
    offset: int
    position: int


@dataclass(frozen=True)
class TimeEntry:
    timestamp: int
    offset: int


Entry = TypeVar("Entry", OffsetEntry, TimeEntry)


def check_there(path: str) -> None:
    """Refuses a file that does not exist. Called before the file's name is checked."""
    if not Path(path).exists():
        raise CommandError(f"{path} cannot be read: No such file or directory")


def base_offset(path: str) -> int:
    """The offset in the name of a segment's file."""
    name = Path(path).name.split(".")[0]
    if not name.isdecimal():
        raise CommandError(f"{path}: the name of a segment's file must begin with its base offset")
    return int(name)


def snapshot_id(path: str) -> tuple[int, int]:
    """End offset and epoch in the name of a snapshot of KRaft's metadata."""
    found = re.fullmatch(r"(\d{20})-(\d{10})\.checkpoint", Path(path).name)
    if found is None:
        raise CommandError(
            f"{path}: the name of a snapshot must be its end offset and epoch: <20 digits>-<10 digits>"
        )
    return int(found[1]), int(found[2])


def sibling(path: str, suffix: str) -> str:
    """Another file of the same segment."""
    file = Path(path)
    return str(file.with_name(file.name.split(".")[0] + suffix))


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def offset_entries(path: str) -> list[OffsetEntry]:
    """All whole entries, including the zeros of preallocated space."""
    base, data = base_offset(path), read(path)
    whole = data[: len(data) // 8 * 8]
    return [OffsetEntry(base + relative, position) for relative, position in struct.iter_unpack(">ii", whole)]


def time_entries(path: str) -> list[TimeEntry]:
    base, data = base_offset(path), read(path)
    whole = data[: len(data) // 12 * 12]
    return [TimeEntry(timestamp, base + relative) for timestamp, relative in struct.iter_unpack(">qi", whole)]


def used(entries: list[Entry], base: int) -> Iterator[Entry]:
    """The entries before the preallocated space."""
    for number, entry in enumerate(entries):
        if number > 0 and entry.offset == base:
            return
        yield entry


def position_of(entries: list[OffsetEntry], offset: int) -> int:
    """The position in the log from which to look for an offset."""
    found = bisect_right(entries, offset, key=lambda entry: entry.offset)
    return entries[found - 1].position if found else 0


def check_position(path: str, position: int) -> None:
    """Refuses an index entry with a negative position."""
    if position < 0:
        raise CommandError(f"{path}: an entry has the position {position} in the log")


@contextmanager
def failing_at(path: str, batch: SegmentBatch) -> Iterator[None]:
    """Adds file, position and offset of the batch to an error of decoding it."""
    from logcore import LogError

    try:
        yield
    except (LogError, CommandError) as error:
        offset = (
            f"last offset {batch.last_offset}" if batch.header is None else f"base offset {batch.base_offset}"
        )
        raise CommandError(f"{path}: the batch at byte {batch.position}, {offset}: {error}") from None


def timestamp_type(batch: SegmentBatch) -> str:
    if batch.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if batch.attributes & LOG_APPEND_TIME else "CreateTime"


def is_control(batch: SegmentBatch) -> bool:
    return batch.header is not None and bool(batch.attributes & CONTROL)


def record_sequence(batch: SegmentBatch, offset: int) -> int:
    """The sequence of a record in a v2 batch. Sequences wrap to 0; -1 stands for none."""
    if batch.header is None or batch.header[1] < 0:
        return -1
    return (batch.header[1] + offset - batch.base_offset) & 0x7FFFFFFF


def control_type(key: bytes | None) -> int:
    """The number of a control record's type; -1 when the key has none."""
    return int(struct.unpack_from(">h", key, 2)[0]) if key is not None and len(key) >= 4 else -1


def coordinator_epoch(value: bytes | None) -> int:
    """The coordinator epoch in a transaction's marker; -1 when the value has none."""
    return int(struct.unpack_from(">i", value, 2)[0]) if value is not None and len(value) >= 6 else -1
