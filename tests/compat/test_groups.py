"""Consumer groups of real clients: sharing, taking over from a killed member, continuing at committed
offsets.

If one failed, a record could be read by two members of one generation, or by none after a member died.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import confluent_kafka as confluent
import confluent_kafka.admin
import pytest

import cluster
from tests.conftest import BrokerProcess

pytestmark = pytest.mark.compat

PARTITIONS = 4

# A member in its own process, so that it can be killed. It prints its assignments and records.
MEMBER = """
import importlib, json, sys
library, server, topic, group = sys.argv[1:]
module = importlib.import_module(library)
def say(**event):
    print(json.dumps(event), flush=True)
consumer = module.Consumer({
    "bootstrap.servers": server, "group.id": group, "auto.offset.reset": "earliest",
    "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
})
consumer.subscribe([topic], on_assign=lambda _, parts: say(assigned=sorted(p.partition for p in parts)))
while True:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        say(partition=message.partition(), value=message.value().decode())
"""


class Member:
    def __init__(self, library: str, server: str, topic: str, group: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, library, server, topic, group], stdout=subprocess.PIPE, text=True
        )
        self.events: list[dict[str, object]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()

    def wait(self, holds: object, timeout: float = 40.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), timeout), f"member saw only {self.events}"  # type: ignore[operator]

    @property
    def assigned(self) -> list[int]:
        found = [event["assigned"] for event in self.events if "assigned" in event]
        return list(found[-1]) if found else []  # type: ignore[call-overload]

    @property
    def values(self) -> set[object]:
        return {event["value"] for event in self.events if "value" in event}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    started: list[Member] = []
    yield started
    for member in started:
        if member.process.poll() is None:
            member.kill()


@pytest.mark.parametrize(
    ("first", "second"),
    [("confluent_kafka", "confluent_kafka"), ("cluster", "cluster"), ("confluent_kafka", "cluster")],
)
def test_two_members_share_and_the_survivor_takes_over(
    broker: BrokerProcess, members: list[Member], first: str, second: str
) -> None:
    topic, group = f"shared-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    admin = confluent.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent.admin.NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    one = Member(first, broker.bootstrap, topic, group)
    members.append(one)
    one.wait(lambda member: member.assigned == [0, 1, 2, 3])
    two = Member(second, broker.bootstrap, topic, group)
    members.append(two)
    two.wait(lambda member: len(member.assigned) == 2)
    one.wait(lambda member: len(member.assigned) == 2)
    assert sorted(one.assigned + two.assigned) == [0, 1, 2, 3]

    producer = confluent.Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(40):
        producer.produce(topic, f"before {n}", partition=n % PARTITIONS)
    assert producer.flush(30) == 0
    one.wait(lambda member: len(member.values) == 20)
    two.wait(lambda member: len(member.values) == 20)
    assert not one.values & two.values

    one.kill()
    two.wait(lambda member: member.assigned == [0, 1, 2, 3])
    for n in range(40):
        producer.produce(topic, f"after {n}", partition=n % PARTITIONS)
    assert producer.flush(30) == 0
    two.wait(lambda member: {f"after {n}" for n in range(40)} <= member.values)


@pytest.mark.parametrize("module", [confluent, cluster], ids=["confluent-kafka", "logcore"])
def test_committed_offsets_survive_a_crash_of_the_broker(start_broker: object, module: object) -> None:
    """Commits, kills the broker with SIGKILL, starts it again: the group continues after its commit."""
    broker = start_broker()  # type: ignore[operator]
    topic, group = "kept", "readers"
    producer = confluent.Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(10):
        producer.produce(topic, f"{n}", partition=0)
    assert producer.flush(30) == 0
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = module.Consumer(config)  # type: ignore[attr-defined]
    consumer.subscribe([topic])
    read = [consumer.poll(30).value() for _ in range(4)]
    assert read == [b"0", b"1", b"2", b"3"]
    committed = consumer.commit(offsets=[module.TopicPartition(topic, 0, 4)], asynchronous=False)  # type: ignore[attr-defined]
    assert committed[0].error is None
    consumer.close()
    port = broker.port
    broker.kill()
    start_broker(broker.data_dir, port)  # type: ignore[operator]
    again = module.Consumer(config)  # type: ignore[attr-defined]
    assert again.committed([module.TopicPartition(topic, 0)], timeout=30)[0].offset == 4  # type: ignore[attr-defined]
    again.subscribe([topic])
    assert again.poll(30).value() == b"4"
    again.close()
