"""If these fail, a transaction of our producer is not atomic, or its error sends a program the wrong way."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import AdminClient, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from cluster.client import TransactionDescription, describe_producers, describe_transactions
from cluster.client._transactions import Verdict, judge
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, committed, poll_until, produce, read
from tests.conftest import BrokerProcess, StartBroker

Config = dict[str, Any]


class NewProducer:
    """Makes transactional producers, and closes them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.made: list[Producer] = []

    def __call__(self, name: str, **settings: Any) -> Producer:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        config = {"bootstrap.servers": self.bootstrap, "transactional.id": name, **given}
        producer = Producer(config)
        self.made.append(producer)
        return producer


@pytest.fixture
def new_producer(broker: BrokerProcess) -> Iterator[NewProducer]:
    made = NewProducer(broker.bootstrap)
    yield made
    for producer in made.made:
        producer.close(0)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A transactional id of the test's own."""
    return str(request.node.name)


def started(new_producer: NewProducer, name: str, **settings: Any) -> Producer:
    producer = new_producer(name, **settings)
    producer.init_transactions(WAIT)
    return producer


def raised(call: Any, *arguments: Any) -> KafkaError:
    with pytest.raises(KafkaException) as failure:
        call(*arguments)
    return failure.value.error


def values(new_consumer: NewConsumer, topic: str, count: int, **settings: Any) -> list[bytes | None]:
    consumer = new_consumer(**settings)
    consumer.assign([TopicPartition(topic, 0)])
    return [message.value() for message in read(consumer, count)]


def test_committed_records_are_read_and_aborted_ones_are_not(
    new_producer: NewProducer, new_topic: NewTopicFactory, new_consumer: NewConsumer, name: str
) -> None:
    topic = new_topic(2)
    producer = started(new_producer, name)
    for number, commits in enumerate([True, False, True]):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, f"{number}".encode(), partition=partition)
        if commits:
            producer.commit_transaction(WAIT)
        else:
            assert producer.flush(WAIT) == 0
            producer.abort_transaction(WAIT)
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, partition) for partition in (0, 1)])
    found = sorted((message.partition(), message.value()) for message in read(consumer, 4))
    assert found == [(0, b"0"), (0, b"2"), (1, b"0"), (1, b"2")]
    everything = values(new_consumer, topic, 3, isolation_level="read_uncommitted")
    assert everything == [b"0", b"1", b"2"]


def test_records_that_wait_are_given_up_by_an_abort(
    new_producer: NewProducer, new_topic: NewTopicFactory, new_consumer: NewConsumer, name: str
) -> None:
    topic = new_topic()
    reports: list[KafkaError | None] = []
    producer = started(new_producer, name, linger_ms=60_000)
    producer.begin_transaction()
    producer.produce(topic, b"lost", on_delivery=lambda error, _message: reports.append(error))
    producer.abort_transaction(WAIT)
    assert reports == [KafkaError._PURGE_QUEUE]
    producer.begin_transaction()
    producer.produce(topic, b"kept")
    producer.commit_transaction(WAIT)
    assert values(new_consumer, topic, 1, isolation_level="read_uncommitted") == [b"kept"]


def test_transactions_without_records_end_without_the_coordinator(
    new_producer: NewProducer, name: str
) -> None:
    producer = started(new_producer, name)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        end(WAIT)


def test_each_call_has_its_states(new_producer: NewProducer, new_topic: NewTopicFactory, name: str) -> None:
    topic = new_topic()
    producer = new_producer(name)
    for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
        error = raised(call)
        assert (error, error.fatal(), error.retriable(), error.txn_requires_abort()) == (
            KafkaError._STATE,
            False,
            False,
            False,
        )
    assert raised(producer.produce, topic, b"v") == KafkaError._STATE
    producer.init_transactions(WAIT)
    assert raised(producer.init_transactions, WAIT) == KafkaError._STATE
    assert raised(producer.produce, topic, b"v") == KafkaError._STATE
    producer.begin_transaction()
    assert raised(producer.begin_transaction) == KafkaError._STATE
    with pytest.raises(TypeError, match="consumer_group_metadata"):
        producer.send_offsets_to_transaction([], "group")  # type: ignore[arg-type]
    producer.commit_transaction(WAIT)


def test_without_a_transactional_id_there_are_no_transactions(broker: BrokerProcess) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": ""}) as producer:
        assert raised(producer.init_transactions) == KafkaError._NOT_CONFIGURED
        assert raised(producer.begin_transaction) == KafkaError._NOT_CONFIGURED


@pytest.mark.parametrize(
    "settings",
    [
        {"enable.idempotence": False},
        {"acks": 1},
        {"transaction.timeout.ms": 10_000, "delivery.timeout.ms": 10_001},
        {"delivery.timeout.ms": 0},
        {"transaction.timeout.ms": 999},
    ],
)
def test_settings_that_would_break_a_transaction_are_refused(settings: Config) -> None:
    config = {"bootstrap.servers": "localhost:1", "transactional.id": "t", **settings}
    assert raised(Producer, config) == KafkaError._INVALID_ARG


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    broker: BrokerProcess,
    new_producer: NewProducer,
    new_topic: NewTopicFactory,
    new_consumer: NewConsumer,
    name: str,
) -> None:
    source, target = new_topic(), new_topic()
    produce(broker.bootstrap, source, [b"1", b"2"])
    consumer = new_consumer(group_id=name, enable_auto_commit=False)
    consumer.subscribe([source])
    read(consumer, 2)
    producer = started(new_producer, name)
    for commits, expected in ((False, -1001), (True, 2)):
        producer.begin_transaction()
        producer.produce(target, b"copy")
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT)
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT)
        assert committed(new_consumer, name, source) == expected


def test_offsets_of_a_former_member_abort_the_transaction(
    broker: BrokerProcess,
    new_producer: NewProducer,
    new_topic: NewTopicFactory,
    new_consumer: NewConsumer,
    name: str,
) -> None:
    source = new_topic(2)
    produce(broker.bootstrap, source, [b"1"], partition=0)
    old = new_consumer(group_id=name, enable_auto_commit=False)
    old.subscribe([source])
    read(old, 1)
    former = old.consumer_group_metadata()
    other = new_consumer(group_id=name, enable_auto_commit=False)
    other.subscribe([source])
    poll_until([old, other], lambda: len(other.assignment()) == 1)
    producer = started(new_producer, name)
    producer.begin_transaction()
    error = raised(producer.send_offsets_to_transaction, [TopicPartition(source, 0, 1)], former, WAIT)
    assert (error, error.txn_requires_abort()) == (KafkaError.ILLEGAL_GENERATION, True)
    again = raised(producer.commit_transaction, WAIT)
    assert (again, again.txn_requires_abort()) == (KafkaError.ILLEGAL_GENERATION, True)
    producer.abort_transaction(WAIT)
    producer.begin_transaction()
    group = old.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(source, 0, 1)], group, WAIT)
    producer.commit_transaction(WAIT)
    assert committed(new_consumer, name, source) == 1


def test_a_newer_producer_fences_an_older_one(
    new_producer: NewProducer, new_topic: NewTopicFactory, new_consumer: NewConsumer, name: str
) -> None:
    topic = new_topic()
    old = started(new_producer, name)
    old.begin_transaction()
    old.produce(topic, b"old")
    assert old.flush(WAIT) == 0
    new = started(new_producer, name)
    old.produce(topic, b"late")
    for call in (old.commit_transaction, old.abort_transaction, old.begin_transaction):
        error = raised(call)
        assert (error, error.fatal(), error.txn_requires_abort()) == (KafkaError._FENCED, True, False)
    new.begin_transaction()
    new.produce(topic, b"new")
    new.commit_transaction(WAIT)
    assert values(new_consumer, topic, 1) == [b"new"]


def test_a_record_that_is_refused_must_be_aborted_and_the_next_transaction_has_a_later_epoch(
    broker: BrokerProcess,
    new_producer: NewProducer,
    new_topic: NewTopicFactory,
    new_consumer: NewConsumer,
    name: str,
) -> None:
    topic = new_topic(1, max_message_bytes="1000")
    reports: list[tuple[KafkaError | None, Message]] = []
    producer = started(new_producer, name)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    assert producer.flush(WAIT) == 0
    producer.produce(topic, os.urandom(2000), on_delivery=lambda *report: reports.append(report))
    error = raised(producer.commit_transaction, WAIT)
    assert (error, error.txn_requires_abort(), error.fatal()) == (KafkaError.MSG_SIZE_TOO_LARGE, True, False)
    assert reports[0][0] == KafkaError.MSG_SIZE_TOO_LARGE
    assert raised(producer.produce, topic, b"2") == KafkaError._STATE
    producer.abort_transaction(WAIT)
    producer.begin_transaction()
    producer.produce(topic, b"3")
    producer.commit_transaction(WAIT)
    assert values(new_consumer, topic, 1) == [b"3"]
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
        [states] = describe_producers(admin, [TopicPartition(topic, 0)]).values()
    assert isinstance(states, list)
    assert [state.producer_epoch for state in states] == [1]


def test_a_message_that_timed_out_must_be_aborted(
    new_producer: NewProducer, new_topic: NewTopicFactory, name: str
) -> None:
    # The record never leaves: its linger is longer than its time.
    producer = started(new_producer, name, linger_ms=60_000, delivery_timeout_ms=100)
    reports: list[KafkaError | None] = []
    producer.begin_transaction()
    producer.produce(new_topic(), b"v", on_delivery=lambda error, _message: reports.append(error))
    producer.poll(WAIT)
    assert reports == [KafkaError._MSG_TIMED_OUT]
    error = raised(producer.commit_transaction, WAIT)
    assert (error, error.txn_requires_abort()) == (KafkaError._INCONSISTENT, True)
    producer.abort_transaction(WAIT)
    producer.begin_transaction()
    producer.commit_transaction(WAIT)


def test_a_transaction_goes_on_when_its_broker_is_killed_and_comes_back(start_broker: StartBroker) -> None:
    broker = start_broker()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT)
    for number, end in enumerate([producer.commit_transaction, producer.abort_transaction]):
        producer.begin_transaction()
        producer.produce("t", b"%d-before" % number, partition=0)
        assert producer.flush(WAIT) == 0
        port, data = broker.port, broker.data_dir
        broker.kill()
        error = raised(end, 0.2)
        # Its records are settled, so only the coordinator is missing.
        assert (error, error.retriable()) == (KafkaError._TIMED_OUT, True)
        broker = start_broker(data, port)
        end(WAIT)
    producer.begin_transaction()
    producer.produce("t", b"last", partition=0)
    producer.commit_transaction(WAIT)
    producer.close()
    with Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert [message.value() for message in read(consumer, 2)] == [b"0-before", b"last"]


def test_a_commit_sends_the_records_that_wait_for_a_broker(start_broker: StartBroker) -> None:
    broker = start_broker()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce("t", b"first", partition=0)
    assert producer.flush(WAIT) == 0
    port, data = broker.port, broker.data_dir
    broker.kill()
    # A partition of another topic must be added to the transaction, once there is a coordinator again.
    producer.produce("u", b"other", partition=0)
    error = raised(producer.commit_transaction, 0.2)
    assert (error, error.retriable(), error.txn_requires_abort()) == (KafkaError._TIMED_OUT, True, False)
    broker = start_broker(data, port)
    producer.commit_transaction(WAIT)
    producer.close()
    with Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.assign([TopicPartition("t", 0), TopicPartition("u", 0)])
        assert {message.value() for message in read(consumer, 2)} == {b"first", b"other"}


def test_a_transaction_that_takes_too_long_fences_its_producer(start_broker: StartBroker) -> None:
    often = "transaction.abort.timed.out.transaction.cleanup.interval.ms=100"
    broker = start_broker(None, None, "--override", often)
    config: Config = {"bootstrap.servers": broker.bootstrap, "transactional.id": "t"}
    producer = Producer({**config, "transaction.timeout.ms": 1000})
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce("t", b"late", partition=0)
    assert producer.flush(WAIT) == 0
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:

        def state() -> str:
            found = describe_transactions(admin, ["t"])["t"]
            assert isinstance(found, TransactionDescription)
            return found.state

        poll_until([], lambda: state() == "CompleteAbort")
    error = raised(producer.commit_transaction, WAIT)
    assert (error, error.fatal()) == (KafkaError._FENCED, True)
    producer.close()
    with Producer(config) as again:
        again.init_transactions(WAIT)
        again.begin_transaction()
        again.produce("t", b"again", partition=0)
        again.commit_transaction(WAIT)


def test_a_commit_and_an_abort_do_not_run_at_once(
    new_producer: NewProducer, new_topic: NewTopicFactory, name: str
) -> None:
    producer = started(new_producer, name)
    found: list[KafkaError] = []

    def delivered(_error: KafkaError | None, _message: Message) -> None:
        # Called by the commit.
        thread = threading.Thread(target=lambda: found.append(raised(producer.abort_transaction)))
        thread.start()
        thread.join(WAIT)

    producer.begin_transaction()
    producer.produce(new_topic(), b"v", on_delivery=delivered)
    producer.commit_transaction(WAIT)
    assert found == [KafkaError._CONFLICT]


def test_without_a_broker_init_times_out_and_may_be_called_again(unused_port: int) -> None:
    producer = Producer({"bootstrap.servers": f"localhost:{unused_port}", "transactional.id": "t"})
    for _ in range(2):
        error = raised(producer.init_transactions, 0.2)
        assert (error, error.retriable(), error.fatal()) == (KafkaError._TIMED_OUT, True, False)
    producer.close(0)


def test_the_thread_ends_with_the_producer(broker: BrokerProcess, name: str) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "logcore-transactions"]

    before = threads()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(WAIT)
    [thread] = [thread for thread in threads() if thread not in before]
    del producer
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (KafkaError.PRODUCER_FENCED, Verdict.FATAL),
        (KafkaError.INVALID_PRODUCER_EPOCH, Verdict.FATAL),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Verdict.FATAL),
        (KafkaError.INVALID_TXN_STATE, Verdict.FATAL),
        (KafkaError.CONCURRENT_TRANSACTIONS, Verdict.RETRY),
        (KafkaError.NOT_COORDINATOR, Verdict.RETRY),
        (KafkaError._TRANSPORT, Verdict.RETRY),
        (KafkaError.ILLEGAL_GENERATION, Verdict.ABORT),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Verdict.ABORT),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Verdict.ABORT),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, Verdict.ABORT),
    ],
)
def test_an_error_is_tried_again_aborts_or_is_fatal(code: int, verdict: Verdict) -> None:
    # The extension marks the local failures that may pass.
    assert judge(KafkaError(code, retriable=True if code == KafkaError._TRANSPORT else None)) is verdict
