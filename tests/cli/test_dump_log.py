"""`logcore dump-log` by itself: JSON, Arrow, wrong arguments, damage. `tests/compat` compares its text
with Kafka's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logcore
from cluster.cli import main

GOLDEN = Path(__file__).parents[2] / "rust/crates/storage/tests/fixtures/kafka-3.9.1/golden-0"
SEGMENT = "00000000000000000000.log"
# The flags that have one value.
SINGLE = (
    ["--files", "y.log"],
    ["--max-message-size", "5"],
    ["--max-bytes", "5"],
    ["--value-decoder-class", "long"],
    ["--key-decoder-class", "string"],
    ["--format", "json"],
    ["--out", "z"],
)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "flights-3"
    with logcore.open(directory, compression="zstd") as log:
        log.append_records(
            [(b"UA", "départ".encode(), [("h", b"\xff"), ("n", None)], 1000 + n) for n in range(5)]
        )
        log.append_records([(None, b"\xfe\xff", None, 2000), (b"gone", None, None, 3000)])
    return directory


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# Broken if it failed: a program would read other records from a dump than the log has.
def test_json_of_records(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = str(partition / SEGMENT)
    assert main(["dump-log", "--files", segment, "--format", "json"]) == 0
    found = rows(capsys.readouterr().out)
    assert [row["offset"] for row in found] == list(range(7))
    assert found[0] == {
        "file": segment,
        "position": 0,
        "magic": 2,
        "compression": "zstd",
        "timestampType": "CreateTime",
        "valid": True,
        "producerId": -1,
        "producerEpoch": -1,
        "leaderEpoch": 0,
        "transactional": False,
        "offset": 0,
        "timestamp": 1000,
        "sequence": -1,
        "key": "UA",
        "value": "départ",
        "headers": [["h", {"base64": "/w=="}], ["n", None]],
    }
    assert (found[5]["key"], found[5]["value"]) == (None, {"base64": "/v8="})
    assert (found[6]["key"], found[6]["value"]) == ("gone", None)
    assert main(["dump-log", "--files", segment, "--format", "json", "--value-decoder-class", "byte"]) == 0
    assert rows(capsys.readouterr().out)[5]["value"] == "feff"


# Broken if it failed: indexes, transactions and producers could not be read by a program.
def test_json_of_the_other_files(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["00000000000000000161.log", "00000000000000000161.timeindex"]
    names += ["00000000000000000161.txnindex", "00000000000000000164.snapshot", "00000000000000000000.index"]
    files = ",".join(str(GOLDEN / name) for name in names)
    assert main(["dump-log", "--files", files, "--format", "json"]) == 0
    found = rows(capsys.readouterr().out)
    by_file = {name: [row for row in found if row["file"].endswith(name)] for name in names}
    assert [row.get("control") for row in by_file[names[0]]] == ["COMMIT", None, "ABORT"]
    assert [row["offset"] for row in by_file[names[1]]] == [163]
    [aborted] = by_file[names[2]]
    assert (aborted["producerId"], aborted["firstOffset"], aborted["lastOffset"]) == (5, 162, 163)
    producers = by_file[names[3]]
    assert [row["producerId"] for row in producers] == [0, 1, 2, 3, 4, 5]
    assert producers[5]["currentTxnFirstOffset"] is None
    assert producers[0]["lastBatch"]["lastSequence"] == 31
    assert all(row["position"] > 0 for row in by_file[names[4]])


# Broken if it failed: a table from a dump would have other records, another topic, or transaction markers.
def test_arrow(partition: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.arrow"
    assert (
        main(["dump-log", "--files", str(partition / SEGMENT), "--format", "arrow", "--out", str(out)]) == 0
    )
    with pyarrow.ipc.open_stream(out) as stream:
        table = stream.read_all()
    assert table["offset"].to_pylist() == list(range(7))
    assert table["value"].to_pylist() == ["départ".encode()] * 5 + [b"\xfe\xff", None]
    assert set(table["topic"].to_pylist()) == {"flights"}
    assert set(table["partition"].to_pylist()) == {3}
    files = ",".join(str(file) for file in sorted(GOLDEN.glob("*.log")))
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", "dump-log", "--files", files, "--format", "arrow"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    with pyarrow.ipc.open_stream(done.stdout) as stream:
        table = stream.read_all()
    # 161 and 163 are markers.
    assert table["offset"].to_pylist() == [*range(161), 162]


# Broken if it failed: a mistake would print a part of a dump, a traceback, or nothing.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--files"),
        (["--files", ","], "names no file"),
        (["--files", "x.log", "--value-decoder-class", "com.example.Mine"], "no decoder 'com.example.Mine'"),
        (["--files", "x.log", "--max-bytes", "-1"], "--max-bytes must be between"),
        (["--files", "x.log", "--out", "y"], "--out needs"),
        (["--files", "x.index", "--format", "arrow"], "takes .log files"),
        (["--files", "x.log", "--format", "arrow", "--offsets-decoder"], "without a decoder"),
        *((["--files", "x.log", *flag, *flag], f"{flag[0]} is given more than once") for flag in SINGLE),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump-log", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


# Broken if it failed: a missing or damaged file would be a traceback, or look undamaged.
def test_files_that_cannot_be_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(shutil.copytree(GOLDEN, tmp_path / "golden-0"))
    assert main(["dump-log", "--files", str(directory / "00000000000000009999.log")]) == 1
    assert "No such file" in capsys.readouterr().err
    (directory / "mine.log").touch()
    assert main(["dump-log", "--files", str(directory / "mine.log")]) == 1
    assert "must begin with its base offset" in capsys.readouterr().err

    segment = directory / SEGMENT
    data = bytearray(segment.read_bytes())
    segment.write_bytes(data + bytes(40))
    assert main(["dump-log", "--files", str(segment)]) == 1
    captured = capsys.readouterr()
    assert "a length of 0 bytes is invalid" in captured.err
    assert captured.out.count("baseOffset") > 10
    data[70] ^= 0x7F
    segment.write_bytes(data)
    assert main(["dump-log", "--files", str(segment)]) == 0
    assert "isvalid: false" in capsys.readouterr().out

    index = segment.with_suffix(".index")
    index.write_bytes(index.read_bytes()[:-3])
    assert main(["dump-log", "--files", str(index), "--index-sanity-check"]) == 1
    assert "not a multiple of 8" in capsys.readouterr().err

    snapshot = directory / "00000000000000000164.snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    assert main(["dump-log", "--files", f"{snapshot},{directory / '00000000000000000161.txnindex'}"]) == 0
    captured = capsys.readouterr()
    assert "checksum" in captured.err
    assert "firstOffset: 162" in captured.out


@pytest.fixture
def batches(tmp_path: Path) -> tuple[Path, list[int]]:
    """A segment of five batches with one record each, and the positions of the batches."""
    directory = tmp_path / "five-0"
    positions = []
    with logcore.open(directory) as log:
        for number in range(5):
            positions.append(log.size_bytes)
            log.append_batches(logcore.build_batch([b"value %d " % number * 40], "zstd"))
    return directory / SEGMENT, positions


def arrow(segment: Path, out: Path) -> tuple[int, list[int]]:
    """The exit status of a dump as Arrow, and the offsets in it."""
    status = main(["dump-log", "--files", str(segment), "--format", "arrow", "--out", str(out)])
    with pyarrow.ipc.open_stream(out) as stream:
        return status, stream.read_all()["offset"].to_pylist()


# Broken if it failed: the error for a misspelt path would ask for another name of the missing file.
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"])
@pytest.mark.parametrize("shape", ["text", "json"])
def test_a_missing_file_is_reported_before_its_name_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, shape: str
) -> None:
    missing = str(tmp_path / f"nosuch{suffix}")
    assert main(["dump-log", "--files", missing, "--format", shape]) == 1
    assert (
        capsys.readouterr().err == f"logcore dump-log: {missing} cannot be read: No such file or directory\n"
    )


# Broken if it failed: a program would take the records before damage for all records.
def test_bytes_that_are_not_a_batch_are_reported(
    batches: tuple[Path, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment, positions = batches
    data = bytearray(segment.read_bytes())
    data[positions[2] + 8] = 0x7F
    segment.write_bytes(data)
    left = len(data) - positions[2]
    assert main(["dump-log", "--files", str(segment)]) == 0
    assert f"Found {left} invalid bytes at the end of {SEGMENT}" in capsys.readouterr().out
    message = f"Found {left} invalid bytes at the end of {segment}, from byte {positions[2]} on\n"
    assert main(["dump-log", "--files", str(segment), "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert [row["offset"] for row in rows(captured.out)] == [0, 1]
    assert captured.err == message
    assert arrow(segment, tmp_path / "x.arrow") == (0, [0, 1])
    assert capsys.readouterr().err == message
    # Bytes after --max-bytes are not reported.
    assert main(["dump-log", "--files", str(segment), "--format", "json", "--max-bytes", "100"]) == 0
    assert capsys.readouterr().err == ""


# Broken if it failed: a user could not find the damaged batch, or would not get the records before it.
def test_a_batch_that_cannot_be_decoded_is_named(
    batches: tuple[Path, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment, positions = batches
    data = bytearray(segment.read_bytes())
    # The first of the compressed bytes, which follow the header of 61 bytes.
    data[positions[3] + 61 : positions[3] + 65] = b"none"
    segment.write_bytes(data)
    message = f"logcore dump-log: {segment}: the batch at byte {positions[3]}, base offset 3: "
    assert main(["dump-log", "--files", str(segment), "--print-data-log"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    lines = captured.out.splitlines()
    assert lines[-2].endswith("payload: " + "value 2 " * 40)
    assert lines[-1].startswith("baseOffset: 3 ")
    assert main(["dump-log", "--files", str(segment), "--format", "json"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert [row["offset"] for row in rows(captured.out)] == [0, 1, 2]
    assert arrow(segment, tmp_path / "x.arrow") == (1, [0, 1, 2])
    assert capsys.readouterr().err.startswith(message)


# Broken if it failed: a dump of an empty segment would not be a valid Arrow stream.
def test_arrow_without_records(tmp_path: Path, partition: Path) -> None:
    (empty := tmp_path / SEGMENT).write_bytes(b"")
    assert arrow(empty, tmp_path / "none.arrow") == (0, [])
    assert arrow(partition / SEGMENT, tmp_path / "some.arrow") == (0, list(range(7)))
    with (
        pyarrow.ipc.open_stream(tmp_path / "none.arrow") as none,
        pyarrow.ipc.open_stream(tmp_path / "some.arrow") as some,
    ):
        assert none.schema == some.schema


# Broken if it failed: the JSON would depend on the encoding of the terminal.
@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_json_is_the_same_in_any_encoding(partition: Path, encoding: str) -> None:
    with logcore.open(partition) as log:
        log.append("nach Köln → 東京".encode(), timestamp=4000)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cluster.cli",
            "dump-log",
            "--files",
            str(partition / SEGMENT),
            "--format",
            "json",
        ],
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )
    assert rows(done.stdout.decode("utf-8"))[-1]["value"] == "nach Köln → 東京"


# Broken if it failed: a key or value of the wrong size would be printed as another number, or the error would
# not say where it is.
def test_a_decoder_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logcore.open(tmp_path / "numbers-0") as log:
        log.append(b"before")
        position = log.size_bytes
        log.append_records([(bytes(7) + b"\x05", b"fits"), (b"UA", b"does not"), (bytes(8), b"after")])
    segment = tmp_path / "numbers-0" / SEGMENT
    message = f"logcore dump-log: {segment}: the batch at byte {position}, base offset 1: "
    assert main(["dump-log", "--files", str(segment), "--key-decoder-class", "long"]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"{message}LongDecoder takes 8 bytes, but a record has 2\n"
    assert captured.out.splitlines()[-1].endswith("key: 5 payload: fits")
    for decoder, reason in (
        ("--offsets-decoder", "offset 0 using"),
        ("--transaction-log-decoder", "at offset 0"),
    ):
        assert main(["dump-log", "--files", str(segment), decoder]) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith(f"logcore dump-log: {segment}: the batch at byte 0, base offset 0: ")
        assert reason in captured.err
        assert captured.out.splitlines()[-1].startswith("baseOffset: 0 ")


# Broken if it failed: some damage would end a dump with a traceback, or the dump would never end.
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        sorted(file.name for file in GOLDEN.iterdir() if file.suffix and file.stat().st_size)
    ),
    position=st.integers(0, 100_000),
    replaced=st.binary(max_size=24),
    flags=st.sampled_from([["--print-data-log"], ["--format", "json"], ["--offsets-decoder"], []]),
)
def test_any_damage_is_reported_in_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    name: str,
    position: int,
    replaced: bytes,
    flags: list[str],
) -> None:
    directory = Path(shutil.copytree(GOLDEN, tmp_path_factory.mktemp("damaged") / "golden-0"))
    file = directory / name
    data = bytearray(file.read_bytes())
    at = position % len(data)
    data[at : at + len(replaced)] = replaced
    file.write_bytes(data if replaced else data[:at])
    status = main(["dump-log", "--files", str(file), *flags])
    printed = capsys.readouterr()
    assert status in (0, 1)
    assert "Traceback" not in printed.err
    if status == 1:
        assert printed.err.startswith("logcore dump-log: ")
