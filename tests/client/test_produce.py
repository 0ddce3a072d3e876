"""If these fail, records do not arrive as they were produced, or their reports are wrong."""

from __future__ import annotations

import os
import signal
import threading
import time

import confluent_kafka
import pytest

from cluster import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, outcomes, produce, read
from tests.conftest import BrokerProcess, StartBroker

Report = tuple[KafkaError | None, Message]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_record_arrives_as_it_was_produced(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, codec: str
) -> None:
    topic = new_topic(2)
    reports: list[Report] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": codec,
            "on_delivery": lambda *r: reports.append(r),
        }
    )
    now = int(time.time() * 1000)
    producer.produce(
        topic, b"value", b"key", 1, timestamp=now, headers=[("a", b"1"), ("a", None), ("é", "ü")]
    )
    producer.produce(topic, "text", "schlüssel", partition=1, headers={"d": bytearray(b"2")})
    producer.produce(topic, None, key=memoryview(b"gone"), partition=1)
    producer.produce(topic, partition=1)
    assert len(producer) > 0
    assert producer.flush(WAIT) == 0
    assert len(producer) == 0
    assert [(error, message.partition(), message.offset()) for error, message in reports] == [
        (None, 1, offset) for offset in range(4)
    ]
    first = reports[0][1]
    assert (first.topic(), first.key(), first.value(), first.error()) == (topic, b"key", b"value", None)
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, now)
    latency = first.latency()
    assert latency is not None
    assert 0 < latency < WAIT

    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 1)])
    got = read(consumer, 4)
    assert [(message.key(), message.value(), message.headers()) for message in got] == [
        (b"key", b"value", [("a", b"1"), ("a", None), ("é", "ü".encode())]),
        ("schlüssel".encode(), b"text", [("d", b"2")]),
        (b"gone", None, None),
        (None, None, None),
    ]
    assert got[0].timestamp() == (TIMESTAMP_CREATE_TIME, now)
    assert got[0].leader_epoch() is not None
    assert got[0].latency() is None
    assert len(got[0]) == 5
    assert len(got[2]) == 0


def test_append_time_is_reported(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(1, message_timestamp_type="LogAppendTime")
    reports: list[Report] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v", timestamp=1, on_delivery=lambda *report: reports.append(report))
    producer.flush(WAIT)
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    [message] = read(consumer, 1)
    kind, when = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert when > 1
    assert reports[0][1].timestamp() == (kind, when)


def test_poll_serves_what_a_raising_callback_left(broker: BrokerProcess, new_topic: NewTopicFactory) -> None:
    topic = new_topic()
    served: list[int] = []

    def fail_once(_error: KafkaError | None, message: Message) -> None:
        served.append(message.offset())
        if len(served) == 1:
            raise ValueError("of the callback")

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for _ in range(3):
        producer.produce(topic, b"v", callback=fail_once)
    with pytest.raises(ValueError, match="of the callback"):
        producer.flush(WAIT)
    assert producer.flush(WAIT) == 0
    assert served == [0, 1, 2]


def test_a_full_queue_is_a_buffer_error(unused_port: int) -> None:
    producer = Producer({"bootstrap.servers": f"localhost:{unused_port}", "queue.buffering.max.messages": 2})
    producer.produce("t", b"1")
    producer.produce("t", b"2")
    with pytest.raises(BufferError, match="queue is full"):
        producer.produce("t", b"3")
    reports: list[Report] = []
    producer.purge()
    assert len(producer) == 0
    producer.produce("t", b"4", on_delivery=lambda *report: reports.append(report))
    producer.purge()
    assert producer.poll(WAIT) == 1
    assert reports[0][0] == KafkaError._PURGE_QUEUE


def test_arguments_of_the_wrong_kind_are_refused(broker: BrokerProcess, new_topic: NewTopicFactory) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.list_topics(topic, WAIT)
    with pytest.raises(TypeError, match="value must be bytes"):
        producer.produce(topic, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="headers must be"):
        producer.produce(topic, headers=["a"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="callable"):
        producer.produce(topic, callback=1)  # type: ignore[arg-type]
    with pytest.raises(KafkaException) as large:
        producer.produce(topic, bytes(2_000_000))
    assert large.value.error == KafkaError.MSG_SIZE_TOO_LARGE
    reports: list[Report] = []
    producer.produce(topic, b"v", partition=7, on_delivery=lambda *report: reports.append(report))
    producer.flush(WAIT)
    assert reports[0][0] == KafkaError._UNKNOWN_PARTITION
    with pytest.raises(KafkaException) as unknown:
        producer.produce(topic, b"v", partition=7)
    assert unknown.value.error == KafkaError._UNKNOWN_PARTITION


def test_an_unreachable_broker_is_reported_and_records_fail_in_time(unused_port: int) -> None:
    errors: list[KafkaError] = []
    reports: list[Report] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{unused_port}",
            "error_cb": errors.append,
            "delivery.timeout.ms": 500,
            "on_delivery": lambda *report: reports.append(report),
        }
    )
    with pytest.raises(KafkaException) as listing:
        producer.list_topics(timeout=1)
    assert listing.value.error in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    assert str(unused_port) in str(listing.value)
    producer.produce("t", b"v")
    assert producer.flush(WAIT) == 0
    assert reports[0][0] == KafkaError._MSG_TIMED_OUT
    assert {error.code() for error in errors} == {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}


def test_flush_returns_what_is_left_when_its_time_is_up(unused_port: int) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{unused_port}"})
    producer.produce("t", b"v")
    started = time.monotonic()
    assert producer.flush(0.3) == 1
    assert time.monotonic() - started < WAIT / 2


@pytest.mark.parametrize("call", ["flush", "poll", "list_topics"])
def test_ctrl_c_interrupts_a_blocked_call(unused_port: int, call: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{unused_port}"})
    producer.produce("t", b"v")
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - however late it comes
        timer.start()
        getattr(producer, call)(timeout=WAIT)
    assert time.monotonic() - started < WAIT / 2
    timer.join()


def test_records_without_a_key_stay_together_and_spread_over_time(
    broker: BrokerProcess, new_topic: NewTopicFactory
) -> None:
    topic = new_topic(4)
    partitions: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "on_delivery": lambda _, message: partitions.append(message.partition()),
        }
    )
    producer.list_topics(topic, WAIT)
    deadline = time.monotonic() + WAIT
    while len(set(partitions)) < 4 and time.monotonic() < deadline:
        producer.produce(topic, b"v")
        producer.poll(0.002)
    producer.flush(WAIT)
    assert set(partitions) == {0, 1, 2, 3}


def test_a_killed_broker_loses_no_record_and_writes_none_twice(start_broker: StartBroker) -> None:
    broker = start_broker()
    # One partition shows the order.
    counts = {"acknowledged": 0}
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is None:
            counts["acknowledged"] += 1
        else:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "on_delivery": delivered,
        }
    )
    produced = 0
    for _ in range(3):
        target = counts["acknowledged"] + 2000
        while counts["acknowledged"] < target:
            if len(producer) < 5000:
                for _ in range(20):
                    producer.produce("crash", b"%d" % produced, partition=0)
                    produced += 1
            producer.poll(0.001)
        port, data = broker.port, broker.data_dir
        broker.kill()
        broker = start_broker(data, port)
    assert producer.flush(WAIT) == 0
    assert failures == []
    assert counts["acknowledged"] == produced
    producer.produce("crash", b"end", partition=0)
    producer.flush(WAIT)

    from cluster import Consumer

    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"}) as consumer:
        consumer.assign([TopicPartition("crash", 0, 0)])
        values = [message.value() for message in read(consumer, produced + 1)]
    assert values == [b"%d" % number for number in range(produced)] + [b"end"]


# Were this broken, legal records would fail because too many of them were put into one batch (KIP-126).
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_above_the_topics_limit_is_split(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, codec: str, idempotent: bool
) -> None:
    topic = new_topic(max_message_bytes="50000")
    reports: list[Report] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 100,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "on_delivery": lambda *report: reports.append(report),
        }
    )
    # Random bytes, so that compression does not make the batch small enough.
    values = [b"%04d" % number + os.urandom(900) for number in range(200)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT) == 0
    assert [(error, message.offset(), message.value()) for error, message in reports] == [
        (None, offset, value) for offset, value in enumerate(values)
    ]
    # A record that is too large by itself fails alone.
    producer.produce(topic, b"before", partition=0)
    producer.produce(topic, os.urandom(60_000), partition=0)
    producer.produce(topic, b"behind", partition=0)
    assert producer.flush(WAIT) == 0
    assert [error for error, _ in reports[200:]].count(None) == 2
    [large] = [error for error, _ in reports[200:] if error is not None]
    assert large == KafkaError.MSG_SIZE_TOO_LARGE
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert [message.value() for message in read(consumer, 202)] == [*values, b"before", b"behind"]


# Were this broken, a record produced after close() would be lost silently, or flush() would never return.
def test_a_closed_producer_refuses_everything_as_confluent_kafkas_does(
    broker: BrokerProcess, new_topic: NewTopicFactory
) -> None:
    topic = new_topic()
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        producer.produce(topic, b"v")
    theirs = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    theirs.close()
    calls = {
        "produce": (topic, b"lost"),
        "poll": (0,),
        "flush": (),
        "purge": (),
        "list_topics": (topic, 1),
        "cluster_id": (1,),
        "__len__": (),
        "__bool__": (),
        "close": (),
    }
    found = outcomes(producer, calls)
    assert found == outcomes(theirs, calls)
    assert found["produce"] is found["flush"] is RuntimeError
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce(topic, b"lost")


# Were this broken, close() would return True although it dropped records.
def test_close_returns_whether_it_dropped_records(unused_port: int) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{unused_port}"}, error_cb=lambda _: None)
    producer.produce("t", b"v")
    assert producer.close(0) is False
    assert producer.close() is True


# Were this broken, a thread in flush() would wait for ever for records that another thread has dropped.
def test_a_flush_ends_when_another_thread_closes(unused_port: int) -> None:
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{unused_port}"}, error_cb=lambda _: None)
    producer.produce("t", b"v")

    def flush() -> None:
        try:
            producer.flush()
        except RuntimeError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=flush)
    waiting.start()
    producer.close(0)
    waiting.join(WAIT)
    assert errors == ["Producer has been closed"]


def test_produce_helper_matches_what_is_read(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"%d" % number for number in range(5000)]
    produce(broker.bootstrap, topic, values)
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert [message.value() for message in read(consumer, 5000)] == values
