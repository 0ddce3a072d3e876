"""`logcore dump-log` for programs: a line of JSON for each entry or record, or an Arrow stream of records."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cluster.cli import _dump_files as files
from cluster.cli._common import CommandError

if TYPE_CHECKING:
    import pyarrow

    from cluster.cli._dump_decoders import Parse
    from logcore._native import SegmentBatch

ARROW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
# The bytes of batches that are decoded at a time.
ARROW_BYTES = 4 << 20


# ---- JSON ----


def json_rows(path: str, parse: Parse | None, max_bytes: int) -> Iterator[dict[str, Any]]:
    """One row for each record of a `.log` file, or each entry of another file.

    `parse` is the decoder that the user chose. Without one, keys and values are text if they are UTF-8, and
    otherwise `{"base64": ...}`.
    """
    suffix = Path(path).suffix
    if suffix in (files.LOG, files.CHECKPOINT):
        return record_rows(path, parse, max_bytes)
    if suffix == files.INDEX:
        entries = files.used(files.offset_entries(path), files.base_offset(path))
        return ({"file": path, "offset": entry.offset, "position": entry.position} for entry in entries)
    if suffix == files.TIME_INDEX:
        times = files.used(files.time_entries(path), files.base_offset(path))
        return ({"file": path, "timestamp": entry.timestamp, "offset": entry.offset} for entry in times)
    if suffix == files.TXN_INDEX:
        return transaction_rows(path)
    return producer_rows(path)


def record_rows(path: str, parse: Parse | None, max_bytes: int) -> Iterator[dict[str, Any]]:
    for batch in file_batches(path, max_bytes):
        with files.failing_at(path, batch):
            yield from batch_rows(path, batch, parse)


def file_batches(path: str, max_bytes: int) -> Iterator[SegmentBatch]:
    """The batches of a file. Bytes at its end that are not a batch are reported on standard error, not as
    a row.
    """
    from logcore._native import SegmentReader

    reader, end = SegmentReader(path, 0, max_bytes), 0
    for batch in reader:
        end = batch.position + batch.size
        yield batch
    if reader.remaining and max_bytes == files.NO_LIMIT:
        sys.stdout.flush()
        print(
            f"Found {reader.remaining} invalid bytes at the end of {path}, from byte {end} on",
            file=sys.stderr,
        )


def batch_rows(path: str, batch: SegmentBatch, parse: Parse | None) -> Iterator[dict[str, Any]]:
    front = {"file": path, **batch_fields(batch)}
    for offset, timestamp, key, value, headers, _ in batch.records():
        row = {**front, "offset": offset, "timestamp": timestamp}
        if batch.header is not None:
            row["sequence"] = files.record_sequence(batch, offset)
        if files.is_control(batch):
            row["control"] = files.CONTROL_TYPES.get(files.control_type(key), "UNKNOWN")
            if row["control"] in ("ABORT", "COMMIT"):
                row["coordinatorEpoch"] = files.coordinator_epoch(value)
        elif parse is None:
            row["key"], row["value"] = json_bytes(key), json_bytes(value)
        else:
            row["key"], row["value"] = parse(offset, key, value)
        row["headers"] = [[name, json_bytes(content)] for name, content in headers]
        yield row


def batch_fields(batch: SegmentBatch) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "position": batch.position,
        "magic": batch.magic,
        "compression": batch.compression,
        "timestampType": files.timestamp_type(batch),
        "valid": batch.valid,
    }
    if batch.header is not None:
        _, _, _, producer_id, producer_epoch, epoch, _ = batch.header
        fields |= {
            "producerId": producer_id,
            "producerEpoch": producer_epoch,
            "leaderEpoch": epoch,
            "transactional": bool(batch.attributes & files.TRANSACTIONAL),
        }
    return fields


def json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def transaction_rows(path: str) -> Iterator[dict[str, Any]]:
    from logcore._native import read_transaction_index

    for producer_id, first, last, stable in read_transaction_index(path):
        yield {
            "file": path,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }


def producer_rows(path: str) -> Iterator[dict[str, Any]]:
    from logcore._native import read_producer_snapshot

    names = ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")
    for producer_id, epoch, coordinator_epoch, first, last_timestamp, last in read_producer_snapshot(path):
        yield {
            "file": path,
            "producerId": producer_id,
            "producerEpoch": epoch,
            "coordinatorEpoch": coordinator_epoch,
            "currentTxnFirstOffset": None if first < 0 else first,
            "lastTimestamp": last_timestamp,
            "lastBatch": None if last is None else dict(zip(names, last, strict=True)),
        }


def dump_json(path: str, parse: Parse | None, max_bytes: int) -> None:
    for row in json_rows(path, parse, max_bytes):
        # In ASCII, with escapes, so that the terminal's encoding does not matter.
        sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")


# ---- Arrow ----


def arrow_chunks(path: str, max_bytes: int) -> Iterator[tuple[int, list[SegmentBatch]]]:
    """The batches of a file, some megabytes at a time, and the first offset of each piece."""
    start, size = 0, 0
    chunk: list[SegmentBatch] = []
    for batch in file_batches(path, max_bytes):
        if not chunk:
            start = first_offset(batch, start)
        chunk.append(batch)
        size += batch.size
        if size >= ARROW_BYTES:
            yield start, chunk
            start, size, chunk = batch.last_offset + 1, 0, []
    if chunk:
        yield start, chunk


def first_offset(batch: SegmentBatch, following: int) -> int:
    """The first offset of a batch. A legacy message has only its last offset, so it begins after the batch
    before it.
    """
    return following if batch.header is None else batch.base_offset


def arrow_batches(path: str, max_bytes: int) -> Iterator[pyarrow.RecordBatch]:
    """The records of a file, up to the first batch that cannot be decoded, which is an error."""
    import pyarrow

    from logcore import LogError
    from logcore._paths import topic_and_partition
    from logcore.columns import decode_batches

    topic, partition = topic_and_partition(Path(path).absolute().parent)

    def decode(data: bytes, start: int) -> list[pyarrow.RecordBatch]:
        return list(
            map(pyarrow.record_batch, decode_batches(data, topic, partition, ARROW_COLUMNS, start)[0])
        )

    for start, chunk in arrow_chunks(path, max_bytes):
        try:
            decoded = decode(b"".join(batch.bytes for batch in chunk), start)
        except LogError:
            for batch in chunk:
                with files.failing_at(path, batch):
                    yield from decode(batch.bytes, first_offset(batch, start))
                start = batch.last_offset + 1
        else:
            yield from decoded


def arrow_schema() -> pyarrow.Schema:
    """The schema of any batch. It is needed for a file without records."""
    import pyarrow

    from logcore import build_batch
    from logcore.columns import decode_batches

    [batch], _ = decode_batches(build_batch([b""]), "", 0, ARROW_COLUMNS)
    return pyarrow.record_batch(batch).schema


def dump_arrow(paths: list[str], out: str | None, max_bytes: int) -> None:
    """Writes the records of `.log` files as one Arrow IPC stream; control records are left out."""
    try:
        import pyarrow.ipc
    except ImportError:
        raise CommandError("--format arrow needs pyarrow: pip install pyarrow") from None

    with ExitStack() as stack:
        sink: BinaryIO
        try:
            sink = sys.stdout.buffer if out is None else stack.enter_context(open(out, "wb"))
        except OSError as error:
            raise CommandError(f"cannot write {out}: {error.strerror}") from None
        writer = None
        for path in paths:
            for batch in arrow_batches(path, max_bytes):
                if writer is None:
                    writer = stack.enter_context(pyarrow.ipc.new_stream(sink, batch.schema))
                writer.write_batch(batch)
        if writer is None:
            stack.enter_context(pyarrow.ipc.new_stream(sink, arrow_schema()))
