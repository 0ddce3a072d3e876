"""Apache Kafka 3.9.1 in ZooKeeper mode as a peer: one broker on loopback, with its own ZooKeeper or our
coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from cluster.coordinator import CoordinatorServer
from tests.compat.conftest import KAFKA_LIBS
from tests.ports import free_port

START_TIMEOUT = 90.0
STOP_TIMEOUT = 60.0
LOG4J = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %m (%c{1})%n
"""


class JavaServer:
    """A main class of `jars` as a child process; by default Kafka's. `options` are the JVM's."""

    def __init__(
        self,
        heap: str,
        main_class: str,
        *arguments: str,
        jars: Path = KAFKA_LIBS,
        options: Sequence[str] = (),
        jars_before: Sequence[Path] = (),
    ) -> None:
        """`jars_before`: folders of jars whose classes come first."""
        path = ":".join(f"{each}/*" for each in (*jars_before, jars))
        java = ["java", heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options, "-cp", path]
        self.name = main_class
        self.process = subprocess.Popen(
            [*java, main_class, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._lines.append("")
            self._changed.notify_all()

    def output(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            status = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self._reader.join(STOP_TIMEOUT)
        return status


class ApacheKafka:
    """One Apache broker with its logs in `log_dir`. It may be stopped and started again on its own or another
    broker's files.

    `zookeeper` is `zookeeper.connect` of a running coordinator. Without it Apache ZooKeeper is started, in
    `directory`. With `logging`, the folder of slf4j's way to log4j, the output has the broker's warnings.
    """

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str] | None = None,
        *,
        log_dir: Path | None = None,
        zookeeper: str | None = None,
        logging: Path | None = None,
    ) -> None:
        self.directory = directory
        self._logging = logging
        self.log_dir = log_dir or directory / "kafka-logs"
        self._settings = dict(settings or {})
        self._zookeeper: JavaServer | None = None
        if zookeeper is None:
            port = free_port()
            self._zookeeper = self._start_zookeeper(port)
            zookeeper = f"127.0.0.1:{port}"
        self._connect = zookeeper
        self._broker: JavaServer | None = None
        self.bootstrap = ""

    def _start_zookeeper(self, port: int) -> JavaServer:
        config = self.directory / "zookeeper.properties"
        config.write_text(
            f"dataDir={self.directory}/zookeeper\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n"
        )
        return JavaServer("-Xmx128m", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config))

    def start(self, settings: dict[str, str] | None = None) -> None:
        """Starts the broker, from now on with these settings too, and returns once it serves."""
        self.launch(settings)
        self.wait_until_serving()

    def launch(self, settings: dict[str, str] | None = None) -> None:
        """Starts the broker and returns before it serves."""
        self._settings |= settings or {}
        all_settings = {
            "broker.id": "0",
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
            "log.dirs": str(self.log_dir),
            "zookeeper.connect": self._connect,
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "1",
            "num.io.threads": "2",
            "log.cleaner.backoff.ms": "100",
            "log.cleaner.dedupe.buffer.size": "2097152",
            "log.retention.check.interval.ms": "1000",
        } | self._settings
        config = self.directory / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in all_settings.items()))
        self._broker = JavaServer("-Xmx384m", "kafka.Kafka", str(config), **self._logged())
        self.bootstrap = all_settings["listeners"].split(",")[0].removeprefix("PLAINTEXT://")

    def _logged(self) -> dict[str, Any]:
        """The arguments that make a server write its log to its output."""
        if self._logging is None:
            return {}
        config = self.directory / "log4j.properties"
        config.write_text(LOG4J)
        return {"options": [f"-Dlog4j.configuration=file:{config}"], "jars_before": [self._logging]}

    def wait_until_serving(self) -> None:
        broker = self._broker
        assert broker is not None
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and broker.process.poll() is None:
            with contextlib.suppress(Exception):
                # A request waits in librdkafka until the broker answers, which it does before it is
                # registered.
                admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                metadata = admin.list_topics(timeout=2)
                if metadata.brokers and metadata.controller_id >= 0:
                    return
        raise AssertionError(f"Apache Kafka did not come up; it said:\n{broker.output()[-4000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the broker: SIGTERM for a clean shutdown, SIGKILL for a crash."""
        if self._broker is not None:
            self._broker.stop(how)
            self._broker = None

    def output(self) -> str:
        return self._broker.output() if self._broker else ""

    def close(self) -> None:
        try:
            self.stop(signal.SIGKILL)
        finally:
            if self._zookeeper is not None:
                self._zookeeper.stop(signal.SIGKILL)


@contextlib.contextmanager
def apache_kafka(directory: Path, settings: dict[str, str] | None = None) -> Iterator[ApacheKafka]:
    directory.mkdir(parents=True, exist_ok=True)
    peer = ApacheKafka(directory, settings)
    try:
        yield peer
    finally:
        peer.close()


@contextlib.contextmanager
def apache_kafka_in_place_of_ours(
    directory: Path, data_dir: Path, settings: dict[str, str] | None = None
) -> Iterator[ApacheKafka]:
    """Apache Kafka, started, on the directory of `logcore start --data-dir`: its logs, and its topics in our
    coordinator.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with coordinator(data_dir / "coordinator") as port:
        peer = ApacheKafka(
            directory, settings, log_dir=data_dir / "kafka-logs", zookeeper=f"127.0.0.1:{port}"
        )
        try:
            peer.start()
            yield peer
        finally:
            peer.close()


@contextlib.contextmanager
def coordinator(data_dir: Path) -> Iterator[int]:
    """Our coordinator alone, in a thread; its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = CoordinatorServer(data_dir, expire_sessions_at_start=True)
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(STOP_TIMEOUT)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(STOP_TIMEOUT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_TIMEOUT)
        loop.close()
