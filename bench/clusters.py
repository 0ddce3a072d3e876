"""The clusters that bench/three_brokers.py loads: ours and Apache Kafka's.

Ours is what `logcore start --brokers 3` runs. Apache Kafka 3.9.1 has one Apache ZooKeeper 3.9.4.
Both have three brokers on loopback, each in a process of its own, with default settings and those of
`SETTINGS` in bench/servers.py. A broker may be killed, stopped and started again on its files and its port.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cluster import AdminClient, KafkaException, NewTopic
from loads import Figures, run_program
from servers import (
    HEAP,
    JAVA,
    KAFKA_3_9,
    OURS,
    SETTINGS,
    WIRE,
    Server,
    answers,
    broker_settings,
    jars,
    memory_mb,
    tree,
    used_by,
)
from zookeepers import ZOOKEEPER, running

BROKERS = 3
MIN_IN_SYNC = 2
NO_BROKER = -1
TOPICS_AT_ONCE = 100
"""Topics of one request to create them."""


class Member:
    """One broker, whose process may end and begin again."""

    def __init__(self, number: int, port: int, command: list[str], output: Path, pid: int | None = None):
        """`pid` is its process if another program started it."""
        self.number = number
        self.port = port
        self.started_again = 0
        self._command = command
        self._output = output
        self._child: subprocess.Popen[bytes] | None = None
        if pid is None:
            self._run()
        else:
            self.pid, self._handle = pid, os.pidfd_open(pid)

    def _run(self) -> None:
        with self._output.open("ab") as output:
            self._child = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        self.pid, self._handle = self._child.pid, os.pidfd_open(self._child.pid)

    def start_again(self) -> None:
        os.close(self._handle)
        self.started_again += 1
        self._run()

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether its process ends within so many seconds."""
        ended = bool(select.select([self._handle], [], [], seconds)[0])
        if ended and self._child is not None:
            self._child.wait()
        return ended

    def end(self, how: signal.Signals) -> None:
        """Sends the signal and returns when the process has ended.

        Raises:
            RuntimeError: it has not after a minute; it is killed then.
        """
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, how)
        if not self.has_ended(60):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            self.has_ended(60)
            raise RuntimeError(f"broker {self.number} did not end within a minute after {how.name}")

    def close(self) -> None:
        if not self.has_ended():
            with contextlib.suppress(RuntimeError):
                self.end(signal.SIGTERM)
        os.close(self._handle)

    def resident_mb(self) -> float:
        return memory_mb(self.pid, "VmRSS")

    def last_output(self) -> str:
        return self._output.read_text(errors="replace")[-2000:]


class Cluster:
    """Three brokers and their coordinator."""

    def __init__(self, name: str, members: list[Member], log_dirs: list[Path], coordinator: int) -> None:
        """`coordinator` is the process that runs the coordinator."""
        self.name = name
        self.members = members
        self._log_dirs = log_dirs
        self._coordinator = coordinator

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members if not member.has_ended()]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{member.port}" for member in self.alive)

    @property
    def wire_flags(self) -> list[str]:
        return ["--bootstrap", str(self.alive[0].port)]

    def used(self) -> AbstractContextManager[dict[str, float]]:
        return used_by(lambda: [self._coordinator, *(member.pid for member in self.alive)])

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def controller(self) -> Member:
        """The broker that is the controller now.

        Raises:
            RuntimeError: there is none.
        """
        described = self.admin().describe_cluster().result(60)
        found = described.controller.id
        for member in self.alive:
            if member.number == found:
                return member
        raise RuntimeError(f"{self.name} has no controller that is alive, but names broker {found}")

    def leader(self, topic: str, partition: int) -> int:
        metadata = self.admin().list_topics(topic, timeout=60)
        found: int = metadata.topics[topic].partitions[partition].leader
        return found

    def create_topics(self, topics: Sequence[str], partitions: int, replicas: int = BROKERS) -> None:
        """Creates topics, and returns when each broker knows each partition's leader."""
        admin = self.admin()
        config = {"min.insync.replicas": str(min(MIN_IN_SYNC, replicas - 1))}
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            new = [
                NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=config)
                for topic in topics[start : start + TOPICS_AT_ONCE]
            ]
            for created in admin.create_topics(new, request_timeout=120).values():
                created.result(120)
        self.wait(topics, partitions)

    def delete_topic(self, topic: str) -> None:
        """Deletes the topic with its files, from all brokers."""
        self.admin().delete_topics([topic])[topic].result(60)
        pause, end = threading.Event(), time.monotonic() + 60
        while any(any(directory.glob(f"{topic}-*")) for directory in self._log_dirs):
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} has files of {topic} a minute after its deletion")
            pause.wait(0.05)

    def wait(
        self,
        topics: Sequence[str],
        partitions: int,
        *,
        ports: Sequence[int] = (),
        not_broker: int = NO_BROKER,
        in_sync: int = 0,
        timeout: float = 120.0,
    ) -> Figures:
        """Returns when each partition has a leader other than `not_broker` and so many in-sync replicas, in
        the Metadata of the brokers at `ports`, or of all.

        Raises:
            RuntimeError: that is not so after `timeout` seconds.
        """
        command = self.waiting(
            topics, partitions, ports=ports, not_broker=not_broker, in_sync=in_sync, timeout=timeout
        )
        figures: Figures = json.loads(run_program(command, timeout + 60))
        return figures

    def waiting(
        self,
        topics: Sequence[str],
        partitions: int,
        *,
        ports: Sequence[int] = (),
        not_broker: int = NO_BROKER,
        in_sync: int = 0,
        timeout: float = 120.0,
    ) -> list[str]:
        """The command line of :meth:`wait`."""
        chosen = ",".join(map(str, ports or [member.port for member in self.alive]))
        several = ["--topics", str(len(topics))] if len(topics) > 1 else []
        topic = topics[0].rpartition("-")[0] if several else topics[0]
        flags: dict[str, object] = {
            "ports": chosen,
            "topic": topic,
            "partitions": partitions,
            "not-broker": not_broker,
            "in-sync": in_sync,
            "timeout": timeout,
        }
        shown = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return [str(WIRE), "wait-for-leaders", *shown, *several]

    def start_again(
        self, member: Member, topics: Sequence[str], partitions: int, in_sync: int = 0, timeout: float = 120.0
    ) -> float:
        """Starts a broker that has ended, again if it ends. Returns the seconds until its Metadata has each
        partition's leader; with `in_sync`, and as many in-sync replicas.
        """
        command = self.waiting(topics, partitions, ports=[member.port], in_sync=in_sync, timeout=timeout)
        begun = time.monotonic()
        member.start_again()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as waiting:
            while waiting.poll() is None:
                if member.has_ended(0.01):
                    member.start_again()
            seconds = time.monotonic() - begun
            if waiting.returncode != 0:
                assert waiting.stderr is not None
                reason = waiting.stderr.read().decode(errors="replace").strip()
                raise RuntimeError(f"{reason}; its output ends with: {member.last_output()}")
        return seconds

    def revive(self) -> None:
        """Starts the brokers that a failed scenario left dead, and returns when all serve."""
        if len(self.alive) < len(self.members):
            wait_for_brokers(self, start_again=True)

    def heal(self, topics: Sequence[str], partitions: int, in_sync: int = BROKERS) -> None:
        """Starts the brokers that have ended, and returns when all replicas are in sync."""
        for member in self.members:
            if member.has_ended():
                self.start_again(member, topics, partitions, timeout=300)
        self.wait(topics, partitions, in_sync=in_sync, timeout=300)


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, below the range that systems use for connections."""
    while True:
        first = random.randrange(10_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probe = stack.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", port))
            return first


@contextlib.contextmanager
def ours(directory: Path) -> Iterator[Cluster]:
    data, first = directory / "ours", free_ports(BROKERS)
    command = [sys.executable, "-m", "cluster.cli", "start", "--brokers", str(BROKERS)]
    command += ["--data-dir", str(data), "--port", str(first), "--host", "127.0.0.1"]
    for setting in SETTINGS:
        command += ["--override", setting]
    starter = Server(OURS, command, first, directory / "ours.out")
    members: list[Member] = []
    try:
        found = {
            properties: pid
            for pid in tree(starter.process.pid)[1:]
            for properties in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if properties.endswith(".properties")
        }
        for number in range(BROKERS):
            properties = data / f"broker-{number}.properties"
            again = [sys.executable, "-m", "cluster.cli", "broker", str(properties)]
            output = directory / f"ours-{number}.out"
            members.append(Member(number, first + number, again, output, found[str(properties)]))
        log_dirs = [data / "kafka-logs", *(data / f"kafka-logs-{number}" for number in range(1, BROKERS))]
        cluster = Cluster(OURS, members, log_dirs, starter.process.pid)
        wait_for_brokers(cluster)
        yield cluster
    finally:
        for member in members:
            member.close()
        starter.stop()


@contextlib.contextmanager
def kafka(directory: Path) -> Iterator[Cluster]:
    """Apache Kafka, with the server.properties and the heap that it ships with."""
    with running(ZOOKEEPER, directory / "zookeeper", 1) as ensemble:
        members: list[Member] = []
        first, log_dirs = free_ports(BROKERS), []
        try:
            for number in range(BROKERS):
                log_dirs.append(directory / f"kafka-logs-{number}")
                config = directory / f"kafka-{number}.properties"
                config.write_text(
                    broker_settings(f"PLAINTEXT://127.0.0.1:{first + number}", log_dirs[-1])
                    + f"broker.id={number}\nzookeeper.connect=127.0.0.1:{ensemble.ports[0]}\n"
                )
                command = [*JAVA, *HEAP, "-cp", jars("3.9.1"), "kafka.Kafka", str(config)]
                output = directory / f"kafka-{number}.out"
                members.append(Member(number, first + number, command, output))
            cluster = Cluster(KAFKA_3_9, members, log_dirs, ensemble.members[0].process.pid)
            wait_for_brokers(cluster)
            yield cluster
        finally:
            for member in members:
                member.close()


def wait_for_brokers(cluster: Cluster, start_again: bool = False) -> None:
    """Returns when every broker answers, and one knows them all. With `start_again`, ended ones are started.

    Raises:
        RuntimeError: one has ended, or they do not answer after two minutes.
    """
    end, pause = time.monotonic() + 120, threading.Event()
    while True:
        if all(answers(member.port) for member in cluster.members):
            with contextlib.suppress(KafkaException):
                if len(cluster.admin().list_topics(timeout=5).brokers) == BROKERS:
                    break
        ended = [member for member in cluster.members if member.has_ended()]
        if start_again:
            for member in ended:
                member.start_again()
            ended = []
        if ended or time.monotonic() > end:
            failed = ended[0] if ended else cluster.members[0]
            raise RuntimeError(f"{cluster.name} did not start; its output ends with: {failed.last_output()}")
        pause.wait(0.1)


CLUSTERS = {OURS: ours, KAFKA_3_9: kafka}
