"""Arrow tables are appended to a log and scanned from it."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logcore
from logcore.columns import PartitionScan

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = ["key", "value", "timestamp", "headers"]

binary = st.none() | st.binary(max_size=80)
row = st.fixed_dictionaries(
    {
        "key": binary,
        "value": binary,
        # Microseconds, as multiples of the log's milliseconds.
        "timestamp": st.integers(0, 2**47).map(lambda milliseconds: milliseconds * 1000),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=9)}),
            min_size=1,
            max_size=3,
        ),
    }
)

bytes_types = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])


def table_of(rows: list[dict[str, object]], key: pa.DataType, value: pa.DataType) -> pa.Table:
    schema = pa.schema(
        [("key", key), ("value", value), ("timestamp", pa.timestamp("us", tz="UTC")), ("headers", HEADERS)]
    )
    return pa.Table.from_pylist(rows, schema)


def scanned(path: Path, columns: list[str]) -> pa.Table:
    return pa.Table.from_batches(pa.record_batch(batch) for batch in PartitionScan(path, "t", 0, columns))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(row, min_size=1, max_size=60),
    types=st.tuples(bytes_types, bytes_types),
    codec=st.sampled_from(CODECS),
    batch_bytes=st.integers(200, 4000),
    chunk=st.integers(1, 20),
)
def test_any_table_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, object]],
    types: tuple[pa.DataType, pa.DataType],
    codec: str,
    batch_bytes: int,
    chunk: int,
) -> None:
    # Broken if it failed: a cell would be lost or changed in a log, or belong to another row.
    table = table_of(rows, *types)
    table = pa.Table.from_batches(table.to_batches(max_chunksize=chunk))
    path = tmp_path_factory.mktemp("table")
    with logcore.open(path, segment_bytes=8000, max_message_bytes=4000) as log:
        assert log.append_table(table, compression=codec, batch_bytes=batch_bytes) == (0, len(rows) - 1)
        found = scanned(path, COLUMNS)
        assert found.to_pylist() == table.to_pylist()
        # A scan's table, with its offsets, can be appended again.
        again = scanned(path, ["offset", "topic", *COLUMNS])
        assert log.append_table(again) == (len(rows), 2 * len(rows) - 1)
        assert scanned(path, COLUMNS).slice(len(rows)).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_not_larger_than_batch_bytes(tmp_path: Path, codec: str) -> None:
    # Broken if it failed: a log would refuse the batches, or get a batch for each row.
    values = [bytes([n % 251]) * 500 for n in range(1000)]
    with logcore.open(tmp_path) as log:
        log.append_table(pa.table({"value": values}), compression=codec, batch_bytes=10_000)
        data = bytes(log.fetch(0, 1 << 30))
    sizes = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        sizes.append(size)
        data = data[size:]
    assert max(sizes) <= 10_000
    assert 50 <= len(sizes) <= 60


def bad_times() -> list[tuple[pa.Table, str]]:
    """Tables whose second row has an impossible time, and the error for it."""
    before, beyond = "its timestamp is before 1970", "its timestamp is more than 64 bits"
    times = [
        *((pa.array([0, -1], pa.timestamp(unit)), before) for unit in ("s", "ms", "us", "ns")),
        (pa.array([0, -1], pa.int64()), before),
        (pa.array([0, -(2**63)], pa.timestamp("us")), before),
        (pa.array([0, 2**62], pa.timestamp("s")), beyond),
    ]
    return [(pa.table({"value": [b"a", b"b"], "timestamp": column}), text) for column, text in times]


def test_only_a_null_stands_for_the_present(tmp_path: Path) -> None:
    # Broken if it failed: a record would have another time than its row, or none instead of the present.
    units = [
        ("s", 2**53, 1000, 1),
        ("ms", 2**63 - 1, 1, 1),
        ("us", 2**63 - 1, 1, 1000),
        ("ns", 1_999_999, 1, 10**6),
    ]
    with logcore.open(tmp_path) as log:
        for unit, largest, multiply, divide in units:
            before = int(time.time() * 1000)
            column = pa.array([0, largest, None], pa.timestamp(unit))
            first, _ = log.append_table(pa.table({"value": [b""] * 3, "timestamp": column}))
            zero, large, present = [record.timestamp for record in log.records(first)]
            assert (zero, large) == (0, largest * multiply // divide), unit
            assert before <= present <= int(time.time() * 1000)


def test_an_invalid_table_is_an_error(tmp_path: Path) -> None:
    # Broken if it failed: an invalid table would end the program with a panic, which `except Exception` does
    # not catch.
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    fixed = pa.array([[{"key": "a", "value": b"1"}]] * 3, pa.list_(entry, 1))
    with logcore.open(tmp_path) as log:
        for name, expected in (
            ("headers", "column headers has the type FixedSizeList"),
            ("topic", "append a copy of it"),
        ):
            table = pa.table({"value": [b"1", b"2", b"3"], name: fixed}).slice(1)
            for source in (table, table.to_reader()):
                with pytest.raises((TypeError, ValueError), match=expected):
                    log.append_table(source)
            with pytest.raises((TypeError, ValueError)):
                log.append_table(table.to_batches()[0])
        assert log.end_offset == 0
        # The error's advice works.
        table = pa.table({"value": [b"1", b"2", b"3"], "topic": fixed}).slice(1)
        assert log.append_table(table.take(list(range(len(table))))) == (0, 1)


def test_a_level_the_codec_does_not_have_is_refused(tmp_path: Path) -> None:
    # Broken if it failed: a wrong level would silently be another level.
    table, records = pa.table({"value": [b"departed"]}), [b"departed"]
    ranges = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
    with logcore.open(tmp_path) as log:
        for codec, (least, most) in ranges.items():
            for level in (least, most):
                log.append_table(table, compression=codec, level=level)
                log.append_batches(logcore.build_batch(records, codec, level=level))
            for level in (least - 1, most + 1, -(2**31), 2**31 - 1):
                expected = rf"level {level} is none of {codec}'s, which are {least} to {most}"
                with pytest.raises(ValueError, match=expected):
                    log.append_table(table, compression=codec, level=level)
                with pytest.raises(ValueError, match=expected):
                    logcore.build_batch(records, codec, level=level)
        # -1 is gzip's default level, not its lowest.
        many = [b"%d" % n for n in range(5000)]
        times = [(None, value, None, 1000) for value in many]
        batches = {level: logcore.build_batch(times, "gzip", level=level) for level in (-1, None, 1)}
        assert batches[-1] == batches[None] != batches[1]
        assert {record.value for record in log} == {b"departed"}


def test_a_table_that_is_refused_appends_nothing(tmp_path: Path) -> None:
    # Broken if it failed: after a corrected table is appended, a part of its rows would be there twice.
    with logcore.open(tmp_path, segment_bytes=3000, max_message_bytes=2000) as log:
        good = [b"x" * 500] * 20
        wrong: list[tuple[pa.Table, type[Exception], str]] = [
            (pa.table({"value": good, "timestamp": [1] * 19 + [-5]}), ValueError, "row 19"),
            (pa.table({"value": [*good, b"y" * 3000]}), logcore.RecordTooLargeError, "max.message.bytes"),
            *((table, ValueError, f"row 1 cannot be appended: {text}") for table, text in bad_times()),
            (pa.table({"offset": [1]}), ValueError, "has neither"),
            (pa.table({"value": good, "rows": good}), ValueError, 'no column "rows"'),
            (pa.table({"value": [1.0]}), TypeError, "column value has the type Float64"),
            (pa.table({"value": pa.array([], pa.binary())}), ValueError, "no rows"),
        ]
        for table, error, text in wrong:
            with pytest.raises(error, match=text):
                log.append_table(table)
        with pytest.raises(ValueError, match="rar"):
            log.append_table(pa.table({"value": good}), compression="rar")
        with pytest.raises(TypeError, match="not list"):
            log.append_table([b"no table"])  # type: ignore[arg-type]
        assert log.end_offset == 0
        assert log.append_table(pa.table({"value": good})) == (0, 19)


def test_a_bad_row_is_refused_before_the_first_segment(tmp_path: Path) -> None:
    # Broken if it failed: of a table larger than a segment, the rows before a bad one would be appended.
    now = int(time.time() * 1000)
    good = [(b"k", b"x" * 400, None, now)] * 10
    cases: list[tuple[dict[str, int | str], logcore.RecordLike, type[Exception]]] = [
        ({"cleanup_policy": "compact"}, (None, b"keyless"), logcore.InvalidRecordError),
        (
            {"message_timestamp_after_max_ms": 1000},
            (b"k", b"v", None, now + 10**9),
            logcore.InvalidRecordError,
        ),
        ({"max_message_bytes": 4000}, (b"k", b"y" * 3500, None, now), logcore.RecordTooLargeError),
    ]
    for number, (config, bad, error) in enumerate(cases):
        log_settings: dict[str, int | str] = {"segment_bytes": 3000, "max_message_bytes": 1000} | config
        with logcore.open(tmp_path / str(number), **log_settings) as log:
            with pytest.raises(error):
                log.append_records([*good, bad])
            rows = [*good, bad if len(bad) == 4 else (None, b"keyless", None, now)]
            columns = list(zip(*rows, strict=True))
            table = pa.table(
                {"key": columns[0], "value": columns[1], "timestamp": pa.array(columns[3], pa.int64())}
            )
            with pytest.raises(error):
                log.append_table(table)
            assert log.end_offset == 0, config
            assert log.append_records(good) == (0, 9)


def test_the_largest_times(tmp_path: Path) -> None:
    # Broken if it failed: a record would be missing in Arrow, or have a wrong time there.
    with logcore.open(tmp_path) as log:
        log.append(b"a", timestamp=2**63 - 1)
        assert pa.table(log.scan(["offset"])).num_rows == 1
        with pytest.raises(
            (logcore.LogError, pa.ArrowException), match=r"offset 0 has the timestamp 9223372036854775807"
        ):
            pa.table(log.scan(["timestamp"]))
        with pytest.raises(logcore.LogError, match="offset 0 has the timestamp"):
            next(log.scan(["timestamp"]))


def test_a_batch_and_a_reader_can_be_appended(tmp_path: Path) -> None:
    # Broken if it failed: only tables could be appended.
    table = pa.table({"value": [b"a", b"b", b"c"]})
    with logcore.open(tmp_path) as log:
        assert log.append_table(table.to_batches()[0]) == (0, 2)
        assert log.append_table(table.to_reader(max_chunksize=1)) == (3, 5)
        assert [record.value for record in log.records()] == [b"a", b"b", b"c"] * 2


def test_random_bytes_fit_with_every_codec(tmp_path: Path) -> None:
    # Broken if it failed: records that grow when compressed would be refused as a batch that is too large.
    import random

    noise = random.Random(4)
    for codec in CODECS:
        with logcore.open(tmp_path / codec, compression=codec, max_message_bytes=20_000) as log:
            values = [noise.randbytes(noise.randrange(200)) for _ in range(2000)]
            log.append_records(values)
            assert [record.value for record in log.records()] == values
