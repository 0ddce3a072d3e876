"""Opens directories that Apache Kafka 3.9.1 wrote (tests/compat/golden_directories.py).

Broken if they failed: we would read other records than Kafka serves, or damage a directory by opening it.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import logcore

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka-3.9.1"
TRANSACTIONAL = sorted(path.name.removesuffix("-committed.json") for path in GOLDEN.glob("*-committed.json"))
NAMES = sorted(path.name.removesuffix("-0") for path in GOLDEN.iterdir() if path.is_dir())

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def test_every_kind_of_directory_is_covered() -> None:
    """Every format with each of its compressions, transactions, compaction, and a killed broker's
    directory.
    """
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    wanted = {
        *codecs,
        *(f"{old}-{codec}" for old in ("v0", "v1") for codec in codecs[:-1]),
        "upgraded",
        "epochs",
    }
    wanted |= {"append-time", "v1-append-time", "compacted", *(f"compacted-{codec}" for codec in codecs[1:])}
    wanted |= {f"{old}-compacted-{codec}" for old in ("v0", "v1") for codec in ("none", "gzip")}
    wanted |= {"killed", "killed-transactional", "killed-compacted", "compacted-no-tombstones"}
    wanted |= {f"transactional-{kind}" for kind in (*codecs, "open", "compacted")} | {"transactional"}
    assert set(NAMES) == wanted
    assert {name for name in NAMES if "transactional" in name} == set(TRANSACTIONAL)


def served(name: str) -> list[Row]:
    """The records that Kafka served from the directory."""

    def plain(part: str | None) -> bytes | None:
        return None if part is None else part.encode("latin-1")

    return [
        (
            offset,
            timestamp,
            plain(key),
            plain(value),
            tuple((header, plain(part)) for header, part in headers),
        )
        for offset, timestamp, key, value, headers in json.loads((GOLDEN / f"{name}.json").read_text())
    ]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_records_are_those_kafka_served(name: str) -> None:
    before = files(GOLDEN / f"{name}-0")
    with logcore.open(GOLDEN / f"{name}-0", readonly=True) as log:
        assert [record.as_tuple() for record in log.records()] == served(name)
    assert files(GOLDEN / f"{name}-0") == before


@pytest.mark.parametrize("name", NAMES)
def test_every_record_is_found_by_offset_and_by_time(name: str) -> None:
    rows = served(name)
    assert len(rows) > 15
    offsets = {row[0] for row in rows}
    with logcore.open(GOLDEN / f"{name}-0", readonly=True) as log:
        for offset, timestamp, *_ in rows:
            assert next(log.records(offset)).offset == offset
            if timestamp >= 0:
                first = next(row[0] for row in rows if row[1] >= timestamp)
                found = log.offset_for_time(timestamp)
                assert found is not None
                # A transaction's marker may be the first entry of that time.
                assert found == first or (found < first and found not in offsets)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_no_damage(name: str) -> None:
    """Allowed findings are those of a kill (a shorter index than allocated, files that wait to be removed),
    and gaps between segments that compaction made: a directory without the cleaner's checkpoint cannot
    explain them.
    """
    findings = logcore.verify(GOLDEN / f"{name}-0")
    expected = {"unfinished"} if name.startswith("killed") else set()
    if "compacted" in name:
        expected.add("offset-gap")
        assert sum(finding.kind == "offset-gap" for finding in findings) <= 1
    assert {finding.kind for finding in findings} <= expected


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_committed_records_are_those_kafka_serves(name: str) -> None:
    """Up to the open transaction, without the aborted transactions in Kafka's index."""
    aborted = []
    for index in sorted((GOLDEN / f"{name}-0").glob("*.txnindex")):
        # Version, producer id, first and last offset, last stable offset.
        entries = struct.iter_unpack(">hqqqq", index.read_bytes())
        aborted += [(producer_id, first, last) for _, producer_id, first, last, _ in entries]
    assert aborted
    is_open = name in ("transactional-open", "killed-transactional")
    end = next(row[0] for row in served(name) if row[3] == b"1/5/0") if is_open else None
    with logcore.open(GOLDEN / f"{name}-0", readonly=True) as log:
        table = pa.table(log.scan(["offset", "value"], end=end, aborted=aborted))
    found = list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert found == [(offset, value) for offset, _, _, value, _ in served(f"{name}-committed")]
    assert len(found) < len(served(name))


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_opened_for_writing_and_appended_to(name: str, tmp_path: Path) -> None:
    """The directory has no marker of a clean shutdown, so all of it is checked. Nothing must be cut."""
    rows = served(name)
    directory = tmp_path / f"{name}-0"
    shutil.copytree(GOLDEN / f"{name}-0", directory)
    with logcore.open(directory) as log:
        assert log.truncated_bytes == 0
        end = log.end_offset
        assert log.append(b"ours", key=b"k", timestamp=1_800_000_000_000) == end
    with logcore.open(directory) as log:
        found = [record.as_tuple() for record in log.records()]
        assert found == [*rows, (end, 1_800_000_000_000, b"k", b"ours", ())]
        assert log.offset_for_time(1_800_000_000_000) == end
