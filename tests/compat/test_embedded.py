"""`import logcore` on directories of Apache Kafka 3.9.1: beside it while it writes, and between two of its
runs.

If this failed, the embedded log would misread or damage a broker's directory.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import confluent_kafka as confluent
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from bench.servers import Server, kafka_3_9
from tests.compat.conftest import KafkaTools
from tests.compat.test_verify_kafka import is_registered, until

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

# Kafka may take a while until it is the controller of its cluster again, and the leader of the partition.
ANSWER_TIMEOUT = 150.0

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def create_topic(kafka: Server) -> None:
    client = {"bootstrap.servers": kafka.bootstrap}
    # Kafka answers before it is registered, and then has no broker for a replica.
    until(lambda: is_registered(client), "Kafka's registration")
    # The records' times are long ago: with the default, Kafka would delete them half a minute after its
    # second start.
    topic = NewTopic("flights", 1, 1, config={"retention.ms": "-1"})
    admin = AdminClient(client)
    admin.create_topics([topic])["flights"].result(ANSWER_TIMEOUT)


def producer(kafka: Server, **config: str) -> confluent.Producer:
    return confluent.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, **config})


def produce(by: confluent.Producer, value: bytes) -> None:
    by.produce("flights", value, partition=0, timestamp=1_700_000_000_000)
    assert by.flush(60) == 0


def consume(kafka: Server, count: int) -> list[bytes | None]:
    """The first `count` committed records that Kafka serves."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "g",
            "isolation.level": "read_committed",
            # Kafka answers before it leads any partition again. A client that asks then asks again only after
            # five minutes.
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    try:
        consumer.assign([confluent.TopicPartition("flights", 0, 0)])
        values: list[bytes | None] = []
        while len(values) < count:
            message = consumer.poll(ANSWER_TIMEOUT)
            assert message is not None, f"{len(values)} of {count} records came"
            assert message.error() is None, message.error()
            values.append(message.value())
        return values
    finally:
        consumer.close()


def check_committed(log: logcore.Log, expected: list[bytes | None]) -> None:
    """A reader of committed records finds the records that Kafka serves."""
    found = [record.value for record in log.records(isolation_level="read_committed")]
    assert found == expected
    scanned = pa.table(log.scan(["value"], isolation_level="read_committed"))
    assert scanned["value"].to_pylist() == expected


def test_beside_kafka_and_between_its_runs(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    path = tmp_path / "kafka-3.9-logs"
    expected: list[bytes | None] = []
    with kafka_3_9(tmp_path) as kafka:
        create_topic(kafka)
        with logcore.open_dir(path, readonly=True) as directory:
            log = directory["flights", 0]
            followed = log.follow(0, timeout=60)
            for codec in CODECS:
                writer = producer(kafka, **{"compression.type": codec})
                for number in range(10):
                    expected.append(f"{codec} {number} ".encode() * 20)
                    produce(writer, expected[-1] or b"")
                    record = next(followed)
                    assert (record.offset, record.value) == (len(expected) - 1, expected[-1])
            assert pa.table(log.scan(["value"]))["value"].to_pylist() == expected
            with pytest.raises(logcore.LockedError):
                logcore.open_dir(path)
            with pytest.raises(logcore.LockedError):
                logcore.open(log.path)

            aborted = producer(kafka, **{"transactional.id": "t"})
            aborted.init_transactions(60)
            aborted.begin_transaction()
            first = log.end_offset
            produce(aborted, b"never happened")
            aborted.abort_transaction(60)
            marker = first + 1
            # The marker may come into the log after the abort returns.
            for view in log.follow_batches(first, timeout=60):
                last = bytes(view)
                producer_id = int.from_bytes(last[43:51], "big")
                if log.end_offset > marker:
                    break
            produce(producer(kafka), b"after")
            assert next(log.follow(marker, timeout=60)).value == b"after"
            seen = pa.table(log.scan(["value"], aborted=[(producer_id, first, marker)]))
            expected.append(b"after")
            assert seen["value"].to_pylist() == expected
            check_committed(log, expected)
            assert log.aborted_transactions() == [(producer_id, first, marker)]

            undecided = producer(kafka, **{"transactional.id": "u"})
            undecided.init_transactions(60)
            undecided.begin_transaction()
            first = log.end_offset
            committed = log.follow(first, timeout=60, isolation_level="read_committed")
            produce(undecided, b"decided later")
            assert (log.last_stable_offset, log.end_offset) == (first, first + 1)
            check_committed(log, expected)
            undecided.commit_transaction(60)
            assert next(committed).value == b"decided later"
            expected.append(b"decided later")
            check_committed(log, expected)
            assert consume(kafka, len(expected)) == expected

    # Kafka has stopped: we may write to the directory.
    with logcore.open_dir(path) as directory:
        assert directory.failures == []
        log = directory["flights", 0]
        for codec in CODECS:
            table = pa.table(
                {
                    "key": [f"k{number}" for number in range(100)],
                    "value": [f"ours {codec} {number} ".encode() * 9 for number in range(100)],
                    "headers": [[{"key": "n", "value": b"%d" % number}] for number in range(100)],
                }
            )
            log.append_table(table, compression=codec, batch_bytes=4000)
            expected += table["value"].to_pylist()
        log.append(b"one")
        expected.append(b"one")
        check_committed(log, expected)
    copy = tmp_path / "copy"
    shutil.copytree(path / "flights-0", copy)
    dumped = kafka_tools.dump_log(*sorted(copy.glob("*.log")))
    assert "isvalid: false" not in dumped
    assert dumped.count("isvalid: true") > 5 * 4
    others = [
        file for file in copy.iterdir() if file.suffix in (".index", ".timeindex") and file.stat().st_size
    ]
    assert others
    assert not re.search("mismatch|corrupt|does not match", kafka_tools.dump_log(*others), re.IGNORECASE)

    with kafka_3_9(tmp_path) as kafka:
        assert consume(kafka, len(expected)) == expected
        produce(producer(kafka), b"kafka again")
        assert consume(kafka, len(expected) + 1)[-1] == b"kafka again"
