"""The servers a scenario runs: ours, Apache Kafka 3.9.1 with its ZooKeeper, and the bare loops of bench/wire.

Each is a child process on a loopback port of its own with its data in a directory of the run; each is stopped by its id.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cluster import AdminClient, NewTopic

ROOT = Path(__file__).resolve().parents[1]
KAFKA_LIBS = ROOT / "build" / "peers" / "kafka-3.9.1"
WIRE = ROOT / "target" / "release" / "logcore-bench-wire"
HEAP = "-Xms1g", "-Xmx1g"  # kafka-server-start.sh's own default

# A whole ApiVersions v0 request: size, key 18, version 0, correlation id 1, a null client id.
API_VERSIONS_REQUEST = bytes.fromhex("0000000a0012000000000001ffff")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """True when a Kafka broker answers ApiVersions on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def resident_mb(process: subprocess.Popen[bytes]) -> float:
    """The process's resident memory in MB (VmRSS)."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"no VmRSS for process {process.pid}")


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system seconds the process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Deleted topics give their memory back before the next load: the logs are on tmpfs.
DELETE_DELAY = "log.segment.delete.delay.ms=1000"


class Server:
    """One child process that listens on a port."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        log: Path,
        *,
        kafka: bool = True,
        log_dir: Path | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.log_dir = log_dir
        self.started = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._log = log
        self.seconds_to_answer = self._wait(kafka)

    def _wait(self, kafka: bool, timeout: float = 60.0) -> float:
        pause = threading.Event()
        while time.monotonic() - self.started < timeout:
            if self.process.poll() is not None:
                break
            if answers(self.port) if kafka else self._listens():
                return time.monotonic() - self.started
            pause.wait(0.01)
        raise RuntimeError(
            f"{self.name} did not answer on port {self.port}; it said:\n{self._log.read_text()[-2000:]}"
        )

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def create_topic(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])[topic].result(
            60
        )

    def delete_topic(self, topic: str) -> None:
        AdminClient({"bootstrap.servers": self.bootstrap}).delete_topics([topic])[topic].result(60)

    def wait_for_deletions(self, timeout: float = 60.0) -> None:
        """Returns when the files of deleted topics are gone.

        Raises:
            RuntimeError: when they are still there after `timeout` seconds.
        """
        pause = threading.Event()
        end = time.monotonic() + timeout
        while self.log_dir and any(self.log_dir.glob("*-delete")):
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{self.name} still has deleted topics in {self.log_dir} after {timeout:g} s"
                )
            pause.wait(0.05)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def ours(directory: Path) -> Server:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "cluster.cli",
        "start",
        "--data-dir",
        str(directory / "ours"),
        "--port",
        str(port),
        "--override",
        DELETE_DELAY,
    ]
    return Server("logcore", command, port, directory / "ours.out", log_dir=directory / "ours" / "kafka-logs")


@contextlib.contextmanager
def apache_kafka(directory: Path) -> Iterator[Server]:
    """Apache Kafka 3.9.1 in ZooKeeper mode with the server.properties it ships, its heap as its script gives it."""
    if not (KAFKA_LIBS / ".complete").exists():
        raise RuntimeError("Apache Kafka's jars are missing: run `make peers` (it needs java and mvn)")
    zk_port, port = free_port(), free_port()
    zk_config = directory / "zookeeper.properties"
    zk_config.write_text(f"dataDir={directory}/zookeeper\nclientPort={zk_port}\nadmin.enableServer=false\n")
    config = directory / "server.properties"
    config.write_text(
        f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={directory}/kafka-logs\n"
        f"zookeeper.connect=127.0.0.1:{zk_port}\nnum.network.threads=3\nnum.io.threads=8\n"
        "socket.send.buffer.bytes=102400\nsocket.receive.buffer.bytes=102400\n"
        f"{DELETE_DELAY}\noffsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
    )
    java = ["java", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
    classes = ["-cp", f"{KAFKA_LIBS}/*"]
    zookeeper = Server(
        "zookeeper",
        [*java, "-Xmx512m", *classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(zk_config)],
        zk_port,
        directory / "zookeeper.out",
        kafka=False,
    )
    try:
        broker = Server(
            "Apache Kafka 3.9.1",
            [*java, *HEAP, *classes, "kafka.Kafka", str(config)],
            port,
            directory / "kafka.out",
            log_dir=directory / "kafka-logs",
        )
        try:
            yield broker
        finally:
            broker.stop()
    finally:
        zookeeper.stop()


def bare(kind: str, directory: Path, *arguments: str) -> Server:
    """`bare-broker` or `bare-sendfile`: the most that could be had on this machine."""
    port = free_port()
    return Server(
        kind, [str(WIRE), kind, "--port", str(port), *arguments], port, directory / f"{kind}.out", kafka=False
    )


def wire(command: str, server: Server, **options: object) -> dict[str, float]:
    """Runs one load of bench/wire against a server and returns the figures it printed."""
    arguments = [str(WIRE), command, "--host", "127.0.0.1", "--port", str(server.port)]
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments[1:])} against {server.name} failed: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures
