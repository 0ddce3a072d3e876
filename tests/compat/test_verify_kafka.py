"""`logcore.verify` and `logcore.repair` on directories of a real Apache Kafka 3.9.1.

While it writes, after SIGKILL, after a clean stop and after compaction; with committed and aborted
transactions, in every codec.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from tests.compat.conftest import KafkaTools
from tests.ports import free_port

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_TIMEOUT = 90.0


def until(holds: Callable[[], bool], what: str, timeout: float = START_TIMEOUT) -> None:
    """Polls for something that another process does, because there is no event to wait for."""
    deadline, pause = time.monotonic() + timeout, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout} s"
        pause.wait(0.05)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def is_registered(client: dict[str, str]) -> bool:
    """Whether the broker's metadata names a broker and a controller. Uses a new client each time."""
    try:
        metadata = AdminClient({**client, "log_level": 0}).list_topics(timeout=5)
    except confluent.KafkaException:
        return False
    return bool(metadata.brokers) and metadata.controller_id >= 0


class Apache:
    """A broker of Apache Kafka and its ZooKeeper."""

    def __init__(self, tools: KafkaTools, directory: Path) -> None:
        self.tools = tools
        self.directory = directory
        self.logs = directory / "kafka-logs"
        self.port = free_port()
        zookeeper_port = free_port()
        zookeeper = directory / "zookeeper.properties"
        zookeeper.write_text(
            f"dataDir={directory}/zookeeper\nclientPort={zookeeper_port}\nadmin.enableServer=false\n"
        )
        (directory / "server.properties").write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\nlog.dirs={self.logs}\n"
            f"zookeeper.connect=127.0.0.1:{zookeeper_port}\nzookeeper.session.timeout.ms=4000\n"
            "log.index.interval.bytes=512\n"
            "log.cleaner.backoff.ms=100\nlog.segment.delete.delay.ms=100\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=2\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            "transaction.state.log.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n"
        )
        self.zookeeper = self.run(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(zookeeper), "zookeeper.out"
        )
        until(lambda: listens(zookeeper_port), "ZooKeeper's start")
        self.broker = self.start()

    def run(self, main_class: str, config: str, output: str) -> subprocess.Popen[bytes]:
        with (self.directory / output).open("ab") as out:
            return subprocess.Popen(
                self.tools.command(main_class, config), stdout=out, stderr=subprocess.STDOUT
            )

    def start(self) -> subprocess.Popen[bytes]:
        self.broker = self.run("kafka.Kafka", str(self.directory / "server.properties"), "kafka.out")

        def ready() -> bool:
            if self.broker.poll() is not None:
                # After SIGKILL, ZooKeeper keeps the broker's registration until its session has expired.
                self.broker = self.run("kafka.Kafka", str(self.directory / "server.properties"), "kafka.out")
            return listens(self.port)

        until(ready, "Kafka's start")
        # The port is open before the broker is registered. A client that connects too early retries only
        # after minutes.
        until(lambda: is_registered(self.client), "Kafka's registration")
        return self.broker

    def stop(self, how: signal.Signals) -> None:
        self.broker.send_signal(how)
        self.broker.wait(START_TIMEOUT)

    @property
    def client(self) -> dict[str, str]:
        return {"bootstrap.servers": f"127.0.0.1:{self.port}"}


@pytest.fixture
def apache(kafka_tools: KafkaTools, tmp_path: Path) -> Iterator[Apache]:
    apache = Apache(kafka_tools, tmp_path)
    yield apache
    for process in (apache.broker, apache.zookeeper):
        if process.poll() is None:
            process.kill()
            process.wait(30)


def create_topics(apache: Apache) -> None:
    small = {"segment.bytes": "16384"}
    compacted = {
        **small,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    topics = [NewTopic("plain", 2, 1, config=small), NewTopic("compacted", 1, 1, config=compacted)]
    admin = AdminClient(apache.client)
    for created in admin.create_topics(topics).values():
        created.result(60)


def transact(apache: Apache, codec: str, transactions: int) -> None:
    """Transactions in all partitions; every third one is aborted."""
    producer = confluent.Producer(
        {**apache.client, "transactional.id": f"t-{codec}", "compression.type": codec, "linger.ms": 0}
    )
    producer.init_transactions(60)
    for number in range(transactions):
        producer.begin_transaction()
        for k in range(20):
            text = " ".join(f"{(number + 1) * (k + 1) * n % 100_003:x}" for n in range(1, 30))
            for topic in ("plain", "compacted"):
                producer.produce(topic, text, key=f"k{k % 7}", headers={"n": str(number)})
        if number % 3 == 2:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def commit_offsets(apache: Apache) -> int:
    """Reads the committed records of `plain` as a group; returns how many there are."""
    settings = {
        **apache.client,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": "true",
    }
    consumer = confluent.Consumer({**settings, "enable.auto.commit": "false"})
    consumer.subscribe(["plain"])
    seen, ended = 0, set[int]()
    while len(ended) < 2:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            seen += 1
        else:
            ended.add(message.partition())
    consumer.commit(asynchronous=False)
    consumer.close()
    return seen


def cleaned(apache: Apache) -> bool:
    """Whether the compacted topic was cleaned."""
    try:
        return "compacted 0" in (apache.logs / "cleaner-offset-checkpoint").read_text()
    except FileNotFoundError:
        return False


def has_gaps(directory: Path) -> bool:
    """Whether compaction removed records."""
    with logcore.open(directory, readonly=True) as log:
        return sum(1 for _ in log.records()) < log.end_offset // 2


def wrong(apache: Apache) -> list[logcore.Finding]:
    """The findings, except files that wait to be removed: a kill may leave them."""
    return [finding for finding in logcore.verify(apache.logs) if finding.kind != "unfinished"]


# Broken if it failed: an undamaged directory would be called damaged, and an operator would cut intact
# records.
def test_an_undamaged_directory_has_no_findings(apache: Apache) -> None:
    create_topics(apache)
    done = threading.Event()
    live: list[logcore.Finding] = []

    def watch() -> None:
        while not done.is_set():
            live.extend(logcore.verify(apache.logs))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for codec in CODECS:
            transact(apache, codec, 12)
        records = commit_offsets(apache)
        until(lambda: cleaned(apache), "compaction")
    finally:
        done.set()
        watcher.join()
    assert records == len(CODECS) * 8 * 20
    assert live == []
    assert len(list((apache.logs / "plain-0").glob("*.txnindex"))) > 0
    assert has_gaps(apache.logs / "compacted-0")

    apache.stop(signal.SIGKILL)
    assert wrong(apache) == []
    apache.start()
    apache.stop(signal.SIGTERM)
    assert (apache.logs / ".kafka_cleanshutdown").exists()
    assert wrong(apache) == []


# Broken if it failed: Kafka would not start with a repaired directory.
def test_kafka_starts_with_a_repaired_directory(apache: Apache) -> None:
    create_topics(apache)
    transact(apache, "lz4", 6)
    apache.stop(signal.SIGTERM)
    plain = apache.logs / "plain-0"
    last = max(plain.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-10])
    for index in (*plain.glob("*.index"), *plain.glob("*.txnindex")):
        index.write_bytes(index.read_bytes()[:-3])
    (plain / "leader-epoch-checkpoint").write_text("0\n1\n9 0\n")
    assert any(finding.severity == "damage" for finding in logcore.verify(apache.logs))
    # The bytes that were cut off are before the recovery point, so this cut must be allowed.
    repaired = logcore.repair(apache.logs, apply=True, cut_at_corruption=True)
    assert repaired.findings == ()

    apache.start()
    transact(apache, "zstd", 3)
    assert commit_offsets(apache) > 0
    apache.stop(signal.SIGTERM)
    assert wrong(apache) == []
    assert "Corrupt" not in (apache.directory / "kafka.out").read_text()
