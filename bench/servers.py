"""The servers of the scenarios: ours, Apache Kafka 3.9.1 with its ZooKeeper, Apache Kafka 4.1.0, and
bench/wire's bare loops.

Each is a child process with a loopback port of its own and its data in a directory of the run. The memory and
CPU of a server include its child processes and its ZooKeeper.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cluster import AdminClient, KafkaException, NewTopic, OffsetSpec, TopicPartition

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers"
WIRE = ROOT / "target" / "dist" / "logcore-bench-wire"
OURS, KAFKA_3_9, KAFKA_4_1, BARE = "logcore", "Apache Kafka 3.9.1", "Apache Kafka 4.1.0", "bare loop"
HEAP = "-Xms1g", "-Xmx1g"  # kafka-server-start.sh's own default
JAVA = ["java", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]

# A whole ApiVersions v0 request: size, key 18, version 0, correlation id 1, a null client id.
API_VERSIONS_REQUEST = bytes.fromhex("0000000a0012000000000001ffff")


def free_port() -> int:
    """A free port below the range that systems use for connections, which could take it before the server
    does.
    """
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
            return port


def answers(port: int) -> bool:
    """Whether a Kafka broker answers ApiVersions on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    pids = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            for child in children.read_text().split():
                pids += tree(int(child))
    return pids


def memory_mb(pid: int, field: str) -> float:
    """A field of /proc/PID/status in MB: VmRSS is resident memory, VmHWM its peak since the last reset."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no {field} for process {pid}")


def cpu_seconds(pid: int) -> float:
    """User and system seconds of the process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def used_by(pids_now: Callable[[], list[int]]) -> Iterator[dict[str, float]]:
    """After the block, the dict has the CPU seconds (`cpu_s`) and the peak of resident memory
    (`peak_mb`) of the processes.
    """
    used: dict[str, float] = {}
    pids = pids_now()
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    before = sum(map(cpu_seconds, pids))
    yield used
    pids = pids_now()
    used["cpu_s"] = sum(map(cpu_seconds, pids)) - before
    used["peak_mb"] = sum(memory_mb(pid, "VmHWM") for pid in pids)


# Every broker has these in addition to its default settings. Deleted topics free their memory before the next
# load, and none of thousands of simultaneous connections has to wait for TCP's retry after a second.
SETTINGS = ("log.segment.delete.delay.ms=100", "socket.listen.backlog.size=5000")


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
        zookeeper: Server | None = None,
    ) -> None:
        self.name = name
        self.zookeeper = zookeeper
        self.port = port
        self.log_dir = log_dir
        self.started = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._log = log
        try:
            self.seconds_to_answer = self._wait(kafka)
        except BaseException:  # also for an interrupt: no server may be left
            self.stop()
            raise

    def _wait(self, kafka: bool, timeout: float = 180.0) -> float:
        pause = threading.Event()
        while time.monotonic() - self.started < timeout:
            if self.process.poll() is not None:
                break
            if answers(self.port) if kafka else self._listens():
                return time.monotonic() - self.started
            pause.wait(0.01)
        raise RuntimeError(
            f"{self.name} did not answer on port {self.port}; its output:\n{self.last_output()}"
        )

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def pids(self) -> list[int]:
        """The ids of the server's processes, ZooKeeper's included.

        Raises:
            RuntimeError: when the server has ended.
        """
        if (status := self.process.poll()) is not None:
            raise RuntimeError(f"{self.name} ended with status {status}; its output:\n{self.last_output()}")
        return tree(self.process.pid) + (self.zookeeper.pids() if self.zookeeper else [])

    def last_output(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def resident_mb(self) -> float:
        return sum(memory_mb(pid, "VmRSS") for pid in self.pids())

    def used(self) -> AbstractContextManager[dict[str, float]]:
        return used_by(self.pids)

    @property
    def wire_flags(self) -> list[str]:
        """The flags of bench/wire that send a load here."""
        return ["--port", str(self.port)]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def create_topic(self, topic: str, partitions: int, timeout: float = 120.0) -> None:
        """Returns when the broker leads every partition. With KRaft that is after the response to the
        creation.

        Raises:
            KafkaException: it does not lead them after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
        admin.create_topics([new])[topic].result(timeout)
        latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
        pause = threading.Event()
        while True:
            try:
                for found in admin.list_offsets(latest).values():
                    found.result(timeout)
                return
            except KafkaException:
                if time.monotonic() > end:
                    raise
            pause.wait(0.05)

    def delete_topic(self, topic: str) -> None:
        AdminClient({"bootstrap.servers": self.bootstrap}).delete_topics([topic])[topic].result(60)

    def wait_for_deletions(self, timeout: float = 60.0) -> None:
        """Returns when the files of deleted topics are removed.

        Raises:
            RuntimeError: they exist after `timeout` seconds.
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
                self.kill()

    def kill(self) -> None:
        """Ends the process at once, like the loss of a machine."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def ours(directory: Path, settings: Sequence[str] = ()) -> Iterator[Server]:
    """`settings` are further ones, as NAME=VALUE."""
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
    ]
    for setting in (*SETTINGS, *settings):
        command += ["--override", setting]
    broker = Server(OURS, command, port, directory / "ours.out", log_dir=directory / "ours" / "kafka-logs")
    try:
        yield broker
    finally:
        broker.stop()


def jars(version: str) -> str:
    """The class path of an Apache Kafka.

    Raises:
        RuntimeError: its jars are missing.
    """
    libs = PEERS / f"kafka-{version}"
    if not (libs / ".complete").exists():
        raise RuntimeError(
            f"the jars of Apache Kafka {version} are missing: run `make peers` (it needs java and mvn)"
        )
    return f"{libs}/*"


def broker_settings(listeners: str, log_dir: Path, settings: Sequence[str] = ()) -> str:
    """The settings of the server.properties that Kafka ships, those that a single broker needs, and
    `settings`.
    """
    for_all = "\n".join((*SETTINGS, *settings))
    return (
        f"listeners={listeners}\nlog.dirs={log_dir}\nnum.network.threads=3\nnum.io.threads=8\n"
        "socket.send.buffer.bytes=102400\nsocket.receive.buffer.bytes=102400\n"
        f"{for_all}\noffsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
    )


@contextlib.contextmanager
def kafka_3_9(directory: Path, settings: Sequence[str] = ()) -> Iterator[Server]:
    """Apache Kafka 3.9.1 in ZooKeeper mode, with the server.properties and the heap that it ships with."""
    classes = ["-cp", jars("3.9.1")]
    zk_port, port = free_port(), free_port()
    zk_config = directory / "zookeeper.properties"
    zk_config.write_text(
        f"dataDir={directory}/zookeeper\nclientPort={zk_port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n"
    )
    log_dir = directory / "kafka-3.9-logs"
    config = directory / "kafka-3.9.properties"
    config.write_text(
        broker_settings(f"PLAINTEXT://127.0.0.1:{port}", log_dir, settings)
        + f"broker.id=0\nzookeeper.connect=127.0.0.1:{zk_port}\n"
    )
    zookeeper = Server(
        "ZooKeeper",
        [*JAVA, "-Xmx512m", *classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(zk_config)],
        zk_port,
        directory / "zookeeper.out",
        kafka=False,
    )
    try:
        broker = Server(
            KAFKA_3_9,
            [*JAVA, *HEAP, *classes, "kafka.Kafka", str(config)],
            port,
            directory / "kafka-3.9.out",
            log_dir=log_dir,
            zookeeper=zookeeper,
        )
        try:
            yield broker
        finally:
            broker.stop()
    finally:
        zookeeper.stop()


@contextlib.contextmanager
def kafka_4_1(directory: Path, settings: Sequence[str] = ()) -> Iterator[Server]:
    """Apache Kafka 4.1.0, with broker and KRaft controller in one process, as in its quick start."""
    classes = ["-cp", jars("4.1.0")]
    port, controller_port = free_port(), free_port()
    log_dir = directory / "kafka-4.1-logs"
    config = directory / "kafka-4.1.properties"
    config.write_text(
        broker_settings(
            f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            log_dir,
            settings,
        )
        + "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        "inter.broker.listener.name=PLAINTEXT\n"
    )
    # Kafka's Uuid is 16 bytes in URL-safe Base64 without padding.
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    form = [
        "kafka.tools.StorageTool",
        "format",
        "--standalone",
        f"--cluster-id={cluster_id}",
        "-c",
        str(config),
    ]
    done = subprocess.run(["java", *classes, *form], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"formatting {log_dir} for {KAFKA_4_1} failed: {done.stdout}{done.stderr}")
    broker = Server(
        KAFKA_4_1,
        [*JAVA, *HEAP, *classes, "kafka.Kafka", str(config)],
        port,
        directory / "kafka-4.1.out",
        log_dir=log_dir,
    )
    try:
        yield broker
    finally:
        broker.stop()


KAFKAS = {"3.9.1": kafka_3_9, "4.1.0": kafka_4_1}


def bare(kind: str, directory: Path, *arguments: str) -> Server:
    """`bare-broker` or `bare-sendfile`: loops that show the limit of this machine."""
    port = free_port()
    command = [str(WIRE), kind, "--port", str(port), *arguments]
    return Server(BARE, command, port, directory / f"{kind}.out", kafka=False)
