"""Kafka's znodes: their paths and their JSON, byte for byte as Kafka 3.9 in ZooKeeper mode writes it.

JSON has no spaces, as Jackson writes it. Decoders take the versions that older Kafka releases wrote and
ignore unknown keys. Pure. Source: kafka.zk.ZkData.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_plus

from cluster.model import (
    NO_TOPIC_ID,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicId,
    TopicPartition,
    VersionRange,
    parse_topic_id,
    topic_id_text,
)

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
DELETE_TOPICS = "/admin/delete_topics"
TOPIC_CONFIGS = "/config/topics"
CONFIGS = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DEFAULT_ENTITY = "<default>"
"""The name of an entity that stands for all others of its kind (ZooKeeperInternals)."""

REQUEST_BYTES_MAX = 1_000_000
"""Bytes of nodes and names in one request to the coordinator: ZooKeeper's jute.maxbuffer, 1 MiB, less the
rest of the request. ZooKeeper closes the connection on a larger request, and all other requests on it fail.
"""

PRODUCER_ID_BLOCK = "/latest_producer_id_block"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
FEATURE = "/feature"
LOG_DIR_FAILURES = "/log_dir_event_notification"
LOG_DIR_FAILURE_PREFIX = f"{LOG_DIR_FAILURES}/log_dir_event_"

PERSISTENT_PATHS = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    "/isr_change_notification",
    PRODUCER_ID_BLOCK,
    LOG_DIR_FAILURES,
    TOPIC_CONFIGS,
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""Every broker creates these at its start if they are missing."""


class ZnodeError(ValueError):
    """A znode whose data Kafka would not have written."""

    def __init__(self, path: str, data: bytes, reason: str) -> None:
        super().__init__(f"znode {path} cannot be read: {reason}; it holds {data[:200]!r}")


def broker_path(broker: int) -> str:
    """The ephemeral registration of a broker."""
    return f"{BROKER_IDS}/{broker}"


def topic_path(topic: str) -> str:
    """A topic's id and replicas; its partitions are below."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """The parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """The parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    """A partition's leader and ISR."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    """A topic's own settings."""
    return f"{TOPIC_CONFIGS}/{topic}"


def config_path(entity: str) -> str:
    """The settings of an entity: topics/NAME, brokers/ID, users/NAME/clients/NAME (ConfigEntityZNode)."""
    return f"{CONFIGS}/{entity}"


def sanitize(name: str) -> str:
    """A user's or client's name for a znode (`Sanitizer.sanitize`): letters, digits and `-_.` stay, the rest
    is percent-encoded.
    """
    return quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    """The reverse of `sanitize` (`Sanitizer.desanitize`, which reads a plus sign as a space)."""
    return unquote_plus(name)


def delete_topic_path(topic: str) -> str:
    """The request to delete a topic."""
    return f"{DELETE_TOPICS}/{topic}"


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _load(path: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ZnodeError(path, data, str(error)) from None
    if not isinstance(value, dict):
        raise ZnodeError(path, data, "a JSON object is expected")
    return value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def _int32(value: Any) -> int:
    """A number that fits into the requests to brokers. With a larger one none of them could be sent."""
    number = int(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} does not fit in 32 bits")
    return number


def encode_broker(broker: BrokerInfo, now_ms: int) -> bytes:
    """Version 5: all endpoints, their protocols, features, and the first plaintext endpoint again for old
    clients.
    """
    plain = next((item for item in broker.endpoints if item.security_protocol == "PLAINTEXT"), None)
    value: dict[str, object] = {
        "features": {
            name: {"min_version": versions.first, "max_version": versions.last}
            for name, versions in broker.features.items()
        },
        "listener_security_protocol_map": {
            item.listener: item.security_protocol for item in broker.endpoints
        },
        "endpoints": [str(item) for item in broker.endpoints],
        "jmx_port": -1,
        "port": plain.port if plain else -1,
        "host": plain.host if plain else None,
        "version": 5,
        "timestamp": str(now_ms),
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    return _dump(value)


def decode_broker(broker: BrokerId, data: bytes, epoch: int) -> BrokerInfo:
    """Versions 1 to 5; `epoch` is the znode's czxid."""
    path = broker_path(broker)
    value = _load(path, data)
    try:
        if int(value["version"]) == 1:
            endpoints = [Endpoint("PLAINTEXT", str(value["host"]), int(value["port"]))]
        else:
            protocols = value.get("listener_security_protocol_map") or {}
            endpoints = [_endpoint(text, protocols) for text in value["endpoints"]]
        features = {
            name: VersionRange(_int32(versions["min_version"]), _int32(versions["max_version"]))
            for name, versions in (value.get("features") or {}).items()
        }
        return BrokerInfo(broker, tuple(endpoints), value.get("rack"), epoch, features)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ZnodeError(path, data, repr(error)) from None


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(listener, host.strip("[]"), int(port), protocols.get(listener, listener))


def encode_topic(topic_id: TopicId, assignment: Mapping[int, Replicas]) -> bytes:
    """Version 3: replicas by partition, replicas being added and removed, the topic's id."""
    ordered = sorted(assignment.items())
    value: dict[str, object] = {
        "removing_replicas": {str(number): list(item.removing) for number, item in ordered if item.removing},
        "partitions": {str(number): list(item.replicas) for number, item in ordered},
        "adding_replicas": {str(number): list(item.adding) for number, item in ordered if item.adding},
        "version": 3,
    }
    if topic_id != NO_TOPIC_ID:
        value = {
            "removing_replicas": value.pop("removing_replicas"),
            "partitions": value.pop("partitions"),
        } | {
            "topic_id": topic_id_text(topic_id),
            **value,
        }
    return _dump(value)


def decode_topic(topic: str, data: bytes) -> tuple[TopicId, dict[int, Replicas]]:
    """Versions 1 to 3. A topic without an id has the all-zero one."""
    path = topic_path(topic)
    value = _load(path, data)
    try:
        adding = value.get("adding_replicas") or {}
        removing = value.get("removing_replicas") or {}
        assignment = {
            _int32(number): Replicas(
                _brokers(replicas), _brokers(adding.get(number, ())), _brokers(removing.get(number, ()))
            )
            for number, replicas in value["partitions"].items()
        }
        text = value.get("topic_id")
        return (parse_topic_id(text) if text else NO_TOPIC_ID), assignment
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ZnodeError(path, data, repr(error)) from None


def _brokers(values: Any) -> tuple[BrokerId, ...]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"a list of broker ids is expected, not {values!r}")
    return tuple(BrokerId(_int32(value)) for value in values)


def encode_state(state: PartitionState) -> bytes:
    """Version 1 of a partition's state."""
    value: dict[str, object] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.recovery:
        value["leader_recovery_state"] = state.recovery
    return _dump(value)


def decode_state(topic: str, partition: int, data: bytes, zk_version: int) -> PartitionState:
    """A partition's state and the version of its znode."""
    path = state_path(topic, partition)
    value = _load(path, data)
    try:
        return PartitionState(
            leader=BrokerId(_int32(value["leader"])),
            leader_epoch=LeaderEpoch(_int32(value["leader_epoch"])),
            isr=_brokers(value["isr"]),
            controller_epoch=ControllerEpoch(_int32(value["controller_epoch"])),
            zk_version=zk_version,
            recovery=int(value.get("leader_recovery_state", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ZnodeError(path, data, repr(error)) from None


def encode_config(config: Mapping[str, str]) -> bytes:
    """An entity's own settings."""
    return _dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    """An entity's own settings; none if the znode is empty."""
    if not data:
        return {}
    config = _load(path, data).get("config") or {}
    if not isinstance(config, dict):
        raise ZnodeError(path, data, "config is not an object")
    return {str(name): str(value) for name, value in config.items()}


def decode_config_change(path: str, data: bytes) -> str:
    """The entity whose settings changed, as in topics/NAME (version 2, or version 1's type and name)."""
    value = _load(path, data)
    if "entity_path" in value:
        return str(value["entity_path"])
    return f"{value.get('entity_type')}/{value.get('entity_name')}"


def encode_config_change(entity: str) -> bytes:
    """The notice that the settings of `entity`, for example topics/NAME, changed."""
    return _dump({"version": 2, "entity_path": entity})


def encode_controller(broker: BrokerId, now_ms: int) -> bytes:
    """Version 2. -1 means that the controller is not a KRaft controller."""
    return _dump({"version": 2, "brokerid": broker, "timestamp": str(now_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> BrokerId:
    """The id of the controller's broker."""
    try:
        return BrokerId(_int32(_load(CONTROLLER, data)["brokerid"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ZnodeError(CONTROLLER, data, repr(error)) from None


def decode_controller_epoch(data: bytes) -> int:
    """How often a controller was elected."""
    try:
        return int(data)
    except ValueError as error:
        raise ZnodeError(CONTROLLER_EPOCH, data, str(error)) from None


def encode_cluster_id(cluster_id: str) -> bytes:
    """The cluster's id. As in Kafka, the version is a string here."""
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """The cluster's id."""
    try:
        return str(_load(CLUSTER_ID, data)["id"])
    except KeyError:
        raise ZnodeError(CLUSTER_ID, data, "it has no id") from None


def encode_producer_id_block(broker: int, first: int, last: int) -> bytes:
    """A block of producer ids taken by `broker`."""
    return _dump({"version": 1, "broker": broker, "block_start": str(first), "block_end": str(last)})


def decode_producer_id_block(data: bytes) -> tuple[int, int, int]:
    """Broker, first id and last id of the latest block."""
    value = _load(PRODUCER_ID_BLOCK, data)
    try:
        return int(value["broker"]), int(value["block_start"]), int(value["block_end"])
    except (KeyError, TypeError, ValueError) as error:
        raise ZnodeError(PRODUCER_ID_BLOCK, data, repr(error)) from None


def encode_reassignments(wanted: Mapping[TopicPartition, Sequence[BrokerId]]) -> bytes:
    """The replicas that partitions are to have (ReassignPartitionsZNode)."""
    partitions = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
        for partition, replicas in wanted.items()
    ]
    return _dump({"version": 1, "partitions": partitions})


def decode_reassignments(data: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The replicas that partitions are to have."""
    value = _load(REASSIGN_PARTITIONS, data)
    try:
        return {
            TopicPartition(str(item["topic"]), _int32(item["partition"])): _brokers(item["replicas"])
            for item in value["partitions"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ZnodeError(REASSIGN_PARTITIONS, data, repr(error)) from None


def decode_preferred_election(data: bytes) -> list[TopicPartition]:
    """The partitions that are to be led by their preferred leader (PreferredReplicaElectionZNode)."""
    value = _load(PREFERRED_ELECTION, data)
    try:
        return [TopicPartition(str(item["topic"]), _int32(item["partition"])) for item in value["partitions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ZnodeError(PREFERRED_ELECTION, data, repr(error)) from None


def encode_log_dir_failure(broker: BrokerId) -> bytes:
    """A log directory of `broker` failed (LogDirEventNotificationZNode; event 1)."""
    return _dump({"version": 1, "broker": broker, "event": 1})


def decode_log_dir_failure(path: str, data: bytes) -> BrokerId:
    """The broker whose log directory failed."""
    try:
        return BrokerId(_int32(_load(path, data)["broker"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ZnodeError(path, data, repr(error)) from None


def encode_features(levels: Mapping[str, int]) -> bytes:
    """The finalized features: version 2, enabled (`FeatureZNode`)."""
    features = {name: {"max_version_level": level} for name, level in levels.items()}
    return _dump({"version": 2, "status": 1, "features": features})


def decode_features(data: bytes) -> dict[str, int]:
    """The versions of the finalized features, by name. Disabled stands for none."""
    try:
        value = _load(FEATURE, data)
        if int(value["status"]) != 1:
            return {}
        return {name: _int32(each["max_version_level"]) for name, each in value["features"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ZnodeError(FEATURE, data, repr(error)) from None
