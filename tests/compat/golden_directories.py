"""Writes tests/golden/kafka-3.9.1: log directories as Apache Kafka 3.9.1 leaves them, and what its own consumers read there.

usage: python -m tests.compat.golden_directories      (needs java and `make peers`; replaces the directory)

One partition's directory for each compression, for transactions, for a compacted log, for a broker that was killed, and
for the record formats v0 and v1, which Kafka still writes when `inter.broker.protocol.version` is below 3.0. Beside each
stands a JSON file of the records that librdkafka read from the broker: offset, timestamp, key, value and headers, bytes as
Latin-1 text.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as confluent

from tests.compat.apache import ApacheKafka, apache_kafka
from tests.compat.test_directories import CODECS, TIMEOUT, Row, consume, create, produce

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka-3.9.1"
SMALL = {"segment_bytes": "6000", "index_interval_bytes": "512", "retention_ms": "-1"}


def text(row: Row) -> list[object]:
    offset, timestamp, key, value, headers = row

    def plain(part: bytes | None) -> str | None:
        return None if part is None else part.decode("latin-1")

    return [offset, timestamp, plain(key), plain(value), [[name, plain(part)] for name, part in headers]]


def keep(kafka: ApacheKafka, topic: str, served: list[Row], name: str | None = None) -> None:
    name = name or topic
    shutil.copytree(kafka.log_dir / f"{topic}-0", GOLDEN / f"{name}-0")
    lines = ",\n".join(json.dumps(text(row)) for row in served)
    (GOLDEN / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def transactions(kafka: ApacheKafka) -> None:
    producers = [
        confluent.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
        for name in ("first", "second")
    ]
    for producer in producers:
        producer.init_transactions(TIMEOUT)
    for number in range(6):
        for producer in producers:
            producer.begin_transaction()
        for n in range(20):
            for who, producer in enumerate(producers):
                producer.produce("transactional", b"%d/%d/%d" % (who, number, n), partition=0)
        for who, producer in enumerate(producers):
            producer.flush(TIMEOUT)
            if (number + who) % 3 == 1:
                producer.abort_transaction(TIMEOUT)
            else:
                producer.commit_transaction(TIMEOUT)


def compaction(kafka: ApacheKafka) -> None:
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap, "batch.num.messages": 10})
    for n in range(1000):
        value = None if n % 23 == 5 else b"%d" % n
        producer.produce("compacted", value, b"k%d" % (n % 19), partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    while len(consume(kafka.bootstrap, "compacted")) > 300:
        pass


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
        create(
            kafka,
            "compacted",
            cleanup_policy="compact",
            segment_bytes="3000",
            segment_ms="100",
            min_cleanable_dirty_ratio="0.01",
        )
        compaction(kafka)
        topics = [*CODECS, "append-time", "transactional", "compacted"]
        served = {topic: consume(kafka.bootstrap, topic) for topic in topics}
        committed = consume(kafka.bootstrap, "transactional", "read_committed")
        kafka.stop()
        # The cleaner may have come by once more.
        kafka.start()
        served["compacted"] = consume(kafka.bootstrap, "compacted")
        kafka.stop()
        for topic in topics:
            keep(kafka, topic, served[topic])
        lines = ",\n".join(json.dumps(text(row)) for row in committed)
        (GOLDEN / "transactional-committed.json").write_text(f"[\n{lines}\n]\n")


def killed(directory: Path) -> None:
    with apache_kafka(directory) as kafka:
        kafka.start()
        create(kafka, "killed", **SMALL)
        produce(kafka.bootstrap, "killed", 0, 120, **{"compression.type": "lz4", "enable.idempotence": True})
        served = consume(kafka.bootstrap, "killed")
        kafka.stop(signal.SIGKILL)
        # What preallocation left behind the entries of an index is zeros, ten megabytes of them as Kafka configures it.
        for index in (kafka.log_dir / "killed-0").glob("*index"):
            with index.open("r+b") as file:
                file.truncate(min(index.stat().st_size, 4096 * 3))
        keep(kafka, "killed", served)


def legacy(directory: Path, version: str, name: str) -> None:
    settings = {"inter.broker.protocol.version": "2.8", "log.message.format.version": version}
    with apache_kafka(directory, settings) as kafka:
        kafka.start()
        for codec in ("none", "gzip", "snappy", "lz4"):
            topic = f"{name}-{codec}"
            create(kafka, topic, **SMALL)
            produce(kafka.bootstrap, topic, 0, 120, headers=False, **{"compression.type": codec})
        served = {
            codec: consume(kafka.bootstrap, f"{name}-{codec}") for codec in ("none", "gzip", "snappy", "lz4")
        }
        kafka.stop()
        for codec, records in served.items():
            keep(kafka, f"{name}-{codec}", records)


def main() -> None:
    if GOLDEN.exists():
        shutil.rmtree(GOLDEN)
    GOLDEN.mkdir(parents=True)
    parts: list[Callable[[Path], None]] = [
        current,
        killed,
        lambda directory: legacy(directory, "0.9.0", "v0"),
        lambda directory: legacy(directory, "0.10.2", "v1"),
    ]
    for part in parts:
        with tempfile.TemporaryDirectory() as directory:
            part(Path(directory))
    print(f"{sum(1 for _ in GOLDEN.rglob('*'))} files in {GOLDEN.name}")


if __name__ == "__main__":
    main()
