"""Apache Kafka 3.9.1's own tools for records, log directories and producers, against our broker and Apache's.

If one failed, an operator could not free a disk, see its contents, or move a partition off it while it is
served.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.apache import ApacheKafka, apache_kafka
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

TIMEOUT = 30.0
MOVED_SECONDS = 60.0
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
MOVE_LOG = str(Path(__file__).parent / "kafka" / "MoveLog.java")


@pytest.fixture
def jbod(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    """A broker with the log directories `one` and `two`."""
    return start_broker(None, 0, "--override", f"log.dirs={tmp_path / 'one'},{tmp_path / 'two'}")


@pytest.fixture
def apache(kafka_tools: KafkaTools, tmp_path: Path) -> Iterator[ApacheKafka]:
    with apache_kafka(tmp_path / "apache") as peer:
        peer.start()
        yield peer


def create(bootstrap: str, topic: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(topic, 1, 1, config=config or {})])
    made[topic].result(TIMEOUT)


def produce(bootstrap: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT) == 0


def values_of(bootstrap: str, topic: str) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT)
    consumer.assign([TopicPartition(topic, 0, low)])
    values = []
    while len(values) < high - low:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.error() is None
        values.append(message.value().decode())
    consumer.close()
    return values


def directories(tools: KafkaTools, bootstrap: str, topic: str) -> dict[str, list[dict[str, Any]]]:
    """The output of kafka-log-dirs for a topic, by the directory's name."""
    output = tools.run(LOG_DIRS, "--bootstrap-server", bootstrap, "--describe", "--topic-list", topic)
    [broker] = json.loads(output.splitlines()[-1])["brokers"]
    assert all(one["error"] is None for one in broker["logDirs"])
    return {Path(one["logDir"]).name: one["partitions"] for one in broker["logDirs"]}


def deleted(tools: KafkaTools, bootstrap: str, file: Path, wanted: list[tuple[str, int]]) -> str:
    entries = [{"topic": topic, "partition": 0, "offset": offset} for topic, offset in wanted]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    return tools.run(
        DELETE_RECORDS, "--bootstrap-server", bootstrap, "--offset-json-file", str(file), status=None
    )


def test_the_delete_records_tool_prints_the_same_for_both_brokers(
    jbod: BrokerProcess, kafka_tools: KafkaTools, apache: ApacheKafka, tmp_path: Path
) -> None:
    both = []
    for bootstrap in (jbod.bootstrap, apache.bootstrap):
        create(bootstrap, "some")
        create(bootstrap, "compacted", {"cleanup.policy": "compact"})
        produce(bootstrap, "some", list("abcde"))
        answers = [
            deleted(kafka_tools, bootstrap, tmp_path / "offsets.json", wanted)
            for wanted in ([("some", 2)], [("some", 9)], [("compacted", 0)], [("some", -1)])
        ]
        both.append(answers)
        assert values_of(bootstrap, "some") == []
    ours, apaches = both
    assert "partition: some-0\tlow_watermark: 2" in ours[0]
    assert ours == apaches


def test_log_dirs_and_transactions_tools(
    jbod: BrokerProcess, kafka_tools: KafkaTools, apache: ApacheKafka
) -> None:
    """Sizes and producers are those of Apache's broker for the same records."""
    sizes, producers = [], []
    for bootstrap in (jbod.bootstrap, apache.bootstrap):
        create(bootstrap, "seen")
        produce(bootstrap, "seen", ["x"])
        found = [part for parts in directories(kafka_tools, bootstrap, "seen").values() for part in parts]
        sizes.append(found)
        flags = ("--bootstrap-server", bootstrap, "describe-producers", "--topic", "seen", "--partition", "0")
        table = kafka_tools.run(TRANSACTIONS, *flags)
        # Ids and times differ.
        producers.append([re.sub(r"\d{13}|^\d+", "#", line).split() for line in table.splitlines()])
    assert sizes[0] == sizes[1]
    assert producers[0] == producers[1]
    assert len(producers[0]) == 2


def test_javas_admin_client_moves_a_partition_under_a_consumer(
    jbod: BrokerProcess, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    create(jbod.bootstrap, "moved")
    values = [f"{number:04}" + "x" * 1000 for number in range(5000)]
    produce(jbod.bootstrap, "moved", values[:4000])
    [here] = [name for name, parts in directories(kafka_tools, jbod.bootstrap, "moved").items() if parts]
    there = tmp_path / ("two" if here == "one" else "one")
    [broker] = AdminClient({"bootstrap.servers": jbod.bootstrap}).list_topics(timeout=TIMEOUT).brokers

    def move(path: Path) -> str:
        return kafka_tools.run(MOVE_LOG, jbod.bootstrap, "moved", "0", str(broker), str(path)).strip()

    assert move(tmp_path / "three") == "LogDirNotFoundException"
    assert move(there) == "moving"
    produce(jbod.bootstrap, "moved", values[4000:])
    # Each look is a request that the broker answers while it copies.
    end = time.monotonic() + MOVED_SECONDS
    while (found := directories(kafka_tools, jbod.bootstrap, "moved"))[here]:
        assert time.monotonic() < end, found
    [part] = found[there.name]
    assert (part["partition"], part["offsetLag"], part["isFuture"]) == ("moved-0", 0, False)
    assert not (tmp_path / here / "moved-0").exists()
    assert values_of(jbod.bootstrap, "moved") == values
