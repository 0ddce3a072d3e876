"""Clients of a Kafka cluster in confluent-kafka's shape: `Producer`, `Consumer`, `AdminClient`.

Owns configuration, group membership, administration and the types that applications use. The extension owns
connections, batching and fetching. Each client has one native thread; a consumer has up to three Python
threads for its group, commits and look-ups, and an admin client four. Imports `cluster.errors` and `logcore`
only. After `fork` a client raises RuntimeError in the child.

Failures:

    Exception
    ├── KafkaException            args[0] (also .error) is a KafkaError: code(), name(), str(), retriable()
    ├── BufferError               Producer.produce: the queue is full; poll() and try again
    ├── RuntimeError              the client was closed, or made before a fork
    └── TypeError, ValueError     an argument of the wrong type or value
"""

from __future__ import annotations

from logcore._native import Message

from ._admin import AdminClient
from ._admin_types import (
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    DescribeClusterResult,
    GroupMember,
    GroupMetadata,
    IsolationLevel,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    MemberAssignment,
    MemberDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicCollection,
    TopicDescription,
    TopicPartitionInfo,
)
from ._consumer import Consumer
from ._errors import KafkaError, KafkaException
from ._producer import Producer
from ._types import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    BrokerMetadata,
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
    Uuid,
)

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AdminClient",
    "BrokerMetadata",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "Consumer",
    "ConsumerGroupDescription",
    "ConsumerGroupListing",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DescribeClusterResult",
    "GroupMember",
    "GroupMetadata",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "ListConsumerGroupsResult",
    "ListOffsetsResultInfo",
    "MemberAssignment",
    "MemberDescription",
    "Message",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetSpec",
    "PartitionMetadata",
    "Producer",
    "ResourceType",
    "TopicCollection",
    "TopicDescription",
    "TopicMetadata",
    "TopicPartition",
    "TopicPartitionInfo",
    "Uuid",
]
