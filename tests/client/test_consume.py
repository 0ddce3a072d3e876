"""If these fail, a consumer reads the wrong records, or goes on at the wrong offset."""

from __future__ import annotations

import os
import signal
import threading
import time

import confluent_kafka
import pytest

from cluster import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, outcomes, poll_until, produce, read
from tests.conftest import BrokerProcess


def numbers(count: int, start: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(start, start + count)]


def test_seek_position_and_watermarks(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, numbers(10))
    consumer = new_consumer()
    partition = TopicPartition(topic, 0)
    with pytest.raises(KafkaException) as unassigned:
        consumer.seek(TopicPartition(topic, 0, 3))
    assert unassigned.value.error == KafkaError._STATE
    assert consumer.get_watermark_offsets(partition, WAIT) == (0, 10)
    consumer.assign([TopicPartition(topic, 0, 4)])
    assert consumer.assignment() == [partition]
    assert consumer.position([partition])[0].offset == OFFSET_INVALID
    assert [message.offset() for message in read(consumer, 3)] == [4, 5, 6]
    assert consumer.position([partition])[0].offset == 7
    assert consumer.get_watermark_offsets(partition, cached=True) == (0, 10)
    for offset, first in ((8, 8), (OFFSET_BEGINNING, 0), (2, 2)):
        consumer.seek(TopicPartition(topic, 0, offset))
        assert read(consumer, 1)[0].offset() == first
    consumer.seek(TopicPartition(topic, 0, OFFSET_END))
    # The end is asked for after the call: a record that is written at once may be before it.
    found: list[Message] = []
    while not found:
        produce(broker.bootstrap, topic, [b"new"])
        found = consumer.consume(1, 0.5)
    assert found[0].value() == b"new"


def test_offsets_for_times(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for second in range(5):
        producer.produce(topic, b"v", partition=0, timestamp=1_000_000 + second * 1000)
    producer.flush(WAIT)
    consumer = new_consumer()
    asked = [TopicPartition(topic, 0, 1_001_500), TopicPartition(topic, 1, 5)]
    found, nothing = consumer.offsets_for_times(asked, WAIT)
    assert (found.partition, found.offset) == (0, 2)
    assert (nothing.partition, nothing.offset) == (1, OFFSET_END)
    [late] = consumer.offsets_for_times([TopicPartition(topic, 0, 2_000_000_000_000)], WAIT)
    assert late.offset == OFFSET_END


def test_the_end_of_a_partition_is_an_event_when_asked_for(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, numbers(2))
    consumer = new_consumer(enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, 0)])
    ends: list[Message] = []

    def end_reached() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is not None:
            ends.append(message)
        return bool(ends)

    poll_until([], end_reached)
    assert ends[0].error() == KafkaError._PARTITION_EOF
    assert (ends[0].topic(), ends[0].partition(), ends[0].offset()) == (topic, 0, 2)
    assert consumer.poll(0.2) is None


def test_where_a_partition_starts_without_a_committed_offset(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, numbers(3))
    earliest = new_consumer(auto_offset_reset="earliest")
    earliest.assign([TopicPartition(topic, 0)])
    assert read(earliest, 1)[0].offset() == 0
    failing = new_consumer(auto_offset_reset="error")
    failing.assign([TopicPartition(topic, 0)])
    message = failing.poll(WAIT)
    assert message is not None
    assert message.error() == KafkaError._AUTO_OFFSET_RESET
    latest = new_consumer(auto_offset_reset="latest", enable_partition_eof=True)
    latest.assign([TopicPartition(topic, 0)])
    message = latest.poll(WAIT)
    assert message is not None
    assert message.error() == KafkaError._PARTITION_EOF
    assert message.offset() == 3


def test_an_offset_out_of_range_is_reset(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, numbers(3))
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0, 1000)])
    assert read(consumer, 1)[0].offset() == 0


def test_a_paused_partition_hands_out_nothing_and_goes_on_when_resumed(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(2)
    produce(broker.bootstrap, topic, numbers(100), partition=0)
    produce(broker.bootstrap, topic, numbers(100), partition=1)
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    first = read(consumer, 10)
    consumer.pause([TopicPartition(topic, 0)])
    seen = [message for message in first if message.partition() == 0]
    rest = read(consumer, 100 - (10 - len(seen)))
    assert {message.partition() for message in rest} == {1}
    assert consumer.poll(0.2) is None
    consumer.resume([TopicPartition(topic, 0)])
    after = read(consumer, 100 - len(seen))
    assert [message.offset() for message in seen + after] == list(range(100))
    with pytest.raises(KafkaException):
        consumer.pause([TopicPartition("other", 0)])


def test_the_next_consumer_goes_on_at_the_committed_offset(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    produce(broker.bootstrap, topic, numbers(10))
    group = f"group-of-{topic}"
    first = new_consumer(group_id=group, enable_auto_commit=False)
    assert first.committed([partition], WAIT)[0].offset == OFFSET_INVALID
    with pytest.raises(KafkaException) as nothing:
        first.commit(asynchronous=False)
    assert nothing.value.error == KafkaError._NO_OFFSET
    first.assign([partition])
    messages = read(first, 4)
    [committed] = first.commit(messages[1], asynchronous=False) or []
    assert (committed.offset, committed.error) == (2, None)
    assert first.committed([partition], WAIT)[0].offset == 2
    first.commit(asynchronous=False)
    assert first.committed([partition], WAIT)[0].offset == 4
    first.commit(offsets=[TopicPartition(topic, 0, 3, metadata="why")], asynchronous=False)
    [stored] = first.committed([partition], WAIT)
    assert (stored.offset, stored.metadata) == (3, "why")
    first.close()
    second = new_consumer(group_id=group)
    second.assign([partition])
    assert read(second, 1)[0].offset() == 3


def test_offsets_are_stored_by_hand_when_asked(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, numbers(5))
    group = f"group-of-{topic}"
    consumer = new_consumer(group_id=group, enable_auto_offset_store=False)
    consumer.assign([TopicPartition(topic, 0)])
    messages = read(consumer, 5)
    consumer.store_offsets(messages[2])
    with pytest.raises(KafkaException) as foreign:
        consumer.store_offsets(offsets=[TopicPartition("other", 0, 1)])
    assert foreign.value.error == KafkaError._STATE
    consumer.close()
    again = new_consumer(group_id=group)
    assert again.committed([TopicPartition(topic, 0)], WAIT)[0].offset == 3


def test_on_commit_is_called_for_commits_in_the_background(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, numbers(5))
    outcomes: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    consumer = new_consumer(auto_commit_interval_ms=50, on_commit=lambda *outcome: outcomes.append(outcome))
    consumer.assign([TopicPartition(topic, 0)])
    read(consumer, 5)
    poll_until([consumer], lambda: bool(outcomes))
    error, [partition] = outcomes[0]
    assert (error, partition.topic) == (None, topic)


# Were this broken, a use of a closed consumer would wait for ever or seem to work.
def test_a_closed_consumer_refuses_everything_as_confluent_kafkas_does(new_consumer: NewConsumer) -> None:
    ours = new_consumer()
    theirs = confluent_kafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
    calls: dict[str, tuple[object, ...]] = {
        **dict.fromkeys(("close", "poll", "consume", "unsubscribe", "unassign", "assignment", "commit"), ()),
        **dict.fromkeys(("memberid", "list_topics", "cluster_id", "__enter__"), ()),
        "subscribe": (["t"],),
    }
    named = (
        "assign",
        "incremental_assign",
        "incremental_unassign",
        "position",
        "committed",
        "pause",
        "resume",
    )
    found = []
    for client, partition in (
        (ours, TopicPartition("t", 0, 0)),
        (theirs, confluent_kafka.TopicPartition("t", 0, 0)),
    ):
        client.close()
        of_partitions = dict.fromkeys((*named, "offsets_for_times"), ([partition],))
        of_one = dict.fromkeys(("seek", "get_watermark_offsets"), (partition,))
        asked = {**calls, **of_partitions, **of_one, "store_offsets": (None, [partition])}
        found.append({name: end for name, end in outcomes(client, asked).items() if end is not client})
    assert found[0] == found[1]
    assert found[0].pop("close") is None
    assert set(found[0].values()) == {RuntimeError}
    with pytest.raises(RuntimeError, match="Consumer closed"):
        ours.poll()


def test_ctrl_c_interrupts_poll(new_topic: NewTopicFactory, new_consumer: NewConsumer) -> None:
    consumer = new_consumer()
    consumer.assign([TopicPartition(new_topic(), 0)])
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - however late it comes
        timer.start()
        consumer.poll(WAIT)
    assert time.monotonic() - started < WAIT / 2
    timer.join()


def test_a_signal_handler_that_raises_in_consume_loses_no_message(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    class Stop(Exception):
        pass

    ended = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        if not ended.is_set():
            ended.set()
            raise Stop

    topic = new_topic()
    produce(broker.bootstrap, topic, [b"1", b"2"])
    consumer = new_consumer(enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, 0, 0)])
    before = signal.signal(signal.SIGUSR1, stop)

    def interrupt() -> None:
        # Once the messages are collected, until the main thread has raised.
        while consumer.position([TopicPartition(topic, 0)])[0].offset != 2:
            time.sleep(0.01)
        while not ended.wait(0.1):
            signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    interrupter = threading.Thread(target=interrupt)
    try:
        with pytest.raises(Stop):  # noqa: PT012 - however late it comes
            interrupter.start()
            consumer.consume(10, WAIT)
        interrupter.join()
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, before)
    assert consumer.position([TopicPartition(topic, 0)])[0].offset == 0
    events = consumer.consume(3, WAIT)
    assert [event.value() for event in events[:2]] == [b"1", b"2"]
    ends = [event.error() for event in events[2:]] or [consumer.consume(1, WAIT)[0].error()]
    assert ends == [KafkaError._PARTITION_EOF]


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_child_must_make_its_own_clients(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    consumer = new_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            at = TopicPartition(topic, 0, 0)
            for call in (
                lambda: producer.produce(topic, b"v"),
                producer.list_topics,
                lambda: consumer.poll(0.1),
                lambda: consumer.consume(1, 0.1),
                lambda: consumer.subscribe([topic]),
                consumer.unsubscribe,
                lambda: consumer.assign([at]),
                consumer.unassign,
                consumer.assignment,
                lambda: consumer.pause([at]),
                lambda: consumer.resume([at]),
                lambda: consumer.seek(at),
                lambda: consumer.position([at]),
                lambda: consumer.store_offsets(offsets=[at]),
                lambda: consumer.commit(offsets=[at]),
                lambda: consumer.committed([at], 0.1),
                consumer.memberid,
                consumer.close,
            ):
                with pytest.raises(RuntimeError, match="fork"):
                    call()
            fresh = Producer({"bootstrap.servers": broker.bootstrap})
            fresh.produce(topic, b"from the child")
            assert fresh.flush(WAIT) == 0
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert read(consumer, 1)[0].value() == b"from the child"


def test_many_large_messages_keep_their_order(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(3)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
    for number in range(600):
        producer.produce(topic, os.urandom(50_000), key=str(number), partition=number % 3)
        producer.poll(0)
    assert producer.flush(WAIT) == 0
    consumer = new_consumer(queued_max_messages_kbytes=2048)
    consumer.assign([TopicPartition(topic, number) for number in range(3)])
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for message in read(consumer, 600):
        partition, key = message.partition(), message.key()
        assert partition is not None
        seen[partition].append(int(key))
    assert seen == {number: list(range(number, 600, 3)) for number in range(3)}
