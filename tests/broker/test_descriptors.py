"""A broker that runs out of file descriptors (`ulimit -n`), or of mappings (`vm.max_map_count`).

If one failed, idle connections could stop logs from rolling, or one refusal would keep a partition offline
for good.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ..conftest import BrokerProcess, StartBroker

LIMIT = 256


def limit_descriptors(broker: BrokerProcess, soft: int) -> None:
    """From now on the broker gets no descriptor with the number `soft` or higher."""
    hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (soft, hard))


def lowest_free(broker: BrokerProcess) -> int:
    taken = {int(name) for name in os.listdir(f"/proc/{broker.process.pid}/fd")}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def create(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(20)


class Writer:
    """A producer whose connections are made before descriptors are taken away."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._topic = topic
        self._producer = confluent.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        self.errors: list[object] = []
        self.write(10)
        assert self.finish() == [None]

    def write(self, size: int) -> None:
        self._producer.produce(
            self._topic, bytes(size), on_delivery=lambda error, _: self.errors.append(error)
        )
        self._producer.poll(0)

    def finish(self) -> list[object]:
        """The results of all records since the last call, once they are all there."""
        assert self._producer.flush(60) == 0
        said, self.errors = self.errors, []
        return said


# If this failed, a log that could not roll without a descriptor would be offline until the broker starts
# again.
def test_a_roll_without_a_descriptor_is_refused_and_works_later(start_broker: StartBroker) -> None:
    broker = start_broker()
    create(broker, "t", segment_bytes="100000")
    writer = Writer(broker, "t")
    writer.write(90_000)
    assert writer.finish() == [None]
    limit_descriptors(broker, lowest_free(broker))
    writer.write(80_000)
    broker.wait_output(r"Produce to t-0 refused: .*Too many open files")
    limit_descriptors(broker, LIMIT)
    assert writer.finish() == [None]
    assert broker.stop() == 0


# If this failed, the first log without a free mapping would take all logs of its directory offline.
def test_a_roll_without_a_mapping_is_refused_and_works_later(start_broker: StartBroker) -> None:
    broker = start_broker()
    # The next indexes are larger than the free mappings; everything else fits.
    create(broker, "t", segment_bytes="100000", segment_index_bytes=str(1 << 30))
    create(broker, "other")
    writer, other = Writer(broker, "t"), Writer(broker, "other")
    writer.write(90_000)
    assert writer.finish() == [None]
    process = broker.process.pid
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
    limits = resource.prlimit(process, resource.RLIMIT_AS)
    resource.prlimit(process, resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), limits[1]))
    writer.write(80_000)
    broker.wait_output(r"Produce to t-0 refused: .*cannot map .*Cannot allocate memory")
    other.write(10)
    assert other.finish() == [None]
    resource.prlimit(process, resource.RLIMIT_AS, limits)
    assert writer.finish() == [None]
    assert broker.stop() == 0


# If this failed, a client that opens connections and does nothing would take the descriptors that logs need.
def test_connections_leave_descriptors_to_the_logs(start_broker: StartBroker) -> None:
    broker = start_broker()
    create(broker, "t", segment_bytes="100000")
    writer = Writer(broker, "t")
    limit_descriptors(broker, LIMIT)
    host, port = broker.bootstrap.rsplit(":", 1)
    with ExitStack() as stack:
        for _ in range(LIMIT):
            idle = stack.enter_context(socket.create_connection((host, int(port)), 10))
        assert idle.recv(1) == b""
        for _ in range(5):
            writer.write(90_000)
            assert writer.finish() == [None]
    assert broker.stop() == 0
    assert len([line for line in broker.output().splitlines() if "reserved for the logs" in line]) == 1


# If this failed, a topic would be created whose partitions cannot be opened, with a traceback for each.
def test_more_partitions_than_descriptors_are_refused(start_broker: StartBroker) -> None:
    broker = start_broker()
    limit_descriptors(broker, LIMIT)
    with pytest.raises(confluent.KafkaException, match=r"needs 300 more logs .*ulimit -n"):
        create(broker, "large", 300)
    create(broker, "small", 3)
    assert sorted(os.listdir(broker.data_dir / "kafka-logs"))[-1] == "small-2"
    assert not (broker.data_dir / "kafka-logs" / "large-0").exists()
    assert broker.stop() == 0
    assert "ERROR" not in broker.output()


# If this failed, the broker would keep a shell's soft limit of 1024, which Java raises.
def test_the_command_raises_the_soft_limit(start_broker: StartBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        broker = start_broker()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


# If this failed, a broker whose limit of files is too low to start would not say what to do.
def test_a_low_limit_is_reported_at_the_start(tmp_path: Path) -> None:
    command = ["-m", "cluster.cli", "start", "--data-dir", str(tmp_path), "--port", "0"]
    shell = ["sh", "-c", 'ulimit -n 18; exec "$@"', "sh", sys.executable, *command]
    ended = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "at most 18 files may be open" in ended.stderr
