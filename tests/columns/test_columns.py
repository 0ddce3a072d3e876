"""Partitions and fetched bytes as Arrow.

Broken if they failed: Spark and other users of Arrow would read wrong, missing or repeated records, or pay
for columns that they do not use.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from aiokafka.record.util import calc_crc32c

import logcore
from logcore import CorruptLogError, LogNotFoundError, OffsetOutOfRangeError
from logcore.columns import (
    COLUMNS,
    PartitionScan,
    decode_batches,
    partition_offset_for_timestamp,
    partition_offsets,
    partition_splits,
)
from tests.columns.segment_files import (
    CODECS,
    Record,
    encode,
    encode_legacy,
    sample,
    write_partition,
    write_segment,
)

ALL = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def scan(
    directory: Path, columns: list[str] | None = None, *args: int | None, **named: int | None
) -> pa.Table:
    wanted = ALL if columns is None else columns
    found = PartitionScan(directory, "orders", 3, wanted, *args, **named)  # type: ignore[arg-type]
    batches = [pa.record_batch(batch) for batch in found]
    return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in columns or ALL})


def records(table: pa.Table) -> list[Record]:
    rows = []
    for row in table.to_pylist():
        assert row["headers"] is None or row["headers"]
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        milliseconds = round(row["timestamp"].timestamp() * 1000)
        rows.append(Record(row["offset"], milliseconds, row["key"], row["value"], headers))
    return rows


# Broken if it failed: a record would be lost or changed between another project's encoder and a table.
@pytest.mark.parametrize("codec", CODECS)
def test_every_record_comes_back(tmp_path: Path, codec: str) -> None:
    written = sample(100)
    write_partition(tmp_path, written, codec)
    table = scan(tmp_path)
    assert records(table) == written
    assert set(table["topic"].to_pylist()) == {"orders"}
    assert set(table["partition"].to_pylist()) == {3}
    assert set(table["timestampType"].to_pylist()) == {0}


# Broken if it failed: Spark would refuse every batch.
def test_types_are_those_of_sparks_kafka_source(tmp_path: Path) -> None:
    write_partition(tmp_path, sample(10))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert scan(tmp_path).schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", header))),
        ]
    )


# Broken if it failed: a range of offsets would have too few or too many records.
@pytest.mark.parametrize(
    ("start", "end"), [(0, 100), (1, 99), (6, 8), (49, 51), (50, 50), (97, 100), (13, None)]
)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_ranges(tmp_path: Path, codec: str, start: int, end: int | None) -> None:
    written = sample(100)
    write_partition(tmp_path, written, codec)
    assert records(scan(tmp_path, None, start, end)) == written[start:end]


# Broken if it failed: a table would have other columns than its caller expects.
def test_only_wanted_columns_are_built_in_the_given_order(tmp_path: Path) -> None:
    write_partition(tmp_path, sample(20))
    whole = scan(tmp_path)
    for columns in (
        ["offset"],
        ["value", "key"],
        ["headers", "timestamp"],
        ["topic", "partition", "timestampType"],
    ):
        assert scan(tmp_path, columns) == whole.select(columns)


# Broken if it failed: a reader could not limit the size of its batches.
def test_batches_have_batch_rows_rows(tmp_path: Path) -> None:
    write_partition(tmp_path, sample(100))
    found = PartitionScan(tmp_path, "orders", 3, ["offset"], batch_rows=30)
    assert [pa.record_batch(batch).num_rows for batch in found] == [30, 30, 30, 10]


# Broken if it failed: a read by time, or of a whole partition, would begin or end at the wrong record.
def test_offsets_and_times(tmp_path: Path) -> None:
    written = sample(40, first=1000)
    write_partition(tmp_path, written)
    assert partition_offsets(tmp_path) == (1000, 1040)
    assert partition_offset_for_timestamp(tmp_path, 0) == 1000
    assert partition_offset_for_timestamp(tmp_path, written[25].timestamp - 999) == 1025
    assert partition_offset_for_timestamp(tmp_path, written[-1].timestamp + 1) is None


# Broken if it failed: bytes of a batch that was not written to its end would be read as records.
def test_a_torn_tail_is_not_read(tmp_path: Path) -> None:
    written = sample(30)
    write_segment(tmp_path, 0, encode(written[:20]) + encode(written[20:])[:-1])
    assert partition_offsets(tmp_path) == (0, 20)
    assert records(scan(tmp_path)) == written[:20]


# Broken if it failed: a table of a log in use would miss records or have wrong ones.
def test_a_reader_beside_a_writer_sees_whole_batches_only(tmp_path: Path) -> None:
    """A writer appends piece by piece while scans run. Each scan sees the log's first records, in order, and
    never fewer than the scan before.
    """
    written = sample(400)
    data = b"".join(encode(written[at : at + 5]) for at in range(0, 400, 5))
    write_segment(tmp_path, 0, b"")
    begun = threading.Event()

    def write() -> None:
        with (tmp_path / f"{0:020}.log").open("ab", buffering=0) as file:
            for at in range(0, len(data), 97):
                file.write(data[at : at + 97])
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(30)
    before = 0
    while writer.is_alive():
        table = scan(tmp_path, ["offset"])
        assert table["offset"].to_pylist() == list(range(table.num_rows))
        assert table.num_rows >= before
        before = table.num_rows
    writer.join()
    assert records(scan(tmp_path)) == written


# Broken if it failed: logs in the formats before Kafka 0.11 could not be read.
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_logs(tmp_path: Path, magic: int) -> None:
    written = [Record(offset, 1_400_000_000_000 + offset, b"k", b"v%d" % offset) for offset in range(5)]
    write_segment(tmp_path, 0, encode_legacy(written, magic))
    table = scan(tmp_path)
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["value"].to_pylist() == [record.value for record in written]
    assert set(table["timestampType"].to_pylist()) == {0 if magic else -1}
    with logcore.open(tmp_path, readonly=True) as log:
        found = list(log.records(1))
        assert [(record.offset, record.value) for record in found] == [
            (record.offset, record.value) for record in written[1:]
        ]
        assert b"".join(log.follow_batches(0, timeout=0)) == encode_legacy(written, magic)


# Broken if it failed: damage would be read as records, or could not be found.
def test_a_flipped_bit_is_an_error_with_offset_and_position(tmp_path: Path) -> None:
    written = sample(20)
    first, second = encode(written[:10]), bytearray(encode(written[10:]))
    second[-4] ^= 1
    write_segment(tmp_path, 0, first + bytes(second))
    write_segment(tmp_path, 20, encode(sample(5, first=20)))
    with pytest.raises(CorruptLogError, match=rf"offset 10, at position {len(first)} .* corrupt: checksum"):
        scan(tmp_path)
    assert records(scan(tmp_path, None, 0, 10)) == written[:10]


# Broken if it failed: a caller's mistake would look like a partition without records.
def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    write_partition(tmp_path, sample(10))
    with pytest.raises(ValueError, match='no column "size"; the columns are key, value'):
        scan(tmp_path, ["size"])
    with pytest.raises(ValueError, match="name at least one"):
        PartitionScan(tmp_path, "orders", 3, [])
    with pytest.raises(ValueError, match="asked for twice"):
        scan(tmp_path, ["key", "key"])
    with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 11\) are not in .*which has \[0, 10\)"):
        scan(tmp_path, None, 0, 11)
    with pytest.raises(ValueError, match="not a range"):
        scan(tmp_path, None, 5, 4)
    with pytest.raises(LogNotFoundError, match="absent"):
        scan(tmp_path / "absent")


# Broken if it failed: a client that decodes Fetch responses would lose or repeat records.
@pytest.mark.parametrize("codec", CODECS)
def test_fetched_bytes(codec: str) -> None:
    written = sample(30)
    data = b"".join(encode(written[at : at + 10], codec) for at in (0, 10, 20))
    batches, following = decode_batches(data + data[:40], "orders", 3, ALL, 5, 25)
    assert records(pa.Table.from_batches([pa.record_batch(batch) for batch in batches])) == written[5:25]
    assert following >= 25
    batches, following = decode_batches(data[:-1], "orders", 3, ["offset"])
    assert pa.record_batch(batches[0])["offset"].to_pylist() == list(range(20))
    assert following == 20


# Broken if it failed: a transaction's marker would be counted as a record.
def test_control_batches_are_left_out() -> None:
    control = bytearray(encode([Record(10, 1, struct.pack(">hh", 0, 1), b"\0" * 6)]))
    control[22] |= 0x20  # the attributes' control bit; the checksum covers them
    struct.pack_into(">I", control, 17, calc_crc32c(bytes(control[21:])))
    data = encode(sample(10)) + bytes(control) + encode(sample(5, first=11))
    batches, following = decode_batches(data, "orders", 3, ["offset"])
    found = [offset for batch in batches for offset in pa.record_batch(batch)["offset"].to_pylist()]
    assert found == [*range(10), *range(11, 16)]
    assert following == 16


# Broken if it failed: a scan and `Log.records` would disagree.
@pytest.mark.parametrize("codec", CODECS)
def test_a_scan_has_the_rows_of_log_records(tmp_path: Path, codec: str) -> None:
    """Both readers of this project must see the same records, in a log that is still being written."""
    written = sample(300)
    with logcore.open(tmp_path / "log", segment_bytes=4096) as log:
        for at in range(0, 300, 20):
            part = written[at : at + 20]
            batch = [(one.key, one.value, list(one.headers), one.timestamp) for one in part]
            log.append_batches(logcore.build_batch(batch, codec))
        rows = records(scan(tmp_path / "log"))
        assert rows == written
        assert [
            (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
            for record in log.records()
        ] == [(row.offset, row.timestamp, row.key, row.value, row.headers) for row in rows]


def test_an_open_log_can_be_scanned(tmp_path: Path) -> None:
    # Broken if it failed: a program could not read its own log as a table while it has it open.
    written = sample(300)
    with logcore.open(tmp_path / "orders-3", segment_bytes=4096, index_interval_bytes=500) as log:
        for at in range(0, 300, 20):
            part = written[at : at + 20]
            log.append_records([(one.key, one.value, list(one.headers), one.timestamp) for one in part])
        table = pa.table(log.scan())
        assert table.column_names == list(COLUMNS)
        assert records(table) == written
        assert set(table["topic"].to_pylist()) == {"orders"}
        assert set(table["partition"].to_pylist()) == {3}
        times = sorted(one.timestamp for one in written)
        early, late = times[70], times[200]
        expected = [one for one in written[10:] if early <= one.timestamp < late]
        assert records(pa.table(log.scan(offset=10, start_time=early, end_time=late))) == expected
        assert pa.table(log.scan(["offset"], start_time=times[-1] + 1)).num_rows == 0
        parts = log.splits(5)
        assert len(parts) == 5
        assert [one for part in parts for one in records(pa.table(log.scan(COLUMNS, *part)))] == written
        assert parts == partition_splits(log.path, 5)
        with pytest.raises(OffsetOutOfRangeError):
            log.scan(["offset"], 0, 301)
        with pytest.raises(ValueError, match="not a range"):
            log.scan(["offset"], start_time=5, end_time=4)
        with pytest.raises(ValueError, match="at least one"):
            log.splits(0)
        scan = log.scan(["offset"])
    with pytest.raises(logcore.LogClosedError):
        next(scan)


def test_a_scan_is_exported_once(tmp_path: Path) -> None:
    # Broken if it failed: two readers of one scan would each get a part of the records without noticing.
    write_partition(tmp_path, sample(100))
    found = PartitionScan(tmp_path, "orders", 3, ["offset"], batch_rows=40)
    first = pa.record_batch(next(found))
    assert pa.table(found)["offset"].to_pylist() == list(range(40, 100))
    assert first["offset"].to_pylist() == list(range(40))
    assert list(found) == []
    with pytest.raises(ValueError, match="exported as a stream before"):
        pa.table(found)


# Broken if it failed: a reader of committed records would get aborted ones.
def test_the_given_aborted_transactions_are_left_out() -> None:
    data = bytearray()
    for at in range(0, 40, 10):
        batch = bytearray(encode(sample(10, first=at)))
        batch[22] |= 0x10  # transactional
        struct.pack_into(">q", batch, 43, 7 if at in (10, 30) else 8)
        struct.pack_into(">I", batch, 17, calc_crc32c(bytes(batch[21:])))
        data += batch
    for aborted, left in [
        ([], range(40)),
        ([(7, 10, 25)], [*range(10), *range(20, 40)]),
        ([(7, 10, None)], [*range(10), *range(20, 30)]),
        ([(9, 0, 40)], range(40)),
        ([(8, 0, 5), (8, 20, 39)], [*range(10, 20), *range(30, 40)]),
    ]:
        batches, following = decode_batches(data, "orders", 3, ["offset"], aborted=aborted)
        found = [offset for batch in batches for offset in pa.record_batch(batch)["offset"].to_pylist()]
        assert found == list(left)
        assert following == 40
