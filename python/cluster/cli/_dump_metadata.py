"""How `logcore dump-log` prints the records of KRaft's `__cluster_metadata` and of `__remote_log_metadata`.

Both have the same frame (`AbstractApiMessageSerde`): three unsigned varints and then the record, in a schema
of `metadata.table`. The varints are the frame's version, the record's type and the record's version. The
texts are those of DumpLogSegments (Apache Kafka 3.9): JSON for the first topic, one line of names and values
for the other.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cluster.cli._common import CommandError

Parsed = tuple[str | None, str | None]
T = TypeVar("T")

FRAME_VERSION = 1
VARINT_BYTES = 5
VERSION_MAX = 32767

# The controller's records by type (`MetadataRecordType`).
CLUSTER_RECORDS = {
    0: "RegisterBrokerRecord",
    1: "UnregisterBrokerRecord",
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    7: "FenceBrokerRecord",
    8: "UnfenceBrokerRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    20: "NoOpRecord",
    21: "ZkMigrationStateRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
    26: "RemoveDelegationTokenRecord",
    27: "RegisterControllerRecord",
}

# The records of the remote log metadata manager.
REMOTE_RECORDS = {
    0: "RemoteLogSegmentMetadataRecord",
    1: "RemoteLogSegmentMetadataUpdateRecord",
    2: "RemotePartitionDeleteMetadataRecord",
    3: "RemoteLogSegmentMetadataSnapshotRecord",
}
SEGMENT_STATES = (
    "COPY_SEGMENT_STARTED",
    "COPY_SEGMENT_FINISHED",
    "DELETE_SEGMENT_STARTED",
    "DELETE_SEGMENT_FINISHED",
)
PARTITION_STATES = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")

# Control records of the metadata's log and its snapshots: the name in Kafka's tool, and the schema.
CONTROL_RECORDS = {
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}


class FrameError(Exception):
    """A value is not a record in a frame. The text is Kafka's."""


def control_record(kind: int, value: bytes | None) -> str | None:
    """Name and JSON of a control record; None for types without them."""
    from logcore._native import ProtocolError, data_to_json

    if kind not in CONTROL_RECORDS or value is None:
        return None
    name, schema = CONTROL_RECORDS[kind]
    try:
        return f"{name} {data_to_json(schema, 0, value)}"
    except ProtocolError as error:
        raise CommandError(f"a control record of the type {name} cannot be read: {error}") from None


def cluster_parser(offset: int, _: bytes | None, value: bytes | None) -> Parsed:
    from logcore._native import data_to_json

    try:
        kind, version, record = _frame(value, CLUSTER_RECORDS)
        name = CLUSTER_RECORDS[kind]
        data = _checked(name, version, lambda: data_to_json(name, version, record))
        return None, f'{{"type":"{_constant(name)}","version":{version},"data":{data}}}'
    except FrameError as error:
        return None, f"Error at {offset}, skipping. {error}"


def remote_parser(offset: int, _: bytes | None, value: bytes | None) -> Parsed:
    from logcore._native import decode_data

    try:
        kind, version, record = _frame(value, REMOTE_RECORDS)
        name = REMOTE_RECORDS[kind]
        message = _checked(name, version, lambda: decode_data(name, version, record))
        return None, _remote_text(kind, message)
    except FrameError as error:
        return None, f"Error at offset {offset}, skipping. {error}"


def _frame(value: bytes | None, kinds: Mapping[int, str]) -> tuple[int, int, bytes]:
    """Type, version and bytes of the record in a frame."""
    if value is None:
        raise FrameError("the record has no value")
    frame_version, at = _varint(value, 0, "frame version")
    if frame_version == 0:
        raise FrameError(
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview "
            "release of KRaft in 2.8 to newer versions are not supported."
        )
    if frame_version != FRAME_VERSION:
        raise FrameError(
            f"Could not deserialize metadata record due to unknown frame version {frame_version}"
            f"(only frame version {FRAME_VERSION} is supported)"
        )
    kind, at = _varint(value, at, "type")
    version, at = _varint(value, at, "version")
    if kind not in kinds:
        raise FrameError(
            f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {kind}"
        )
    return kind, version, value[at:]


def _varint(value: bytes, at: int, what: str) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(value[at : at + VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if number > VERSION_MAX:
                raise FrameError(f"Value for {what} was too large.")
            return number, at + count + 1
    raise FrameError(f"Error while reading {what}")


def _checked(name: str, version: int, decode: Callable[[], T]) -> T:
    from logcore._native import ProtocolError

    try:
        return decode()
    except ProtocolError as error:
        raise FrameError(f"Failed to deserialize record with type {_constant(name)}: {error}") from None


def _constant(name: str) -> str:
    """The name of a record's type in Kafka's enumeration: TOPIC_RECORD for TopicRecord."""
    return re.sub(r"(?<=[^A-Z])([A-Z])", r"_\1", name).upper()


# ---- __remote_log_metadata ----


def _remote_text(kind: int, message: dict[str, Any]) -> str:
    """The text of Java's `toString` of the manager's classes."""
    if kind == 2:
        shown = {
            "topicPartition": _topic_partition(message["topic_id_partition"]),
            "state": _state(PARTITION_STATES, message["remote_partition_delete_state"]),
            "eventTimestampMs": message["event_timestamp_ms"],
            "brokerId": message["broker_id"],
        }
        return _object("RemotePartitionDeleteMetadata", shown)
    custom = message["custom_metadata"]
    custom_text = "Optional.empty" if custom is None else f"Optional[CustomMetadata{{{len(custom)} bytes}}]"
    state = _state(SEGMENT_STATES, message["remote_log_segment_state"])
    if kind == 1:
        shown = {
            "remoteLogSegmentId": _segment_id(message["remote_log_segment_id"]),
            "customMetadata": custom_text,
            "state": state,
            "eventTimestampMs": message["event_timestamp_ms"],
            "brokerId": message["broker_id"],
        }
        return _object("RemoteLogSegmentMetadataUpdate", shown)
    epochs = {entry["leader_epoch"]: entry["offset"] for entry in message["segment_leader_epochs"]}
    shown = {
        "startOffset": message["start_offset"],
        "endOffset": message["end_offset"],
        "brokerId": message["broker_id"],
        "maxTimestampMs": message["max_timestamp_ms"],
        "eventTimestampMs": message["event_timestamp_ms"],
        "segmentLeaderEpochs": "{" + ", ".join(f"{epoch}={epochs[epoch]}" for epoch in sorted(epochs)) + "}",
        "segmentSizeInBytes": message["segment_size_in_bytes"],
        "customMetadata": custom_text,
        "state": state,
    }
    if kind == 0:
        return _object(
            "RemoteLogSegmentMetadata",
            {"remoteLogSegmentId": _segment_id(message["remote_log_segment_id"]), **shown},
        )
    # An entry in a snapshot has no broker and no time.
    del shown["brokerId"], shown["eventTimestampMs"]
    return _object("RemoteLogSegmentMetadataSnapshot", {"segmentId": _uuid(message["segment_id"]), **shown})


def _object(name: str, shown: dict[str, Any]) -> str:
    return name + "{" + ", ".join(f"{key}={value}" for key, value in shown.items()) + "}"


def _state(names: tuple[str, ...], number: int) -> str:
    """The state with this number; null, as in Java, for an unknown number."""
    return names[number] if 0 <= number < len(names) else "null"


def _segment_id(message: dict[str, Any]) -> str:
    partition = _topic_partition(message["topic_id_partition"])
    return _object("RemoteLogSegmentId", {"topicIdPartition": partition, "id": _uuid(message["id"])})


def _topic_partition(message: dict[str, Any]) -> str:
    return f"{_uuid(message['id'])}:{message['name']}-{message['partition']}"


def _uuid(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
