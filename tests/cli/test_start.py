"""`logcore start`'s arguments. If one failed, a broker would put its data where nobody meant it to."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.cli import main


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["start", "--data-dir", ""], "--data-dir"),
        (["coordinator", "import", "127.0.0.1:1", ""], "DIR|zoo.cfg"),
        (["coordinator", "export", "", "out"], "DIR|zoo.cfg"),
        (["coordinator", "export", "in", ""], "DIR"),
    ],
)
def test_an_empty_name_is_no_directory(
    arguments: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"argument {what}: it is empty; name a directory, or . for the current one" in said
    assert list(tmp_path.iterdir()) == []
