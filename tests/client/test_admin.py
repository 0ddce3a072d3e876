"""If these fail, topics and groups cannot be managed from Python, or a failure is reported wrongly."""

from __future__ import annotations

import uuid

import confluent_kafka.admin
import pytest

from cluster import (
    OFFSET_INVALID,
    AdminClient,
    ConfigResource,
    ConfigSource,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicCollection,
    TopicPartition,
)
from tests.client.conftest import WAIT, NewConsumer, NewTopicFactory, poll_until, produce, read
from tests.conftest import BrokerProcess


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def code_of(caught: pytest.ExceptionInfo[KafkaException]) -> int:
    return caught.value.error.code()


def test_a_topic_from_creation_to_deletion(admin: AdminClient) -> None:
    name = f"life-{uuid.uuid4().hex}"
    created = admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "1234567"})])
    assert created[name].result(WAIT) is None
    listed = admin.list_topics(name, WAIT)
    assert sorted(listed.topics[name].partitions) == [0, 1, 2]
    assert listed.topics[name].error is None
    assert listed.brokers[listed.topics[name].partitions[0].leader].port > 0
    assert listed.cluster_id == admin.cluster_id(WAIT)
    described = admin.describe_topics(TopicCollection([name]))[name].result(WAIT)
    assert (described.name, described.is_internal, len(described.partitions)) == (name, False, 3)
    assert len(str(described.topic_id)) == 22
    assert described.partitions[0].leader == described.partitions[0].isr[0]
    resource = ConfigResource(ResourceType.TOPIC, name)
    settings = admin.describe_configs([resource])[resource].result(WAIT)
    assert settings["retention.ms"].value == "1234567"
    assert settings["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert not settings["retention.ms"].is_default
    assert settings["cleanup.policy"].is_default
    admin.create_partitions([NewPartitions(name, 5)])[name].result(WAIT)
    # Brokers learn of a change after the controller has made it.
    poll_until([], lambda: len(admin.list_topics(name, WAIT).topics[name].partitions) == 5)
    assert admin.delete_topics([name])[name].result(WAIT) is None
    poll_until([], lambda: name not in admin.list_topics(timeout=WAIT).topics)


def test_each_failure_is_in_its_own_future(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    there, fresh = new_topic(2), f"fresh-{uuid.uuid4().hex}"
    futures = admin.create_topics([NewTopic(there, 1, 1), NewTopic(fresh, 1, 1), NewTopic("bad name", 1, 1)])
    assert futures[fresh].result(WAIT) is None
    with pytest.raises(KafkaException) as exists:
        futures[there].result(WAIT)
    assert code_of(exists) == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as invalid:
        futures["bad name"].result(WAIT)
    assert code_of(invalid) == KafkaError.TOPIC_EXCEPTION
    with pytest.raises(KafkaException) as fewer:
        admin.create_partitions([NewPartitions(there, 1)])[there].result(WAIT)
    assert code_of(fewer) == KafkaError.INVALID_PARTITIONS
    with pytest.raises(KafkaException) as unknown:
        admin.delete_topics(["nowhere"])["nowhere"].result(WAIT)
    assert code_of(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(KafkaException) as missing:
        admin.describe_topics(TopicCollection(["nowhere"]))["nowhere"].result(WAIT)
    assert code_of(missing) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    name = f"dry-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(WAIT)
    assert name not in admin.list_topics(timeout=WAIT).topics


def test_brokers_settings(admin: AdminClient) -> None:
    [broker] = admin.list_topics(timeout=WAIT).brokers
    resource = ConfigResource("broker", str(broker))
    settings = admin.describe_configs([resource])[resource].result(WAIT)
    assert "log.dirs" in settings or "log.dir" in settings
    # Tools offer to alter the settings that are not read-only.
    assert not settings["log.cleaner.threads"].is_read_only
    assert settings["num.partitions"].is_read_only


def test_an_unreachable_cluster_fails_within_the_timeout(unused_port: int) -> None:
    with AdminClient({"bootstrap.servers": f"127.0.0.1:{unused_port}"}) as admin:
        with pytest.raises(KafkaException) as listing:
            admin.list_topics(timeout=0.3)
        assert code_of(listing) in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("t", 1, 1)], request_timeout=0.3)["t"].result(WAIT)


# Were this broken, a script would see other brokers than with confluent-kafka, or none.
def test_the_cluster_as_confluent_kafka_describes_it(admin: AdminClient, broker: BrokerProcess) -> None:
    ours = admin.describe_cluster().result(WAIT)
    theirs = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    described = theirs.describe_cluster().result(WAIT)
    assert ours.cluster_id == described.cluster_id
    assert ours.controller is not None
    assert ours.controller.id == described.controller.id
    assert [(node.id, node.host, node.port) for node in ours.nodes] == [
        (node.id, node.host, node.port) for node in described.nodes
    ]
    assert admin.poll(0) == 0


# Were this broken, lag would be computed from wrong ends of a partition.
def test_offsets_of_partitions(admin: AdminClient, broker: BrokerProcess, new_topic: NewTopicFactory) -> None:
    topic = new_topic(2)
    for stamp in (1000, 3000, 2000):
        produce(broker.bootstrap, topic, [b"v"], partition=0, timestamp=stamp)
    there, absent = TopicPartition(topic, 0), TopicPartition(topic, 9)

    def asked(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({there: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        result = found[there].result(WAIT)
        return result.offset, result.timestamp

    assert asked(OffsetSpec.earliest()) == (0, -1)
    assert asked(OffsetSpec.latest()) == (3, -1)
    assert asked(OffsetSpec.for_timestamp(1500)) == (1, 3000)
    assert asked(OffsetSpec.max_timestamp()) == (1, 3000)
    both = admin.list_offsets({there: OffsetSpec.latest(), absent: OffsetSpec.latest()})
    assert both[there].result(WAIT).offset == 3
    with pytest.raises(KafkaException):
        both[absent].result(WAIT)


# Were this broken, a group's committed offsets could not be read or set, or its members not be seen.
def test_a_groups_offsets_and_members(
    admin: AdminClient, broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, group = new_topic(2), uuid.uuid4().hex
    produce(broker.bootstrap, topic, [b"v"] * 5, partition=1)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 3, metadata="set by hand")])
    altered = admin.alter_consumer_group_offsets([wanted])[group].result(WAIT)
    assert altered.topic_partitions is not None
    assert [found.error for found in altered.topic_partitions] == [None]
    every = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(WAIT)
    assert every.topic_partitions is not None
    [found] = every.topic_partitions
    assert (found, found.offset, found.metadata) == (TopicPartition(topic, 1), 3, "set by hand")
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0), TopicPartition(topic, 1)])
    some = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(WAIT)
    assert some.topic_partitions is not None
    assert [found.offset for found in some.topic_partitions] == [OFFSET_INVALID, 3]

    consumer = new_consumer(group_id=group)
    consumer.subscribe([topic])
    assert [message.offset() for message in read(consumer, 2)] == [3, 4]
    [described] = admin.list_groups(group, WAIT)
    assert (described.id, described.error, described.state) == (group, None, "Stable")
    assert [member.id for member in described.members] == [consumer.memberid()]
    assert described.members[0].assignment
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(WAIT).valid
    assert group in {one.group_id for one in listed}
    assert admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(WAIT).valid == []
    with pytest.raises(ValueError, match="exactly one group"):
        admin.list_consumer_group_offsets([])
    with pytest.raises(ValueError, match="an offset are needed"):
        admin.alter_consumer_group_offsets([asked])


# Were this broken, the futures of a closed client would never be done.
def test_closing_fails_open_futures_and_later_calls(unused_port: int) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{unused_port}"})
    # More than the pool has threads, so that some have not begun.
    asked = [admin.describe_cluster() for _ in range(8)]
    admin.close()
    admin.close()
    for future in asked:
        assert isinstance(future.exception(WAIT), RuntimeError)
    for call in (admin.describe_cluster, admin.list_topics, admin.list_groups, admin.poll):
        with pytest.raises(RuntimeError, match="AdminClient has been closed"):
            call()
