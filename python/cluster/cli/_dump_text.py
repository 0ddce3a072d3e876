"""The text of `logcore dump-log`: the lines of DumpLogSegments (Apache Kafka 3.9) for each kind of file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli import _dump_files as files
from cluster.cli._common import CommandError
from cluster.cli._dump_metadata import control_record

if TYPE_CHECKING:
    from cluster.cli._dump_decoders import Parse
    from logcore._native import SegmentBatch

ENTRY_SIZES = {files.INDEX: 8, files.TIME_INDEX: 12}


@dataclass
class Faults:
    """Faults that are printed to standard error after all files: pairs of numbers, by file."""

    mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    timestamps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    out_of_order: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    not_found: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def print(self) -> None:
        for kind, title, line in (
            # Kafka puts each new pair in front, here and for the gaps.
            (_reversed(self.mismatches), "Mismatches in :{}", "  Index offset: {}, log offset: {}"),
            (
                self.timestamps,
                "Found timestamp mismatch in :{}",
                "  Index timestamp: {}, log timestamp: {}",
            ),
            (
                self.out_of_order,
                "Found out of order timestamp in :{}",
                "  Index timestamp: {}, Previously indexed timestamp: {}",
            ),
            (
                self.not_found,
                "The following indexed offsets are not found in the log.",
                "Indexed offset: {}, found log offset: {}",
            ),
            (_reversed(self.gaps), "Non-consecutive offsets in {}", "  {} is followed by {}"),
        ):
            for path, pairs in kind.items():
                print(title.format(path), file=sys.stderr)
                for pair in pairs:
                    print(line.format(*pair), file=sys.stderr)


def _reversed(faults: dict[str, list[tuple[int, int]]]) -> dict[str, list[tuple[int, int]]]:
    return {path: pairs[::-1] for path, pairs in faults.items()}


def note(faults: dict[str, list[tuple[int, int]]], path: str, pair: tuple[int, int]) -> None:
    faults.setdefault(str(Path(path).absolute()), []).append(pair)


# ---- .log ----


@dataclass(frozen=True)
class LogOptions:
    deep: bool
    print_data: bool
    skip_metadata: bool
    max_bytes: int


def dump_log(path: str, options: LogOptions, parse: Parse, faults: Faults) -> None:
    from logcore._native import SegmentReader

    if Path(path).name == files.BOOTSTRAP_CHECKPOINT:
        print("KRaft bootstrap snapshot")
    elif Path(path).suffix == files.CHECKPOINT:
        end_offset, epoch = files.snapshot_id(path)
        print(f"Snapshot end offset: {end_offset}, epoch: {epoch}")
    else:
        print(f"Log starting offset: {files.base_offset(path)}")
    reader = SegmentReader(path, 0, options.max_bytes)
    last_offset = -1
    for batch in reader:
        out: list[str] = []
        try:
            with files.failing_at(path, batch):
                out.append(batch_line(batch))
                for record in batch.records() if options.deep else ():
                    if last_offset not in (-1, record[0] - 1):
                        note(faults.gaps, path, (last_offset, record[0]))
                    last_offset = record[0]
                    out.append(record_line(batch, record, options, parse))
        finally:
            # Before an error, the lines so far are printed.
            sys.stdout.write("".join(f"{line}\n" for line in out))
    if reader.remaining and options.max_bytes == files.NO_LIMIT:
        print(f"Found {reader.remaining} invalid bytes at the end of {Path(path).name}")


def batch_line(batch: SegmentBatch) -> str:
    if batch.header is None:
        front = f"offset: {batch.last_offset}"
    else:
        count, base_sequence, last_sequence, producer_id, producer_epoch, epoch, base_timestamp = batch.header
        horizon = (
            f"OptionalLong[{base_timestamp}]"
            if batch.attributes & files.DELETE_HORIZON
            else "OptionalLong.empty"
        )
        front = (
            f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {count} "
            f"baseSequence: {base_sequence} lastSequence: {last_sequence} producerId: {producer_id} "
            f"producerEpoch: {producer_epoch} partitionLeaderEpoch: {epoch} "
            f"isTransactional: {truth(batch.attributes & files.TRANSACTIONAL)} "
            f"isControl: {truth(batch.attributes & files.CONTROL)} deleteHorizonMs: {horizon}"
        )
    return (
        f"{front} position: {batch.position} {files.timestamp_type(batch)}: {batch.max_timestamp} size: "
        f"{batch.size} magic: {batch.magic} compresscodec: {batch.compression} crc: {batch.crc} isvalid: "
        f"{truth(batch.valid)}"
    )


def truth(value: int) -> str:
    return "true" if value else "false"


def size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def record_line(
    batch: SegmentBatch,
    record: tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None],
    options: LogOptions,
    parse: Parse,
) -> str:
    offset, timestamp, key, value, headers, crc = record
    line = ""
    prefix = "| "
    if not options.skip_metadata:
        line = (
            f"| offset: {offset} {files.timestamp_type(batch)}: {timestamp} "
            f"keySize: {size(key)} valueSize: {size(value)}"
        )
        prefix = " "
        if batch.header is not None:
            names = ",".join(name for name, _ in headers)
            line += f" sequence: {files.record_sequence(batch, offset)} headerKeys: [{names}]"
        if crc is not None:
            # The brace is Kafka's.
            line += f" isValid: true crc: {crc}}}"
        if files.is_control(batch):
            line += control_text(key, value)
    if options.print_data and not files.is_control(batch):
        shown_key, shown_value = parse(offset, key, value)
        if shown_key is not None:
            line += f"{prefix}key: {shown_key}"
        if shown_value is not None:
            line += f" payload: {shown_value}"
    return line


def control_text(key: bytes | None, value: bytes | None) -> str:
    number = files.control_type(key)
    name = files.CONTROL_TYPES.get(number, "UNKNOWN")
    if name in ("ABORT", "COMMIT"):
        return f" endTxnMarker: {name} coordinatorEpoch: {files.coordinator_epoch(value)}"
    shown = control_record(number, value)
    return f" {shown}" if shown is not None else f" controlType: {name}({number})"


# ---- .index and .timeindex ----


def check_sanity(path: str) -> None:
    """What Kafka checks of an index when it starts."""
    suffix, base = Path(path).suffix, files.base_offset(path)
    left = len(files.read(path)) % ENTRY_SIZES[suffix]
    if left:
        raise CommandError(
            f"Corrupt index found, {path}: its size is not a multiple of {ENTRY_SIZES[suffix]}"
        )
    offsets: list[int]
    if suffix == files.INDEX:
        offsets = [entry.offset for entry in files.offset_entries(path)]
    else:
        times = files.time_entries(path)
        offsets = [entry.offset for entry in times]
        if times and times[-1].timestamp < times[0].timestamp:
            raise CommandError(f"Corrupt time index found, {path}: the last timestamp is less than the first")
    if offsets and offsets[-1] < base:
        raise CommandError(
            f"Corrupt index found, {path}: the last offset {offsets[-1]} is less than the first"
        )
    print(f"{path} passed sanity check.")


def dump_index(
    path: str, sanity_only: bool, verify_only: bool, max_message_size: int, faults: Faults
) -> None:
    from logcore._native import SegmentReader

    entries = files.offset_entries(path)
    if not entries:
        print(f"{path} is empty.")
        return
    if sanity_only:
        check_sanity(path)
        return
    log = files.sibling(path, files.LOG)
    for entry in files.used(entries, files.base_offset(path)):
        files.check_position(path, entry.position)
        batch = next(iter(SegmentReader(log, entry.position, entry.position + max_message_size)), None)
        if batch is None:
            raise CommandError(
                f"{path}: no batch of at most {max_message_size} bytes begins at byte {entry.position} of "
                f"{log}"
            )
        if batch.last_offset != entry.offset:
            note(faults.mismatches, path, (entry.offset, batch.last_offset))
        if not verify_only:
            print(f"offset: {entry.offset} position: {entry.position}")


def dump_time_index(path: str, sanity_only: bool, verify_only: bool, faults: Faults) -> None:
    if sanity_only:
        check_sanity(path)
        return
    index = files.sibling(path, files.INDEX)
    base = files.base_offset(path)
    positions = list(files.used(files.offset_entries(index), base)) if Path(index).exists() else []
    previous = -1
    for entry in files.used(files.time_entries(path), base):
        check_time_entry(path, entry, files.position_of(positions, entry.offset), previous, faults)
        if not verify_only:
            print(f"timestamp: {entry.timestamp} offset: {entry.offset}")
        previous = entry.timestamp


def check_time_entry(path: str, entry: files.TimeEntry, position: int, previous: int, faults: Faults) -> None:
    from logcore._native import SegmentReader

    files.check_position(files.sibling(path, files.INDEX), position)
    batches: Iterable[SegmentBatch] = SegmentReader(files.sibling(path, files.LOG), position)
    found = next((batch for batch in batches if batch.last_offset >= entry.offset), None)
    if found is None or found.last_offset != entry.offset:
        note(faults.not_found, path, (entry.offset, -1 if found is None else found.last_offset))
        return
    largest = max((timestamp for _, timestamp, *_ in found.records()), default=-1)
    if largest != entry.timestamp:
        note(faults.timestamps, path, (entry.timestamp, largest))
    if previous >= entry.timestamp:
        note(faults.out_of_order, path, (entry.timestamp, previous))


# ---- .txnindex and .snapshot ----


def dump_transactions(path: str) -> None:
    from logcore._native import read_transaction_index

    for producer_id, first, last, stable in read_transaction_index(path):
        print(
            f"version: 0 producerId: {producer_id} firstOffset: {first} lastOffset: {last} lastStableOffset: "
            f"{stable}"
        )


def dump_producers(path: str) -> None:
    from logcore import CorruptLogError
    from logcore._native import read_producer_snapshot

    try:
        producers = read_producer_snapshot(path)
    except CorruptLogError as error:
        # As Kafka does: the next file is dumped nevertheless.
        print(error, file=sys.stderr)
        return
    for producer_id, epoch, coordinator_epoch, first_offset, last_timestamp, last in producers:
        opened = "OptionalLong.empty" if first_offset < 0 else f"OptionalLong[{first_offset}]"
        line = (
            f"producerId: {producer_id} producerEpoch: {epoch} coordinatorEpoch: {coordinator_epoch} "
            f"currentTxnFirstOffset: {opened} lastTimestamp: {last_timestamp} "
        )
        if last is not None:
            first_sequence, last_sequence, last_offset, delta, timestamp = last
            line += (
                f"firstSequence: {first_sequence} lastSequence: {last_sequence} lastOffset: {last_offset} "
                f"offsetDelta: {delta} timestamp: {timestamp}"
            )
        print(line)
