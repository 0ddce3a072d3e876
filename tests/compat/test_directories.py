"""Apache Kafka 3.9.1 and our broker use the same log directories in turn.

If one failed, an operator who moves a broker's disks from one to the other would lose records or get others
than were written.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from tests.compat.apache import ApacheKafka, apache_kafka
from tests.compat.conftest import KafkaTools

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT = 60.0
RECORDS = 300

# Offset, timestamp, key, value and headers.
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture
def kafka(tmp_path: Path, kafka_tools: KafkaTools) -> Iterator[ApacheKafka]:
    with apache_kafka(tmp_path / "apache") as peer:
        peer.start()
        yield peer


def create(kafka: ApacheKafka, topic: str, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(TIMEOUT)


def rows(n: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers of a record: nulls, empty and long ones among them."""
    key = None if n % 7 == 0 else b"k%d" % n
    value = None if n % 11 == 0 else b"" if n % 13 == 0 else b"%d " % n * (1 + n % 50)
    headers: list[tuple[str, bytes | None]] = [("n", b"%d" % n), ("nothing", None)] if n % 3 == 0 else []
    return key, value, headers


def produce(
    bootstrap: str, topic: str, first: int, count: int, headers: bool = True, **settings: object
) -> None:
    refused: list[object] = []

    def delivered(error: object, _: confluent.Message) -> None:
        if error is not None:
            refused.append(error)

    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, "batch.num.messages": 40, "linger.ms": 5, **settings}
    )
    for n in range(first, first + count):
        key, value, given = rows(n)
        producer.produce(
            topic,
            value,
            key,
            headers=given if headers else None,
            timestamp=1_700_000_000_000 + n,
            partition=0,
            on_delivery=delivered,
        )
    assert producer.flush(TIMEOUT) == 0
    assert refused == []


def consume(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> list[Row]:
    """Every record of partition 0, read by librdkafka with checksums verified."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "directories",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
    found: list[Row] = []
    while True:
        message = consumer.poll(TIMEOUT)
        assert message is not None, f"nothing came from {topic} for {TIMEOUT} s"
        error = message.error()
        if error is not None:
            assert error.code() == confluent.KafkaError._PARTITION_EOF, error
            break
        offset = message.offset()
        assert offset is not None
        headers = tuple((str(name), value) for name, value in message.headers() or ())
        kind, timestamp = message.timestamp()
        if kind == confluent.TIMESTAMP_NOT_AVAILABLE:
            timestamp = -1  # The log's value; librdkafka reports 0.
        found.append((offset, timestamp, message.key(), message.value(), headers))  # type: ignore[arg-type]
    consumer.close()
    return found


def read(directory: Path) -> list[Row]:
    """Every record of a partition's directory, read by us."""
    with logcore.open(directory, readonly=True) as log:
        return [record.as_tuple() for record in log.records()]


def append_ours(directory: Path, first: int, count: int, compression: str) -> None:
    with logcore.open(directory) as log:
        for start in range(first, first + count, 30):
            batch = []
            for n in range(start, min(start + 30, first + count)):
                key, value, headers = rows(n)
                batch.append(
                    logcore.Record(value=value, key=key, headers=headers, timestamp=1_700_000_000_000 + n)
                )
            log.append_batches(logcore.build_batch(batch, compression=compression))


def expected(count: int) -> list[Row]:
    made = []
    for n in range(count):
        key, value, headers = rows(n)
        made.append((n, 1_700_000_000_000 + n, key, value, tuple(headers)))
    return made


def test_directories_are_used_in_turn(kafka: ApacheKafka) -> None:
    """Kafka writes, we read and append, Kafka serves everything and appends, we read everything; in every
    compression.
    """
    for codec in CODECS:
        create(kafka, codec, segment_bytes="20000", index_interval_bytes="512", retention_ms="-1")
        produce(kafka.bootstrap, codec, 0, RECORDS, **{"compression.type": codec, "enable.idempotence": True})
    kafka.stop()
    for codec in CODECS:
        directory = kafka.log_dir / f"{codec}-0"
        assert read(directory) == expected(RECORDS), codec
        append_ours(directory, RECORDS, RECORDS, codec)
    kafka.start()
    for codec in CODECS:
        assert consume(kafka.bootstrap, codec) == expected(2 * RECORDS), codec
        produce(kafka.bootstrap, codec, 2 * RECORDS, RECORDS, **{"compression.type": codec})
    kafka.stop()
    for codec in CODECS:
        assert read(kafka.log_dir / f"{codec}-0") == expected(3 * RECORDS), codec


KILLED = """
import os, signal, sys
import logcore
log = logcore.open(sys.argv[1])
n = log.end_offset
while True:
    records = [logcore.Record(value=b"%d" % (n + i), timestamp=1) for i in range(10)]
    log.append_batches(logcore.build_batch(records))
    n += 10
    if n == 5000:
        print("half way", flush=True)
"""


def test_kafka_starts_on_the_logs_of_our_crash(kafka: ApacheKafka) -> None:
    """Our writer is killed while it writes. Kafka recovers the directory and serves the records, in order."""
    create(kafka, "crashed", segment_bytes="20000", retention_ms="-1")
    kafka.stop()
    directory = kafka.log_dir / "crashed-0"
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half way\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait(TIMEOUT)
    writer.stdout.close()
    kafka.start()
    served = consume(kafka.bootstrap, "crashed")
    assert len(served) >= 5000
    assert [(offset, value) for offset, _, _, value, _ in served] == [
        (n, b"%d" % n) for n in range(len(served))
    ]


def test_we_open_the_logs_of_kafkas_crash(kafka: ApacheKafka) -> None:
    create(kafka, "crashed", segment_bytes="20000", index_interval_bytes="512", retention_ms="-1")
    produce(kafka.bootstrap, "crashed", 0, RECORDS, **{"compression.type": "lz4"})
    kafka.stop(signal.SIGKILL)
    directory = kafka.log_dir / "crashed-0"
    assert read(directory) == expected(RECORDS)
    append_ours(directory, RECORDS, 10, "zstd")
    assert read(directory) == expected(RECORDS + 10)


def test_transactions_of_kafka(kafka: ApacheKafka) -> None:
    """Committed and aborted transactions: our reader sees the same records as librdkafka, and no markers."""
    create(kafka, "transactional", segment_bytes="20000")
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT)
    for transaction in range(6):
        producer.begin_transaction()
        for n in range(50):
            producer.produce("transactional", b"%d/%d" % (transaction, n), partition=0)
        producer.flush(TIMEOUT)
        if transaction % 3 == 1:
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)
    uncommitted = consume(kafka.bootstrap, "transactional")
    assert len(uncommitted) == 300
    kafka.stop()
    directory = kafka.log_dir / "transactional-0"
    assert read(directory) == uncommitted
    append_ours(directory, 0, 10, "none")
    kafka.start()
    committed = consume(kafka.bootstrap, "transactional", "read_committed")
    assert [value for _, _, _, value, _ in committed][:200] == [
        b"%d/%d" % (transaction, n) for transaction in (0, 2, 3, 5) for n in range(50)
    ]
    assert len(committed) == 210


def test_a_compacted_log_of_kafka(kafka: ApacheKafka) -> None:
    """A log that Kafka's cleaner compacted has gaps in its offsets. We read the same records, and it serves
    our appends.
    """
    create(
        kafka,
        "compacted",
        cleanup_policy="compact",
        segment_bytes="4000",
        min_cleanable_dirty_ratio="0.01",
        segment_ms="100",
    )
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap, "batch.num.messages": 10})
    for n in range(2000):
        producer.produce("compacted", b"%d" % n, b"k%d" % (n % 17), partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    # The cleaner works until few more than the keys are left before the active segment.
    while len(served := consume(kafka.bootstrap, "compacted")) > 400:
        pass
    kafka.stop()
    directory = kafka.log_dir / "compacted-0"
    ours = read(directory)
    assert {key: value for _, _, key, value, _ in ours} == {
        b"k%d" % (n % 17): b"%d" % n for n in range(2000 - 17, 2000)
    }
    offsets = [offset for offset, *_ in ours]
    assert offsets == sorted(set(offsets))
    assert set(offsets) <= {offset for offset, *_ in served}
    with logcore.open(directory) as log:
        assert log.append(b"last", key=b"k0") == 2000
    kafka.start()
    assert consume(kafka.bootstrap, "compacted")[-1][0] == 2000
