"""Directories that Apache Kafka 3.9.1 left (tests/compat/golden_directories.py), opened by us.

If one failed, we would read other records than Kafka serves, or damage its directory by opening it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import logcore

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka-3.9.1"
NAMES = sorted(path.name.removesuffix("-0") for path in GOLDEN.iterdir() if path.is_dir())

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def served(name: str) -> list[Row]:
    """What Kafka served of it."""

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
    assert len(rows) > 50
    with logcore.open(GOLDEN / f"{name}-0", readonly=True) as log:
        for offset, timestamp, *_ in rows:
            assert next(log.records(offset)).offset == offset
            if timestamp >= 0:
                first = next(row[0] for row in rows if row[1] >= timestamp)
                found = log.offset_for_time(timestamp)
                assert found is not None
                # A transaction's marker may be the first of that time; what is read there is the record after it.
                assert next(log.records(found)).offset == first


@pytest.mark.parametrize("name", NAMES)
def test_it_is_opened_for_writing_and_written_on(name: str, tmp_path: Path) -> None:
    """As after a crash, for the directory has no marker of a clean shutdown: all of it is checked, nothing is cut."""
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
