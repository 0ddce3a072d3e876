"""Reading committed records: every way of reading a log, alone and beside a process that writes it."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import logcore
from logcore import Log, Record
from logcore.columns import PartitionScan, decode_batches
from tests.logcore.segments import FIRST_TIME, TransactionalSegment

Found = list[tuple[int, bytes]]


def pairs(records: Iterable[Record]) -> Found:
    return [(record.offset, record.value or b"") for record in records]


def rows(scan: Any) -> Found:
    table = pa.table(scan)
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def by_records(log: Log) -> Found:
    return pairs(log.records(isolation_level="read_committed"))


def by_follow(log: Log) -> Found:
    return pairs(log.follow(0, timeout=0, isolation_level="read_committed"))


def by_follow_async(log: Log) -> Found:
    async def run() -> list[Record]:
        return [r async for r in log.follow_async(0, timeout=0, isolation_level="read_committed")]

    return pairs(asyncio.run(run()))


def by_fetch(log: Log) -> Found:
    # As a consumer: small fetches, each with the aborted transactions of its batches.
    found: Found = []
    offset = 0
    while view := log.fetch(offset, 1000, isolation_level="read_committed"):
        aborted = log.aborted_transactions(offset)
        found += pairs(logcore.parse_batches(view, offset, aborted=aborted))
        offset = int.from_bytes(view[:8], "big")
        while view:
            offset = int.from_bytes(view[:8], "big") + int.from_bytes(view[23:27], "big") + 1
            view = view[12 + int.from_bytes(view[8:12], "big") :]
    return found


def by_follow_batches(log: Log) -> Found:
    # As in a Fetch response, only the markers say where transactions end.
    aborted = [(entry.producer_id, entry.first_offset, None) for entry in log.aborted_transactions()]
    batches = b"".join(log.follow_batches(0, timeout=0, isolation_level="read_committed"))
    return pairs(logcore.parse_batches(batches, aborted=aborted))


def by_decoding(log: Log) -> Found:
    view = log.fetch(0, 1 << 30, isolation_level="read_committed")
    found, _ = decode_batches(view, "t", 0, ["offset", "value"], aborted=log.aborted_transactions())
    return [row for batch in found for row in rows(pa.record_batch(batch))]


def by_scan(log: Log) -> Found:
    return rows(log.scan(["offset", "value"], isolation_level="read_committed"))


def by_scan_of_a_directory(log: Log) -> Found:
    return rows(PartitionScan(log.path, "t", 0, ["offset", "value"], isolation_level="read_committed"))


def by_scan_of_parts(log: Log) -> Found:
    parts = log.splits(3)
    return [
        row
        for part in parts
        for row in rows(log.scan(["offset", "value"], *part, isolation_level="read_committed"))
    ]


WAYS: list[Callable[[Log], Found]] = [
    by_records,
    by_follow,
    by_follow_async,
    by_fetch,
    by_follow_batches,
    by_decoding,
    by_scan,
    by_scan_of_a_directory,
    by_scan_of_parts,
]


@pytest.fixture
def choose() -> random.Random:
    seed = int(os.environ.get("LOGCORE_SEED") or random.randrange(1 << 32))
    print(f"LOGCORE_SEED={seed}")
    return random.Random(seed)


def check(log: Log, segment: TransactionalSegment) -> None:
    assert log.last_stable_offset == segment.stable()
    assert log.aborted_transactions() == [
        entry for entry in segment.aborted if entry.first_offset < segment.stable()
    ]
    committed = segment.committed()
    for way in WAYS:
        assert way(log) == committed, way.__name__
    assert pairs(log.records()) == segment.uncommitted()
    assert rows(log.scan(["offset", "value"])) == segment.uncommitted()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_only_committed_records_are_read(tmp_path: Path, choose: random.Random, compression: str) -> None:
    # Broken if it failed: a reader of committed records would get aborted or open ones, or miss committed
    # ones.
    segment = TransactionalSegment(tmp_path / "log", compression)
    for _ in range(120):
        segment.step(choose)
    with logcore.open(segment.directory, producer_id_expiration_ms=1 << 60) as log:
        check(log, segment)
        # Parts of the log: transactions that began before a part must be known too.
        for start in range(0, segment.end, 7):
            end = min(start + 20, segment.end)
            expected = segment.committed(start, end)
            assert pairs(log.records(start, end, isolation_level="read_committed")) == expected
            scan = log.scan(["offset", "value"], start, end, isolation_level="read_committed")
            assert rows(scan) == expected
        for offset, _ in segment.uncommitted():
            stable = offset if offset < segment.stable() else None
            assert log.offset_for_time(FIRST_TIME + offset) == offset
            found = log.offset_for_time(FIRST_TIME + offset, isolation_level="read_committed")
            assert found == stable
    with logcore.open(segment.directory, readonly=True) as log:
        check(log, segment)


def test_beside_a_writer(tmp_path: Path, choose: random.Random) -> None:
    # Broken if it failed: a reader beside a broker would get aborted records while the index lacks their
    # transaction, or use outdated knowledge.
    segment = TransactionalSegment(tmp_path / "log")
    with logcore.open(segment.directory, readonly=True) as log:
        for number in range(100):
            segment.step(choose)
            assert log.last_stable_offset == segment.stable()
            assert by_records(log) == segment.committed()
            if number % 20 == 19:
                check(log, segment)


def test_a_transaction_is_followed_once_it_is_committed(tmp_path: Path) -> None:
    # Broken if it failed: a follower would get records of a transaction that is aborted later, or miss a
    # commit.
    segment = TransactionalSegment(tmp_path / "log")
    segment.plain(b"before")
    segment.write(1, b"committed")
    found: Found = []
    seen = threading.Semaphore(0)
    with logcore.open(segment.directory, readonly=True) as log:

        def follow() -> None:
            for record in log.follow(0, timeout=60, isolation_level="read_committed"):
                found.append((record.offset, record.value or b""))
                seen.release()
                if record.value == b"last":
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        assert seen.acquire(timeout=60)
        segment.write(2, b"aborted")
        segment.plain(b"after")
        assert found == [(0, b"before")]
        segment.finish(1, commit=True)
        assert seen.acquire(timeout=60)
        assert found == [(0, b"before"), (1, b"committed")]
        segment.finish(2, commit=False)
        assert seen.acquire(timeout=60)
        segment.plain(b"last")
        follower.join(60)
    assert found == segment.committed()
    assert [value for _, value in found] == [b"before", b"committed", b"after", b"last"]


# Broken if it failed: a follower would get the records of a transaction that began before.
def test_following_from_now_on_begins_at_the_last_stable_offset(tmp_path: Path) -> None:
    segment = TransactionalSegment(tmp_path / "log")
    segment.plain(b"before")
    segment.write(1, b"open")
    with logcore.open(segment.directory, readonly=True) as log:
        committed = log.follow(timeout=60, isolation_level="read_committed")
        everything = log.follow(timeout=60)
        segment.finish(1, commit=True)
        segment.plain(b"new")
        assert next(committed).value == b"open"
        assert next(everything).value == b"new"


def test_aborted_records_do_not_restart_the_timeout(tmp_path: Path) -> None:
    # Broken if it failed: a follower with a timeout would never end beside a producer that aborts its
    # transactions.
    segment = TransactionalSegment(tmp_path / "log")
    for _ in range(50):
        segment.write(1, b"aborted" * 100)
        segment.finish(1, commit=False)
    with logcore.open(segment.directory, readonly=True) as log:
        assert list(log.follow(0, timeout=0.0, isolation_level="read_committed")) == []
        assert by_follow_async(log) == []


# Broken if it failed: a misspelt isolation level would read uncommitted records.
def test_an_unknown_isolation_level_is_refused(tmp_path: Path) -> None:
    with logcore.open(tmp_path) as log:
        log.append(b"a")
        bad: Any = "serializable"
        calls: list[Callable[[], object]] = [
            lambda: log.records(isolation_level=bad),
            lambda: log.fetch(0, isolation_level=bad),
            lambda: log.follow(0, isolation_level=bad),
            lambda: log.follow_batches(0, isolation_level=bad),
            lambda: log.follow_async(0, isolation_level=bad),
            lambda: log.scan(isolation_level=bad),
            lambda: log.offset_for_time(0, isolation_level=bad),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"serializable.*read_uncommitted or read_committed"):
                call()
    with pytest.raises(logcore.LogClosedError):
        log.aborted_transactions(0, 1)
    with pytest.raises(logcore.LogClosedError):
        _ = log.last_stable_offset
