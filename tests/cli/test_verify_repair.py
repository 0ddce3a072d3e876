"""`logcore verify`, `logcore repair` and their functions in `logcore`: exit status, output, and which files
change.

`rust/crates/storage` tests which damage is found and how it is repaired.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import logcore
from cluster.cli import main

SEGMENT = "00000000000000000000.log"
GOLDEN_BATCHES = Path(__file__).parents[2] / "rust/crates/records/tests/golden"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "flights-0"
    with logcore.open(directory) as log:
        for number in range(5):
            log.append_records([f"{number}.{k}".encode() for k in range(10)])
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.name != ".lock"}


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


# Broken if it failed: a script could not distinguish an undamaged directory from a damaged one.
def test_the_exit_status_of_verify_says_whether_there_is_damage(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(partition)]) == 0
    assert capsys.readouterr().out == (
        "1 partitions, 1 segments, 5 batches, 50 records, "
        f"{(partition / SEGMENT).stat().st_size} bytes: nothing wrong\n"
    )
    flip(partition / SEGMENT, 100)
    assert main(["verify", str(partition)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        f"damage (corrupt-batch): {partition / SEGMENT}, byte 0, offset 0: checksum mismatch"
    )
    assert "40 records after it are intact" in out
    assert "--cut-at-corruption" in out
    assert out.endswith(": 1 damage\n")


# Broken if it failed: a script would stop for an index that is only rebuilt, or the hint would be missing.
def test_a_hint_is_not_damage(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (partition / SEGMENT).with_suffix(".index").unlink()
    assert main(["verify", str(partition), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["damaged"], found["records"]) == (False, 50)
    [finding] = found["findings"]
    assert (finding["severity"], finding["kind"]) == ("hint", "offset-index")
    assert finding["path"] == str((partition / SEGMENT).with_suffix(".index"))


# Broken if it failed: a typing error would look like an undamaged directory, or like damage.
@pytest.mark.parametrize(
    "arguments",
    [
        ["verify"],
        ["verify", "/nonexistent"],
        ["verify", "{empty}"],
        ["verify", "{partition}", "--threads", "-1"],
        ["verify", "{partition}", "--format", "xml"],
        ["repair", "/nonexistent"],
        ["repair", "{partition}", "--apply", "--dry-run"],
    ],
)
def test_wrong_arguments(
    partition: Path, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    filled = [argument.format(partition=partition, empty=empty) for argument in arguments]
    assert main(filled) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


# Broken if it failed: a dry run would change files, --apply would not repair, or copies would be lost.
def test_repair_of_a_torn_tail(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = partition / SEGMENT
    whole = segment.read_bytes()
    torn = whole + whole[:30]
    segment.write_bytes(torn)
    before = contents(partition)
    assert main(["repair", str(partition)]) == 1
    out = capsys.readouterr().out
    assert f"cut: {segment} at byte {len(whole)}, the log ends at offset 50" in out
    assert out.endswith("nothing was changed; --apply carries the actions out\n")
    assert contents(partition) == before

    assert main(["repair", str(partition), "--apply"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("nothing wrong\n")
    assert segment.read_bytes() == whole
    [copies] = partition.parent.glob("flights-0.repair-*")
    assert f"copies are in {copies}" in out
    assert (copies / f"{SEGMENT}.from-{len(whole)}").read_bytes() == torn[len(whole) :]
    manifest = json.loads((copies / "manifest.json").read_text())
    assert manifest["directory"] == str(partition)
    assert [a["path"] for a in manifest["actions"] if a["action"] == "cut"] == [str(segment)]
    assert main(["verify", str(partition)]) == 0


# Broken if it failed: intact records would be cut off although the user did not allow it.
def test_a_cut_in_the_middle_must_be_allowed(
    partition: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(partition / SEGMENT, 100)
    before = contents(partition)
    assert main(["repair", str(partition), "--apply"]) == 1
    out = capsys.readouterr().out
    assert "not done without --cut-at-corruption" in out
    assert "40 intact records are behind the cut" in out
    assert contents(partition) == before

    copies = tmp_path / "copies"
    arguments = ["--apply", "--cut-at-corruption", "--backup-dir", str(copies), "--format", "json"]
    assert main(["repair", str(partition), *arguments]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["applied"], done["damaged"], done["backup_dir"]) == (True, False, str(copies))
    assert (copies / f"{SEGMENT}.from-0").read_bytes() == before[SEGMENT]
    with logcore.open(partition, readonly=True) as log:
        assert log.end_offset == 0


# Broken if it failed: a directory could be changed under a program that writes it.
def test_repair_refuses_a_directory_in_use(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logcore.open(partition):
        assert main(["verify", str(partition)]) == 0
        assert main(["repair", str(partition), "--apply"]) == 1
        assert "is in use" in capsys.readouterr().err
        with pytest.raises(logcore.LockedError):
            logcore.repair(partition)


# Broken if it failed: a batch that another process is writing would be called damage, or be cut off.
def test_another_process_is_noticed(partition: Path) -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import logcore, sys; log = logcore.open(sys.argv[1]); print('open', flush=True); "
            "sys.stdin.read()",
            str(partition),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        with open(partition / SEGMENT, "ab") as segment:
            segment.write(b"\0" * 40)
        assert logcore.verify(partition) == []
        with pytest.raises(logcore.LockedError):
            logcore.repair(partition)
        owner.kill()
        owner.communicate()
    assert [finding.kind for finding in logcore.verify(partition)] == ["torn-tail"]


# Broken if it failed: progress would not reach its end, or an exception in its callback would be lost.
def test_progress(partition: Path) -> None:
    calls: list[tuple[int, ...]] = []
    assert logcore.verify(partition, progress=lambda *now: calls.append(now)) == []
    size = (partition / SEGMENT).stat().st_size
    assert calls[-1] == (size, size, 1, 1)

    def refuse(*now: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        logcore.verify(partition, progress=refuse)
    segment = partition / SEGMENT
    segment.write_bytes(segment.read_bytes()[:-1])
    before = contents(partition)
    with pytest.raises(RuntimeError, match="enough"):
        logcore.repair(partition, apply=True, progress=refuse)
    assert contents(partition) == before


# Broken if it failed: a progress bar would be drawn into a log file, or none on a terminal.
def test_a_bar_on_a_terminal_only(partition: Path) -> None:
    command = [sys.executable, "-m", "cluster.cli", "verify", str(partition)]
    piped = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert piped.stderr == b""
    master, terminal = os.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    ) as shown:
        os.close(terminal)
        out, _ = shown.communicate(timeout=60)
    assert shown.returncode == 0
    assert out == piped.stdout
    drawn = os.read(master, 65536)
    os.close(master)
    assert b"verifying" in drawn
    assert b"1/1 partitions" in drawn


# Broken if it failed: an old message format or a codec would be called damage, or damage in it would not be
# found.
@pytest.mark.parametrize("batch", sorted(GOLDEN_BATCHES.glob("*.bin")), ids=lambda file: file.stem)
def test_every_format_and_codec(tmp_path: Path, batch: Path) -> None:
    directory = tmp_path / "golden-0"
    directory.mkdir()
    whole = batch.read_bytes()
    (directory / SEGMENT).write_bytes(whole)
    assert {finding.severity for finding in logcore.verify(directory)} <= {"hint"} or "v2" in batch.stem
    assert not [finding for finding in logcore.verify(directory) if finding.path == directory / SEGMENT]
    flip(directory / SEGMENT, len(whole) - 1)
    [finding] = [finding for finding in logcore.verify(directory) if finding.path == directory / SEGMENT]
    assert finding.severity == "damage"


# Broken if it failed: an operator who names a segment's file would look for a log that was deleted.
def test_a_file_is_no_log_directory(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [segment] = partition.glob("*.log")
    for command in ("verify", "repair"):
        assert main([command, str(segment)]) == 2
        assert f"{segment} is no log directory: it is a file" in capsys.readouterr().err
        assert main([command, str(partition / "gone")]) == 2
        assert "gone is no log directory: it does not exist" in capsys.readouterr().err


# Broken if it failed: the remedy would be wrong about whether Apache Kafka starts beside an unknown file or
# directory.
def test_unknown_names(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logcore.open_dir(partition.parent):
        pass
    (partition.parent / "readme").write_text("mine")
    (partition.parent / "mine").mkdir()
    assert main(["verify", str(partition.parent)]) == 0
    out = capsys.readouterr().out.splitlines()
    remedies = {line: remedy.strip() for line, remedy in pairwise(out)}
    front = f"stray (stray-name): {partition.parent}"
    assert (
        remedies[f"{front}/mine: no partition directory has this name"]
        == "move it out: Apache Kafka does not start with a directory that it does not know"
    )
    assert (
        remedies[f"{front}/readme: no file of a Kafka log directory has this name"]
        == "Apache Kafka ignores it; move it out if nothing else needs it here"
    )
