"""If these fail, a call between two steps of a join returns an error, loses partitions or leaks a member.

A director stops the group thread at every request and every event, where the test makes each call.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from cluster import AdminClient, Consumer, KafkaException, TopicPartition
from cluster.client import ConsumerGroupDescription, ConsumerGroupState
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, poll_until, produce
from tests.client.director import Director
from tests.conftest import BrokerProcess

STOPS = 22
"""Points of the thread while it joins, sends heartbeats, and joins again after a rebalance."""


def expect(codes: tuple[int, ...], call: Callable[[], object]) -> None:
    """Makes a call that may be refused, with one of these codes."""
    try:
        call()
    except KafkaException as error:
        if error.error.code() not in codes:
            raise


class Application:
    """A consumer, with what it has subscribed to and what its callbacks were called with."""

    def __init__(self, consumer: Consumer, topics: tuple[str, str]) -> None:
        self.consumer = consumer
        self.topics = topics
        self.subscribed: str | None = None
        self.owned: set[TopicPartition] | None = None
        self.reads: set[TopicPartition] = set()
        """What it has assigned, by a rebalance or by hand; the later one counts."""

    def subscribe(self, topic: str | None = None) -> None:
        self.subscribed = topic or self.topics[0]
        self.consumer.subscribe(
            [self.subscribed], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert self.subscribed is not None, "assigned without a subscription"
        assert not self.owned, "assigned twice"
        self.owned = self.reads = set(partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert self.owned == set(partitions), "revoked what was not assigned"
        self.owned, self.reads = None, set()

    def unsubscribe(self) -> None:
        self.consumer.unsubscribe()
        assert self.owned is None, "unsubscribed without a revocation"
        self.subscribed = None

    def subscribe_again(self) -> None:
        self.unsubscribe()
        self.subscribe()

    def subscribe_to_another(self) -> None:
        self.subscribe(self.topics[1] if self.subscribed == self.topics[0] else self.topics[0])

    def poll(self) -> None:
        message = self.consumer.poll(0)
        if message is not None:
            assert message.error() is None, message.error()

    def consume(self) -> None:
        for message in self.consumer.consume(5, 0):
            assert message.error() is None, message.error()

    def assign(self) -> None:
        self.reads = {TopicPartition(self.topics[0], 0)}
        self.consumer.assign(list(self.reads))

    def commit(self) -> None:
        self.consumer.commit()

    def commit_and_wait(self) -> None:
        partitions = [TopicPartition(self.topics[0], 0, 1)]
        # A group that has members takes no commit of a consumer that is not yet one.
        expect((22, 25, 27, 113), lambda: self.consumer.commit(offsets=partitions, asynchronous=False))

    def on_each(self, call: Callable[[list[TopicPartition]], object]) -> None:
        partitions = self.consumer.assignment()
        if partitions:
            call(partitions)
        else:
            expect((-190, -172), lambda: call([TopicPartition(self.topics[0], 0, 0)]))

    def pause_and_resume(self) -> None:
        self.on_each(self.consumer.pause)
        self.on_each(self.consumer.resume)

    def seek(self) -> None:
        self.on_each(lambda found: self.consumer.seek(TopicPartition(found[0].topic, found[0].partition, 0)))

    def position(self) -> None:
        self.on_each(self.consumer.position)

    def store(self) -> None:
        self.on_each(
            lambda found: self.consumer.store_offsets(
                offsets=[TopicPartition(found[0].topic, found[0].partition, 0)]
            )
        )

    def close(self) -> None:
        self.consumer.close()
        assert self.owned is None, "closed without a revocation"
        self.subscribed = None


CALLS = [
    Application.subscribe,
    Application.subscribe_to_another,
    Application.unsubscribe,
    Application.subscribe_again,
    Application.poll,
    Application.consume,
    Application.assign,
    Application.commit,
    Application.commit_and_wait,
    Application.pause_and_resume,
    Application.seek,
    Application.position,
    Application.store,
    Application.close,
]


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as client:
        yield client


@pytest.fixture
def topics(broker: BrokerProcess, new_topic: NewTopicFactory) -> tuple[str, str]:
    found = new_topic(2), new_topic(1)
    for topic in found:
        produce(broker.bootstrap, topic, [b"v"] * 5, partition=0)
    return found


NewApplication = Callable[[], tuple[str, Application, Director]]


@pytest.fixture
def new_application(topics: tuple[str, str], new_consumer: NewConsumer) -> NewApplication:
    def make() -> tuple[str, Application, Director]:
        group = uuid.uuid4().hex
        consumer = new_consumer(group_id=group, heartbeat_interval_ms=1)
        return group, Application(consumer, topics), Director(consumer)

    return make


def check_end(admin: AdminClient, group: str, application: Application, director: Director) -> None:
    """Lets the thread go. The application gets what it subscribed to; the group has no other member."""
    director.let_go()
    consumer = application.consumer

    def described() -> ConsumerGroupDescription:
        return admin.describe_consumer_groups([group])[group].result(WAIT)

    if application.subscribed is not None:
        count = 2 if application.subscribed == application.topics[0] else 1
        expected = {TopicPartition(application.subscribed, number) for number in range(count)}

        def settled() -> bool:
            application.poll()
            assert set(consumer.assignment()) == application.reads
            return application.owned == expected and director.is_quiet() and not consumer._events

        poll_until([], settled)
        assert [member.member_id for member in described().members] == [consumer.memberid()]
        [partition] = [found for found in application.reads if found.partition == 0]
        consumer.seek(TopicPartition(partition.topic, 0, 0))
        offsets: list[int] = []

        def read() -> bool:
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                offsets.append(message.offset())
            return len(offsets) == 5

        poll_until([], read)
        assert offsets == list(range(5))
        application.close()
    else:
        assert application.owned is None
    poll_until([], lambda: described().state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD))


@pytest.mark.parametrize("polls", [False, True], ids=["silent", "polling"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_each_call_at_each_point_of_a_join(
    admin: AdminClient,
    new_application: NewApplication,
    caplog: pytest.LogCaptureFixture,
    call: Callable[[Application], None],
    polls: bool,
) -> None:
    for stops in range(STOPS):
        group, application, director = new_application()
        application.subscribe()
        for _ in range(stops):
            director.step()
            if director.wait() == "after heartbeat" and "post Revoked" not in director.points:
                director.rebalance()
            if polls:
                application.poll()
        print("stopped at", director.wait())
        call(application)
        check_end(admin, group, application, director)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Were this broken, a consumer that leaves while the coordinator waits for another member would hang.
@pytest.mark.parametrize(
    "call",
    [
        Application.unsubscribe,
        Application.close,
        Application.subscribe_again,
        Application.subscribe_to_another,
        Application.poll,
        Application.commit,
    ],
    ids=lambda call: call.__name__,
)
def test_each_call_while_the_coordinator_waits_for_another_member(
    admin: AdminClient,
    new_application: NewApplication,
    new_consumer: NewConsumer,
    call: Callable[[Application], None],
) -> None:
    group, application, director = new_application()
    other = new_consumer(group_id=group, heartbeat_interval_ms=10)
    other.subscribe([application.topics[0]])
    poll_until([other], lambda: len(other.assignment()) == 2)

    def described() -> ConsumerGroupDescription:
        return admin.describe_consumer_groups([group])[group].result(WAIT)

    application.subscribe()
    director.let_go()
    poll_until([], lambda: described().state is ConsumerGroupState.PREPARING_REBALANCING)
    call(application)
    joins = application.subscribed is not None

    def shared() -> bool:
        other.poll(0)
        if joins:
            application.poll()
        members = described().members
        return len(members) == 1 + joins and all(member.assignment.topic_partitions for member in members)

    poll_until([], shared)
    if joins:
        poll_until([other, application.consumer], lambda: application.owned == application.reads != set())


def play_history(
    seed: int,
    application: Application,
    director: Director,
    calls: Sequence[Callable[[Application], object]],
    disturb: Callable[[], None],
) -> None:
    """Calls, polls, steps of the thread, removals of the member and what `disturb` does, by chance."""
    print("seed", seed)
    chance = random.Random(seed)
    application.subscribe()
    for _ in range(60):
        print(director.wait())
        match chance.randrange(12):
            case 0 | 1 | 2 | 3 | 4 | 5:
                director.step()
            case 6:
                disturb()
            case 7:
                director.remove_member()
            case 8 | 9:
                application.poll()
            case _:
                call = chance.choice(calls)
                print(call.__name__)
                call(application)


@pytest.mark.parametrize("seed", range(20))
def test_no_history_of_calls_and_steps_goes_wrong(
    admin: AdminClient, new_application: NewApplication, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    group, application, director = new_application()
    calls = [call for call in CALLS if call is not Application.close]
    play_history(seed, application, director, calls, director.rebalance)
    check_end(admin, group, application, director)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
