"""What a handler is given: the request, and the parts of the broker it may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.broker.config import BrokerConfig
from cluster.broker.dynamic.driver import DynamicConfigs
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.broker.producer_ids import ProducerIds
from cluster.controller import Controller, MetadataCache
from cluster.errors import KafkaProtocolError
from cluster.groups import GroupCoordinator
from cluster.model import BrokerId, Endpoint

Body = dict[str, Any]
"""A decoded message: a key for each field, as the codec makes it."""


class Request(Protocol):
    """A request that crossed from the data plane (`logcore._native.Request`)."""

    @property
    def api_key(self) -> int:
        """Kafka's number of the API."""

    @property
    def api_version(self) -> int:
        """The version it was sent in, and is answered in."""

    @property
    def client_id(self) -> str | None:
        """What the client calls itself."""

    @property
    def connection_id(self) -> str:
        """The connection it came on."""

    @property
    def principal(self) -> str:
        """Who the client is."""

    @property
    def client_host(self) -> str:
        """The client's address."""

    @property
    def listener(self) -> str:
        """The listener it came in on."""

    @property
    def large(self) -> bool:
        """Whether a thread should be the first to ask for `body`."""

    @property
    def body(self) -> Body:
        """The decoded request."""

    def respond(self, body: Body, apart: bool = False) -> None:
        """Sends the answer; `apart` in a thread."""

    def close(self) -> None:
        """Closes the connection without an answer."""


class ReplicaLogs(Protocol):
    """What operators ask of this broker's logs (`logcore._native.Server`); all of it blocks."""

    def delete_records(self, offsets: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
        """Moves the starts of logs forward; error code and start of each."""

    def describe_log_dirs(
        self,
    ) -> list[tuple[str, tuple[int, int] | None, list[tuple[str, int, int, int, bool]]]]:
        """Path, space (None: offline) and replicas of each log directory."""

    def alter_replica_log_dirs(self, moves: list[tuple[str, int, str]]) -> list[int]:
        """Begins to move logs to other directories; error codes."""

    def describe_producers(
        self, topic: str, partition: int
    ) -> tuple[int, list[tuple[int, int, int, int, int, int]]]:
        """Error code, and the producers whose state the log keeps."""


@dataclass(frozen=True, slots=True)
class Context:
    """The broker, as handlers see it."""

    broker_id: BrokerId
    dynamic: DynamicConfigs
    metadata: MetadataCache
    controller: Controller
    groups: GroupCoordinator
    producer_ids: ProducerIds
    ensure_offsets_topic: Callable[[], Awaitable[None]]
    logs: ReplicaLogs

    def has_partition(self, topic: str, partition: int) -> bool:
        """Whether the cluster has a partition, here or elsewhere."""
        info = self.metadata.topic(topic)
        return info is not None and partition in info.assignment

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings as they are now."""
        return self.dynamic.live.current

    def endpoint_of(self, broker: BrokerId, listener: str) -> Endpoint | None:
        """Where clients of `listener` reach a broker."""
        info = self.metadata.brokers.get(broker)
        return info.endpoint(listener) if info is not None else None


TOPIC_OPERATIONS = 3576
GROUP_OPERATIONS = 328
CLUSTER_OPERATIONS = 8096
OPERATIONS_NOT_ASKED = -(2**31)
"""Bit fields of all operations there are on a topic, a group, a cluster (AclEntry.supportedOperations):
without an authorizer everybody may do everything.
"""


def mutation_quota(context: Context, request: Request, strict_since: int) -> MutationQuota:
    """What the client may create and delete; from version `strict_since` on it is refused what is above."""
    strict = request.api_version >= strict_since
    return context.dynamic.mutations.of(request.principal, request.client_id or "", strict)


def told(error: KafkaProtocolError) -> str | None:
    """What an answer says of an error beside its code; nothing when that is all there is to say (`ApiError`)."""
    return None if str(error) == error.message else str(error)
