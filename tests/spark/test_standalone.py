"""Jobs on a standalone Spark cluster, whose executors are processes of their own."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.columns.segment_files import sample, write_partition
from tests.spark.clusters import spark_cluster, spawned
from tests.spark.conftest import ROOT
from tests.spark.streams import TIMEOUT, create_topic, produce

PARTITIONS = 3
RECORDS = 3_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_cluster(tmp_path_factory.mktemp("work")) as address:
        yield address


# Broken if it failed: a job would need every broker's disk, or would run in the driver's process only.
@pytest.mark.timeout(600)
def test_a_job_completes_from_the_replicas_that_are_left(master: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    start = [sys.executable, "-m", "cluster.cli", "start", "--brokers", "3", "--port", "0"]
    with spawned(r"broker\s+(\S+:\d+)", *start, "--data-dir", str(data)) as said:
        create_topic(said[1], "spread", PARTITIONS, replicas=3, min_insync_replicas="3")
        produce(said[1], "spread", range(RECORDS), PARTITIONS)
        # A follower learns with the next records that the ones before are replicated, and notes it when it
        # is stopped.
        produce(said[1], "spread", range(-PARTITIONS, 0), PARTITIONS)
    directories = [data / "kafka-logs", data / "kafka-logs-1", data / "kafka-logs-2"]
    # One broker's disk is lost as a whole, another has lost a partition.
    shutil.rmtree(directories[0])
    shutil.rmtree(directories[1] / "spread-1")
    done = query(master, "spread", directories)
    assert f"found {RECORDS} {RECORDS} 0 {RECORDS - 1} executors 2" in done.stdout, done.stdout + done.stderr


# Broken if it failed: every machine of a cluster would have to have logcore installed.
@pytest.mark.timeout(600)
def test_executors_get_the_package_from_an_archive(master: str, tmp_path: Path) -> None:
    records = [dataclasses.replace(record, value=b"%d" % record.offset) for record in sample(10)]
    write_partition(tmp_path / "logs" / "few-0", records)
    # What README's pip and tar make.
    archive = tmp_path / "logcore.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for package in ("python/logcore", "python/cluster", "spark/pyspark_logcore"):
            packed.add(ROOT / package, Path(package).name)
    # An interpreter with pyarrow, but without what this checkout has installed: -S reads no .pth file. The
    # driver's own workers find it, as on a machine where it is installed.
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{sysconfig.get_path("purelib")}:$OF_THE_DRIVER" '
        f'exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    driver = {"PYSPARK_PYTHON": str(python), "OF_THE_DRIVER": f"{ROOT / 'python'}:{ROOT / 'spark'}"}
    without = query(master, "few", [tmp_path / "logs"], PYTHONPATH="", **driver)
    assert "No module named" in without.stderr, without.stdout + without.stderr
    settings = f"--archives {archive}#logcore --conf spark.executorEnv.PYTHONPATH=logcore pyspark-shell"
    done = query(master, "few", [tmp_path / "logs"], PYTHONPATH="", PYSPARK_SUBMIT_ARGS=settings, **driver)
    assert "found 10 10 0 9 " in done.stdout, done.stdout + done.stderr


def query(
    master: str, topic: str, directories: list[Path], **environment: str
) -> subprocess.CompletedProcess[str]:
    program = str(ROOT / "tests" / "spark" / "query.py")
    return subprocess.run(
        [sys.executable, program, master, topic, *map(str, directories)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, **environment},
    )
