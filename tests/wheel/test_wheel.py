"""The wheel runs `logcore start` in an empty environment.

Broken if they failed: `pip install` would miss a file or a dependency that the checkout happens to have.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", str(out), "-q"],
        cwd=ROOT,
        check=True,
        timeout=1200,
    )
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.timeout(1500)
def test_one_wheel_is_for_every_python_from_3_11(wheel: Path) -> None:
    assert wheel.name.startswith("logcore_stream-")
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("logcore/py.typed", "cluster/py.typed", "logcore/_native.pyi", "logcore/_native.abi3.so"):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    packages = {name.partition("/")[0] for name in names}
    assert {name for name in packages if not name.endswith((".dist-info", ".libs"))} <= {"logcore", "cluster"}


@pytest.mark.timeout(600)
def test_it_starts_a_broker_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    subprocess.run([binaries / "python", "-m", "pip", "install", "-q", str(wheel)], check=True, timeout=300)
    broker = subprocess.Popen(
        [binaries / "logcore", "start", "--data-dir", str(tmp_path / "data"), "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        address = next(
            found[1] for line in broker.stdout if (found := re.match(r"\s+broker\s+(\S+:\d+)", line))
        )
        topics = [binaries / "logcore", "topics", "--bootstrap-server", address]
        subprocess.run(
            [*topics, "--create", "--topic", "first"],
            check=True,
            timeout=60,
            cwd=tmp_path,
            capture_output=True,
        )
        listed = subprocess.run(
            [*topics, "--list"], check=True, timeout=60, cwd=tmp_path, capture_output=True, text=True
        )
        assert listed.stdout == "first\n"
        script = (
            "import sys, cluster, cluster.broker, logcore\n"
            "unwanted = ('pyspark', 'pyarrow')\n"
            "sys.exit(sum(name.partition('.')[0] in unwanted for name in sys.modules))"
        )
        subprocess.run([binaries / "python", "-c", script], check=True, timeout=60, cwd=tmp_path)
    finally:
        broker.terminate()
        status = broker.wait(30)
        if broker.stdout is not None:
            broker.stdout.close()
        assert status == 0
