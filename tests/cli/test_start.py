"""`logcore start`: its arguments, and its data directory as an argument of the other tools."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cluster
import logcore
from cluster.cli import main


# Broken if it failed: a server would put its data into the current directory without having been asked to.
@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        (["start", "--data-dir", ""], "--data-dir"),
        (["coordinator", "import", "127.0.0.1:1", ""], "DIR|zoo.cfg"),
        (["coordinator", "export", "", "out"], "DIR|zoo.cfg"),
        (["coordinator", "export", "in", ""], "DIR"),
    ],
)
def test_an_empty_directory_name_is_refused(
    arguments: list[str],
    argument: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert f"argument {argument}: it is empty; name a directory, or . for the current one" in printed
    assert list(tmp_path.iterdir()) == []


# Broken if it failed: tools would not find the logs, or the znodes, of the directory that `logcore start`
# made.
def test_tools_take_the_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "cluster.cli", "start", "--data-dir", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line.split()[1] for line in process.stdout if line.startswith("  broker "))
            with cluster.AdminClient({"bootstrap.servers": address}) as admin:
                admin.create_topics([cluster.NewTopic("flights", 1)])["flights"].result(60)
        finally:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert logcore.log_directory(data) == data / "kafka-logs"
    [segment] = logcore.find_logs(data)["flights", 0].glob("*.log")
    with logcore.open_dir(data) as directory:
        directory["flights", 0].append(b"landed")
    with logcore.open_dir(data, readonly=True) as directory:
        assert [record.value for record in directory["flights", 0]] == [b"landed"]

    assert main(["verify", str(data)]) == 0
    assert "1 partitions, 1 segments, 1 batches, 1 records" in capsys.readouterr().out
    segment.write_bytes(segment.read_bytes() + b"torn")
    assert logcore.verify(data)[0].path == segment
    assert main(["repair", str(data), "--apply"]) == 0
    assert f"was cut: {segment}" in capsys.readouterr().out

    assert main(["dump-log", "--files", str(data)]) == 0
    assert f"such as {segment}" in capsys.readouterr().err

    assert main(["coordinator", "export", str(data), str(tmp_path / "zookeeper")]) == 0
    assert "exported" in capsys.readouterr().out


# Broken if it failed: the tools would not take the directory that `logcore start` prints.
def test_the_directories_of_an_override_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "cluster.cli",
        "start",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "0",
    ]
    override = ["--override", f"log.dirs={tmp_path / 'one'},{tmp_path / 'two'}"]
    with subprocess.Popen([*command, *override], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                process.send_signal(signal.SIGTERM)
    printed = [tuple(line.split()) for line in lines]
    [logs, more] = [Path(words[1]) for words in printed if words[:1] == ("data",)]
    [znodes] = [words[1] for words in printed if words[:1] == ("znodes",)]
    assert (logs, more) == (tmp_path / "one", tmp_path / "two")
    assert main(["verify", str(logs)]) == 0
    assert main(["coordinator", "export", znodes, str(tmp_path / "zookeeper")]) == 0
    assert "exported" in capsys.readouterr().out
