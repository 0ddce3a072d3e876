"""Apache Kafka 4.1.0 as a peer: one broker with its KRaft controller in one process."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.compat.apache import JavaServer
from tests.compat.conftest import peer_jars
from tests.compat.load import until
from tests.ports import free_port

FORMAT_TIMEOUT = 90.0


@contextmanager
def kraft(directory: Path, settings: dict[str, str] | None = None) -> Iterator[str]:
    """A running broker. Yields its address."""
    libs = peer_jars("kafka-4.1.0")
    port, controller = free_port(), free_port()
    every = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "kraft-logs"),
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
        **(settings or {}),
    }
    config = directory / "kraft.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in every.items()))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    form = ["format", "--standalone", f"--cluster-id={cluster}", "-c", str(config)]
    done = subprocess.run(
        ["java", "-cp", f"{libs}/*", "kafka.tools.StorageTool", *form],
        capture_output=True,
        text=True,
        timeout=FORMAT_TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    broker = JavaServer("-Xmx384m", "kafka.Kafka", str(config), jars=libs)
    address = f"127.0.0.1:{port}"
    try:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        until(lambda: admin.list_topics(timeout=30).brokers, "Apache Kafka 4.1.0 serves")
        yield address
    finally:
        broker.stop()
