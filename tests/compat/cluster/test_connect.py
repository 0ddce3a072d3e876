"""Kafka Connect 3.9.1 in distributed mode on our three brokers: a file goes through a topic into another
file, exactly once into the topic, while a worker and a broker are killed.

If it failed, a connector's group or its transactions would not survive the end of a worker.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cluster.model import TRANSACTION_STATE_TOPIC
from tests.compat.apache import JavaServer
from tests.compat.cluster.applications import REPLICAS, SETTINGS, committed, coordinator_of, replaced
from tests.compat.cluster.brokers import Cluster, cluster
from tests.compat.conftest import peer_jars
from tests.compat.load import PATIENCE_SECONDS, until
from tests.ports import free_port

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

LINES = 600
LINE_LENGTH = 1_100
"""The source reads 1 KiB at first. It keeps lines that it has read beyond its batch until the file grows."""
SOURCE = "file-source"
SINK = "file-sink"


class Worker:
    """A worker of Kafka Connect, with its REST interface."""

    def __init__(self, made: Cluster, directory: Path, number: int) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        settings = {
            "bootstrap.servers": made.bootstrap,
            "group.id": "connect",
            "listeners": f"http://{self.address}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "config.storage.topic": "connect-configs",
            "offset.storage.topic": "connect-offsets",
            "offset.storage.partitions": "3",
            "status.storage.topic": "connect-status",
            "status.storage.partitions": "1",
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.flush.interval.ms": "1000",
        }
        config = directory / f"worker-{number}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._process = JavaServer(
            "-Xmx256m",
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(config),
            jars=peer_jars("kafka-streams-3.9.1"),
            options=["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"],
        )

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A GET, or a PUT with a body. Returns None if the worker cannot answer now."""
        assert self._process.process.poll() is None, self._process.output()
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.loads(answer.read())
        except (OSError, urllib.error.HTTPError):
            return None

    def kill(self) -> None:
        self._process.stop(signal.SIGKILL)

    def output(self) -> str:
        return self._process.output()


def configure(worker: Worker, name: str, **settings: str) -> None:
    """Makes a connector of one task."""
    made = {"tasks.max": "1", **{key.replace("_", "."): value for key, value in settings.items()}}
    until(lambda: worker.ask(f"/connectors/{name}/config", made) is not None, f"{name} is configured")


def running_on(worker: Worker, name: str) -> str | None:
    """The address of the worker that runs a connector's task; None if none does."""
    status = worker.ask(f"/connectors/{name}/status")
    tasks = [] if status is None else status["tasks"]
    assert not any(task["state"] == "FAILED" for task in tasks), status
    running = [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]
    return running[0] if running else None


def test_a_file_goes_through_a_topic_while_a_worker_and_a_broker_are_killed(tmp_path: Path) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number} ".ljust(LINE_LENGTH, ".") for number in range(LINES)]
    source.write_text("\n".join(lines[: LINES // 2]) + "\n")
    with cluster(tmp_path, "ours", dict.fromkeys(range(3), "ours"), SETTINGS) as made:
        made.start(0, 1, 2)
        made.create_topic("lines", REPLICAS)
        workers = [Worker(made, tmp_path, number) for number in range(2)]
        try:
            until(lambda: all(worker.ask("/") is not None for worker in workers), "the workers answer")
            configure(
                workers[0],
                SOURCE,
                connector_class="FileStreamSource",
                file=str(source),
                topic="lines",
                batch_size="1",
            )
            configure(
                workers[0],
                SINK,
                connector_class="FileStreamSink",
                file=str(sink),
                topics="lines",
                consumer_override_auto_offset_reset="earliest",
            )
            until(lambda: running_on(workers[0], SINK) is not None, "the sink runs")
            committed(made, "lines", LINES // 10)
            address = running_on(workers[0], SOURCE)
            killed = next(worker for worker in workers if worker.address == address)
            (left,) = [worker for worker in workers if worker is not killed]
            killed.kill()
            with source.open("a") as file:
                file.write("\n".join(lines[LINES // 2 :]) + "\n")
            until(lambda: running_on(left, SOURCE) == left.address, "the source runs on the other worker")
            transactional_id = f"connect-{SOURCE}-0"
            replaced(made, coordinator_of(made, TRANSACTION_STATE_TOPIC, transactional_id), ["lines"])
            records = [
                value.decode() for each in committed(made, "lines", LINES).values() for _, value in each
            ]
            assert sorted(records) == sorted(lines)
            # The sink writes each line at least once.
            until(lambda: set(sink.read_text().splitlines()) >= set(lines), "the sink has every line")
            assert set(sink.read_text().splitlines()) == set(lines)
        except BaseException:
            for worker in workers:
                print(worker.output()[-6000:])
            raise
        finally:
            for worker in workers:
                worker.kill()
