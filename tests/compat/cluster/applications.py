"""Exactly-once applications as processes, what they committed, and the brokers that coordinate them.

Used by the tests of Kafka Streams, of Kafka Connect and of copies.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cluster.state_topics import partition_of
from tests.compat.cluster.brokers import Cluster
from tests.compat.conftest import ROOT
from tests.compat.load import PATIENCE_SECONDS, until

REPLICAS = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
"""The partitions of each topic here."""
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}

Records = dict[int, list[tuple[bytes, bytes]]]
"""By partition: keys and values."""


class Application:
    """A program that runs until it is killed. Its output goes into ``log``."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)

    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def stacks(self) -> str:
        """The program's output, with the stack of each thread at its end. Java writes them at SIGQUIT, and
        Python after `print_stacks_on_quit`.
        """
        size = self.log.stat().st_size
        self._process.send_signal(signal.SIGQUIT)
        until(lambda: not self.lives() or self.log.stat().st_size > size, "the program writes its stacks")
        return self.log.read_text(errors="replace")


def coordinator_of(made: Cluster, topic: str, key: str) -> int:
    """The broker that coordinates a transactional id or a group."""
    return made.leaders(topic)[partition_of(key, len(made.leaders(topic)))]


def replaced(made: Cluster, number: int, topics: list[str]) -> None:
    """Kills a broker, and starts it again."""
    made.stop(number, signal.SIGKILL)
    made.start(number)
    for topic in topics:
        made.until_in_sync(topic)


class Reader:
    """Reads what is committed in a topic."""

    def __init__(self, made: Cluster, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": made.bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(len(REPLICAS))])
        self._at_end: set[int] = set()
        self.records: Records = {number: [] for number in range(len(REPLICAS))}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._consumer.close()

    def count(self) -> int:
        return sum(map(len, self.records.values()))

    def until(self, count: int, writer: Application | None = None, *, at_end: bool = True) -> Records:
        """Reads until there are ``count`` records, and with ``at_end`` until nothing more is there. The
        writer must live.
        """
        patience = time.monotonic() + PATIENCE_SECONDS
        while self.count() < count or (at_end and len(self._at_end) < len(REPLICAS)):
            message = self._consumer.poll(1.0)
            if message is None:
                assert writer is None or writer.lives(), writer.log.read_text()
                assert time.monotonic() < patience, self._missing(count, writer)
                continue
            patience = time.monotonic() + PATIENCE_SECONDS
            error = message.error()
            partition = message.partition()
            assert partition is not None
            if error is None:
                self._at_end.discard(partition)
                self.records[partition].append((message.key() or b"", message.value() or b""))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self._at_end.add(partition)
        return self.records

    def _missing(self, count: int, writer: Application | None) -> str:
        """What is known when nothing more comes."""
        text = f"{self.count()} of {count} records came"
        for at in self._consumer.position(self._consumer.assignment()):
            try:
                ends: object = self._consumer.get_watermark_offsets(at, timeout=10.0)
            except KafkaException as error:
                ends = error
            text += f"\npartition {at.partition}: position {at.offset}, the log's ends {ends}"
        return text if writer is None else f"{text}\n{writer.stacks()}"


def committed(made: Cluster, topic: str, count: int, writer: Application | None = None) -> Records:
    """What is committed in a topic, once there are ``count`` records."""
    with Reader(made, topic) as reader:
        return reader.until(count, writer)
