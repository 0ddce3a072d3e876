"""Transactions: the codes of wrong requests beside Apache Kafka 3.9.1, and three clients' producers.

If one failed, a transactional producer of Java, librdkafka or aiokafka would lose a transaction on our
broker, or get an error on which it acts differently than on Kafka's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import confluent_kafka as confluent
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerFenced

import cluster.client
from cluster.errors import (
    NONE,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from logcore._native import api_keys
from tests.compat.apache import apache_kafka
from tests.compat.conftest import KafkaTools
from tests.compat.test_data_plane import Message, Peer
from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

KEYS = api_keys()
TIMEOUT = 60.0
PASSING = (
    ConcurrentTransactions.code,
    CoordinatorLoadInProgress.code,
    CoordinatorNotAvailable.code,
    NotCoordinator.code,
)
NOBODY = {"producer_id": -1, "producer_epoch": -1}
ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


# ---- wrong requests ----


@pytest.fixture(scope="module")
def peers(
    tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools, broker: BrokerProcess
) -> Iterator[tuple[Peer, Peer]]:
    """Ours and Apache Kafka, each with a topic `t` of two partitions."""
    settings = {"auto.create.topics.enable": "false", ABORT_INTERVAL: "100"}
    with apache_kafka(tmp_path_factory.mktemp("apache"), settings) as kafka:
        kafka.start()
        both = Peer(broker.bootstrap), Peer(kafka.bootstrap)
        for peer in both:
            peer.create("t", {})
        yield both
        for peer in both:
            peer.close()


class Story:
    """Requests to one broker, and the codes that it answered, each with a label."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer = peer
        self.name = name
        self.codes: list[tuple[str, object]] = []

    def ask(self, api: str, version: int, **body: Any) -> Message:
        answer = self.peer.ask(KEYS[api], version, body)
        assert isinstance(answer, dict)
        return answer

    def keep(self, label: str, code: Callable[[], object]) -> None:
        """Keeps the first code that does not pass by itself."""
        end = time.monotonic() + TIMEOUT
        while (found := code()) in PASSING:
            assert time.monotonic() < end, label
        self.codes.append((label, found))

    def find(self) -> None:
        found = lambda: self.ask("FindCoordinator", 3, key=self.name, key_type=1)["error_code"]  # noqa: E731
        self.keep("find", found)

    def init(self, label: str, version: int = 4, **changed: Any) -> Message:
        """InitProducerId. Returns the producer."""
        producer: Message = {}
        body = {"transactional_id": self.name, "transaction_timeout_ms": 60_000, **NOBODY} | changed

        def code() -> object:
            answer = self.ask("InitProducerId", version, **body)
            producer.update({key: answer[key] for key in NOBODY})
            return answer["error_code"]

        self.keep(label, code)
        self.codes.append((f"{label}: epoch", producer["producer_epoch"]))
        return producer

    def add(self, label: str, of: Message, topics: dict[str, list[int]], version: int = 3) -> None:
        named = [{"name": name, "partitions": numbers} for name, numbers in topics.items()]

        def code() -> object:
            answer = self.ask(
                "AddPartitionsToTxn",
                version,
                v3_and_below_transactional_id=of.get("name", self.name),
                v3_and_below_producer_id=of["producer_id"],
                v3_and_below_producer_epoch=of["producer_epoch"],
                v3_and_below_topics=named,
            )
            return self._partitions(answer["results_by_topic_v3_and_below"])

        self.keep(label, code)

    def verify(self, label: str, of: Message, numbers: list[int]) -> None:
        transaction = {
            "transactional_id": self.name,
            **of,
            "verify_only": True,
            "topics": [{"name": "t", "partitions": numbers}],
        }
        answer = self.ask("AddPartitionsToTxn", 4, transactions=[transaction])
        found = [self._partitions(one["topic_results"]) for one in answer["results_by_transaction"]]
        self.codes.append((label, (answer["error_code"], found)))

    @staticmethod
    def _partitions(topics: list[Message]) -> object:
        codes = [
            (topic["name"], one["partition_index"], one["partition_error_code"])
            for topic in topics
            for one in topic["results_by_partition"]
        ]
        [first, *others] = {code for _, _, code in codes}
        return first if not others and first in PASSING else sorted(codes)

    def offsets(self, label: str, of: Message, version: int = 3) -> None:
        self.keep(
            label,
            lambda: self.ask("AddOffsetsToTxn", version, transactional_id=self.name, group_id="g", **of)[
                "error_code"
            ],
        )

    def end(self, label: str, of: Message, committed: bool, version: int = 3) -> None:
        body = {"transactional_id": self.name, "committed": committed, **of}
        self.keep(label, lambda: self.ask("EndTxn", version, **body)["error_code"])

    def describe(self, label: str, *names: str) -> None:
        answer = self.ask("DescribeTransactions", 0, transactional_ids=list(names))
        self.codes.append(
            (
                label,
                [
                    (
                        one["error_code"],
                        one["transaction_state"],
                        one["transaction_timeout_ms"],
                        [(topic["topic"], sorted(topic["partitions"])) for topic in one["topics"]],
                    )
                    for one in answer["transaction_states"]
                ],
            )
        )

    def listed(self, label: str, version: int = 1, **filters: Any) -> None:
        body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
        answer = self.ask("ListTransactions", version, **body)
        found = [
            (one["transactional_id"], one["transaction_state"])
            for one in answer["transaction_states"]
            if one["transactional_id"] == self.name
        ]
        self.codes.append((label, (answer["error_code"], answer["unknown_state_filters"], found)))

    def mark(self, label: str, of: Message, epoch: int, topic: str = "t") -> None:
        where = [{"name": topic, "partition_indexes": [0]}]
        marker = {**of, "transaction_result": False, "coordinator_epoch": epoch, "topics": where}
        [answer] = self.ask("WriteTxnMarkers", 1, markers=[marker])["markers"]
        self.codes.append((label, answer["topics"][0]["partitions"][0]["error_code"]))


def bad_inits(story: Story) -> None:
    story.find()
    story.init("no id", transactional_id="")
    story.init("no timeout", transaction_timeout_ms=0)
    story.init("a negative timeout", transaction_timeout_ms=-1)
    story.init("too long a timeout", transaction_timeout_ms=900_001)
    story.init("an id without an epoch", producer_id=5)
    story.init("an epoch without an id", producer_epoch=5)
    story.init("an unknown producer of a new id", producer_id=123_456, producer_epoch=7)
    first = story.init("first")
    story.init("an unknown producer", producer_id=123_456, producer_epoch=7)
    second = story.init("goes on", **first)
    story.init("asks again", **first)
    story.init("a later epoch", **second | {"producer_epoch": 9})
    story.init("takes over", version=1)
    story.init("fenced", **first)
    for version in (3, 5):
        story.init(f"fenced, version {version}", version=version, **second)


def bad_partitions(story: Story) -> None:
    story.find()
    old = story.init("old")
    of = story.init("new")
    for version in range(4):
        story.add(f"fenced, version {version}", old, {"t": [0]}, version)
    story.add("another id", of | {"producer_id": 123_456}, {"t": [0]})
    story.add("an unknown transactional id", of | {"name": "nobody"}, {"t": [0]})
    story.add("no transactional id", of | {"name": ""}, {"t": [0]})
    story.add("an unknown partition", of, {"t": [0, 9]})
    story.add("an unknown topic", of, {"t": [0], "nowhere": [0]})
    for version in range(4):
        story.offsets(f"offsets of a fenced producer, version {version}", old, version)
    story.verify("nothing is in it", of, [0])
    story.add("known", of, {"t": [0]})
    story.add("the same again", of, {"t": [0]})
    story.verify("one is in it", of, [0, 1])
    story.verify("a fenced producer asks", old, [0])
    story.verify("another producer asks", of | {"producer_id": 123_456}, [0])
    story.verify("an unknown partition", of, [0, 9])
    story.offsets("offsets", of)
    story.end("end", of, False)


def bad_ends(story: Story) -> None:
    story.find()
    old = story.init("old")
    story.end("nothing began", old, True)
    of = story.init("new")
    for version in range(5):
        story.end(f"fenced, version {version}", old, True, version)
    story.end("another id", of | {"producer_id": 123_456}, True)
    for committed in (True, False):
        story.add(f"begins {committed}", of, {"t": [0, 1]})
        story.describe("open", story.name)
        story.end(f"ends {committed}", of, committed)
        story.end(f"ends again {committed}", of, committed)
        story.end(f"ends otherwise {committed}", of, not committed)
        story.describe("ended", story.name)
    story.add("open", of, {"t": [1]})
    story.init("fences an open transaction")
    story.end("fenced", of, True)
    story.describe("aborted", story.name, "nobody", "")


def listings(story: Story) -> None:
    story.find()
    of = story.init("producer")
    story.listed("all")
    story.listed("all, version 0", version=0)
    story.listed("empty", state_filters=["Empty"])
    story.listed("none is open", state_filters=["Ongoing"])
    story.listed("unknown", state_filters=["Odd"])
    story.listed("known and unknown", state_filters=["Odd", "Empty", "PrepareEpochFence", "Dead"])
    story.listed("its producer", producer_id_filters=[of["producer_id"]])
    story.listed("another producer", producer_id_filters=[123_456])
    story.listed("without a transaction for long", duration_filter=60_000)
    story.add("begins", of, {"t": [0]})
    story.listed("open for long", duration_filter=60_000)
    story.listed("open", state_filters=["Ongoing"])
    story.end("ends", of, True)


def bad_markers(story: Story) -> None:
    of = {"producer_id": 77_000, "producer_epoch": 3}
    story.mark("an unknown topic", of, 5, "nowhere")
    story.mark("of a producer that wrote nothing", of, 5)
    story.mark("of an older coordinator", of, 4)
    story.mark("of an older producer", of | {"producer_epoch": 2}, 6)
    story.mark("of a newer producer", of | {"producer_epoch": 4}, 6)


@pytest.mark.parametrize("tell", [bad_inits, bad_partitions, bad_ends, listings, bad_markers])
def test_codes_are_those_of_apache_kafka(peers: tuple[Peer, Peer], tell: Callable[[Story], None]) -> None:
    ours, apache = (Story(peer, tell.__name__) for peer in peers)
    tell(ours)
    tell(apache)
    assert ours.codes == apache.codes
    assert NONE in [code for _, code in ours.codes]


# ---- clients ----


def committed(server: str, topic: str) -> list[str]:
    """The values in partition 0 that readers of committed records see."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    values = []
    try:
        while True:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == confluent.KafkaError._PARTITION_EOF, error
                return values
            values.append(message.value().decode())
    finally:
        consumer.close()


@pytest.fixture
def peer(start_broker: StartBroker) -> Iterator[Peer]:
    """A broker that looks for late transactions often."""
    found = Peer(start_broker(None, None, "--override", f"{ABORT_INTERVAL}=100").bootstrap)
    yield found
    found.close()


def test_the_java_producer(peer: Peer, peers: tuple[Peer, Peer], kafka_tools: KafkaTools) -> None:
    program = str(Path(__file__).parent / "kafka" / "Transactions.java")
    said = []
    for one in (peer, peers[1]):
        one.create("java", {})
        said.append(kafka_tools.run(program, one.bootstrap, "java").splitlines())
        assert committed(one.bootstrap, "java") == ["committed", "again", "second"]
    # A batch that comes together with the abort's marker is refused because of its transaction's state, for
    # which this producer has no exception of its own. Apache's broker does so, too.
    late = ("InvalidProducerEpochException", "KafkaException")
    assert all(
        each[0] == "ProducerFencedException" and each[1:] in ([late[0]], [late[1]]) for each in said
    ), said


def test_librdkafkas_producer(peer: Peer) -> None:
    peer.create("confluent", {})

    def producer(**settings: Any) -> confluent.Producer:
        made = confluent.Producer(
            {"bootstrap.servers": peer.bootstrap, "transactional.id": "confluent", "log_level": 0, **settings}
        )
        made.init_transactions(TIMEOUT)
        return made

    def begin(of: confluent.Producer, value: str) -> None:
        of.begin_transaction()
        of.produce("confluent", value, partition=0)
        assert of.flush(TIMEOUT) == 0

    first = producer()
    begin(first, "committed")
    first.commit_transaction(TIMEOUT)
    begin(first, "aborted")
    first.abort_transaction(TIMEOUT)
    begin(first, "again")
    first.commit_transaction(TIMEOUT)
    begin(first, "fenced")
    second = producer(**{"transaction.timeout.ms": 1000, "message.timeout.ms": 1000})
    with pytest.raises(confluent.KafkaException) as fenced:
        first.commit_transaction(TIMEOUT)
    assert fenced.value.args[0].code() == confluent.KafkaError._FENCED
    begin(second, "second")
    second.commit_transaction(TIMEOUT)
    begin(second, "late")
    peer.wait(lambda: state(peer, "confluent") == "CompleteAbort")
    with pytest.raises(confluent.KafkaException):
        second.commit_transaction(TIMEOUT)
    assert committed(peer.bootstrap, "confluent") == ["committed", "again", "second"]


def state(peer: Peer, name: str) -> str:
    """The state of a transactional id."""
    answer = peer.ask(KEYS["DescribeTransactions"], 0, {"transactional_ids": [name]})
    assert isinstance(answer, dict)
    return str(answer["transaction_states"][0]["transaction_state"])


def copied(client: ModuleType, server: str, name: str) -> list[object]:
    """Copies the topic `NAME-from` to `NAME-to` exactly once, with an abort on the way.

    Returns what the client and the cluster said.
    """
    settings = {"bootstrap.servers": server, "log_level": 0}
    plain = client.Producer(settings)
    for number in range(6):
        plain.produce(f"{name}-from", str(number).encode(), partition=0)
    assert plain.flush(TIMEOUT) == 0
    reading = {"group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = client.Consumer({**settings, **reading})

    def producer(**more: Any) -> Any:
        made = client.Producer({**settings, "transactional.id": name, **more})
        made.init_transactions(TIMEOUT)
        return made

    first = producer()
    said: list[object] = []

    def raised(call: Callable[[float], None]) -> None:
        with pytest.raises(client.KafkaException) as failure:
            call(TIMEOUT)
        error = failure.value.args[0]
        said.append((error.name(), error.fatal(), error.retriable(), error.txn_requires_abort()))

    try:
        raised(first.commit_transaction)
        consumer.subscribe([f"{name}-from"])
        for commits in (True, False, True):
            first.begin_transaction()
            for _ in range(2):
                message = consumer.poll(TIMEOUT)
                assert message is not None
                assert message.error() is None, message.error()
                first.produce(f"{name}-to", message.value(), partition=0)
            positions = consumer.position(consumer.assignment())
            said.append(max(position.offset for position in positions))
            first.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT)
            if commits:
                first.commit_transaction(TIMEOUT)
            else:
                first.abort_transaction(TIMEOUT)
            [found] = consumer.committed([client.TopicPartition(f"{name}-from", 0)], TIMEOUT)
            said.append(found.offset)
            if not commits:
                consumer.seek(client.TopicPartition(f"{name}-from", 0, found.offset))
        first.begin_transaction()
        first.produce(f"{name}-to", b"fenced", partition=0)
        assert first.flush(TIMEOUT) == 0
        second = producer()
        for call in (first.commit_transaction, first.abort_transaction):
            raised(call)
        second.begin_transaction()
        second.produce(f"{name}-to", b"second", partition=0)
        second.commit_transaction(TIMEOUT)
    finally:
        consumer.close()
    said.append(committed(server, f"{name}-to"))
    return said


def test_a_copy_with_our_client_and_with_librdkafka(peers: tuple[Peer, Peer]) -> None:
    # If it failed, our client would copy otherwise than confluent-kafka, or otherwise on Apache Kafka.
    said = {}
    for broker, one in zip(("ours", "apache"), peers, strict=True):
        for client in (cluster.client, confluent):
            name = f"copy-{client.__name__}"
            one.create(f"{name}-from", {})
            one.create(f"{name}-to", {})
            said[broker, client.__name__] = copied(client, one.bootstrap, name)
    expected = [
        ("_STATE", False, False, False),
        *(2, 2),
        *(4, 2),
        *(4, 4),
        *2 * [("_FENCED", True, False, False)],
        ["0", "1", "2", "3", "second"],
    ]
    assert said == dict.fromkeys(said, expected)


def test_aiokafkas_producer(peer: Peer) -> None:
    peer.create("aiokafka", {})

    async def run() -> None:
        def producer(**settings: Any) -> AIOKafkaProducer:
            return AIOKafkaProducer(bootstrap_servers=peer.bootstrap, transactional_id="aiokafka", **settings)

        async def begin(of: AIOKafkaProducer, value: str) -> None:
            await of.begin_transaction()
            await of.send_and_wait("aiokafka", value.encode(), partition=0)

        async with producer() as first:
            await begin(first, "committed")
            await first.commit_transaction()
            await begin(first, "aborted")
            await first.abort_transaction()
            await begin(first, "again")
            await first.commit_transaction()
            await begin(first, "fenced")
            async with producer(transaction_timeout_ms=1000) as second:
                with pytest.raises(ProducerFenced):
                    await first.commit_transaction()
                await begin(second, "second")
                await second.commit_transaction()
                await begin(second, "late")
                await asyncio.to_thread(peer.wait, lambda: state(peer, "aiokafka") == "CompleteAbort")
                with pytest.raises(KafkaError):
                    await second.commit_transaction()

    asyncio.run(asyncio.wait_for(run(), 2 * TIMEOUT))
    assert committed(peer.bootstrap, "aiokafka") == ["committed", "again", "second"]
