"""Writes tests/golden/kafka-3.9.1: log directories as Apache Kafka 3.9.1 leaves them, and the records that
its consumers read.

usage: python -m tests.compat.golden_directories [PART...]     (needs java and `make peers`; writes all parts
by default)

There is one partition's directory for each compression, for transactions, for compacted logs, for a killed
broker, and for the record formats v0 and v1, which Kafka still writes with `inter.broker.protocol.version`
below 3.0. A JSON file beside each has the records that librdkafka and Kafka's Java consumer read: offset,
timestamp, key, value and headers, bytes as Latin-1 text. Directories with transactions have a second file, of
the committed records.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as confluent

from tests.compat.apache import ApacheKafka, apache_kafka
from tests.compat.conftest import KafkaTools
from tests.compat.test_directories import CODECS, TIMEOUT, Row, consume, create, produce
from tests.compat.test_verify_kafka import until

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka-3.9.1"
SMALL = {"segment_bytes": "6000", "index_interval_bytes": "512", "retention_ms": "-1"}
LEGACY_CODECS = ("none", "gzip", "snappy", "lz4")
# The cleaner's settings: it works at once, and on everything before the active segment.
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": "3000",
    "index_interval_bytes": "512",
    "min_cleanable_dirty_ratio": "0.01",
}
KEYS = 19


def text(row: Row) -> list[object]:
    offset, timestamp, key, value, headers = row

    def plain(part: bytes | None) -> str | None:
        return None if part is None else part.decode("latin-1")

    return [offset, timestamp, plain(key), plain(value), [[name, plain(part)] for name, part in headers]]


def as_javas_consumer_prints(row: Row) -> str:
    offset, timestamp, key, value, headers = row

    def plain(part: bytes | None) -> str:
        return "null" if part is None else part.decode("latin-1")

    stamp = str(timestamp) if timestamp >= 0 else "NO_TIMESTAMP"
    named = ",".join(f"{name}:{plain(part)}" for name, part in headers) or "NO_HEADERS"
    return "\t".join([stamp, f"Offset:{offset}", named, plain(key), plain(value)])


def served(kafka: ApacheKafka, topic: str, isolation: str = "read_uncommitted") -> list[Row]:
    """The records that librdkafka reads, which must be those that Kafka's own consumer reads."""
    rows = consume(kafka.bootstrap, topic, isolation)
    shown = ("timestamp", "offset", "headers", "key", "value")
    said = KafkaTools().run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            kafka.bootstrap,
            "--topic",
            topic,
            "--partition",
            "0",
            "--offset",
            "earliest",
        ),
        *("--isolation-level", isolation, "--max-messages", str(len(rows))),
        *(word for name in shown for word in ("--property", f"print.{name}=true")),
    )
    said = re.sub(r"^(CreateTime|LogAppendTime):", "", said, flags=re.MULTILINE)
    assert said.splitlines() == [as_javas_consumer_prints(row) for row in rows], topic
    return rows


def write_rows(name: str, rows: list[Row]) -> None:
    lines = ",\n".join(json.dumps(text(row)) for row in rows)
    (GOLDEN / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def keep(kafka: ApacheKafka, topic: str, rows: list[Row], committed: list[Row] | None = None) -> None:
    """Copies the directory; Kafka must be stopped."""
    shutil.rmtree(GOLDEN / f"{topic}-0", ignore_errors=True)
    shutil.copytree(kafka.log_dir / f"{topic}-0", GOLDEN / f"{topic}-0")
    write_rows(topic, rows)
    if committed is not None:
        write_rows(f"{topic}-committed", committed)


def producers(kafka: ApacheKafka, names: str, **settings: object) -> list[confluent.Producer]:
    """Transactional producers that are ready to begin."""
    made = []
    for name in names.split():
        config = {"bootstrap.servers": kafka.bootstrap, "transactional.id": name, **settings}
        made.append(confluent.Producer(config))
        made[-1].init_transactions(TIMEOUT)
    return made


def transact(
    kafka: ApacheKafka, topic: str, count: int, each: int, last_is_open: bool = False, **settings: object
) -> None:
    """Interleaved transactions of two producers, every third aborted. Each producer continues its own
    sequence.
    """
    both = producers(kafka, f"{topic}-first {topic}-second", **settings)
    for number in range(count):
        for producer in both:
            producer.begin_transaction()
        for n in range(each):
            for who, producer in enumerate(both):
                value = b"%d/%d/%d" % (who, number, n)
                producer.produce(topic, value, b"k%d" % (n % KEYS), headers={"n": b"%d" % n}, partition=0)
                # Several batches of each, between those of the other.
                if n % 5 == 4:
                    producer.flush(TIMEOUT)
        for who, producer in enumerate(both):
            producer.flush(TIMEOUT)
            if last_is_open and number == count - 1 and who == 1:
                OPEN.append(producer)
            elif (number + who) % 3 == 1:
                producer.abort_transaction(TIMEOUT)
            else:
                producer.commit_transaction(TIMEOUT)


# Producers with an open transaction, which must not end before the broker does.
OPEN: list[confluent.Producer] = []


def transactions(kafka: ApacheKafka) -> None:
    both = producers(kafka, "first second")
    for number in range(6):
        for producer in both:
            producer.begin_transaction()
        for n in range(20):
            for who, producer in enumerate(both):
                producer.produce("transactional", b"%d/%d/%d" % (who, number, n), partition=0)
        for who, producer in enumerate(both):
            producer.flush(TIMEOUT)
            if (number + who) % 3 == 1:
                producer.abort_transaction(TIMEOUT)
            else:
                producer.commit_transaction(TIMEOUT)


def versions(kafka: ApacheKafka, topic: str, count: int, codec: str = "none", headers: bool = True) -> None:
    """Many versions of few keys, some of them tombstones."""
    settings = {"batch.num.messages": 10, "linger.ms": 5, "compression.type": codec}
    producer = confluent.Producer(
        {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": headers, **settings}
    )
    for n in range(count):
        value = None if n % 23 == 5 else b"%d" % n * (1 + n % 30)
        given = {"n": b"%d" % n} if headers else None
        producer.produce(topic, value, b"k%d" % (n * 7919 % 104_729 % KEYS), partition=0, headers=given)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0


def compaction(kafka: ApacheKafka, topic: str, passes: int = 1) -> None:
    """Waits until the cleaner has cleaned everything. It takes more than one pass to remove tombstones and
    markers.
    """
    file = kafka.log_dir / "cleaner-offset-checkpoint"
    for _ in range(passes):
        end = pad(kafka, topic)

        def is_cleaned(end: int = end) -> bool:
            found = (
                re.search(rf"^{topic} 0 (\d+)$", file.read_text(), re.MULTILINE) if file.exists() else None
            )
            return found is not None and int(found[1]) >= end

        until(is_cleaned, f"compaction of {topic}")


def pad(kafka: ApacheKafka, topic: str) -> int:
    """Ends the active segment, and the next. Returns the offset up to which everything may be compacted."""
    offsets: list[int | None] = []
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(3):
        producer.produce(
            topic, b"x" * 2000, b"pad", partition=0, on_delivery=lambda _, m: offsets.append(m.offset())
        )
        assert producer.flush(TIMEOUT) == 0
    assert offsets[-1] is not None
    return offsets[-1]


def stop_and_keep(kafka: ApacheKafka, topics: list[str], transactional: tuple[str, ...] = ()) -> None:
    """Stops Kafka and copies the directories, with the records that it served of them."""
    kafka.stop()
    kafka.start({"log.cleaner.enable": "false"})
    rows = {topic: served(kafka, topic) for topic in topics}
    committed = {topic: served(kafka, topic, "read_committed") for topic in transactional}
    kafka.stop()
    for topic in topics:
        keep(kafka, topic, rows[topic], committed.get(topic))


def current(directory: Path) -> None:
    with apache_kafka(directory) as kafka:
        kafka.start()
        for codec in CODECS:
            create(kafka, codec, **SMALL)
            produce(kafka.bootstrap, codec, 0, 120, **{"compression.type": codec})
        create(kafka, "append-time", message_timestamp_type="LogAppendTime", **SMALL)
        produce(kafka.bootstrap, "append-time", 0, 60)
        create(kafka, "transactional", **SMALL)
        transactions(kafka)
        stop_and_keep(kafka, [*CODECS, "append-time", "transactional"], ("transactional",))


def transactional(directory: Path) -> None:
    """Transactions in each compression, over several segments; one with an open transaction; and compacted
    ones, of some of which only markers are left, or nothing.
    """
    topics = [f"transactional-{codec}" for codec in CODECS] + [
        "transactional-open",
        "transactional-compacted",
    ]
    with apache_kafka(directory) as kafka:
        kafka.start()
        for topic in topics[:-1]:
            create(kafka, topic, **SMALL | {"segment_bytes": "2000"})
            codec = topic.removeprefix("transactional-")
            settings = {"compression.type": codec if codec in CODECS else "none"}
            transact(kafka, topic, 6, 10, last_is_open=codec == "open", **settings)
        produce(kafka.bootstrap, "transactional-open", 0, 20)
        create(kafka, topics[-1], **COMPACTED, delete_retention_ms="0")
        transact(kafka, topics[-1], 9, 20, **{"compression.type": "lz4"})
        compaction(kafka, topics[-1], passes=3)
        transact(kafka, topics[-1], 3, 20, **{"compression.type": "snappy"})
        compaction(kafka, topics[-1])
        transact(kafka, topics[-1], 2, 20)
        stop_and_keep(kafka, topics, tuple(topics))
        OPEN.clear()


def compacted(directory: Path) -> None:
    """Compacted in each compression. Tombstones are still there, with the time of their removal."""
    codecs = [f"compacted-{codec}" for codec in CODECS if codec != "none"]
    topics = ["compacted", *codecs, "compacted-no-tombstones"]
    with apache_kafka(directory) as kafka:
        kafka.start()
        for topic in topics:
            retention = {"delete_retention_ms": "0"} if topic == "compacted-no-tombstones" else {}
            create(kafka, topic, **COMPACTED, **retention)
            codec = topic.removeprefix("compacted-")
            versions(kafka, topic, 400, codec if codec in CODECS else "none")
            compaction(kafka, topic, passes=2)
            produce(kafka.bootstrap, topic, 1, 6)
        stop_and_keep(kafka, topics)


def epochs(directory: Path) -> None:
    """Records of several leader epochs: Kafka was started several times."""
    with apache_kafka(directory) as kafka:
        kafka.start()
        create(kafka, "epochs", **SMALL)
        for first in range(0, 120, 30):
            produce(kafka.bootstrap, "epochs", first, 30)
            kafka.stop()
            kafka.start()
        stop_and_keep(kafka, ["epochs"])


def killed(directory: Path) -> None:
    """SIGKILL: preallocated index files, no producer snapshot, an open transaction."""
    topics = ["killed", "killed-transactional", "killed-compacted"]
    with apache_kafka(directory) as kafka:
        kafka.start()
        create(kafka, "killed", **SMALL)
        produce(kafka.bootstrap, "killed", 0, 120, **{"compression.type": "lz4", "enable.idempotence": True})
        create(kafka, "killed-transactional", **SMALL | {"segment_bytes": "2000"})
        transact(kafka, "killed-transactional", 6, 10, last_is_open=True, **{"compression.type": "zstd"})
        create(kafka, "killed-compacted", **COMPACTED)
        versions(kafka, "killed-compacted", 200)
        compaction(kafka, "killed-compacted")
        rows = {topic: served(kafka, topic) for topic in topics}
        committed = served(kafka, "killed-transactional", "read_committed")
        kafka.stop(signal.SIGKILL)
        OPEN.clear()
        # Preallocation leaves zeros behind the entries of an index: ten megabytes with Kafka's default.
        for index in kafka.log_dir.glob("killed*/*index"):
            with index.open("r+b") as file:
                file.truncate(min(index.stat().st_size, 4096 * 3))
        for topic in topics:
            keep(kafka, topic, rows[topic], committed if topic == "killed-transactional" else None)


def legacy(directory: Path, version: str, name: str) -> None:
    """An old format in each compression, and compacted; v1 also with log append time."""
    plain = [f"{name}-{codec}" for codec in LEGACY_CODECS]
    compact = [f"{name}-compacted-{codec}" for codec in ("none", "gzip")]
    append_time = [f"{name}-append-time"] if name != "v0" else []
    with apache_kafka(directory, LEGACY | {"log.message.format.version": version}) as kafka:
        kafka.start()
        for topic in plain:
            create(kafka, topic, **SMALL)
            codec = topic.rpartition("-")[2]
            produce(kafka.bootstrap, topic, 0, 120, headers=False, **{"compression.type": codec})
        for topic in append_time:
            create(kafka, topic, message_timestamp_type="LogAppendTime", **SMALL)
            produce(kafka.bootstrap, topic, 0, 60, headers=False, **{"compression.type": "gzip"})
        for topic in compact:
            create(kafka, topic, **COMPACTED)
            versions(kafka, topic, 400, topic.rpartition("-")[2], headers=False)
            compaction(kafka, topic)
        stop_and_keep(kafka, [*plain, *append_time, *compact])


LEGACY = {"inter.broker.protocol.version": "2.8"}


def upgraded(directory: Path) -> None:
    """One log in three formats, as after years of upgrades."""
    with apache_kafka(directory, LEGACY) as kafka:
        for number, version in enumerate(("0.9.0", "0.10.2", "2.8")):
            kafka.start({"log.message.format.version": version})
            if number == 0:
                create(kafka, "upgraded", **SMALL)
            settings = {"compression.type": ("none", "gzip", "zstd")[number]}
            produce(kafka.bootstrap, "upgraded", 40 * number, 40, headers=number == 2, **settings)
            kafka.stop()
        kafka.start()
        stop_and_keep(kafka, ["upgraded"])


PARTS: dict[str, Callable[[Path], None]] = {
    "current": current,
    "transactional": transactional,
    "compacted": compacted,
    "epochs": epochs,
    "killed": killed,
    "v0": lambda directory: legacy(directory, "0.9.0", "v0"),
    "v1": lambda directory: legacy(directory, "0.10.2", "v1"),
    "upgraded": upgraded,
}


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            PARTS[name](Path(directory))
    print(f"{sum(1 for _ in GOLDEN.rglob('*'))} files in {GOLDEN.name}")


if __name__ == "__main__":
    main()
