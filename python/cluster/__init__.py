"""Kafka clients and a Kafka broker for Python.

The names below have confluent-kafka's shape. A script moves over by changing its imports: both
`from confluent_kafka import …` and `from confluent_kafka.admin import …` become `from cluster import …`.

The distribution is `logcore-stream`; its import names are `logcore` and `cluster`. PyPI has an unrelated
package `cluster`, which has the same import name: the two cannot be installed in one environment.

The names come from `cluster.client`, which is imported when the first of them is used. So the broker and the
coordinator, which are in this package too, need not load the clients.

What confluent-kafka has and this package does not have yet is missing by name, so a script that needs it
stops at its import or call:

    TLS and SASL     set_sasl_credentials; a security.protocol other than plaintext is refused
    schemas          SerializingProducer, DeserializingConsumer, deserialized_key and deserialized_value of a
                     Message, the modules serialization, schema_registry, avro
    other clients    produce_batch and Messages, ShareConsumer and its types, the module aio
    AdminClient      delete_records, create_acls, describe_acls, delete_acls, their types, and authorized
                     operations
    helpers          version, libversion, murmur2, consistent, fnv1a, ThrottleEvent; RESOURCE_* and
                     CONFIG_SOURCE_* (the enums ResourceType and ConfigSource are there)

    Exception
    ├── KafkaException            args[0] (also .error) is a KafkaError: code(), name(), str(), retriable(),
    │                             fatal(), txn_requires_abort()
    ├── BufferError               Producer.produce: the queue is full; poll() and try again
    ├── RuntimeError              the client was closed, or made before a fork
    ├── TypeError, ValueError     an argument of the wrong type or value
    └── KafkaProtocolError        cluster.errors: one class per Kafka error code, for programs that use the
                                  protocol
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.client import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TIMESTAMP_CREATE_TIME,
        TIMESTAMP_LOG_APPEND_TIME,
        TIMESTAMP_NOT_AVAILABLE,
        AdminClient,
        AlterConfigOpType,
        BrokerMetadata,
        ClusterMetadata,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        Consumer,
        ConsumerGroupDescription,
        ConsumerGroupListing,
        ConsumerGroupState,
        ConsumerGroupTopicPartitions,
        ConsumerGroupType,
        DescribeClusterResult,
        ElectionType,
        GroupMember,
        GroupMetadata,
        IsolationLevel,
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
        ResourceType,
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

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AdminClient",
    "AlterConfigOpType",
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
    "ElectionType",
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
    "ScramCredentialInfo",
    "ScramMechanism",
    "TopicCollection",
    "TopicDescription",
    "TopicMetadata",
    "TopicPartition",
    "TopicPartitionInfo",
    "UserScramCredentialAlteration",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
    "UserScramCredentialsDescription",
    "Uuid",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cluster' has no attribute {name!r}")
    from cluster import client

    value = getattr(client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
