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
from ._admin_cluster import (
    ClientQuota,
    FetchedReplica,
    LogDirDescription,
    PartitionReassignment,
    QuotaFilter,
    ReplicaInfo,
    TopicPartitionReplica,
    alter_client_quotas,
    alter_config_entries,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    describe_client_quotas,
    describe_config_entries,
    describe_log_dirs,
    describe_scram_credentials,
    fetch_replicas,
    known_api_versions,
    list_client_metrics_resources,
    list_partition_reassignments,
)
from ._admin_types import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
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
from ._admin_users import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialsDescription,
    UserScramCredentialUpsertion,
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
    "AlterConfigOpType",
    "BrokerMetadata",
    "ClientQuota",
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
    "FetchedReplica",
    "GroupMember",
    "GroupMetadata",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "ListConsumerGroupsResult",
    "ListOffsetsResultInfo",
    "LogDirDescription",
    "MemberAssignment",
    "MemberDescription",
    "Message",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetSpec",
    "PartitionMetadata",
    "PartitionReassignment",
    "Producer",
    "QuotaFilter",
    "ReplicaInfo",
    "ResourceType",
    "ScramCredentialInfo",
    "ScramMechanism",
    "TopicCollection",
    "TopicDescription",
    "TopicMetadata",
    "TopicPartition",
    "TopicPartitionInfo",
    "TopicPartitionReplica",
    "UserScramCredentialAlteration",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
    "UserScramCredentialsDescription",
    "Uuid",
    "alter_client_quotas",
    "alter_config_entries",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "api_versions",
    "describe_client_quotas",
    "describe_config_entries",
    "describe_log_dirs",
    "describe_scram_credentials",
    "fetch_replicas",
    "known_api_versions",
    "list_client_metrics_resources",
    "list_partition_reassignments",
]
