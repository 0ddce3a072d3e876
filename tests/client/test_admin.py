"""If these fail, topics and their settings cannot be managed from Python, or a failure is told wrongly."""

from __future__ import annotations

import uuid

import pytest

from cluster import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    KafkaError,
    KafkaException,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicCollection,
)
from tests.client.conftest import WAIT, NewTopicFactory, poll_until
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
    # Brokers may learn of a change a moment after the controller has made it.
    poll_until([], lambda: len(admin.list_topics(name, WAIT).topics[name].partitions) == 5)
    assert admin.delete_topics([name])[name].result(WAIT) is None
    poll_until([], lambda: name not in admin.list_topics(timeout=WAIT).topics)


def test_each_failure_is_its_own_futures(admin: AdminClient, new_topic: NewTopicFactory) -> None:
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


def test_an_unreachable_cluster_is_told_within_the_timeout(unused_port: int) -> None:
    with AdminClient({"bootstrap.servers": f"127.0.0.1:{unused_port}"}) as admin:
        with pytest.raises(KafkaException) as listing:
            admin.list_topics(timeout=0.3)
        assert code_of(listing) in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("t", 1, 1)], request_timeout=0.3)["t"].result(WAIT)
