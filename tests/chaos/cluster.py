"""Three of our brokers and their coordinator, each process in a network namespace of its own.

Each broker's log directory is a small tmpfs, which a fault can fill. The cluster's state is read from Kafka's
znodes. A test calls this from its own thread; :func:`cluster` ends every process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.retry import KazooRetry

from tests.compat.ensemble.members import OURS, Ensemble
from tests.faults.network import Addresses, Namespaces
from tests.faults.process import Server

BROKERS = 3
PORT = 9092
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05
"""The interval of polling what no event announces."""
SESSION_SECONDS = 2.0
LAG_SECONDS = 2.0
ASK_SECONDS = 5.0
"""The limit of a question to the coordinator."""
DISK_BYTES = 64 << 20

SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
    "replica.lag.time.max.ms": str(int(LAG_SECONDS * 1000)),
    "replica.socket.timeout.ms": "2000",
    # A broker that starts or stops while the coordinator is away waits for it, but not for minutes.
    "zookeeper.connection.timeout.ms": "30000",
    "request.timeout.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "100",
    "default.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(BROKERS),
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # Small files: a run has several segments, and the disk is small.
    "log.segment.bytes": "65536",
    "log.index.size.max.bytes": "65536",
}


class AwayError(Exception):
    """The coordinator did not answer in time."""


@dataclass(frozen=True)
class State:
    """A partition's state, as its znode says."""

    leader: int
    isr: frozenset[int]


class BrokerProcess(Server):
    """``id`` is its broker id, ``number`` its place in the network."""

    def __init__(
        self, broker: int, number: int, directory: Path, address: Addresses, network: Namespaces
    ) -> None:
        super().__init__(f"broker {broker}", number, directory, network)
        self.id, self.host = broker, address.host
        self.data = directory / "data"
        self.filler = self.data / "filler"

    def prepare(self, coordinator: str) -> None:
        self.data.mkdir(parents=True)
        _mount("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.data))
        settings = {
            "broker.id": str(self.id),
            "listeners": f"PLAINTEXT://{self.host}:{PORT}",
            "log.dirs": str(self.data / "logs"),
            "zookeeper.connect": coordinator,
            **SETTINGS,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.directory / "server.properties").write_text(lines)

    def start(self) -> None:
        command = [sys.executable, "-m", "cluster.cli", "broker", str(self.directory / "server.properties")]
        self.run(command, OURS.environment)

    def fill_disk(self) -> None:
        with self.filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def segments(self, topic: str, partition: int) -> list[Path]:
        return sorted((self.data / "logs" / f"{topic}-{partition}").glob("*.log"))

    def digest(self, topic: str, partition: int) -> str:
        """The length and the hash of a log. Replicas may divide it into different segments."""
        whole = b"".join(path.read_bytes() for path in self.segments(topic, partition))
        return f"{len(whole)} {hashlib.sha256(whole).hexdigest()[:16]}"


class Cluster:
    """``members``: the number of the coordinator's servers."""

    def __init__(self, directory: Path, network: Namespaces, members: int) -> None:
        self.network = network
        self.ensemble = Ensemble(OURS, directory, members, {"tickTime": "200", "syncLimit": "8"}, network)
        self.brokers = [
            BrokerProcess(broker, members + broker, directory / f"broker-{broker}", address, network)
            for broker, address in enumerate(network.addresses(BROKERS))
        ]
        connect = KazooRetry(max_tries=-1, delay=0.1, backoff=1)
        # It says of each attempt to connect that it failed.
        logger = logging.getLogger("tests.chaos.zookeeper")
        logger.setLevel(logging.CRITICAL)
        self.zk = KazooClient(self.ensemble.hosts, timeout=20.0, connection_retry=connect, logger=logger)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.host}:{PORT}" for broker in self.brokers)

    def start(self) -> None:
        self.ensemble.start()
        for broker in self.brokers:
            broker.prepare(self.ensemble.hosts)
            broker.start()
        self.zk.start(WAIT_SECONDS)
        self.until("every broker is registered", lambda: len(self._children("/brokers/ids")) == BROKERS)

    def stop(self) -> None:
        self.zk.stop()
        self.zk.close()
        for broker in self.brokers:
            broker.kill()
            with contextlib.suppress(subprocess.CalledProcessError):
                _mount("umount", "--lazy", str(broker.data))
        self.ensemble.stop()

    # ---- what the znodes say ----

    def state(self, topic: str, partition: int) -> State:
        data, _ = self._ask(self.zk.get_async, f"/brokers/topics/{topic}/partitions/{partition}/state")
        found = json.loads(data)
        return State(found["leader"], frozenset(found["isr"]))

    def states(self, topic: str) -> list[State]:
        partitions = self._children(f"/brokers/topics/{topic}/partitions")
        return [self.state(topic, int(partition)) for partition in sorted(partitions, key=int)]

    def controller(self) -> int:
        """The id of the active controller; -1 if there is none."""
        try:
            data, _ = self._ask(self.zk.get_async, "/controller")
        except NoNodeError:
            return -1
        return int(json.loads(data)["brokerid"])

    def is_whole(self, topic: str) -> bool:
        """Every replica of every partition is in sync."""
        try:
            states = self.states(topic)
        except AwayError:
            return False
        return bool(states) and all(state.leader >= 0 and len(state.isr) == BROKERS for state in states)

    def _children(self, path: str) -> list[str]:
        try:
            return self._ask(self.zk.get_children_async, path)
        except NoNodeError:
            return []

    def _ask(self, begin: Callable[[str], Any], path: str) -> Any:
        """The result of a request that ``begin`` begins. Raises NoNodeError or AwayError."""
        end = time.monotonic() + ASK_SECONDS
        while True:
            try:
                return begin(path).get(timeout=max(POLL_SECONDS, end - time.monotonic()))
            except NoNodeError:
                raise
            except (KazooException, self.zk.handler.timeout_exception) as error:
                if time.monotonic() > end:
                    raise AwayError(f"the coordinator does not answer: {error!r}") from error
                time.sleep(POLL_SECONDS)

    # ---- waiting and healing ----

    def until(self, what: str, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not holds():
            self.check_processes()
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.outputs()}")
            time.sleep(POLL_SECONDS)

    def check_processes(self) -> None:
        """Raises AssertionError if a broker ended that nobody ended."""
        for broker in self.brokers:
            if broker.has_ended and not broker.filler.exists():
                raise AssertionError(f"{broker.name} ended by itself; its output:\n{broker.output()}")

    def heal(self) -> None:
        """Undoes what faults did to networks, disks and processes."""
        self.network.heal()
        for broker in self.brokers:
            broker.filler.unlink(missing_ok=True)
            broker.resume()
        self.ensemble.heal()
        for broker in self.brokers:
            if not broker.runs:
                broker.end()
                broker.start()

    def outputs(self) -> str:
        return "\n".join(f"{broker.name}:\n{broker.output()}" for broker in self.brokers)


def _mount(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_SECONDS)


@contextlib.contextmanager
def cluster(directory: Path, network: Namespaces, members: int) -> Iterator[Cluster]:
    made = Cluster(directory, network, members)
    try:
        made.start()
        yield made
    finally:
        made.stop()
