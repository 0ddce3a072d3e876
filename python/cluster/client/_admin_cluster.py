"""Operations on replicas, log directories and quotas.

`elect_leaders` is `AdminClient`'s. confluent-kafka has none of the others; they are functions that take an
AdminClient. All run in the calling thread and raise KafkaException.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ._admin_configs import Resource, alter, describe
from ._admin_types import ElectionType
from ._admin_users import UserScramCredentialsDescription, describe_scram
from ._errors import KafkaError, KafkaException, failure_of
from ._requests import ANY_BROKER, Requests, ask_controller
from ._types import TopicPartition, error_of

TIMEOUT = 60.0


class Administers(Protocol):
    """An AdminClient, whose module imports this one."""

    _requests: Requests


@dataclass(unsafe_hash=True)
class PartitionReassignment:
    """A reassignment under way. `replicas` has those that are added and removed, too."""

    replicas: list[int] = field(hash=False)
    adding_replicas: list[int] = field(hash=False)
    removing_replicas: list[int] = field(hash=False)


class TopicPartitionReplica(NamedTuple):
    """A partition's replica on one broker."""

    topic: str
    partition: int
    broker: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker}"


@dataclass(unsafe_hash=True)
class ReplicaInfo:
    """A replica in a log directory. A future one is a copy that will replace the one of another directory."""

    size: int
    offset_lag: int
    is_future: bool


@dataclass(unsafe_hash=True)
class LogDirDescription:
    """A log directory of a broker; `error` when it is offline."""

    error: KafkaError | None
    replicas: dict[TopicPartition, ReplicaInfo] = field(hash=False)


class QuotaFilter(NamedTuple):
    """Which entities of a type (user, client-id, ip): all (`any`), the default, or the one of this name."""

    entity_type: str
    name: str | None = None
    any: bool = False


@dataclass(unsafe_hash=True)
class ClientQuota:
    """The quotas of an entity. Its parts are by type; the name None is the default."""

    entity: dict[str, str | None] = field(hash=False)
    values: dict[str, float] = field(hash=False)


def elect_leaders(
    requests: Requests,
    election_type: ElectionType,
    partitions: list[TopicPartition] | None,
    operation_timeout: float,
    timeout: float,
) -> dict[TopicPartition, KafkaException | None]:
    """ElectLeaders at the controller; None asks for all partitions."""
    message = {
        "election_type": election_type.value,
        "topic_partitions": None
        if partitions is None
        else [{"topic": topic, "partitions": numbers} for topic, numbers in _by_topic(partitions).items()],
        "timeout_ms": int(operation_timeout * 1000),
    }

    def codes(response: dict[str, Any]) -> Iterable[int]:
        yield response.get("error_code", 0)
        for topic in response["replica_election_results"]:
            yield from (result["error_code"] for result in topic["partition_result"])

    response = ask_controller(requests, "ElectLeaders", message, codes, timeout)
    # Version 0 has no error code of its own.
    if failure := error_of(response.get("error_code", 0)):
        raise KafkaException(failure)
    return {
        TopicPartition(topic["topic"], result["partition_id"]): failure_of(result)
        for topic in response["replica_election_results"]
        for result in topic["partition_result"]
    }


def list_partition_reassignments(
    admin: Administers, partitions: Iterable[TopicPartition] | None = None, *, timeout: float = TIMEOUT
) -> dict[TopicPartition, PartitionReassignment]:
    """The reassignments under way, of these partitions or of all."""
    topics = None
    if partitions is not None:
        topics = [
            {"name": topic, "partition_indexes": numbers} for topic, numbers in _by_topic(partitions).items()
        ]
    message = {"timeout_ms": int(timeout * 1000), "topics": topics}
    response = ask_controller(admin._requests, "ListPartitionReassignments", message, _own_code, timeout)
    if failure := failure_of(response):
        raise failure
    return {
        TopicPartition(topic["name"], found["partition_index"]): PartitionReassignment(
            found["replicas"], found["adding_replicas"], found["removing_replicas"]
        )
        for topic in response["topics"]
        for found in topic["partitions"]
    }


def alter_partition_reassignments(
    admin: Administers,
    reassignments: dict[TopicPartition, list[int] | None],
    *,
    timeout: float = TIMEOUT,
) -> dict[TopicPartition, KafkaError | None]:
    """Starts reassignments to these brokers; None cancels one. The error of each partition, or None."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, replicas in reassignments.items():
        change = {"partition_index": partition.partition, "replicas": replicas}
        topics.setdefault(partition.topic, []).append(change)
    message = {
        "timeout_ms": int(timeout * 1000),
        "topics": [{"name": name, "partitions": changes} for name, changes in topics.items()],
    }
    response = ask_controller(admin._requests, "AlterPartitionReassignments", message, _own_code, timeout)
    if failure := failure_of(response):
        raise failure
    return {
        TopicPartition(topic["name"], found["partition_index"]): error_of(
            found["error_code"], found["error_message"]
        )
        for topic in response["responses"]
        for found in topic["partitions"]
    }


def describe_log_dirs(
    admin: Administers, brokers: Iterable[int], *, timeout: float = TIMEOUT
) -> dict[int, dict[str, LogDirDescription]]:
    """The log directories of brokers with their replicas, by broker and path."""
    found = {}
    for broker in brokers:
        response = admin._requests.send_until(
            "DescribeLogDirs", {"topics": None}, broker=broker, timeout=timeout
        )
        if failure := error_of(response.get("error_code", 0)):
            raise KafkaException(failure)
        found[broker] = {
            result["log_dir"]: LogDirDescription(
                error_of(result["error_code"]),
                {
                    TopicPartition(topic["name"], replica["partition_index"]): ReplicaInfo(
                        replica["partition_size"], replica["offset_lag"], replica["is_future_key"]
                    )
                    for topic in result["topics"]
                    for replica in topic["partitions"]
                },
            )
            for result in response["results"]
        }
    return found


def alter_replica_log_dirs(
    admin: Administers, moves: dict[TopicPartitionReplica, str], *, timeout: float = TIMEOUT
) -> dict[TopicPartitionReplica, KafkaError | None]:
    """Moves replicas to other log directories of their brokers. The error of each replica, or None."""
    found: dict[TopicPartitionReplica, KafkaError | None] = {}
    for broker in sorted({replica.broker for replica in moves}):
        paths: dict[str, dict[str, list[int]]] = {}
        for replica, path in moves.items():
            if replica.broker == broker:
                paths.setdefault(path, {}).setdefault(replica.topic, []).append(replica.partition)
        message = {
            "dirs": [
                {
                    "path": path,
                    "topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
                }
                for path, topics in paths.items()
            ]
        }
        response = admin._requests.send_until("AlterReplicaLogDirs", message, broker=broker, timeout=timeout)
        for result in response["results"]:
            for one in result["partitions"]:
                replica = TopicPartitionReplica(result["topic_name"], one["partition_index"], broker)
                found[replica] = error_of(one["error_code"])
    return found


def describe_config_entries(
    admin: Administers, resource_type: int, name: str, *, timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """The settings of a resource of any type as the protocol has them, with every synonym in its order."""
    resource: Resource = (resource_type, name)
    found = describe(admin._requests, [resource], timeout).get(resource, [])
    if isinstance(found, KafkaException):
        raise found
    return found


def alter_config_entries(
    admin: Administers,
    resource_type: int,
    name: str,
    changes: list[dict[str, Any]],
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Changes settings of a resource of any type; `changes` are entries of IncrementalAlterConfigs."""
    answers = alter(
        admin._requests,
        "IncrementalAlterConfigs",
        {(resource_type, name): changes},
        validate_only=False,
        broker=ANY_BROKER,
        timeout=timeout,
    )
    for failure in answers.values():
        if failure is not None:
            raise failure


def describe_scram_credentials(
    admin: Administers, users: list[str] | None, *, timeout: float = TIMEOUT
) -> dict[str, UserScramCredentialsDescription | KafkaError]:
    """The SCRAM credentials of these users, or of all, or the error of a user, in the broker's order."""
    found = describe_scram(admin._requests, users, timeout)
    return {user: one.error if isinstance(one, KafkaException) else one for user, one in found.items()}


def list_client_metrics_resources(admin: Administers, *, timeout: float = TIMEOUT) -> list[str]:
    """The names of subscriptions to clients' metrics (KIP-714)."""
    response = admin._requests.send_until(
        "ListConfigResources", {"resource_types": []}, timeout=timeout, newest=0
    )
    if failure := failure_of(response):
        raise failure
    return [resource["resource_name"] for resource in response["config_resources"]]


def describe_client_quotas(
    admin: Administers, filters: list[QuotaFilter], *, timeout: float = TIMEOUT
) -> list[ClientQuota]:
    """The quotas of the entities that have exactly the filters' types and match all of them."""
    components = [
        {
            "entity_type": one.entity_type,
            "match_type": 2 if one.any else 0 if one.name is not None else 1,
            "match": None if one.any else one.name,
        }
        for one in filters
    ]
    message = {"components": components, "strict": True}
    response = admin._requests.send_until("DescribeClientQuotas", message, timeout=timeout)
    if failure := failure_of(response):
        raise failure
    return [
        ClientQuota(
            {part["entity_type"]: part["entity_name"] for part in entry["entity"]},
            {value["key"]: value["value"] for value in entry["values"]},
        )
        for entry in response["entries"] or []
    ]


def alter_client_quotas(
    admin: Administers,
    entity: dict[str, str | None],
    changes: dict[str, float | None],
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Sets quotas of an entity; None removes one."""
    message = {
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                "ops": [
                    {"key": key, "value": value or 0.0, "remove": value is None}
                    for key, value in changes.items()
                ],
            }
        ],
        "validate_only": False,
    }

    def codes(response: dict[str, Any]) -> Iterable[int]:
        return [entry["error_code"] for entry in response["entries"]]

    response = ask_controller(admin._requests, "AlterClientQuotas", message, codes, timeout)
    for entry in response["entries"]:
        if failure := failure_of(entry):
            raise failure


def api_versions(admin: Administers, broker: int, *, timeout: float = TIMEOUT) -> dict[int, tuple[int, int]]:
    """The lowest and highest version of each API that a broker serves, by the API's key."""
    message = {"client_software_name": "logcore", "client_software_version": "1"}
    response = admin._requests.send_until("ApiVersions", message, broker=broker, timeout=timeout)
    if failure := failure_of(response):
        raise failure
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in response["api_keys"]}


def known_api_versions() -> dict[int, tuple[str, int, int]]:
    """The name, and the lowest and highest version that this package knows, of each API by its key."""
    from logcore import _native

    return {key: (name, *_native.valid_versions(key)) for name, key in _native.api_keys().items()}


class FetchedReplica(NamedTuple):
    """What a replica answered: its high watermark, -1 if there is no answer, and its batches' bytes."""

    high_watermark: int
    records: bytes


DEBUGGING_CONSUMER = -2
"""The replica id with which brokers serve any replica, not only the leader's."""
_FETCH_BYTES = 50 * 1024 * 1024


def fetch_replicas(
    admin: Administers,
    offsets: dict[int, dict[TopicPartition, int]],
    *,
    partition_bytes: int,
    wait: float,
    timeout: float = TIMEOUT,
) -> dict[int, dict[TopicPartition, FetchedReplica]]:
    """Fetches partitions from these brokers at once, whether they lead them or not, from these offsets.

    A broker that cannot be reached, and a partition with an error, answer with nothing.
    """

    def fetch(broker: int) -> dict[TopicPartition, FetchedReplica]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition, offset in offsets[broker].items():
            asked = {
                "partition": partition.partition,
                "fetch_offset": offset,
                "partition_max_bytes": partition_bytes,
            }
            topics.setdefault(partition.topic, []).append(asked)
        message = {
            "replica_id": DEBUGGING_CONSUMER,
            "max_wait_ms": int(wait * 1000),
            "min_bytes": 1,
            "max_bytes": _FETCH_BYTES,
            "topics": [{"topic": name, "partitions": asked} for name, asked in topics.items()],
        }
        found = dict.fromkeys(offsets[broker], FetchedReplica(-1, b""))
        try:
            # From version 13 on topics are named by their ids.
            response = admin._requests.send("Fetch", message, broker=broker, timeout=timeout, newest=12)
        except KafkaException:
            return found
        for topic in response["responses"]:
            for answer in topic["partitions"]:
                partition = TopicPartition(topic["topic"], answer["partition_index"])
                if not answer["error_code"]:
                    found[partition] = FetchedReplica(answer["high_watermark"], answer["records"] or b"")
        return found

    with ThreadPoolExecutor(max(len(offsets), 1)) as pool:
        return dict(zip(offsets, pool.map(fetch, offsets), strict=True))


def _own_code(response: dict[str, Any]) -> Iterable[int]:
    return [response["error_code"]]


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics
