"""Apache Kafka 3.9.1 takes over a directory that we wrote and appends, and we take it back.

Our broker writes it with real clients (every codec, create and log append time, headers, nulls, idempotent
producers), and its cleaner compacts. Our log engine adds records that clients may not write: transactions
with their markers, and old formats as a follower gets them. Then the broker is stopped, or killed while it
writes. Kafka starts on its logs, with its topics in our coordinator, and both get the same requests.

If one failed, an operator who replaces our broker by Apache Kafka, or the reverse, would lose records, get
others than were written, or get some of them twice.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import logcore
from tests.compat.apache import ApacheKafka, apache_kafka_in_place_of_ours
from tests.compat.conftest import KafkaTools
from tests.compat.engine import Engine, end_marker, transactional
from tests.compat.golden_directories import GOLDEN, text
from tests.compat.test_directories import CODECS, TIMEOUT, Row, produce
from tests.compat.test_verify_kafka import until
from tests.conftest import BrokerProcess, StartBroker
from tests.server import wire

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

SMALL = {"segment.bytes": "6000", "index.interval.bytes": "512", "retention.ms": "-1"}
COMPACTED = {
    **SMALL,
    "segment.bytes": "3000",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
# Where a crash may stop a compaction: before it, after it, and in each of its steps
# (`rust/crates/storage/src/log/cleaning/mod.rs`).
SWAP_STEPS = ["cleaned", "half-swap", "swap", "half-deleted", "deleted", "half-renamed", "done"]
SWAPPED = "compacted-swap-done"
TOPICS = {
    **dict.fromkeys(CODECS, SMALL),
    **{f"{codec}-append-time": {**SMALL, "message.timestamp.type": "LogAppendTime"} for codec in CODECS},
    # The contents of Kafka's golden directories (tests/compat/golden_directories.py), taken over by a
    # follower of ours.
    **{f"golden-{path.name.removesuffix('-0')}": SMALL for path in sorted(GOLDEN.glob("*-0"))},
    "retried": SMALL,
    "transactions": SMALL,
    "open-transaction": SMALL,
    "compacted": COMPACTED,
    "compacted-tombstones": {**COMPACTED, "delete.retention.ms": "86400000"},
    "compacted-transactions": COMPACTED,
    "flooded": SMALL,
    **{f"compacted-swap-{step}": COMPACTED for step in SWAP_STEPS},
}
GOLDENS = [topic for topic in TOPICS if topic.startswith("golden-")]
COMPACTED_TOPICS = {topic for topic in TOPICS if "compacted" in topic}
OFFSETS = {"offsets.topic.num.partitions": "1"}
CLEANING = {"log.cleaner.backoff.ms": "50", "log.cleaner.dedupe.buffer.size": "2097152"}
# Records must not change between the requests to one and to the other.
NOT_CLEANING = {"log.cleaner.enable": "false"}

# A producer's id, and the error code of its batch that is neither the next one nor a known one.
RETRIED = 5_000_001
OUT_OF_ORDER = 45
KEYS = 17
ACKNOWLEDGED_MIN = 500


@dataclass
class Answers:
    """The records and offsets that a broker serves of a partition."""

    bounds: tuple[int, int]
    """Log start and high watermark."""
    times: list[tuple[int, int]]
    """Timestamps, and the offset of the first record at or after each."""
    everything: list[tuple[int, Row]]
    """Each record after its kind of timestamp."""
    committed: list[tuple[int, Row]]


Served = dict[str, Answers]


@dataclass
class Story:
    """The observations on the way."""

    killed: bool
    """Our broker was killed, and Kafka after it; otherwise both were stopped."""
    aborted: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By topic: producer id, first offset and marker's offset of aborted transactions."""
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """The records of `flooded` that our broker acknowledged before its end: value and offset."""
    dumped: dict[str, str] = field(default_factory=dict)
    """The output of DumpLogSegments for our files, by its flags."""
    findings: list[logcore.Finding] = field(default_factory=list)
    ours: Served = field(default_factory=dict)
    kafkas: Served = field(default_factory=dict)
    kafkas_later: Served = field(default_factory=dict)
    ours_later: Served = field(default_factory=dict)
    files_ours: dict[str, bytes] = field(default_factory=dict)
    """The files of our broker, after its recovery if it was killed."""
    files_kafkas: dict[str, bytes] = field(default_factory=dict)
    """The files once Kafka has started on them, after its own recovery."""
    retries: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Each broker's result for batches that are sent again: error code and offset."""


def consume(bootstrap: str, topics: list[str], isolation: str) -> dict[str, list[tuple[int, Row]]]:
    """Every record of partition 0 of each topic, with the kind of its timestamp; checksums verified."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "takeover",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING) for topic in topics])
    found: dict[str, list[tuple[int, Row]]] = {topic: [] for topic in topics}
    ended: set[str] = set()
    while len(ended) < len(topics):
        message = consumer.poll(TIMEOUT)
        assert message is not None, f"nothing came from {set(topics) - ended} for {TIMEOUT} s"
        topic, error = str(message.topic()), message.error()
        if error is not None:
            assert error.code() == confluent.KafkaError._PARTITION_EOF, error
            ended.add(topic)
            continue
        kind, timestamp = message.timestamp()
        if kind == confluent.TIMESTAMP_NOT_AVAILABLE:
            timestamp = -1
        headers = tuple((str(name), value) for name, value in message.headers() or ())
        row = (message.offset(), timestamp, message.key(), message.value(), headers)
        found[topic].append((kind, row))  # type: ignore[arg-type]
    consumer.close()
    return found


def ask(bootstrap: str) -> Served:
    topics = sorted(TOPICS)
    everything = consume(bootstrap, topics, "read_uncommitted")
    committed = consume(bootstrap, topics, "read_committed")
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "takeover"})
    served = {}
    for topic in topics:
        bounds = consumer.get_watermark_offsets(confluent.TopicPartition(topic, 0), TIMEOUT)
        stamps = sorted({row[1] for _, row in everything[topic]})
        if -1 in stamps:
            # For a segment without timestamps Kafka uses its file's time and searches no further; we search
            # further.
            stamps = []
        asked = stamps[:: max(1, len(stamps) // 5)] + [stamp + 1 for stamp in stamps[-1:]]
        times = []
        for stamp in asked:
            [found] = consumer.offsets_for_times([confluent.TopicPartition(topic, 0, stamp)], TIMEOUT)
            times.append((stamp, found.offset))
        served[topic] = Answers(bounds, times, everything[topic], committed[topic])
    consumer.close()
    return served


# ---- writing ----


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(
        [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
    ).values():
        created.result(TIMEOUT)


def version(n: int) -> tuple[bytes, bytes | None]:
    """Key and value: many versions of few keys, some of them tombstones, and keys that are only deleted."""
    if n % 100 == 50:
        return b"gone%d" % n, None
    return b"k%d" % (n % KEYS), None if n % 23 == 5 else b"%d" % n


def produce_versions(bootstrap: str, topic: str, first: int, count: int, codec: str = "none") -> None:
    settings = {
        "enable.idempotence": True,
        "batch.num.messages": 10,
        "linger.ms": 5,
        "compression.type": codec,
    }
    producer = confluent.Producer({"bootstrap.servers": bootstrap, **settings})
    for n in range(first, first + count):
        key, value = version(n)
        producer.produce(topic, value, key, partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0


def until_cleaned(log_dir: Path, topic: str, offset: int) -> None:
    """Waits until the cleaner has stored that it reached `offset`."""
    file = log_dir / "cleaner-offset-checkpoint"

    def is_cleaned() -> bool:
        found = re.search(rf"^{topic} 0 (\d+)$", file.read_text(), re.MULTILINE) if file.exists() else None
        return found is not None and int(found[1]) >= offset

    until(is_cleaned, f"compaction of {topic} to offset {offset}")


def retry(bootstrap: str, first: int = 0, last: int = 5) -> list[tuple[int, int]]:
    """Sends batches of four records of one idempotent producer, by their numbers. Returns error code and
    offset of each.
    """
    now = int(time.time() * 1000)
    answers = []
    with wire.Client(int(bootstrap.rpartition(":")[2])) as client:
        for number in range(first, last + 1):
            records = [logcore.Record(value=b"%d/%d" % (number, n), timestamp=now) for n in range(4)]
            batch = logcore.build_batch(records, compression="lz4", producer=(RETRIED, 3, 4 * number))
            answers.append(client.produce("retried", 0, batch))
    return [(answer["error_code"], answer["base_offset"]) for answer in answers]


def write_transactions(engine: Engine, topic: str, last_is_open: bool) -> list[tuple[int, int, int]]:
    """Interleaved transactions of three producers, with plain records between. Returns those that were
    aborted.
    """
    now = int(time.time() * 1000)
    sequences, epochs = dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    aborted = []
    for number in range(12):
        first: dict[int, int] = {}
        for part in range(2):
            for who in range(3):
                records = [
                    logcore.Record(
                        value=b"%d/%d/%d/%d" % (who, number, part, n),
                        key=b"k%d" % ((number + n) % 7),
                        headers=[("who", b"%d" % who)] if n % 2 else [],
                        timestamp=now + number,
                    )
                    for n in range(5)
                ]
                producer = (9000 + who, epochs[who], sequences[who])
                batch = transactional(records, producer, CODECS[(number + who) % len(CODECS)])
                offset = engine.append(topic, batch)
                first.setdefault(who, offset)
                sequences[who] += len(records)
            plain = [
                logcore.Record(
                    value=b"%d plain" % number, key=b"plain%d" % (number % 3), timestamp=now + number
                )
            ]
            engine.append(topic, logcore.build_batch(plain))
        for who in range(3):
            if last_is_open and number == 11 and who == 1:
                continue
            committed = (number + who) % 3 != 1
            marker = engine.coordinate(topic, end_marker(9000 + who, epochs[who], committed, now + number))
            if not committed:
                aborted.append((9000 + who, first[who], marker))
        if number == 5:
            # As after a second InitProducerId.
            epochs[2], sequences[2] = 1, 0
    return aborted


ENGINE = {
    "segment_bytes": "4000",
    "index_interval_bytes": "512",
    "retention_ms": "-1",
    "delete_retention_ms": "0",
}


def write_as_engine(log_dir: Path, scratch: Path, story: Story) -> None:
    """Records that clients may not write."""
    with Engine(log_dir, scratch, **ENGINE) as engine:
        for topic in ("transactions", "open-transaction", "compacted-transactions"):
            aborted = write_transactions(engine, topic, last_is_open=topic == "open-transaction")
            story.aborted[topic] = aborted
        for _ in range(3):
            # First the records go, then the time at which the markers may go is set, then they go.
            engine.roll("compacted-transactions")
            engine.compact("compacted-transactions")
            last = [logcore.Record(value=b"last", key=b"active", timestamp=int(time.time() * 1000))]
            engine.append("compacted-transactions", logcore.build_batch(last))
        for topic in GOLDENS:
            for segment in sorted((GOLDEN / f"{topic.removeprefix('golden-')}-0").glob("*.log")):
                engine.follow(topic, segment.read_bytes())


def write_swap(log_dir: Path, scratch: Path) -> None:
    """A log before its compaction and after it, which made one segment of several, in `scratch`."""
    with Engine(log_dir, scratch, **ENGINE) as engine:
        for n in range(60):
            records = [
                logcore.Record(value=b"%d/%d" % (n, k), key=b"k%d" % (7 * k % 13), timestamp=n)
                for k in range(30)
            ]
            engine.append(SWAPPED, logcore.build_batch(records))
        engine.roll(SWAPPED)
        engine.append(
            SWAPPED, logcore.build_batch([logcore.Record(value=b"active", key=b"a", timestamp=99)] * 5)
        )
    shutil.copytree(log_dir / f"{SWAPPED}-0", scratch / "before")
    with Engine(log_dir, scratch, **ENGINE | {"segment_bytes": "1000000"}) as engine:
        engine.compact(SWAPPED)
    shutil.copytree(log_dir / f"{SWAPPED}-0", scratch / "after")


def leave_swap(directory: Path, before: Path, after: Path, step: str) -> None:
    """Turns a partition's directory into that of a crash at `step` of the compaction."""

    def bring(source: Path, suffix: str = "") -> None:
        shutil.copy(source, directory / f"{source.name}{suffix}")

    for file in [*directory.glob("0*"), directory / "leader-epoch-checkpoint"]:
        file.unlink(missing_ok=True)
    bring(before / "leader-epoch-checkpoint")
    active = max(before.glob("*.log")).stem
    old = [file for file in sorted(before.glob("0*")) if file.stem < active]
    new = [after / f"{0:020}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    for file in before.glob("0*"):
        if file not in old:
            bring(file)
    gone = {
        "half-deleted": len(old) // 2,
        "deleted": len(old),
        "half-renamed": len(old),
        "done": len(old),
    }.get(step, 0)
    for number, file in enumerate(old):
        bring(file, ".deleted" if number < gone else "")
    suffixes = {
        "cleaned": [".cleaned"] * 3,
        "half-swap": [".swap", ".cleaned", ".cleaned"],
        "half-renamed": ["", ".swap", ".swap"],
        "done": [""] * 3,
    }.get(step, [".swap"] * 3)
    for file, suffix in zip(new, suffixes, strict=True):
        bring(file, suffix)


def leave_swaps(log_dir: Path, scratch: Path, steps: dict[str, str]) -> None:
    for name, step in steps.items():
        leave_swap(log_dir / f"compacted-swap-{name}-0", scratch / "before", scratch / "after", step)


def flood(broker: BrokerProcess, story: Story) -> None:
    """Produces until enough is acknowledged. The broker is killed during the rest."""

    def delivered(error: object, message: confluent.Message) -> None:
        if error is None:
            story.acknowledged[message.value() or b""] = message.offset() or 0

    producer = confluent.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 20,
            "compression.type": "lz4",
            "log_level": 0,
        }
    )
    for n in range(20 * ACKNOWLEDGED_MIN if story.killed else ACKNOWLEDGED_MIN):
        producer.produce("flooded", b"%d" % n, partition=0, on_delivery=delivered)
    deadline = time.monotonic() + TIMEOUT
    while len(story.acknowledged) < ACKNOWLEDGED_MIN:
        producer.poll(0.001)
        assert time.monotonic() < deadline, f"{len(story.acknowledged)} acknowledged"
    if story.killed:
        broker.kill()
        producer.purge()
        producer.flush(TIMEOUT)


def write_ours(start: Starter, data: Path, scratch: Path, story: Story) -> BrokerProcess:
    """Everything that is written before the takeover, and the broker that runs at its end."""
    broker = start(data, OFFSETS | CLEANING)
    create_topics(broker.bootstrap)
    for codec in CODECS:
        settings = {"compression.type": codec, "enable.idempotence": True}
        produce(broker.bootstrap, codec, 0, 120, **settings)
        produce(broker.bootstrap, f"{codec}-append-time", 0, 120, **settings)
    for topic, codec in (("compacted", "none"), ("compacted-tombstones", "zstd")):
        produce_versions(broker.bootstrap, topic, 0, 1000, codec)
        # At least two passes over the first 300.
        until_cleaned(data / "kafka-logs", topic, 300)
        produce_versions(broker.bootstrap, topic, 1000, 300, codec)
        until_cleaned(data / "kafka-logs", topic, 1000)
    assert retry(broker.bootstrap) == [(0, 4 * number) for number in range(6)]
    assert retry(broker.bootstrap) == [(OUT_OF_ORDER, -1), *((0, 4 * number) for number in range(1, 6))]
    assert broker.stop() == 0
    write_as_engine(data / "kafka-logs", scratch, story)
    write_swap(data / "kafka-logs", scratch)
    if not story.killed:
        leave_swaps(data / "kafka-logs", scratch, dict.fromkeys(SWAP_STEPS, "done"))
    broker = start(data, OFFSETS | NOT_CLEANING)
    for topic in GOLDENS:
        if topic.startswith(("golden-v0", "golden-v1", "golden-upgraded")):
            produce(broker.bootstrap, topic, 120, 30, **{"compression.type": "gzip"})
    return broker


def write_on(kafka: ApacheKafka) -> None:
    """Kafka's part: more records in all topics, and its own transactions."""
    for topic in TOPICS:
        if not topic.startswith(("compacted", "open")):
            codec = next((codec for codec in CODECS if codec in topic), "none")
            produce(kafka.bootstrap, topic, 500, 30, **{"compression.type": codec})
    for topic in TOPICS:
        if topic.startswith("compacted"):
            produce_versions(kafka.bootstrap, topic, 2000, 50, "lz4")
    producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "kafkas"})
    producer.init_transactions(TIMEOUT)
    for number in range(4):
        producer.begin_transaction()
        for topic in ("transactions", "open-transaction", "compacted-transactions"):
            for n in range(10):
                producer.produce(topic, b"kafka %d/%d" % (number, n), b"k%d" % n, partition=0)
        producer.flush(TIMEOUT)
        if number % 2:
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)


def files(log_dir: Path) -> dict[str, bytes]:
    """Logs, indexes and epochs of our topics by path. Indexes are without their preallocated bytes."""
    found = {}
    for topic in TOPICS:
        for file in (log_dir / f"{topic}-0").iterdir():
            if file.suffix in (".index", ".timeindex", ".txnindex"):
                found[f"{topic}/{file.name}"] = file.read_bytes().rstrip(b"\0")
            elif file.suffix == ".log" or file.name == "leader-epoch-checkpoint":
                found[f"{topic}/{file.name}"] = file.read_bytes()
    return found


def dump(tools: KafkaTools, log_dir: Path, copy: Path) -> dict[str, str]:
    """DumpLogSegments on copies of all files of our topics, by its flags."""
    files = []
    for topic in TOPICS:
        shutil.copytree(log_dir / f"{topic}-0", copy / f"{topic}-0")
        files += sorted((copy / f"{topic}-0").iterdir())

    def run(flags: list[str], *suffixes: str) -> str:
        chosen = [file for file in files if file.suffix in suffixes and file.stat().st_size]
        return tools.dump_log(*chosen, flags=flags)

    return {
        "deep": run(["--deep-iteration", "--print-data-log"], ".log"),
        "sanity": run(["--index-sanity-check"], ".index", ".timeindex"),
        "verify": run(["--verify-index-only"], ".index", ".timeindex"),
        "small": run([], ".txnindex", ".snapshot"),
    }


SHOWN = ("Dumping ", "Log starting offset: ", "baseOffset: ", "offset: ", "| ", "version: ", "producerId: ")


def complaints(dumped: str) -> list[str]:
    """The lines without those that show the contents of the files."""
    return [line for line in dumped.splitlines() if not line.startswith(SHOWN)]


def only_of(complaint: str, lines: list[str]) -> set[str]:
    """The topics with this complaint; there may be no other complaint."""
    assert [line for line in lines if not line.startswith(complaint)] == []
    return {Path(line.removeprefix(complaint)).parent.name.removesuffix("-0") for line in lines}


class Starter:
    """Starts brokers, and kills those that still run at the end."""

    def __init__(self) -> None:
        self.running: list[BrokerProcess] = []

    def __call__(self, data: Path, settings: dict[str, str]) -> BrokerProcess:
        extra = [word for name, value in settings.items() for word in ("--override", f"{name}={value}")]
        broker = BrokerProcess(data, 0, tuple(extra))
        self.running.append(broker)
        return broker.wait_ready()

    def close(self) -> None:
        for broker in self.running:
            if broker.process.poll() is None:
                broker.kill()


@pytest.fixture(scope="module", params=["stopped", "killed"])
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools
) -> Iterator[Story]:
    killed, scratch = request.param == "killed", tmp_path_factory.mktemp("takeover")
    data, copy = scratch / "data", scratch / "copy"
    start, story = Starter(), Story(killed)
    try:
        broker = write_ours(start, data, scratch, story)
        flood(broker, story)
        if killed:
            leave_swaps(data / "kafka-logs", scratch, {step: step for step in SWAP_STEPS})
            # After the crash our broker serves a copy: Kafka recovers the logs itself.
            shutil.copytree(data, copy)
            broker = start(copy, OFFSETS | NOT_CLEANING)
        story.ours = ask(broker.bootstrap)
        story.retries["ours"] = retry(broker.bootstrap)
        assert broker.stop() == 0
        ours = (copy if killed else data) / "kafka-logs"
        story.findings = logcore.verify(ours)
        story.dumped = dump(kafka_tools, ours, scratch / "dumped")
        story.files_ours = files(ours)

        with apache_kafka_in_place_of_ours(scratch / "apache", data, NOT_CLEANING) as kafka:
            story.kafkas = ask(kafka.bootstrap)
            story.files_kafkas = files(kafka.log_dir)
            story.retries["Kafka's"] = retry(kafka.bootstrap, last=6)
            write_on(kafka)
            story.kafkas_later = ask(kafka.bootstrap)
            kafka.stop(signal.SIGKILL if killed else signal.SIGTERM)
        story.findings += [f for f in logcore.verify(data / "kafka-logs") if f.kind != "unfinished"]
        broker = start(data, OFFSETS | NOT_CLEANING)
        story.ours_later = ask(broker.bootstrap)
        story.retries["ours later"] = retry(broker.bootstrap, first=6, last=7)
        assert broker.stop() == 0
        story.findings += logcore.verify(data / "kafka-logs")
        yield story
    finally:
        start.close()


# ---- comparisons ----


@pytest.mark.parametrize("topic", TOPICS)
def test_kafka_serves_the_same_as_we_do(story: Story, topic: str) -> None:
    assert len(story.ours[topic].everything) > 10
    assert story.kafkas[topic] == story.ours[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_we_serve_the_same_as_kafka_after_its_appends(story: Story, topic: str) -> None:
    assert len(story.kafkas_later[topic].everything) > len(story.kafkas[topic].everything)
    assert story.ours_later[topic] == story.kafkas_later[topic]


def test_kafka_repairs_nothing(story: Story) -> None:
    """Kafka rebuilds an index that it takes for damaged, and cuts a log at the first invalid batch."""
    assert story.files_kafkas.keys() == story.files_ours.keys()
    other = {name for name, content in story.files_ours.items() if story.files_kafkas[name] != content}
    if story.killed:
        # Recovery rebuilds the indexes of the last segments, with more entries than appends make.
        other = {name for name in other if not name.endswith("index")}
    assert other == set()


def test_acknowledged_records_are_served(story: Story) -> None:
    assert len(story.acknowledged) >= ACKNOWLEDGED_MIN
    for served in (story.ours, story.kafkas, story.kafkas_later, story.ours_later):
        at = {row[3]: row[0] for _, row in served["flooded"].everything}
        assert {value: at.get(value) for value in story.acknowledged} == story.acknowledged


def test_a_batch_sent_again_is_recognised(story: Story) -> None:
    """Each broker finds the producer's last batch in the other's files, and accepts the next one. No record
    is there twice.
    """
    ours, kafkas = story.retries["ours"], story.retries["Kafka's"]
    assert ours[-1] == (0, 20)
    assert kafkas[-2:] == [(0, 20), (0, 24)]
    # Offsets of older batches are known only to a broker that does not read them from a producer snapshot.
    for number, answer in enumerate([*ours[:5], *kafkas[:5]]):
        assert answer in ((OUT_OF_ORDER, -1), (0, 4 * (number % 5)))
    later, following = story.retries["ours later"]
    assert later == (0, 24)
    assert following == (0, story.kafkas_later["retried"].bounds[1])
    values = [row[3] for _, row in story.kafkas_later["retried"].everything[:28]]
    assert values == [b"%d/%d" % (number, n) for number in range(7) for n in range(4)]


def test_committed_records_are_the_same(story: Story) -> None:
    """Readers of committed records see the committed ones, up to the first open transaction."""
    for topic in ("transactions", "open-transaction"):
        rows = {row[0]: row for _, row in story.ours[topic].everything}
        committed = [row for _, row in story.ours[topic].committed]
        ids = {}
        for producer_id, first, marker in story.aborted[topic]:
            who = b"%d/" % (producer_id - 9000)
            ids.update(
                {
                    offset: row
                    for offset, row in rows.items()
                    if first <= offset < marker and (row[3] or b"").startswith(who)
                }
            )
        stable = min(
            (
                row[0]
                for row in rows.values()
                if topic == "open-transaction" and (row[3] or b"").startswith(b"1/11/")
            ),
            default=1 << 60,
        )
        assert committed == [row for offset, row in rows.items() if offset not in ids and offset < stable]
        assert 0 < len(ids) < len(rows) - 50


def test_the_golden_directories_are_served_as_kafka_served_them(story: Story) -> None:
    """A follower has taken them over. All their records and the committed ones are served as when they were
    made.
    """
    for topic in GOLDENS:
        name = topic.removeprefix("golden-")
        recorded = json.loads((GOLDEN / f"{name}.json").read_text())
        rows = [text(row) for _, row in story.ours[topic].everything]
        assert rows[: len(recorded)] == recorded, name
        if "transactional" in name:
            recorded = json.loads((GOLDEN / f"{name}-committed.json").read_text())
            assert [text(row) for _, row in story.ours[topic].committed] == recorded, name


def test_compaction_left_each_keys_last_value(story: Story) -> None:
    last = dict(version(n) for n in range(1300))
    values = {key: value for key, value in last.items() if value is not None}
    found: dict[str, dict[bytes | None, bytes | None]] = {}
    for topic in ("compacted", "compacted-tombstones"):
        rows = [row for _, row in story.ours[topic].everything]
        assert len(rows) < 600
        found[topic] = {key: value for _, _, key, value, _ in rows}
        assert {key: value for key, value in found[topic].items() if value is not None} == values
    # Tombstones go with the second pass where `delete.retention.ms` is over, and stay elsewhere.
    assert found["compacted"].keys() <= last.keys() - {b"gone50", b"gone150", b"gone250"}
    assert found["compacted-tombstones"] == last
    kept = story.ours["compacted-transactions"].everything
    assert len(kept) < len(story.ours["transactions"].everything) // 3


def test_a_compaction_that_a_crash_ended_is_finished_or_undone(story: Story) -> None:
    counts = {step: len(story.ours[f"compacted-swap-{step}"].everything) for step in SWAP_STEPS}
    before, after = 60 * 30 + 5, 13 + 5
    undone = ("cleaned", "half-swap") if story.killed else ()
    assert counts == {step: before if step in undone else after for step in SWAP_STEPS}


def test_dump_log_segments_finds_nothing(story: Story) -> None:
    deep = story.dumped["deep"]
    assert deep.count("isvalid: true") > 400
    assert "isvalid: false" not in deep
    # It reports the records that compaction removed.
    gaps = [line for line in complaints(deep) if not re.fullmatch(r"  \d+ is followed by \d+", line)]
    assert only_of("Non-consecutive offsets in ", gaps) <= COMPACTED_TOPICS
    assert only_of("Non-consecutive offsets in ", gaps) >= {"compacted-transactions"}

    sanity = story.dumped["sanity"]
    files = re.findall(r"^Dumping (.*)$", sanity, re.MULTILINE)
    assert len(files) > 50
    assert complaints(sanity) == [f"{file} passed sanity check." for file in files]

    verified = story.dumped["verify"]
    assert re.findall(r"^Dumping (.*)$", verified, re.MULTILINE) == files
    # The time index lacks the time of a batch that was emptied and kept for its producer's sequence, where
    # Kafka's
    # cleaner and ours have the batch's own time (tests/compat/test_compaction.py).
    emptied = [
        line
        for line in complaints(verified)
        if not re.fullmatch(r"  Index timestamp: \d+, log timestamp: -1", line)
    ]
    assert only_of("Found timestamp mismatch in :", emptied) <= COMPACTED_TOPICS


def test_dump_log_segments_reads_our_transactions_and_producers(story: Story) -> None:
    small = story.dumped["small"]
    assert "rror" not in small
    parts = re.split(r"^Dumping (.*)$", small, flags=re.MULTILINE)[1:]
    found: dict[str, list[tuple[int, int, int]]] = {}
    producers: dict[str, str] = {}
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        topic = Path(name).parent.name.removesuffix("-0")
        if name.endswith(".txnindex"):
            entry = r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)"
            rows = [(int(a), int(b), int(c)) for a, b, c in re.findall(entry, said)]
            assert len(rows) == said.count("producerId")
            found.setdefault(topic, []).extend(rows)
        else:
            producers[topic] = said
    assert found.keys() > {"transactions", "open-transaction", "compacted-transactions"}
    for topic in ("transactions", "open-transaction"):
        assert sorted(found[topic]) == sorted(story.aborted[topic])
    assert re.search(rf"producerId: {RETRIED} producerEpoch: 3 .*lastSequence: 23", producers["retried"])


def test_we_find_nothing_wrong_either(story: Story) -> None:
    assert story.findings == []


def test_kafka_continues_our_producer_ids(
    tmp_path: Path, start_broker: StartBroker, kafka_tools: KafkaTools
) -> None:
    """Its controller begins the block of ids in the znode that our broker created."""
    assert start_broker(tmp_path / "data").stop() == 0
    with apache_kafka_in_place_of_ours(tmp_path / "apache", tmp_path / "data") as kafka:
        producer = confluent.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "first"})
        producer.init_transactions(TIMEOUT)
