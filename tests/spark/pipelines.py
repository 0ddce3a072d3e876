"""Runs `logcore pipeline` and the programs that load its data, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.conftest import ROOT

TIMEOUT = 600
FINISHED = ROOT / "pipelines"
_SPARK = '[pipeline.spark]\nspark.master = "local[2]"\nspark.sql.shuffle.partitions = 2\n'


def small(config: Path, directory: Path) -> Path:
    """A finished pipeline as it is, with Spark's settings for a test; its directory is linked beside it."""
    directory.mkdir(exist_ok=True)
    for file in config.parent.iterdir():
        if file.suffix == ".csv":
            (directory / file.name).write_bytes(file.read_bytes())
    copy = directory / config.name
    copy.write_text(config.read_text() + "\n" + _SPARK)
    return copy


def command(config: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts `logcore pipeline run`."""
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.cli", "pipeline", "run", str(config)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(config: Path, expected: int = 0, **environment: str) -> tuple[str, str]:
    """Runs a pipeline to its end. Returns what it printed and what it said on standard error."""
    process = command(config, **environment)
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == expected, f"status {process.returncode}; it said:\n{output}{errors}"
    return output, errors


def load(program: str, *arguments: str) -> None:
    """Runs a program of the finished pipelines that fills topics."""
    done = subprocess.run(
        [sys.executable, str(FINISHED / program), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
