"""The arguments of a handler: the request, and the parts of the broker it may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.broker.auto_topics import AutoTopics
from cluster.broker.config import BrokerConfig
from cluster.broker.dynamic.driver import DynamicConfigs
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.broker.features import Features
from cluster.broker.producer_ids import ProducerIds
from cluster.broker.replicas import MetadataCache, ReplicaManager, TopicConfigs
from cluster.broker.verification import TransactionVerification
from cluster.controller import Controller
from cluster.errors import KafkaProtocolError
from cluster.groups import GroupCoordinator
from cluster.model import BrokerId, Endpoint
from cluster.peer import Body as Body
from cluster.state_topics import StateTopicLog
from cluster.transactions import TransactionCoordinator


class Request(Protocol):
    """A request that crossed from the data plane (`logcore._native.Request`)."""

    @property
    def api_key(self) -> int:
        """Kafka's number of the API."""

    @property
    def api_version(self) -> int:
        """The version of the request and its response."""

    @property
    def client_id(self) -> str | None:
        """The client's id."""

    @property
    def connection_id(self) -> str:
        """The id of its connection."""

    @property
    def principal(self) -> str:
        """The client's principal."""

    @property
    def client_host(self) -> str:
        """The client's address."""

    @property
    def listener(self) -> str:
        """The listener of its connection."""

    @property
    def large(self) -> bool:
        """`body` takes long to decode, so a thread should read it first."""

    @property
    def body(self) -> Body:
        """The decoded request."""

    def respond(self, body: Body, release_gil: bool = False) -> None:
        """Sends the response. A thread passes `release_gil` for a long response."""

    def close(self) -> None:
        """Closes the connection without a response."""


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """A request of this broker to itself, for example to the controller. It has no connection."""

    api_key: int
    api_version: int
    body: Body
    client_id: str | None = None
    connection_id: str = ""
    principal: str = "User:ANONYMOUS"
    client_host: str = ""
    listener: str = ""
    large: bool = False

    def respond(self, body: Body, release_gil: bool = False) -> None:
        """The handler's result is returned instead."""

    def close(self) -> None:
        """There is no connection."""


class ReplicaLogs(Protocol):
    """Operators' requests on this broker's logs (`logcore._native.Server`). Every method blocks."""

    def delete_records(self, offsets: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
        """Moves the starts of logs forward. Returns error code and log start of each."""

    def describe_log_dirs(
        self,
    ) -> list[tuple[str, tuple[int, int] | None, list[tuple[str, int, int, int, bool]]]]:
        """Path, space (None if offline) and replicas of each log directory."""

    def alter_replica_log_dirs(self, moves: list[tuple[str, int, str]]) -> list[int]:
        """Begins to move logs to other directories. Returns error codes."""

    def describe_producers(
        self, topic: str, partition: int
    ) -> tuple[int, list[tuple[int, int, int, int, int, int]]]:
        """Error code, and the producers that the log has state of."""


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the broker that handlers use."""

    broker_id: BrokerId
    dynamic: DynamicConfigs
    metadata: MetadataCache
    controller: Controller
    replicas: ReplicaManager
    topic_configs: TopicConfigs
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    state_log: StateTopicLog
    verification: TransactionVerification
    producer_ids: ProducerIds
    features: Features
    auto_topics: AutoTopics
    logs: ReplicaLogs

    def has_partition(self, topic: str, partition: int) -> bool:
        """The cluster has the partition, on this broker or another."""
        info = self.metadata.topic(topic)
        return info is not None and partition in info.assignment

    @property
    def config(self) -> BrokerConfig:
        """The broker's current settings."""
        return self.dynamic.live.current

    def endpoint_of(self, broker: BrokerId, listener: str) -> Endpoint | None:
        """The endpoint of a broker for clients of `listener`."""
        info = self.metadata.brokers.get(broker)
        return info.endpoint(listener) if info is not None else None


TOPIC_OPERATIONS = 3576
GROUP_OPERATIONS = 328
CLUSTER_OPERATIONS = 8096
OPERATIONS_NOT_REQUESTED = -(2**31)
"""Bit fields of all operations on a topic, a group, a cluster (AclEntry.supportedOperations). Without an
authorizer every client may do everything.
"""


def mutation_quota(context: Context, request: Request, strict_since: int) -> MutationQuota:
    """The client's quota of creations and deletions. From version `strict_since` on, requests above it are
    refused.
    """
    strict = request.api_version >= strict_since
    return context.dynamic.mutations.of(request.principal, request.client_id or "", strict)


def error_message(error: KafkaProtocolError) -> str | None:
    """The error's message in a response. As Kafka's `ApiError`: None if it is the standard message of the
    code.
    """
    return None if str(error) == error.message else str(error)
