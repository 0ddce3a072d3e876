"""Our broker and Apache Kafka 3.9.1 get the same versions of the same keys, and their cleaners run until
nothing is left to do.

If this failed, our broker would keep records that Kafka's cleaner removes, or lose a key's last value.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from tests.compat.apache import apache_kafka
from tests.compat.conftest import KafkaTools
from tests.compat.test_directories import CODECS, TIMEOUT, Row, consume
from tests.compat.test_takeover import complaints, until_cleaned
from tests.conftest import StartBroker

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

RECORDS, KEYS = 1500, 19
EMPTIED = "emptied"
TOPICS = [*CODECS, EMPTIED]
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
CLEANER = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "offsets.topic.num.partitions": "1",
}


def value(n: int) -> bytes | None:
    """Some keys end with a tombstone, most do not."""
    return None if n % 7 == 3 else b"%d " % n * (1 + n % 20)


def key(n: int) -> bytes:
    # Pseudo-random, and the same in each run.
    return b"k%d" % (n * 7919 % 104_729 % KEYS)


def produce(bootstrap: str, topic: str) -> None:
    """Versions of few keys, compressed as the topic's name says."""
    settings = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "batch.num.messages": 10,
        "linger.ms": 50,
    }
    producer = confluent.Producer({**settings, "compression.type": topic})
    refused: list[object] = []

    def delivered(error: object, _: confluent.Message) -> None:
        if error is not None:
            refused.append(error)

    for n in range(RECORDS):
        stamp = 1_700_000_000_000 + n
        producer.produce(
            topic,
            value(n),
            key(n),
            partition=0,
            timestamp=stamp,
            headers=[("n", b"%d" % n)],
            on_delivery=delivered,
        )
        # One batch after the other, so that both get the same ones.
        if n % 10 == 9:
            assert producer.flush(TIMEOUT) == 0
    assert refused == []


def empty_a_batch(bootstrap: str) -> None:
    """A batch whose records are all replaced by those of another producer. Its sequence keeps it, without
    records. The other's batch fills a segment, so that the two are not merged.
    """
    for size in (1, 378):
        producer = confluent.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50}
        )
        for n in range(10):
            producer.produce(EMPTIED, b"x" * size, b"k%d" % n, partition=0)
        assert producer.flush(TIMEOUT) == 0


def pad(bootstrap: str, topic: str) -> int:
    """Ends the active segment, and the next. Returns the offset up to which everything may be compacted."""
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "compression.type": "none"})
    offsets: list[int | None] = []
    for _ in range(3):
        producer.produce(
            topic, b"x" * 3000, b"pad", partition=0, on_delivery=lambda _, m: offsets.append(m.offset())
        )
        assert producer.flush(TIMEOUT) == 0
    assert offsets[-1] is not None
    return offsets[-1]


def compacted(bootstrap: str, log_dir: Path) -> dict[str, list[Row]]:
    """The records of each topic after its cleaner has finished, without the padding."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, 1, 1, config=CONFIG) for topic in TOPICS]).values():
        created.result(TIMEOUT)
    for codec in CODECS:
        produce(bootstrap, codec)
    empty_a_batch(bootstrap)
    # The first pass over everything finds the tombstones, the second removes them. Which pass that is depends
    # on
    # earlier runs of the cleaner.
    for _ in range(2):
        for topic, end in {topic: pad(bootstrap, topic) for topic in TOPICS}.items():
            until_cleaned(log_dir, topic, end)
    return {codec: [row for row in consume(bootstrap, codec) if row[2] != b"pad"] for codec in CODECS}


def emptied(tools: KafkaTools, log_dir: Path, copy: Path) -> Counter[str]:
    """By topic, in how many time indexes DumpLogSegments misses the time of a batch without records. Nothing
    else may be wrong.
    """
    for topic in TOPICS:
        shutil.copytree(log_dir / f"{topic}-0", copy / f"{topic}-0")
    files = [file for file in sorted(copy.glob("*-0/*")) if file.stat().st_size]
    logs = tools.dump_log(*[file for file in files if file.suffix == ".log"])
    assert "isvalid: true" in logs
    assert "isvalid: false" not in logs
    gap = re.compile(r"Non-consecutive offsets in |  \d+ is followed by \d+$")
    assert [line for line in complaints(logs) if not gap.match(line)] == []
    indexes = [file for file in files if file.suffix in (".index", ".timeindex")]
    said = complaints(tools.dump_log(*indexes, flags=["--verify-index-only"]))
    mismatch = re.compile(
        r"Found timestamp mismatch in :.*/(.*)-0/|  Index timestamp: \d+, log timestamp: -1$"
    )
    found = [mismatch.match(line) for line in said]
    assert all(found), said
    return Counter(match[1] for match in found if match and match[1])


def test_our_cleaner_keeps_what_kafkas_keeps(
    start_broker: StartBroker, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    broker = start_broker(
        tmp_path / "data",
        0,
        *(word for name, text in CLEANER.items() for word in ("--override", f"{name}={text}")),
    )
    ours = compacted(broker.bootstrap, broker.data_dir / "kafka-logs")
    assert broker.stop() == 0
    with apache_kafka(tmp_path / "apache", CLEANER) as kafka:
        kafka.start()
        kafkas = compacted(kafka.bootstrap, kafka.log_dir)
        kafka.stop()

        last = {key(n): n for n in range(RECORDS)}
        for codec in CODECS:
            assert ours[codec] == kafkas[codec], codec
            kept = [
                (n, 1_700_000_000_000 + n, key(n), value(n), (("n", b"%d" % n),))
                for n in sorted(last.values())
            ]
            assert ours[codec] == [row for row in kept if row[3] is not None], codec
        assert {value(n) is None for n in last.values()} == {True, False}

        assert logcore.verify(broker.data_dir / "kafka-logs") == []
        one = emptied(kafka_tools, broker.data_dir / "kafka-logs", tmp_path / "ours")
        other = emptied(kafka_tools, kafka.log_dir, tmp_path / "kafkas")
        assert one == other
        assert one.keys() == {EMPTIED}
