"""If these fail, a call between two heartbeats of a member with group.protocol=consumer returns an error,
loses partitions or leaks a member.

A director stops the group thread at every request and every event, where the test makes each call.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator

import pytest

from cluster import AdminClient, Consumer, TopicPartition
from tests.client.conftest import NewConsumer, NewTopicFactory, produce
from tests.client.director import Director
from tests.client.test_interleavings import CALLS, Application, NewApplication, check_end, play_history
from tests.conftest import BrokerProcess

pytestmark = pytest.mark.timeout(300)

STOPS = 14
"""Points of the thread while it joins, is removed, and joins again."""
SETTINGS = (
    "--override",
    "group.consumer.heartbeat.interval.ms=1",
    "--override",
    "group.consumer.min.heartbeat.interval.ms=1",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", 0, SETTINGS)
    process.wait_ready()
    yield process
    assert process.stop() == 0, process.output()


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as client:
        yield client


class Incremental(Application):
    """The application's callbacks get the partitions that come or go."""

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert self.subscribed is not None, "assigned without a subscription"
        before = self.owned or set()
        assert before.isdisjoint(partitions), "assigned twice"
        self.owned = before.union(partitions)
        self.reads = self.reads.union(partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert self.owned is not None
        assert self.owned.issuperset(partitions), "revoked what was not assigned"
        self.reads = self.reads.difference(partitions)
        self.owned = self.owned.difference(partitions) or None


@pytest.fixture
def new_application(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> NewApplication:
    topics = new_topic(2), new_topic(1)
    for topic in topics:
        produce(broker.bootstrap, topic, [b"v"] * 5, partition=0)

    def make() -> tuple[str, Application, Director]:
        group = uuid.uuid4().hex
        consumer = new_consumer(group_id=group, group_protocol="consumer")
        return group, Incremental(consumer, topics), Director(consumer)

    return make


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
            if director.wait() == "after heartbeat" and director.points.count("post Assigned") == 1:
                director.fence()
            if polls:
                application.poll()
        print("stopped at", director.wait())
        call(application)
        check_end(admin, group, application, director)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("seed", range(20))
def test_no_history_of_calls_and_steps_goes_wrong(
    admin: AdminClient, new_application: NewApplication, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    group, application, director = new_application()
    # An incremental rebalance keeps what the application assigns by hand; the end would be another one.
    calls = [call for call in CALLS if call not in (Application.close, Application.assign)]
    play_history(seed, application, director, calls, director.fence)
    check_end(admin, group, application, director)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
