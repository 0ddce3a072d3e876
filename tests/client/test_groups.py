"""If these fail, a group reads a partition twice or not at all, or waits for a member that is gone."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from cluster import AdminClient, Consumer, KafkaError, KafkaException, NewPartitions, TopicPartition
from cluster.client import ConsumerGroupState, _consumer
from cluster.client._group import Event
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, committed, poll_until, produce, read
from tests.conftest import BrokerProcess


def owned(consumer: Consumer) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


def shared(*consumers: Consumer, count: int) -> Callable[[], bool]:
    """Whether each partition belongs to one of the consumers, and each consumer has some."""

    def done() -> bool:
        parts = [owned(consumer) for consumer in consumers]
        return all(parts) and sum(map(len, parts)) == count and set().union(*parts) == set(range(count))

    return done


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_two_members_share_and_the_survivor_takes_over(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, strategy: str
) -> None:
    topic, group = new_topic(4), uuid.uuid4().hex
    settings = {
        "group_id": group,
        "partition_assignment_strategy": strategy,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 100,
    }
    changes: list[tuple[str, set[int]]] = []

    def record(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: changes.append((what, {partition.partition for partition in partitions}))

    first = new_consumer(**settings)
    first.subscribe(
        [topic], on_assign=record("assigned"), on_revoke=record("revoked"), on_lost=record("lost")
    )
    poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    assert changes == [("assigned", {0, 1, 2, 3})]
    second = new_consumer(**settings)
    second.subscribe([topic])
    poll_until([first, second], shared(first, second, count=4))
    assert changes[1] == ("revoked", {0, 1, 2, 3})
    assert changes[2] == ("assigned", owned(first))
    for partition in range(4):
        produce(broker.bootstrap, topic, [b"%d" % partition], partition=partition)
    seen: set[bytes] = set()

    def all_seen() -> bool:
        for consumer in (first, second):
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None
                assert message.partition() in owned(consumer)
                seen.add(message.value())
        return len(seen) == 4

    poll_until([], all_seen)
    second.close()
    poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
        described = admin.describe_consumer_groups([group])[group].result(WAIT)
        assert described.state is ConsumerGroupState.STABLE
        assert described.partition_assignor == strategy
        [member] = described.members
        assert member.member_id == first.memberid()
        assert set(member.assignment.topic_partitions) == {
            TopicPartition(topic, number) for number in range(4)
        }
        assert group in [listing.group_id for listing in admin.list_consumer_groups().result(WAIT).valid]
        first.close()
        assert admin.describe_consumer_groups([group])[group].result(WAIT).state is ConsumerGroupState.EMPTY
        admin.delete_consumer_groups([group])[group].result(WAIT)


def test_a_group_with_a_confluent_kafka_member_is_shared(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(4), uuid.uuid4().hex
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 100,
        }
    )
    theirs.subscribe([topic])
    ours = new_consumer(group_id=group, heartbeat_interval_ms=100)
    ours.subscribe([topic])

    def split() -> bool:
        theirs.poll(0.05)
        other = {partition.partition for partition in theirs.assignment()}
        return len(other) == 2 and other | owned(ours) == {0, 1, 2, 3} and len(owned(ours)) == 2

    poll_until([ours], split)
    theirs.close()
    poll_until([ours], lambda: len(owned(ours)) == 4)


COOPERATIVE = {
    "partition_assignment_strategy": "cooperative-sticky",
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 100,
}


def test_a_cooperative_member_reads_on_while_another_joins_and_leaves(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(4), uuid.uuid4().hex
    changes: list[tuple[str, set[int]]] = []

    def record(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: changes.append((what, {partition.partition for partition in partitions}))

    first = new_consumer(group_id=group, auto_commit_interval_ms=0, **COOPERATIVE)
    first.subscribe(
        [topic], on_assign=record("assigned"), on_revoke=record("revoked"), on_lost=record("lost")
    )
    poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    for partition in range(4):
        produce(broker.bootstrap, topic, [b"%d" % partition], partition=partition)
    read(first, 4)
    second = new_consumer(group_id=group, **COOPERATIVE)
    second.subscribe([topic])
    poll_until([first, second], shared(first, second, count=4))
    assert changes[0] == ("assigned", {0, 1, 2, 3})
    [(_, moved)] = [change for change in changes if change[0] == "revoked"]
    assert moved == owned(second)
    assert len(moved) == 2
    # What was read before is committed when a partition is given up, in the generation that takes it.
    offsets = second.committed([TopicPartition(topic, partition) for partition in moved], WAIT)
    assert [found.offset for found in offsets] == [1, 1]
    second.close()
    poll_until([first], lambda: owned(first) == {0, 1, 2, 3})
    assert [change for change in changes[1:] if change[1]] == [("revoked", moved), ("assigned", moved)]
    # Retained partitions are committed for in each generation.
    produce(broker.bootstrap, topic, [b"again"], partition=0)
    [message] = read(first, 1)
    [result] = first.commit(message, asynchronous=False) or []
    assert (result.offset, result.error) == (2, None)
    first.close()
    assert changes[-1] == ("revoked", {0, 1, 2, 3})


@pytest.mark.parametrize("ours_leads", [True, False])
def test_a_cooperative_group_with_a_confluent_kafka_member_is_shared(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, ours_leads: bool
) -> None:
    topic, group = new_topic(4), uuid.uuid4().hex
    settings = {name.replace("_", "."): value for name, value in COOPERATIVE.items()}
    theirs = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0, **settings}
    )
    ours = new_consumer(group_id=group, **COOPERATIVE)

    def other() -> set[int]:
        theirs.poll(0.05)
        return {partition.partition for partition in theirs.assignment()}

    if ours_leads:
        ours.subscribe([topic])
        poll_until([ours], lambda: len(owned(ours)) == 4)
        theirs.subscribe([topic])
    else:
        theirs.subscribe([topic])
        poll_until([], lambda: len(other()) == 4)
        ours.subscribe([topic])

    def split() -> bool:
        found = other()
        assert not found & owned(ours)
        return len(found) == len(owned(ours)) == 2

    poll_until([ours], split)
    theirs.close()
    poll_until([ours], lambda: len(owned(ours)) == 4)


def test_what_was_consumed_is_committed_when_a_member_goes(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(), uuid.uuid4().hex
    produce(broker.bootstrap, topic, [b"%d" % number for number in range(20)])
    first = new_consumer(group_id=group)
    first.subscribe([topic])
    assert [message.offset() for message in read(first, 7)] == list(range(7))
    first.close()
    second = new_consumer(group_id=group)
    second.subscribe([topic])
    assert [message.offset() for message in read(second, 13)] == list(range(7, 20))


def test_on_assign_may_choose_where_to_begin(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, [b"%d" % number for number in range(10)])
    consumer = new_consumer()

    def from_six(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = 6
        consumer.assign(partitions)

    consumer.subscribe([topic], on_assign=from_six)
    assert [message.offset() for message in read(consumer, 4)] == [6, 7, 8, 9]


# Were this broken, a consumer whose on_assign raises would be in the group and not read its partitions.
def test_poll_raises_on_assigns_exception_once_and_the_partitions_are_read(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(2)
    produce(broker.bootstrap, topic, [b"read all the same"], partition=1)
    consumer = new_consumer()

    def fail(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        raise LookupError(f"{len(partitions)} assigned")

    consumer.subscribe([topic], on_assign=fail)
    with pytest.raises(LookupError, match="2 assigned"):
        consumer.poll(WAIT)
    assert owned(consumer) == {0, 1}
    assert read(consumer, 1)[0].value() == b"read all the same"


# Were this broken, the other member would not get the partitions after an exception in on_revoke.
def test_poll_raises_on_revokes_exception_once_and_the_partitions_are_given_up(
    new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(2), uuid.uuid4().hex
    settings = {"group_id": group, "heartbeat_interval_ms": 100}
    first, second = new_consumer(**settings), new_consumer(**settings)
    raised: list[LookupError] = []

    def fail(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        raise LookupError("revoked")

    first.subscribe([topic], on_revoke=fail)
    poll_until([first], lambda: owned(first) == {0, 1})
    second.subscribe([topic])

    def split() -> bool:
        try:
            first.poll(0.05)
        except LookupError as error:
            raised.append(error)
        return shared(first, second, count=2)()

    poll_until([second], split)
    assert len(raised) == 1
    with pytest.raises(LookupError, match="revoked"):
        first.close()
    poll_until([second], lambda: owned(second) == {0, 1})
    with pytest.raises(RuntimeError, match="closed"):
        first.poll(0)


def test_a_pattern_finds_topics_and_new_partitions_are_noticed(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(1)
    consumer = new_consumer(topic_metadata_refresh_interval_ms=200, heartbeat_interval_ms=100)
    consumer.subscribe([f"^{topic}$"])
    poll_until([consumer], lambda: owned(consumer) == {0})
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT)
    poll_until([consumer], lambda: owned(consumer) == {0, 1, 2})
    with pytest.raises(KafkaException) as bad:
        consumer.subscribe(["^("])
    assert bad.value.error == KafkaError._INVALID_ARG


def test_a_missing_topic_is_reported_and_read_once_it_exists(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    name = f"late-{uuid.uuid4().hex}"
    consumer = new_consumer(heartbeat_interval_ms=100)
    consumer.subscribe([name])
    message = consumer.poll(WAIT)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name in error.str()
    produce(broker.bootstrap, name, [b"v"])
    assert read(consumer, 1)[0].value() == b"v"


def test_a_member_whose_application_does_not_poll_is_removed_and_joins_again(
    new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(2)
    lost: list[set[int]] = []
    consumer = new_consumer(session_timeout_ms=6000, max_poll_interval_ms=6000, heartbeat_interval_ms=100)
    consumer.subscribe([topic], on_lost=lambda _, parts: lost.append({part.partition for part in parts}))
    poll_until([consumer], lambda: owned(consumer) == {0, 1})
    posted = threading.Event()
    post = consumer._group._post

    def signal(event: Event) -> None:
        post(event)
        posted.set()

    consumer._group._post = signal
    # As if the last poll had been seven seconds ago.
    consumer._group.last_poll -= 7
    assert posted.wait(WAIT)
    message = consumer.poll(WAIT)
    assert message is not None
    assert message.error() == KafkaError._MAX_POLL_EXCEEDED
    poll_until([consumer], lambda: lost == [{0, 1}] and owned(consumer) == {0, 1})


# Were this broken, a consumer whose on_lost raises would not join its group again.
def test_poll_raises_on_losts_exception_once_and_the_group_is_joined_again(
    new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic(2)
    raised: list[LookupError] = []
    consumer = new_consumer(session_timeout_ms=6000, max_poll_interval_ms=6000, heartbeat_interval_ms=50)

    def fail(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        raise LookupError("lost")

    consumer.subscribe([topic], on_lost=fail)
    poll_until([consumer], lambda: owned(consumer) == {0, 1})
    generation = consumer._group.identity().generation
    consumer._group.last_poll -= 7

    def back() -> bool:
        try:
            consumer.poll(0.05)
        except LookupError as error:
            raised.append(error)
        group = consumer._group
        return not group.lost and group.identity().generation > generation and owned(consumer) == {0, 1}

    # Not polled before the group's thread has noticed.
    poll_until([], lambda: consumer._group.lost)
    poll_until([], back)
    assert len(raised) == 1


def test_the_threads_of_a_deleted_consumer_end(broker: BrokerProcess, new_topic: NewTopicFactory) -> None:
    topic = new_topic()
    before = set(threading.enumerate())

    def join_and_forget() -> set[threading.Thread]:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid.uuid4().hex})
        consumer.subscribe([topic])
        poll_until([consumer], lambda: owned(consumer) == {0})
        return set(threading.enumerate()) - before

    threads = join_and_forget()
    assert threads
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()


# Were this broken, the interpreter would print an exception when a consumer is deleted.
def test_a_consumer_may_be_deleted_during_a_look_up(
    broker: BrokerProcess, new_topic: NewTopicFactory
) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid.uuid4().hex})
    offsets, let_go = consumer._offsets, threading.Event()
    committed = offsets.committed

    def look_up(*asked: Any) -> list[TopicPartition]:
        assert let_go.wait(WAIT)
        return committed(*asked)

    offsets.committed = look_up  # type: ignore[method-assign]
    consumer.assign([TopicPartition(new_topic(), 0)])
    thread = offsets._thread
    assert thread is not None
    del consumer
    let_go.set()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_unsubscribe_gives_everything_up(new_topic: NewTopicFactory, new_consumer: NewConsumer) -> None:
    topic, group = new_topic(2), uuid.uuid4().hex
    revoked: list[set[int]] = []
    first = new_consumer(group_id=group, heartbeat_interval_ms=100)
    first.subscribe([topic], on_revoke=lambda _, parts: revoked.append({part.partition for part in parts}))
    poll_until([first], lambda: owned(first) == {0, 1})
    first.unsubscribe()
    assert revoked == [{0, 1}]
    assert first.assignment() == []
    second = new_consumer(group_id=group)
    second.subscribe([topic])
    poll_until([second], lambda: owned(second) == {0, 1})
    first.subscribe([topic])
    poll_until([first, second], shared(first, second, count=2))


def test_a_static_member_keeps_its_partitions_through_a_restart(
    new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(2), uuid.uuid4().hex
    first = new_consumer(group_id=group, group_instance_id="one", heartbeat_interval_ms=100)
    first.subscribe([topic])
    poll_until([first], lambda: owned(first) == {0, 1})
    first.close()
    again = new_consumer(group_id=group, group_instance_id="one", heartbeat_interval_ms=100)
    again.subscribe([topic])
    poll_until([again], lambda: owned(again) == {0, 1})


def remove(consumer: Consumer) -> None:
    """Has the group remove this member, as if its last poll had been long ago."""
    consumer._group.last_poll -= 7
    poll_until([], lambda: consumer._group.lost)


# Were this broken, newer commits of other members would be overwritten, and their records read again.
@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_removed_member_commits_nothing(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, auto_commit: bool
) -> None:
    topic, group, commits, callbacks = (
        new_topic(),
        uuid.uuid4().hex,
        list[tuple[KafkaError | None, list[TopicPartition]]](),
        list[str](),
    )
    produce(broker.bootstrap, topic, [b"v"] * 10)
    consumer = new_consumer(
        group_id=group,
        session_timeout_ms=6000,
        max_poll_interval_ms=6000,
        heartbeat_interval_ms=50,
        enable_auto_commit=auto_commit,
        auto_commit_interval_ms=600_000,
        on_commit=lambda *outcome: commits.append(outcome),
    )
    consumer.subscribe(
        [topic], on_revoke=lambda *_: callbacks.append("revoked"), on_lost=lambda *_: callbacks.append("lost")
    )
    messages = read(consumer, 5)
    remove(consumer)
    # The group is empty, so any consumer may commit.
    other = new_consumer(group_id=group, enable_auto_commit=False)
    other.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    with pytest.raises(KafkaException) as refused:
        consumer.commit(messages[-1], asynchronous=False)
    assert refused.value.error == KafkaError.UNKNOWN_MEMBER_ID
    assert consumer.commit(messages[-1]) is None
    consumer.close()
    assert callbacks == ["lost"]
    [(error, [partition])] = commits
    assert (error, partition.offset) == (KafkaError.UNKNOWN_MEMBER_ID, 5)
    assert committed(new_consumer, group, topic) == 10


def test_a_fenced_static_member_commits_nothing(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(), uuid.uuid4().hex
    produce(broker.bootstrap, topic, [b"v"] * 10)
    settings = {"group_id": group, "group_instance_id": "one", "heartbeat_interval_ms": 50}
    first = new_consumer(**settings, auto_commit_interval_ms=600_000)
    second = new_consumer(**settings, enable_auto_commit=False)
    first.subscribe([topic])
    messages = read(first, 5)
    second.subscribe([topic])
    poll_until([second], lambda: bool(second.assignment()) and first._group.lost)
    second.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    with pytest.raises(KafkaException) as refused:
        first.commit(messages[-1], asynchronous=False)
    assert refused.value.error == KafkaError.FENCED_INSTANCE_ID
    assert refused.value.error.fatal()
    first.close()
    second.close()
    assert committed(new_consumer, group, topic) == 10


# Were this broken, closing would wait three times for a broker that is gone: 30 seconds.
def test_close_waits_once_for_a_broker_that_is_gone(
    start_broker: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    produce(broker.bootstrap, "t", [b"1"], partition=0)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 600_000,
        }
    )
    consumer.subscribe(["t"])
    read(consumer, 1)
    broker.kill()
    monkeypatch.setattr(_consumer, "CLOSE_TIMEOUT", 5.0)
    begun = time.monotonic()
    consumer.close()
    assert time.monotonic() - begun < 14


def test_the_group_goes_on_when_its_broker_is_killed_and_comes_back(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    produce(broker.bootstrap, "t", [b"1", b"2"], partition=0)
    with Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
        }
    ) as consumer:
        consumer.subscribe(["t"])
        read(consumer, 2)
        consumer.commit(asynchronous=False)
        port, data = broker.port, broker.data_dir
        broker.kill()
        assert consumer.poll(0.2) is None
        broker = start_broker(data, port)
        produce(broker.bootstrap, "t", [b"3"], partition=0)
        assert read(consumer, 1)[0].value() == b"3"
