"""If these fail, an acknowledged commit is overwritten by an older one, or by a removed member's."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cluster import Consumer, KafkaError, KafkaException, TopicPartition
from cluster.client import _consumer
from cluster.client._commits import Commit, CommitQueue, Identity, Request
from cluster.client._coordinator import Coordinator
from cluster.errors import TopicAuthorizationFailed
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, committed, poll_until, produce, read
from tests.conftest import BrokerProcess

Outcome = tuple[KafkaError | None, list[TopicPartition]]
MEMBER = Identity(1, "member")
METADATA_TOO_LARGE = 12
TOPIC_AUTHORIZATION_FAILED = TopicAuthorizationFailed.code


def offsets(partitions: list[TopicPartition]) -> list[tuple[int, int]]:
    return [(partition.partition, partition.offset) for partition in partitions]


class Script:
    """A queue of commits, with the outcome of each."""

    def __init__(self) -> None:
        self.queue = CommitQueue()
        self.ended: dict[str, tuple[int | None, list[int]]] = {}

    def add(
        self,
        name: str,
        wanted: dict[int, int],
        identity: Identity = MEMBER,
        deadline: float = 60.0,
        merge: bool = False,
    ) -> Commit:
        def ended(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            assert name not in self.ended, "ended twice"
            failures = [0 if found.error is None else found.error.code() for found in partitions]
            self.ended[name] = (None if error is None else error.code(), failures)

        partitions = [TopicPartition("t", number, offset) for number, offset in wanted.items()]
        commit = Commit(identity, partitions, deadline, ended, merge)
        self.queue.add(commit)
        return commit

    def next(self, now: float = 0.0) -> Request:
        request = self.queue.next(now)
        assert request is not None
        return request


def test_the_newest_offset_of_each_partition_is_sent_and_each_commit_ends() -> None:
    script = Script()
    script.add("a", {0: 1})
    script.add("b", {0: 3, 1: 1})
    script.add("c", {0: 2})
    assert offsets(script.next().partitions) == [(0, 2), (1, 1)]
    script.add("d", {0: 9})
    script.queue.answered({("t", 0): 0, ("t", 1): 3})
    assert script.ended == {"a": (None, [0]), "b": (None, [0, 3]), "c": (None, [0])}
    assert offsets(script.next().partitions) == [(0, 9)]


def test_commits_of_two_generations_are_two_requests() -> None:
    script, later = Script(), Identity(2, "member")
    script.add("a", {0: 1})
    script.add("b", {0: 2}, later)
    assert script.next().identity == MEMBER
    script.queue.failed(KafkaError(KafkaError.NOT_COORDINATOR), 1)
    assert script.next().identity == MEMBER
    script.queue.answered({("t", 0): KafkaError.ILLEGAL_GENERATION})
    assert script.ended == {"a": (KafkaError.ILLEGAL_GENERATION, [KafkaError.ILLEGAL_GENERATION])}
    assert (script.next().identity, offsets(script.next().partitions)) == (later, [(0, 2)])


# Were this broken, a commit that may have arrived would be overwritten by an older one with a later deadline.
def test_a_commit_that_may_have_arrived_is_sent_again_with_older_ones() -> None:
    script = Script()
    script.add("older", {0: 1}, deadline=60)
    script.add("newer", {0: 2}, deadline=10)
    assert script.next().deadline == 60
    script.queue.failed(KafkaError(KafkaError._TRANSPORT, retriable=True), 11)
    assert script.ended == {"newer": (KafkaError._TRANSPORT, [0])}
    assert offsets(script.next(11).partitions) == [(0, 2)]
    script.queue.answered({("t", 0): 0})
    assert script.ended["older"] == (None, [0])
    assert script.queue.next(11) is None


def test_an_abandoned_commit_is_not_sent_and_one_past_its_deadline_ends() -> None:
    script = Script()
    abandoned = script.add("abandoned", {0: 1})
    script.add("late", {0: 2}, deadline=5)
    script.queue.abandon(abandoned)
    assert script.queue.next(6) is None
    assert script.ended == {"late": (KafkaError._TIMED_OUT, [0])}


# Were this broken, one commit with too much metadata would fail those before it.
def test_a_commit_with_a_wrong_offset_does_not_fail_those_before_it() -> None:
    script = Script()
    script.add("a", {0: 1, 1: 1})
    script.add("b", {0: 2})
    script.next()
    script.queue.answered({("t", 0): METADATA_TOO_LARGE, ("t", 1): 0})
    assert script.ended == {"b": (METADATA_TOO_LARGE, [METADATA_TOO_LARGE])}
    assert offsets(script.next().partitions) == [(0, 1)]
    script.queue.answered({("t", 0): 0})
    assert script.ended["a"] == (None, [0, 0])


def test_commits_without_a_callback_are_merged() -> None:
    script = Script()
    for offset in range(1000):
        script.add("all", {offset % 2: offset}, merge=True)
    assert len(script.queue) == 1
    assert offsets(script.next().partitions) == [(0, 998), (1, 999)]


@pytest.mark.parametrize("seed", range(50))
def test_no_history_sends_an_older_offset_after_a_newer_one(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    script, names, now, generation = Script(), set[str](), 0.0, 1
    # The offsets of each partition that the coordinator may have written.
    taken: dict[int, set[int]] = {partition: {0} for partition in range(4)}
    for number in range(300):
        for _ in range(chance.randrange(4)):
            name = f"{number}-{len(names)}"
            names.add(name)
            # Offsets grow with each commit.
            found = {partition: len(names) for partition in chance.sample(range(4), chance.randint(1, 3))}
            generation += chance.random() < 0.05
            script.add(name, found, Identity(generation, "m"), now + chance.choice([1, 10, 60]))
        now += chance.random()
        request = script.queue.next(now)
        if request is None:
            continue
        for partition, offset in offsets(request.partitions):
            assert offset >= max(taken[partition])
            taken[partition].add(offset)
        if chance.random() < 0.6:
            codes = {}
            for partition, offset in offsets(request.partitions):
                refused = chance.random() < 0.05
                codes["t", partition] = METADATA_TOO_LARGE if refused else 0
                if refused:
                    taken[partition].discard(offset)
            script.queue.answered(codes)
        else:
            now += chance.choice([0, 0, 5, 20])
            script.queue.failed(KafkaError(KafkaError._TRANSPORT, retriable=chance.random() < 0.9), now)
    script.queue.end_all(KafkaError(KafkaError._DESTROY))
    assert script.ended.keys() == names


class Gate:
    """Holds a consumer's commit requests back until it is opened."""

    def __init__(self, consumer: Consumer) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        ask = consumer._commits._ask

        def wait(request: Request) -> Any:
            self.reached.set()
            assert self.open.wait(WAIT)
            return ask(request)

        consumer._commits._ask = wait  # type: ignore[method-assign]


@pytest.mark.parametrize("way", ["commit", "unsubscribe", "close", "committed"])
def test_later_calls_find_asynchronous_commits_done(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, way: str
) -> None:
    topic, group, outcomes = new_topic(), uuid.uuid4().hex, list[Outcome]()
    produce(broker.bootstrap, topic, [b"v"] * 500)
    consumer = new_consumer(
        group_id=group, enable_auto_commit=False, on_commit=lambda *outcome: outcomes.append(outcome)
    )
    consumer.subscribe([topic])
    for message in read(consumer, 500):
        consumer.commit(message=message)
    match way:
        case "commit":
            consumer.commit(offsets=[TopicPartition(topic, 0, 450)], asynchronous=False)
        case "unsubscribe":
            consumer.unsubscribe()
        case "close":
            consumer.close()
        case "committed":
            assert consumer.committed([TopicPartition(topic, 0)], WAIT)[0].offset == 500
    expected = 450 if way == "commit" else 500
    assert committed(new_consumer, group, topic) == expected
    if way != "close":
        poll_until([consumer], lambda: len(outcomes) == 500)
        consumer.close()
    assert committed(new_consumer, group, topic) == expected
    assert [error for error, _ in outcomes] == [None] * 500
    assert sorted(partition.offset for _, [partition] in outcomes) == list(range(1, 501))


# Were this broken, a look-up of a committed offset would overtake the commits before it.
def test_an_assignment_begins_where_the_commits_before_it_end(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    produce(broker.bootstrap, topic, [b"v"] * 10)
    consumer = new_consumer(enable_auto_commit=False)
    gate = Gate(consumer)
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)])
    consumer.assign([TopicPartition(topic, 0)])
    assert gate.reached.wait(WAIT)
    gate.open.set()
    assert read(consumer, 1)[0].offset() == 7


# Were this broken, waiting commits would overwrite those of the next owner after a rebalance.
def test_a_commit_belongs_to_the_generation_in_which_it_is_made(
    broker: BrokerProcess,
    new_topic: NewTopicFactory,
    new_consumer: NewConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, group, outcomes = new_topic(2), uuid.uuid4().hex, list[Outcome]()
    produce(broker.bootstrap, topic, [b"v"] * 5, partition=0)
    produce(broker.bootstrap, topic, [b"v"] * 5, partition=1)
    settings = {"group_id": group, "heartbeat_interval_ms": 100, "enable_auto_commit": False}
    first = new_consumer(**settings, on_commit=lambda *outcome: outcomes.append(outcome))
    second = new_consumer(**settings)
    first.subscribe([topic])
    read(first, 10)
    # The coordinator does not answer while the partitions are given up.
    monkeypatch.setattr(_consumer, "CLOSE_TIMEOUT", 0.1)
    gate = Gate(first)
    both = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 3)]
    for _ in range(2):
        first.commit(offsets=both)
    second.subscribe([topic])
    poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)
    [taken] = second.assignment()
    second.commit(offsets=[TopicPartition(topic, taken.partition, 5)], asynchronous=False)
    gate.open.set()
    poll_until([first, second], lambda: len(outcomes) == 2)
    for error, partitions in outcomes:
        assert error == KafkaError.ILLEGAL_GENERATION
        assert [partition.error for partition in partitions] == [KafkaError.ILLEGAL_GENERATION] * 2
    assert second.committed([taken], WAIT)[0].offset == 5
    # Its commits of the new generation are accepted.
    [kept] = first.assignment()
    first.commit(offsets=[TopicPartition(topic, kept.partition, 4)], asynchronous=False)
    assert second.committed([kept], WAIT)[0].offset == 4


def test_commits_that_wait_for_on_commit_are_limited(
    new_topic: NewTopicFactory, new_consumer: NewConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, outcomes = new_topic(), list[Outcome]()
    monkeypatch.setattr(_consumer, "UNREPORTED_MAX", 3)
    wanted = [TopicPartition(topic, 0, 1)]
    consumer = new_consumer(on_commit=lambda *outcome: outcomes.append(outcome))
    for _ in range(3):
        consumer.commit(offsets=wanted)
    with pytest.raises(KafkaException, match="poll") as full:
        consumer.commit(offsets=wanted)
    assert full.value.error == KafkaError._QUEUE_FULL
    poll_until([consumer], lambda: len(outcomes) == 3)
    consumer.commit(offsets=wanted)
    silent = new_consumer()
    gate = Gate(silent)
    for offset in range(100):
        silent.commit(offsets=[TopicPartition(topic, 0, offset)])
    assert len(silent._commits) <= 2
    gate.open.set()
    assert silent.committed(wanted, WAIT)[0].offset == 99


def test_only_offsets_are_committed(new_topic: NewTopicFactory, new_consumer: NewConsumer) -> None:
    topic, outcomes = new_topic(), list[Outcome]()
    consumer = new_consumer(on_commit=lambda *outcome: outcomes.append(outcome))
    for partition in (TopicPartition(topic, 0), TopicPartition(topic, 0, -2)):
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=[partition], asynchronous=False)
        assert refused.value.error == KafkaError._NO_OFFSET
    consumer.commit(offsets=[TopicPartition(topic, 0)])
    poll_until([consumer], lambda: bool(outcomes))
    assert outcomes[0][0] == KafkaError._NO_OFFSET
    with pytest.raises(ValueError, match="committed_metadata"):
        consumer.commit(offsets=[TopicPartition(topic, 0, 1, metadata=5)])  # type: ignore[arg-type]
    assert consumer.committed([TopicPartition(topic, 0)], WAIT)[0].offset < 0


def test_the_last_offset_of_a_partition_that_is_named_twice_counts(
    new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic = new_topic()
    consumer = new_consumer()
    wanted = [TopicPartition(topic, 0, 7), TopicPartition("missing", 0, 1), TopicPartition(topic, 0, 6)]
    results = consumer.commit(offsets=wanted, asynchronous=False) or []
    assert [(found.offset, found.error) for found in results] == [
        (7, None),
        (1, KafkaError.UNKNOWN_TOPIC_OR_PART),
        (6, None),
    ]
    assert consumer.committed([TopicPartition(topic, 0)], WAIT)[0].offset == 6


# Were this broken, an offset that the application changes after the call would be committed.
def test_an_asynchronous_commit_takes_the_offsets_of_its_call(
    new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    partition = TopicPartition(new_topic(), 0, 4)
    consumer = new_consumer()
    gate = Gate(consumer)
    consumer.commit(offsets=[partition])
    partition.offset = 9
    gate.open.set()
    assert consumer.committed([partition], WAIT)[0].offset == 4


@pytest.mark.parametrize("drop", ["assign", "unassign", "incremental_unassign"])
def test_consumed_offsets_are_committed_when_their_partition_is_unassigned(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer, drop: str
) -> None:
    topic, group = new_topic(2), uuid.uuid4().hex
    produce(broker.bootstrap, topic, [b"v"] * 5, partition=0)
    consumer = new_consumer(group_id=group, auto_commit_interval_ms=600_000)
    consumer.assign([TopicPartition(topic, 0)])
    read(consumer, 5)
    match drop:
        case "assign":
            consumer.assign([TopicPartition(topic, 1)])
        case "unassign":
            consumer.unassign()
        case "incremental_unassign":
            consumer.incremental_unassign([TopicPartition(topic, 0)])
    assert consumer.committed([TopicPartition(topic, 0)], WAIT)[0].offset == 5
    # Another consumer commits; records that this one reads again are committed again.
    with new_consumer(group_id=group, enable_auto_commit=False) as other:
        other.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.assign([TopicPartition(topic, 0)])
    assert [message.offset() for message in read(consumer, 3)] == [2, 3, 4]
    consumer.close()
    assert committed(new_consumer, group, topic) == 5


def test_a_commit_is_tried_again_while_the_coordinator_is_not_ready(
    new_topic: NewTopicFactory, new_consumer: NewConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, asked = new_topic(), list[int]()
    consumer = new_consumer()
    call = Coordinator.call
    answers = [14, 15, 16, 7]

    def not_ready(self: Coordinator, api: str, message: dict[str, Any], **where: Any) -> dict[str, Any]:
        if api == "OffsetCommit":
            [named] = message["topics"]
            asked.append(named["partitions"][0]["committed_offset"])
            if answers:
                code = answers.pop(0)
                if not answers:
                    # Made while the first is tried again; sent in its place.
                    consumer.commit(offsets=[TopicPartition(topic, 0, 2)])
                return {
                    "topics": [{"name": topic, "partitions": [{"partition_index": 0, "error_code": code}]}]
                }
        return call(self, api, message, **where)

    monkeypatch.setattr(Coordinator, "call", not_ready)
    [result] = consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False) or []
    assert (result.offset, result.error) == (1, None)
    assert asked == [1, 1, 1, 1, 2]
    assert consumer.committed([TopicPartition(topic, 0)], WAIT)[0].offset == 2


_OFFSET_FETCH = 9
"""The version that the client speaks with this broker."""


# Were this broken, a consumer would begin before the offset of an open transaction, and read records again.
def test_an_assignment_waits_for_an_offset_that_a_transaction_may_change(
    broker: BrokerProcess,
    new_topic: NewTopicFactory,
    new_consumer: NewConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, asked = new_topic(), list[bool]()
    produce(broker.bootstrap, topic, [b"v"] * 5)
    call = Coordinator.call

    def unstable(self: Coordinator, api: str, message: Any, **where: Any) -> dict[str, Any]:
        response = call(self, api, message, **where)
        if api == "OffsetFetch":
            asked.append(message(_OFFSET_FETCH).get("require_stable", False))
            [answer] = response["groups"][0]["topics"][0]["partitions"]
            if len(asked) == 1:
                answer.update(committed_offset=-1, error_code=KafkaError.UNSTABLE_OFFSET_COMMIT)
        return response

    consumer = new_consumer(enable_auto_commit=False)
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    monkeypatch.setattr(Coordinator, "call", unstable)
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 1)[0].offset() == 3
    assert asked == [True, True]
    # It also reads uncommitted records.
    uncommitted = new_consumer(isolation_level="read_uncommitted")
    uncommitted.committed([TopicPartition(topic, 0)], WAIT)
    assert asked == [True, True, False]


# Were this broken, a partition whose offset cannot be looked up would be read from its beginning or end.
def test_a_partition_whose_offset_cannot_be_looked_up_is_reported_and_not_read(
    broker: BrokerProcess,
    new_topic: NewTopicFactory,
    new_consumer: NewConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(2)
    for partition in range(2):
        produce(broker.bootstrap, topic, [b"v"], partition=partition)
    call = Coordinator.call

    def refuse_first(self: Coordinator, api: str, message: dict[str, Any], **where: Any) -> dict[str, Any]:
        response = call(self, api, message, **where)
        if api == "OffsetFetch":
            for answer in response["groups"][0]["topics"][0]["partitions"]:
                if answer["partition_index"] == 0:
                    answer["error_code"] = TOPIC_AUTHORIZATION_FAILED
        return response

    monkeypatch.setattr(Coordinator, "call", refuse_first)
    consumer = new_consumer(enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    met: list[tuple[int | None, KafkaError | None]] = []

    def ended() -> bool:
        message = consumer.poll(0.05)
        if message is not None:
            met.append((message.partition(), message.error()))
        return any(error == KafkaError._PARTITION_EOF for _, error in met)

    poll_until([], ended)
    assert [error for _, error in met if error == TOPIC_AUTHORIZATION_FAILED] != []
    assert {partition for partition, error in met if error is None} == {1}


# Were this broken, closing would hang on a stopped broker, or not call on_commit.
def test_close_ends_commits_that_a_silent_broker_does_not_answer(
    start_broker: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    produce(broker.bootstrap, "t", [b"v"], partition=0)
    outcomes: list[Outcome] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "on_commit": lambda *outcome: outcomes.append(outcome),
        }
    )
    consumer.subscribe(["t"])
    [message] = read(consumer, 1)
    broker.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, broker.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    consumer.commit(message)
    consumer.commit(message)
    monkeypatch.setattr(_consumer, "CLOSE_TIMEOUT", 2.0)
    begun = time.monotonic()
    consumer.close()
    assert time.monotonic() - begun < WAIT / 2
    assert [error for error, _ in outcomes] == [KafkaError._DESTROY] * 2
