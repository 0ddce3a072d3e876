"""The replica manager: what it refuses of a controller's requests.

If one failed, two controllers could command one broker, or an old request undo a newer decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from cluster.broker.replicas import Logs, MetadataCache, PartitionSpec, ReplicaManager, TopicConfigs
from cluster.controller.requests import LiveBrokers, Pending, Sender, body_of, published, withdrawal
from cluster.errors import (
    NONE,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaStorageError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    UnknownTopicOrPartition,
)
from cluster.model import (
    NO_LEADER,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicInfo,
    TopicPartition,
    new_topic_id,
)

HERE, OTHER = BrokerId(0), BrokerId(1)
CONTROLLER_EPOCH, BROKER_EPOCH = 5, 10

Ask = Callable[[Callable[[Pending], None]], list[dict[str, Any]]]


class DataPlane:
    """A data plane that records its calls, and may fail."""

    def __init__(self) -> None:
        self.specs: list[PartitionSpec] = []
        self.stopped: list[tuple[str, int, bool]] = []
        self.fails = False

    def create_partition(self, spec: PartitionSpec) -> None:
        if self.fails:
            raise OSError("the disk is gone")
        self.specs.append(spec)

    def stop_partition(self, topic: str, partition: int, delete: bool) -> None:
        self.stopped.append((topic, partition, delete))

    def set_brokers(self, *_args: object) -> None:
        return

    def know_topic(self, *_args: object) -> None:
        return

    def forget_topic(self, *_args: object) -> None:
        return


class NoSettings:
    """Topics without settings of their own."""

    async def get(self, _topic: str) -> dict[str, str]:
        return {}

    def __init__(self) -> None:
        self.names = {"t"}

    async def topics(self) -> set[str]:
        return self.names

    def known(self, _topic: str) -> dict[str, str]:
        return {}

    def forget(self, _topic: str) -> None:
        return


class Decider:
    """Records which partitions are led here."""

    def __init__(self) -> None:
        self.led: set[tuple[str, int]] = set()

    def leads(self, partition: tuple[str, int], *_args: object) -> None:
        self.led.add(partition)

    def follows(self, partition: tuple[str, int]) -> None:
        self.led.discard(partition)

    def isr(self, _partition: object) -> None:
        return None

    def on_give_up(self, callback: Callable[[TopicPartition], None]) -> None:
        self.give_up = callback


class Fixture:
    """A replica manager, and a controller's requests to it."""

    def __init__(self) -> None:
        self.logs, self.decider, self.metadata = DataPlane(), Decider(), MetadataCache("cluster")
        self.settings = NoSettings()
        self.manager = ReplicaManager(
            cast(Logs, self.logs),
            self.metadata,
            cast(TopicConfigs, self.settings),
            HERE,
            "A",
            self.report,
            cast(Any, self.decider),
        )
        self.reports, self.reported = 0, asyncio.Event()
        self.manager.broker_epoch = BROKER_EPOCH
        self.sender = Sender(OTHER, CONTROLLER_EPOCH, BROKER_EPOCH)

    async def report(self) -> None:
        """Tells the controller of a failed log directory."""
        self.reports += 1
        self.reported.set()

    def send(self, fill: Callable[[Pending], None], sender: Sender | None = None) -> list[dict[str, Any]]:
        """Sends what `fill` puts into a channel. Returns the answers."""

        async def deliver() -> list[dict[str, Any]]:
            pending, answers = Pending(), []
            fill(pending)
            brokers = {broker: BrokerInfo(broker, ()) for broker in (HERE, OTHER)}
            while (request := pending.take()) is not None:
                body = body_of(request, sender or self.sender, LiveBrokers(brokers.values()), "A")
                answers.append(await self.manager.request(request.api_key, 0, body))
            return answers

        return asyncio.run(deliver())

    def lead(self, topic: TopicInfo, sender: Sender | None = None) -> int:
        """Sends the leader of partition 0. Returns the error code of the request, or of the partition."""
        [answer] = self.send(lambda pending: pending.lead(topic, 0, new=True), sender)
        if answer["error_code"] != NONE:
            return int(answer["error_code"])
        return int(answer["topics"][0]["partition_errors"][0]["error_code"])

    def stop(self, topic: TopicInfo, delete: bool) -> int:
        [answer] = self.send(lambda pending: pending.stop(topic, 0, delete))
        return int(answer["partition_errors"][0]["error_code"])


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def topic(epoch: int, leader: BrokerId = HERE, replicas: tuple[BrokerId, ...] = (HERE, OTHER)) -> TopicInfo:
    state = PartitionState(leader, LeaderEpoch(epoch), replicas, ControllerEpoch(CONTROLLER_EPOCH))
    return TopicInfo("t", ID, {0: Replicas(replicas)}, {0: state})


ID = new_topic_id()


def test_an_older_controller_or_registration_is_refused(fixture: Fixture) -> None:
    assert fixture.lead(topic(1)) == NONE
    before = len(fixture.logs.specs)
    assert (
        fixture.lead(topic(2), Sender(HERE, CONTROLLER_EPOCH - 1, BROKER_EPOCH)) == StaleControllerEpoch.code
    )
    assert fixture.lead(topic(2), Sender(OTHER, CONTROLLER_EPOCH, BROKER_EPOCH - 1)) == StaleBrokerEpoch.code
    assert len(fixture.logs.specs) == before
    assert fixture.lead(topic(2), Sender(HERE, CONTROLLER_EPOCH + 1, BROKER_EPOCH)) == NONE
    assert fixture.lead(topic(3)) == StaleControllerEpoch.code


def test_a_broker_is_informed_once_it_has_the_partitions_that_the_metadata_places_on_it(
    fixture: Fixture,
) -> None:
    """Clients are answered from then on."""
    fixture.send(lambda pending: pending.publish("t", published(topic(1), {0: ()})))
    assert not fixture.manager.informed.is_set()
    fixture.lead(topic(1))
    assert fixture.manager.informed.is_set()


def test_a_broker_that_stops_follows_only_leaders_that_wait_for_it(fixture: Fixture) -> None:
    fixture.manager.leave()
    assert fixture.lead(topic(1, OTHER)) == NONE
    assert fixture.logs.specs[-1].leader_id == OTHER
    moved = topic(2, OTHER)
    moved.partitions[0] = replace(moved.partitions[0], isr=(OTHER,))
    assert fixture.lead(moved) == NONE
    assert fixture.logs.specs[-1].leader_id == NO_LEADER


def test_only_a_newer_leader_epoch_changes_a_partition(fixture: Fixture) -> None:
    assert fixture.lead(topic(5)) == NONE
    assert fixture.decider.led == {("t", 0)}
    assert fixture.lead(topic(5, OTHER)) == StaleControllerEpoch.code
    assert fixture.lead(topic(4, OTHER)) == StaleControllerEpoch.code
    assert [spec.leader_epoch for spec in fixture.logs.specs] == [5]
    assert fixture.lead(topic(6, OTHER)) == NONE
    assert fixture.decider.led == set()
    assert (fixture.logs.specs[-1].leader_id, fixture.logs.specs[-1].leader_epoch) == (OTHER, 6)


def test_a_partition_of_other_brokers_or_of_another_topic_of_the_name_is_refused(fixture: Fixture) -> None:
    assert fixture.lead(topic(1, OTHER, (OTHER,))) == UnknownTopicOrPartition.code
    assert fixture.lead(topic(1)) == NONE
    assert fixture.lead(replace(topic(2), id=new_topic_id())) == InconsistentTopicId.code


# If this failed, a leader with a full disk would refuse writes that other replicas could take, or could never
# be a replica again.
def test_a_partition_that_is_given_up_is_once_answered_as_on_a_failed_disk(fixture: Fixture) -> None:
    async def give_up() -> None:
        fixture.decider.give_up(TopicPartition("t", 0))
        fixture.decider.give_up(TopicPartition("t", 0))
        await fixture.reported.wait()

    assert fixture.lead(topic(5)) == NONE
    asyncio.run(give_up())
    assert fixture.reports == 1
    # The controller asks what the directory held, then makes another broker the leader.
    assert fixture.lead(topic(5)) == KafkaStorageError.code
    assert fixture.lead(topic(6, OTHER)) == NONE
    assert fixture.logs.specs[-1].leader_id == OTHER
    assert fixture.lead(topic(7)) == NONE


def test_a_log_that_cannot_be_opened_is_an_error_of_its_partition(fixture: Fixture) -> None:
    fixture.logs.fails = True
    assert fixture.lead(topic(1)) == KafkaStorageError.code
    fixture.logs.fails = False
    assert fixture.lead(topic(2)) == KafkaStorageError.code, "it stays offline until the next start"
    assert fixture.decider.led == set()


# If this failed, a topic would count as deleted while a disk that failed before the start keeps its records.
def test_a_deletion_waits_for_a_log_on_a_failed_disk(fixture: Fixture) -> None:
    fixture.logs.fails = True
    assert fixture.lead(topic(1)) == KafkaStorageError.code
    assert fixture.stop(topic(1), delete=True) == KafkaStorageError.code
    assert fixture.stop(topic(1), delete=False) == NONE
    assert fixture.stop(topic(1), delete=True) == KafkaStorageError.code


def test_a_stop_of_an_older_epoch_is_refused_and_a_deletion_is_above_any_epoch(fixture: Fixture) -> None:
    assert fixture.lead(topic(5)) == NONE
    assert fixture.stop(topic(4), delete=False) == FencedLeaderEpoch.code
    assert fixture.logs.stopped == []
    assert fixture.stop(topic(4), delete=True) == NONE
    assert fixture.logs.stopped == [("t", 0, True)]
    assert fixture.decider.led == set()
    # The name may be used again, by a topic with a lower epoch.
    assert fixture.lead(replace(topic(0), id=new_topic_id())) == NONE


def test_a_deleted_topic_leaves_the_metadata_and_a_withdrawn_one_keeps_its_offsets(fixture: Fixture) -> None:
    deleted: list[str] = []
    fixture.manager.on_topics_deleted(deleted.extend)
    for is_deleted in (False, True):
        fixture.send(lambda pending: pending.publish("t", published(topic(1), {0: []})))
        assert fixture.metadata.topic("t") is not None
        fixture.send(lambda pending, gone=is_deleted: pending.withdraw("t", withdrawal(topic(1), gone)))  # type: ignore[misc]
        assert fixture.metadata.topic("t") is None
        assert deleted == (["t"] if is_deleted else [])


# If this failed, clients would see a deleted topic for ever, as the last controller died before it said so.
def test_topics_that_the_coordinator_has_not_leave_the_metadata_with_a_new_controller(
    fixture: Fixture,
) -> None:
    fixture.send(lambda pending: pending.publish("t", published(topic(1), {0: []})))
    fixture.settings.names = set()
    fixture.send(lambda pending: pending.brokers_changed())
    assert fixture.metadata.topic("t") is not None, "this controller would have told it"
    fixture.send(lambda pending: pending.brokers_changed(), Sender(HERE, CONTROLLER_EPOCH + 1, BROKER_EPOCH))
    assert fixture.metadata.topic("t") is None
