"""If these fail, a script cannot pickle, copy, compare or hash what a client gave it."""

from __future__ import annotations

import copy
import enum
import pickle
import uuid

import confluent_kafka
import confluent_kafka.admin
import pytest

import cluster.client
from cluster import (
    AdminClient,
    BrokerMetadata,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    Consumer,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    DescribeClusterResult,
    GroupMember,
    GroupMetadata,
    KafkaError,
    KafkaException,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    MemberAssignment,
    MemberDescription,
    Message,
    NewPartitions,
    NewTopic,
    Node,
    OffsetSpec,
    PartitionMetadata,
    Producer,
    ScramCredentialInfo,
    ScramMechanism,
    TopicCollection,
    TopicDescription,
    TopicMetadata,
    TopicPartition,
    TopicPartitionInfo,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialsDescription,
    UserScramCredentialUpsertion,
    Uuid,
)
from cluster.client import (
    ClientQuota,
    ConsumerGroupMetadata,
    FetchedReplica,
    LogDirDescription,
    PartitionReassignment,
    ProducerState,
    QuotaFilter,
    ReplicaInfo,
    TopicPartitionReplica,
    TransactionDescription,
    TransactionListing,
)
from tests.client.conftest import NewConsumer, NewTopicFactory, produce, read
from tests.conftest import BrokerProcess

NODE = Node(1, "host", 9092, "rack")
ERROR = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "why", True)
PARTITION = TopicPartition("t", 1, 5, "metadata", 3)
SCRAM = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
MESSAGE = {
    "topic": "t",
    "partition": 1,
    "offset": 5,
    "key": b"k",
    "value": b"v",
    "headers": [("h", b"1"), ("n", None)],
    "error": ERROR,
    "timestamp": (1, 1000),
    "leader_epoch": 3,
}
VALUES = [
    BrokerMetadata(1, "host", 9092),
    ClientQuota({"user": "u", "ip": None}, {"producer_byte_rate": 1.0}),
    ClusterMetadata("id", 1, {1: BrokerMetadata(1)}, {"t": TopicMetadata("t")}),
    ConfigEntry("name", "value"),
    ConfigResource("topic", "t", {"a": "1"}),
    ConsumerGroupDescription("g", False, [], "range", ConsumerGroupState.STABLE, NODE),
    ConsumerGroupListing("g", False),
    ConsumerGroupMetadata("g", 3, "m", "i"),
    ConsumerGroupTopicPartitions("g", [PARTITION]),
    DescribeClusterResult(NODE, [NODE], "id"),
    GroupMember("m", "client", "host", b"1", b"2"),
    GroupMetadata(BrokerMetadata(1), "g", None, "Stable", "consumer", "range"),
    ERROR,
    FetchedReplica(5, b"records"),
    ListConsumerGroupsResult([ConsumerGroupListing("g", True)]),
    ListOffsetsResultInfo(1, 2, 3),
    LogDirDescription(ERROR, {PARTITION: ReplicaInfo(1, 2, False)}),
    MemberAssignment([PARTITION]),
    MemberDescription("m", "client", "host", MemberAssignment([PARTITION])),
    Message(**MESSAGE, latency=0.5),
    NewPartitions("t", 3, [[1]]),
    NewTopic("t", 3, 1, config={"a": "1"}),
    NODE,
    OffsetSpec.for_timestamp(5),
    PartitionMetadata(1, 2, [2], [2], ERROR),
    PartitionReassignment([1, 2], [2], [1]),
    ProducerState(1, 2, 3, 4, 5, -1),
    QuotaFilter("user", "u"),
    ReplicaInfo(1, 2, False),
    SCRAM,
    TopicCollection(["t"]),
    TransactionDescription(0, "x", 1, 2, "Ongoing", 60_000, 5, [PARTITION]),
    TransactionListing("x", 1, "Ongoing"),
    TopicDescription("t", Uuid(1, 2), False, [TopicPartitionInfo(0, NODE, [NODE], [NODE])]),
    TopicMetadata("t", {1: PartitionMetadata(1)}, ERROR),
    PARTITION,
    TopicPartitionInfo(0, NODE, [NODE], [NODE]),
    TopicPartitionReplica("t", 1, 2),
    UserScramCredentialAlteration("u"),
    UserScramCredentialDeletion("u", ScramMechanism.SCRAM_SHA_512),
    UserScramCredentialUpsertion("u", SCRAM, b"password", b"salt"),
    UserScramCredentialsDescription("u", [SCRAM]),
    Uuid(1, 2),
]


def shown(value: object) -> object:
    """Everything visible of a value."""
    if isinstance(value, Message):
        names = ["latency", *(name for name in MESSAGE)]
        return {name: shown(getattr(value, name)()) for name in names}
    return repr(value), vars(value) if hasattr(value, "__dict__") else None


def test_every_public_type_is_tried() -> None:
    clients = {AdminClient, Consumer, Producer, KafkaException}
    public = {getattr(cluster.client, name) for name in cluster.client.__all__}
    kinds = {kind for kind in public if isinstance(kind, type) and not issubclass(kind, enum.Enum)}
    assert {type(value) for value in VALUES} == kinds - clients


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_copied_pickled_and_compared(value: object) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert again == value
        assert shown(again) == shown(value)
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert value != object()
    assert (value == 5) is False
    if isinstance(value, Message):
        # As confluent-kafka's: a message can be changed.
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)
    else:
        assert hash(pickle.loads(pickle.dumps(value))) == hash(value)


def test_a_partitions_error_goes_along() -> None:
    partition = TopicPartition("t", 1)
    partition.error = ERROR
    assert pickle.loads(pickle.dumps(partition)).error == ERROR
    assert copy.copy(partition).error is ERROR


# Were this broken, messages that confluent-kafka tells apart would be equal here, or the other way round.
@pytest.mark.parametrize("name", [*MESSAGE, "latency"])
def test_messages_differ_by_what_confluent_kafkas_differ_by(name: str) -> None:
    other = {
        "topic": "u",
        "partition": 2,
        "offset": 6,
        "key": None,
        "value": b"",
        "headers": None,
        "error": None,
        "timestamp": (1, 2000),
        "leader_epoch": 4,
        "latency": 1.0,
    }
    given = {**MESSAGE, "latency": 0.5}
    ours = Message(**given) == Message(**{**given, name: other[name]})
    theirs_error = confluent_kafka.KafkaError(3, "why")
    theirs_given = {**given, "error": theirs_error}
    theirs = confluent_kafka.Message(**theirs_given) == confluent_kafka.Message(
        **{**theirs_given, name: other[name]}
    )
    assert ours is theirs


def test_topics_and_resources_are_ordered_as_confluent_kafkas() -> None:
    for module in (cluster, confluent_kafka.admin):
        topics = [module.NewTopic("b", 1, 1), module.NewTopic("a", 2, 1), module.NewTopic("a", 1, 9)]
        assert [(found.topic, found.num_partitions) for found in sorted(topics)] == [
            ("a", 1),
            ("a", 2),
            ("b", 1),
        ]
        assert len({module.NewTopic("a", 1, 1), module.NewTopic("a", 1, 2)}) == 1
        resources = [module.ConfigResource("broker", "a"), module.ConfigResource("topic", "b")]
        assert [found.name for found in sorted(resources)] == ["b", "a"]


class Tagged(Message):
    """An application's own message, with an attribute."""

    tag = ""


def test_a_subclass_keeps_its_attributes() -> None:
    message = Tagged(**MESSAGE)
    message.tag = "mine"
    again = pickle.loads(pickle.dumps(message))
    assert (type(again), again.tag) == (Tagged, "mine")
    assert again == message == Message(**MESSAGE)


def test_a_consumed_and_a_delivered_message(
    broker: BrokerProcess, new_topic: NewTopicFactory, new_consumer: NewConsumer
) -> None:
    topic, delivered = new_topic(), list[Message]()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(
        topic, b"v", b"k", headers={"h": b"1"}, on_delivery=lambda _, report: delivered.append(report)
    )
    produce(broker.bootstrap, topic, [b"other"])
    assert producer.flush() == 0
    consumer = new_consumer(group_id=uuid.uuid4().hex)
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumed = read(consumer, 2)
    for message in (*consumed, *delivered):
        again = pickle.loads(pickle.dumps(message))
        assert again == message
        assert shown(again) == shown(message)
    assert consumed[0] != consumed[1]
