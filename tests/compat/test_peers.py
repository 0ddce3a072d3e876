"""Tests whose peers are missing. If one failed, CI would be green without a comparison with Apache Kafka."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.conftest import ROOT, missing
from tests.compat.programs.piped import franz_go

pytestmark = pytest.mark.timeout(60)

SECONDS = 30


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("given", "seen"), [(None, "true"), ("", "true"), ("true", "true"), ("no", "no")])
def test_missing_peers_fail_in_ci(tmp_path: Path, given: str | None, seen: str) -> None:
    program(tmp_path / "make", 'echo "make $* with CI=$CI"')
    environment = {name: text for name, text in os.environ.items() if name != "CI"}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({} if given is None else {"CI": given})
    done = subprocess.run(
        [ROOT / ".ci/run"], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, f"make test with CI={seen}\n"), done.stderr


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ci, outcome in (("true", pytest.fail.Exception), ("", pytest.skip.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match=r"peer missing: kcat \(apt-get install kcat\)"):
            missing("kcat", "apt-get install kcat")
        with pytest.raises(outcome, match=r"peer missing: Go 1\.\d+ or newer"), franz_go():
            pass


def test_missing_jars_are_reported(tmp_path: Path) -> None:
    """Without mvn, and with one that fails."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/peers.sh", tmp_path / "tools")
    for name in ("bash", "dirname", "id"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(found)

    def output() -> str:
        command = [tmp_path / "bin/bash", tmp_path / "tools/peers.sh"]
        environment = {"PATH": str(tmp_path / "bin")}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
        ).stderr

    assert "peers: no kafka-3.9.1, it needs java and mvn (sudo apt-get install" in output()
    program(tmp_path / "bin/java", "exit 0")
    program(tmp_path / "bin/mvn", "exit 1")
    assert "peers: Maven could not bring kafka-3.9.1" in output()
