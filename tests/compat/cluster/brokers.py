"""Clusters whose brokers are ours, Apache Kafka's 3.9.1, or both: each broker a process of its own, on our
coordinator or on Apache ZooKeeper 3.9.4.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from cluster.coordinator import Settings
from tests.compat.apache import ApacheKafka
from tests.compat.conftest import peer_jars
from tests.compat.load import PATIENCE_SECONDS, done, until
from tests.compat.zookeeper_peer import apache_zookeeper, our_coordinator
from tests.conftest import CommandProcess
from tests.ports import free_port

SESSION_MS = 4000
"""Short, because a killed broker of Apache's falls with its session."""
TICK_MS = 500


class Member(Protocol):
    """One broker of a cluster, which may be stopped and started again."""

    bootstrap: str
    log_dir: Path

    def launch(self) -> None:
        """Starts the broker and returns before it serves."""

    def wait_until_serving(self) -> None:
        """Returns once the broker serves."""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the broker: SIGTERM for a clean shutdown, SIGKILL for a crash."""

    def pause(self, how: signal.Signals) -> None:
        """Sends SIGSTOP or SIGCONT."""

    def output(self) -> str:
        """The log of the last run."""


class OurBroker:
    """`logcore broker` with its files in `directory`."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.log_dir = Path(settings["log.dirs"])
        self.bootstrap = settings["listeners"].removeprefix("PLAINTEXT://")
        self._config = directory / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._process: CommandProcess | None = None

    def launch(self) -> None:
        self._process = CommandProcess("broker", str(self._config))

    def wait_until_serving(self) -> None:
        assert self._process is not None
        self._process.wait_ready(PATIENCE_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        status = self._process.stop(how, PATIENCE_SECONDS)
        assert how != signal.SIGTERM or status == 0, self.output()

    def pause(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.process.send_signal(how)

    def output(self) -> str:
        return "" if self._process is None else self._process.output()


class ApacheBroker(ApacheKafka):
    """Apache Kafka, which writes its warnings to its output."""

    last_output = ""

    def launch(self, settings: dict[str, str] | None = None) -> None:
        super().launch(settings)
        self.last_output = ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        server = self._broker
        super().stop(how)
        if server is not None:
            self.last_output = server.output()

    def output(self) -> str:
        return super().output() or self.last_output

    def pause(self, how: signal.Signals) -> None:
        assert self._broker is not None
        self._broker.process.send_signal(how)


class Cluster:
    """Brokers on one coordinator. `kinds` says by id whose they are: "ours" or "apache"."""

    def __init__(
        self, directory: Path, zookeeper: str, kinds: Mapping[int, str], settings: Mapping[str, str]
    ) -> None:
        self.kinds = dict(kinds)
        self.members: dict[int, Member] = {}
        self.alive: set[int] = set()
        self.logs: dict[int, list[str]] = {}
        """By broker, the logs of its earlier runs."""
        self.znodes = KazooClient(zookeeper)
        self._directory = directory
        self._zookeeper = zookeeper
        self._settings = dict(settings)
        for number in kinds:
            self.add(number)

    def add(self, number: int) -> None:
        """Makes a broker; it is not started."""
        directory = self._directory / f"broker-{number}"
        directory.mkdir()
        settings = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
            "log.dirs": str(directory / "kafka-logs"),
            "zookeeper.connect": self._zookeeper,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": "3",
            "group.initial.rebalance.delay.ms": "0",
            "min.insync.replicas": "2",
            "replica.lag.time.max.ms": "3000",
            "controlled.shutdown.retry.backoff.ms": "100",
            **self._settings,
        }
        if self.kinds[number] == "ours":
            self.members[number] = OurBroker(directory, settings)
        else:
            logging = peer_jars("kafka-logging-1.7.36")
            self.members[number] = ApacheBroker(
                directory,
                settings,
                log_dir=Path(settings["log.dirs"]),
                zookeeper=self._zookeeper,
                logging=logging,
            )

    def start(self, *numbers: int) -> None:
        """Starts brokers and returns once they serve."""
        for number in numbers:
            if self.kinds[number] == "apache":
                # Unlike ours it does not take over the registration of its own killed process.
                registration = f"/brokers/ids/{number}"
                until(lambda path=registration: self.znodes.exists(path) is None, f"{registration} ends")  # type: ignore[misc]
            self.members[number].launch()
            self.alive.add(number)
        for number in numbers:
            self.members[number].wait_until_serving()

    def stop(self, number: int, how: signal.Signals = signal.SIGTERM) -> None:
        """Stops a broker, or kills it."""
        self.alive.discard(number)
        member = self.members[number]
        try:
            member.stop(how)
        finally:
            self.logs.setdefault(number, []).append(member.output())

    def close(self) -> None:
        for number in list(self.alive):
            with contextlib.suppress(Exception):
                self.stop(number, signal.SIGKILL)
        self.znodes.stop()
        self.znodes.close()
        for number in self.members:
            # Pytest shows it if the test fails.
            print(f"---- broker {number}, {self.kinds[number]} ----\n{self.all_output(number)}")

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.members.values())

    def admin(self) -> AdminClient:
        timeout_ms = int(PATIENCE_SECONDS * 1000)
        return AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": timeout_ms}
        )

    def create_topic(self, name: str, replicas: list[list[int]]) -> None:
        """Makes a topic with these replicas of its partitions, and waits until they are in sync."""
        admin = self.admin()
        done(admin.create_topics([NewTopic(name, len(replicas), replica_assignment=replicas)]))
        self.until_in_sync(name)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and waits until its znodes are gone."""
        admin = self.admin()
        done(admin.delete_topics([name]))
        until(lambda: self.znodes.exists(f"/brokers/topics/{name}") is None, f"topic {name} is gone")

    # ---- the cluster's state ----

    def of(self, kind: str) -> list[int]:
        """The brokers of a kind."""
        return [number for number, each in self.kinds.items() if each == kind]

    def controller(self) -> int:
        """The controller's broker id; -1 if there is none."""
        with contextlib.suppress(NoNodeError):
            return int(json.loads(self.znodes.get("/controller")[0])["brokerid"])
        return -1

    def until_controller_is(self, *numbers: int) -> None:
        until(lambda: self.controller() in numbers, f"the controller is one of {numbers}")

    def states(self, topic: str) -> dict[int, dict[str, Any]]:
        """By partition, its state znode."""
        root = f"/brokers/topics/{topic}/partitions"
        return {
            int(number): json.loads(self.znodes.get(f"{root}/{number}/state")[0])
            for number in self.znodes.get_children(root)
        }

    def leaders(self, topic: str) -> dict[int, int]:
        return {number: state["leader"] for number, state in self.states(topic).items()}

    def knows(self, number: int, topic: str, leaders: set[int] | None = None) -> bool:
        """A broker's metadata has every live broker, and the topic's partitions as their znodes say."""
        found = AdminClient({"bootstrap.servers": self.members[number].bootstrap, "log_level": 0})
        metadata = found.list_topics(timeout=10)
        if set(metadata.brokers) != self.alive or topic not in metadata.topics:
            return False
        states = self.states(topic)
        partitions = metadata.topics[topic].partitions
        return partitions.keys() == states.keys() and all(
            each.leader == states[index]["leader"] and sorted(each.isrs) == sorted(states[index]["isr"])
            for index, each in partitions.items()
        )

    def until_in_sync(self, topic: str) -> None:
        """Waits until the ISR of each partition is its replicas that live, and each broker knows it."""

        def in_sync() -> bool:
            with contextlib.suppress(KafkaException):
                return all(
                    set(state["isr"]) == self.alive & self.replicas(topic, number)
                    for number, state in self.states(topic).items()
                ) and all(self.knows(number, topic) for number in self.alive)
            return False

        try:
            until(in_sync, f"the ISRs of {topic} are its live replicas")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.states(topic)}") from None

    def replicas(self, topic: str, partition: int) -> set[int]:
        found = json.loads(self.znodes.get(f"/brokers/topics/{topic}")[0])
        return set(found["partitions"][str(partition)])

    # ---- files ----

    def log_files(self, number: int, topic: str, partition: int) -> dict[str, bytes]:
        """A replica's segments by name."""
        folder = self.members[number].log_dir / f"{topic}-{partition}"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}

    def check_files(self, topic: str) -> None:
        """Each replica's segments are equal byte for byte. Nothing may be written meanwhile, so that every
        record is below the high watermark.

        Indexes may differ: an append adds at most one entry, and a follower appends at once what its leader
        appended in several steps. So may leader-epoch-checkpoint: only a leader notes an epoch without
        records.
        """
        for partition in self.states(topic):
            files = {
                number: self.log_files(number, topic, partition) for number in self.replicas(topic, partition)
            }
            first, *others = files.values()
            assert sum(map(len, first.values())) > 0, f"{topic}-{partition} is empty"
            if any(each != first for each in others):
                sizes = {
                    number: {name: len(data) for name, data in each.items()} for number, each in files.items()
                }
                raise AssertionError(f"the replicas of {topic}-{partition} differ: {sizes}")

    def all_output(self, number: int) -> str:
        """The log of a broker's runs."""
        running = [self.members[number].output()] if number in self.alive else []
        return "".join([*self.logs.get(number, []), *running])


@contextlib.contextmanager
def cluster(
    directory: Path, coordinator: str, kinds: Mapping[int, str], settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A cluster, whose brokers are not started. `coordinator` is "ours" or "apache"."""
    ticks = {"tickTime": str(TICK_MS)}
    with (
        our_coordinator(directory, Settings(tick_time_ms=TICK_MS))
        if coordinator == "ours"
        else apache_zookeeper(directory, ticks, {})
    ) as port:
        made = Cluster(directory, f"127.0.0.1:{port}", kinds, settings or {})
        made.znodes.start(PATIENCE_SECONDS)
        try:
            yield made
        finally:
            made.close()
