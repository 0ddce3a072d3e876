"""Compares the extension with the machine's limits: append, fetch, lookup and columns (pytest-benchmark).

Each group has one benchmark whose name begins with `limit`: the least work that any program would have to do.
`make bench` runs them and writes the ratios, with `extra_info["goal"]`, to bench/results/log-engine.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import logcore
from logcore.columns import PartitionScan

MIB = 1 << 20
ROUNDS = 30
APPENDS = 32  # of 1 MiB, a round
RECORDS = 2_000_000


@pytest.fixture
def directory() -> Iterator[Path]:
    """A new directory, on tmpfs if there is one, so that no disk is measured."""
    made = Path(
        tempfile.mkdtemp(prefix="logcore-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    yield made
    shutil.rmtree(made)


def megabyte_batch() -> bytes:
    """One batch of about 1 MiB of 1 KiB records."""
    return logcore.build_batch(
        logcore.Record(value=os.urandom(1024), timestamp=1_700_000_000_000) for _ in range(1000)
    )


@pytest.mark.benchmark(group="append of 1 MiB batches")
def test_limit_write(benchmark: BenchmarkFixture, directory: Path) -> None:
    batch = megabyte_batch()

    def setup() -> tuple[tuple[int], dict[str, object]]:
        path = directory / "raw"
        path.unlink(missing_ok=True)
        return (os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND),), {}

    def write(descriptor: int) -> None:
        for _ in range(APPENDS):
            os.write(descriptor, batch)

    def teardown(descriptor: int) -> None:
        os.close(descriptor)

    benchmark.extra_info["bytes"] = APPENDS * len(batch)
    benchmark.pedantic(write, setup=setup, teardown=teardown, rounds=ROUNDS, warmup_rounds=2)


@pytest.mark.benchmark(group="append of 1 MiB batches")
def test_append(benchmark: BenchmarkFixture, directory: Path) -> None:
    batch = megabyte_batch()

    def setup() -> tuple[tuple[logcore.Log], dict[str, object]]:
        shutil.rmtree(directory / "log-0", ignore_errors=True)
        return (logcore.open(directory / "log-0", max_message_bytes=2 * MIB),), {}

    def append(log: logcore.Log) -> None:
        for _ in range(APPENDS):
            log.append_batches(batch)

    def teardown(log: logcore.Log) -> None:
        log.close()

    benchmark.extra_info["bytes"] = APPENDS * len(batch)
    benchmark.pedantic(append, setup=setup, teardown=teardown, rounds=ROUNDS, warmup_rounds=2)


SMALL_APPENDS = 20_000
SMALL_VALUE = b"v" * 100


def small_batch() -> bytes:
    """A batch of one record of 100 B."""
    return logcore.build_batch([(None, SMALL_VALUE, None, 1_700_000_000_000)])


@pytest.mark.benchmark(group="append of one-record batches, 20,000 calls")
def test_limit_small_writes(benchmark: BenchmarkFixture, directory: Path) -> None:
    """A loop that writes the same bytes, with one write for each batch."""
    batch = small_batch()

    def setup() -> tuple[tuple[int], dict[str, object]]:
        path = directory / "raw"
        path.unlink(missing_ok=True)
        return (os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND),), {}

    def write(descriptor: int) -> None:
        for _ in range(SMALL_APPENDS):
            os.write(descriptor, batch)

    benchmark.extra_info["bytes"] = SMALL_APPENDS * len(batch)
    benchmark.pedantic(write, setup=setup, teardown=os.close, rounds=ROUNDS, warmup_rounds=2)


@pytest.mark.benchmark(group="append of one-record batches, 20,000 calls")
@pytest.mark.parametrize("what", ["batches", "records"])
def test_small_appends(benchmark: BenchmarkFixture, directory: Path, what: str) -> None:
    batch = small_batch()

    def setup() -> tuple[tuple[logcore.Log], dict[str, object]]:
        shutil.rmtree(directory / "log-0", ignore_errors=True)
        return (logcore.open(directory / "log-0"),), {}

    def append_batches(log: logcore.Log) -> None:
        for _ in range(SMALL_APPENDS):
            log.append_batches(batch)

    def append_records(log: logcore.Log) -> None:
        for _ in range(SMALL_APPENDS):
            log.append(SMALL_VALUE)

    def teardown(log: logcore.Log) -> None:
        assert log.end_offset == SMALL_APPENDS
        log.close()

    append = append_batches if what == "batches" else append_records
    benchmark.extra_info["goal"] = "≥ 0.5"
    benchmark.extra_info["bytes"] = SMALL_APPENDS * len(batch)
    benchmark.pedantic(append, setup=setup, teardown=teardown, rounds=ROUNDS, warmup_rounds=2)


@pytest.fixture
def filled(directory: Path) -> Iterator[logcore.Log]:
    with logcore.open(directory / "log-0", max_message_bytes=2 * MIB) as log:
        batch = megabyte_batch()
        for _ in range(64):
            log.append_batches(batch)
        yield log


@pytest.mark.benchmark(group="fetch of 1 MiB")
def test_limit_pread(benchmark: BenchmarkFixture, filled: logcore.Log) -> None:
    descriptor = os.open(next(filled.path.glob("*.log")), os.O_RDONLY)
    size = len(filled.fetch(20_000, MIB))
    benchmark.extra_info["bytes"] = size
    benchmark(os.pread, descriptor, size, 20 * MIB)
    os.close(descriptor)


@pytest.mark.benchmark(group="fetch of 1 MiB")
def test_fetch(benchmark: BenchmarkFixture, filled: logcore.Log) -> None:
    benchmark.extra_info["bytes"] = len(filled.fetch(20_000, MIB))
    benchmark(filled.fetch, 20_000, MIB)


@pytest.fixture
def indexed(directory: Path) -> Iterator[logcore.Log]:
    """A log with 20,000 index entries, all in the active segment."""
    with logcore.open(directory / "indexed-0", max_message_bytes=2 * MIB) as log:
        batch = logcore.build_batch([b"x" * 4100])
        for _ in range(20_000):
            log.append_batches(batch)
        yield log


@pytest.mark.benchmark(group="index lookup (the limit is a method that does nothing)")
def test_limit_empty_call(benchmark: BenchmarkFixture) -> None:
    class Nothing:
        def index_position(self, offset: int) -> tuple[int, int]:
            return (0, offset)

    nothing = Nothing()
    benchmark(nothing.index_position, 12_345)


@pytest.mark.benchmark(group="index lookup (the limit is a method that does nothing)")
def test_index_lookup(benchmark: BenchmarkFixture, indexed: logcore.Log) -> None:
    base, position = indexed.index_position(12_345)
    assert base == 0
    assert position > 12_000 * 4100
    benchmark.extra_info["goal"] = "≤ 1 µs"
    benchmark(indexed.index_position, 12_345)


@pytest.mark.benchmark(group="lookup of an offset by time")
def test_limit_pread_of_a_header(benchmark: BenchmarkFixture, filled: logcore.Log) -> None:
    descriptor = os.open(next(filled.path.glob("*.log")), os.O_RDONLY)
    benchmark(os.pread, descriptor, 61, 20 * MIB)
    os.close(descriptor)


@pytest.mark.benchmark(group="lookup of an offset by time")
def test_offset_for_time(benchmark: BenchmarkFixture, directory: Path) -> None:
    with logcore.open(directory / "timed-0") as log:
        for second in range(2000):
            log.append_batches(
                logcore.build_batch(
                    logcore.Record(value=b"x" * 1000, timestamp=1_700_000_000_000 + second * 1000 + n)
                    for n in range(10)
                )
            )
        assert log.offset_for_time(1_700_001_000_005) == 10_005
        benchmark(log.offset_for_time, 1_700_001_000_005)


@pytest.fixture(scope="module")
def partition() -> Iterator[Path]:
    """A partition of 2 M records of 100 B in batches of 10,000."""
    made = Path(
        tempfile.mkdtemp(prefix="logcore-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    batch = logcore.build_batch(
        logcore.Record(value=b"v" * 100, key=b"k%05d" % n, timestamp=n) for n in range(10_000)
    )
    with logcore.open(made / "columns-0", max_message_bytes=4 * MIB) as log:
        for _ in range(RECORDS // 10_000):
            log.append_batches(batch)
    yield made / "columns-0"
    shutil.rmtree(made)


@pytest.mark.benchmark(group="columns: a table of 2 M records of 100 B appended")
def test_limit_write_of_a_table(benchmark: BenchmarkFixture, partition: Path, directory: Path) -> None:
    """A loop that writes as many bytes as the batches have, 1 MiB at a time."""
    piece = next(partition.glob("*.log")).read_bytes()[:MIB]
    total = sum(path.stat().st_size for path in partition.glob("*.log"))

    def write() -> None:
        with open(directory / "raw", "wb", buffering=0) as file:
            for _ in range(total // MIB):
                file.write(piece)

    benchmark.extra_info["bytes"] = RECORDS * 100
    benchmark.pedantic(write, rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="columns: a table of 2 M records of 100 B appended")
def test_append_table(benchmark: BenchmarkFixture, partition: Path, directory: Path) -> None:
    table = pyarrow.table(PartitionScan(partition, "columns", 0, ["key", "value", "timestamp"]))

    def append() -> None:
        shutil.rmtree(directory / "table-0", ignore_errors=True)
        with logcore.open(directory / "table-0") as log:
            log.append_table(table)

    benchmark.extra_info["bytes"] = RECORDS * 100
    benchmark.pedantic(append, rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="columns: 2 M records of 100 B")
def test_limit_memcpy(benchmark: BenchmarkFixture, partition: Path) -> None:
    """One copy of the same values and offsets into new memory."""
    source = bytes(RECORDS * 108)
    benchmark.extra_info["bytes"] = RECORDS * 100
    benchmark.pedantic(lambda: bytearray(source), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="columns: 2 M records of 100 B")
@pytest.mark.parametrize(
    "columns",
    [["value", "offset"], ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]],
    ids=["value-offset", "all"],
)
def test_columns(benchmark: BenchmarkFixture, partition: Path, columns: list[str]) -> None:
    def scan() -> int:
        return sum(
            pyarrow.record_batch(batch).num_rows for batch in PartitionScan(partition, "columns", 0, columns)
        )

    benchmark.extra_info["bytes"] = RECORDS * 100
    if columns == ["value", "offset"]:
        benchmark.extra_info["goal"] = "≥ 0.5"
    assert benchmark.pedantic(scan, rounds=5, warmup_rounds=1) == RECORDS
