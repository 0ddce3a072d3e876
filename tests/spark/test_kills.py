"""A streaming query copies a topic while its driver, its Python workers and the broker are killed.

Broken if they failed: a job with exactly.once would lose or repeat records when a machine fails.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster import Consumer, TopicPartition
from tests.conftest import BrokerProcess, StartBroker
from tests.spark.conftest import ROOT
from tests.spark.streams import consume, create_topic, produce

SEED = int(os.environ.get("LOGCORE_SEED", "35"))
PARTITIONS = 3
KILLS = ("driver",) * 5 + ("worker",) * 8 + ("broker",) * 7
"""Their order follows from the seed."""
RECORDS = 600
"""Produced before each kill, so that micro-batches are under way."""
PROGRESS_TIMEOUT = 300.0
SLICE_SECONDS = 1.0
"""How long to wait for a record before the query is looked at: it may have ended."""


class Copier:
    """The program `copier.py`, started again whenever it has ended."""

    def __init__(self, bootstrap: str, checkpoint: Path, log: Path) -> None:
        self._arguments = [bootstrap, "in", "out", str(checkpoint)]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        """A query ends when a task has failed too often, or its planning process was killed."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "spark" / "copier.py"), *self._arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_records(self, reader: Consumer, count: int, what: str) -> None:
        """Waits until so many records were written since the last call."""
        deadline = time.monotonic() + PROGRESS_TIMEOUT
        while count > 0:
            self.keep_running()
            message = reader.poll(SLICE_SECONDS)
            if message is not None and message.error() is None:
                count -= 1
            elif time.monotonic() > deadline:
                said = self._log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"{what} took over {PROGRESS_TIMEOUT} s; the query said:\n{said}")

    def kill(self) -> None:
        """SIGKILL to the driver with all its children."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def workers(self) -> list[int]:
        """The Python processes that Spark has started: its daemon and what that has forked."""
        assert self._process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                session = os.getsid(int(entry.name))
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if session == self._process.pid and b"pyspark.daemon" in command.replace(b"/", b"."):
                found.append(int(entry.name))
        return sorted(found)


@contextmanager
def reading(bootstrap: str, isolation: str) -> Iterator[Consumer]:
    """A reader of the copy, from its beginning."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "kills", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": isolation})
    try:
        consumer.assign([TopicPartition("out", partition, 0) for partition in range(PARTITIONS)])
        yield consumer
    finally:
        consumer.close()


def play(start_broker: StartBroker, directory: Path, seed: int) -> None:
    """Copies while the kills happen, and compares the topics."""
    chance = random.Random(seed)
    kills = chance.sample(KILLS, len(KILLS))
    print(f"seed {seed}: {' '.join(kills)}")
    broker: BrokerProcess = start_broker(directory / "data")
    bootstrap, port = broker.bootstrap, broker.port
    for topic in ("in", "out"):
        create_topic(bootstrap, topic, PARTITIONS)
    copier = Copier(bootstrap, directory / "checkpoint", directory / "copier.log")
    produced = 0
    try:
        # It sees records of transactions that are open, so a kill falls amid a micro-batch.
        with reading(bootstrap, "read_uncommitted") as written:
            for kill in kills:
                produce(bootstrap, "in", range(produced, produced + RECORDS), PARTITIONS)
                produced += RECORDS
                copier.wait_for_records(written, chance.randint(1, RECORDS), f"a record before {kill}")
                if kill == "driver":
                    copier.kill()
                elif kill == "worker":
                    workers = copier.workers()
                    for worker in chance.sample(workers, min(len(workers), 2)):
                        os.kill(worker, signal.SIGKILL)
                else:
                    broker.kill()
                    broker = start_broker(directory / "data", port)
        with reading(bootstrap, "read_committed") as copied:
            copier.wait_for_records(copied, produced, "the whole copy")
    finally:
        copier.kill()
    assert consume(bootstrap, "out", PARTITIONS) == {
        part: [str(value).encode() for value in range(part, produced, PARTITIONS)]
        for part in range(PARTITIONS)
    }
    broker.kill()


@pytest.mark.timeout(1800)
def test_a_copy_is_exact(start_broker: StartBroker, tmp_path: Path) -> None:
    play(start_broker, tmp_path, SEED)


@pytest.mark.skipif("LOGCORE_CHAOS_MINUTES" not in os.environ, reason="make chaos runs new seeds")
@pytest.mark.timeout(0)
def test_new_seeds(start_broker: StartBroker, tmp_path: Path) -> None:
    end = time.monotonic() + 60 * float(os.environ["LOGCORE_CHAOS_MINUTES"])
    seed = time.time_ns() // 1000
    while time.monotonic() < end:
        play(start_broker, tmp_path / str(seed), seed)
        seed += 1
