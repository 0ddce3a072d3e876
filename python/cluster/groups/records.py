"""The records of __consumer_offsets: keys and values of commits and groups, in Kafka's formats.

A key is an int16 version and the key's fields. Versions 0 and 1 are OffsetCommitKey (group, topic,
partition), version 2 is GroupMetadataKey (group). A value is an int16 version and OffsetCommitValue or
GroupMetadataValue. A null value (a tombstone) removes the key's entry.

As Kafka 3.9, this writes key versions 1 and 2 and value version 3. An offset with an expiry time has value
version 1, the only one with that field. All versions are read. The codec encodes; nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cluster.groups.committed import CommittedOffset
from cluster.groups.messages import StoredGroup, StoredMember, Write
from cluster.model import TopicPartition
from cluster.state_topics import Entry
from logcore._native import decode_data, encode_data

Record = tuple[bytes, bytes | None]
"""Key and value."""

_OFFSET_KEY = 1
_GROUP_KEY = 2
_OFFSET_VALUE = 3
_OFFSET_VALUE_WITH_EXPIRY = 1
_GROUP_VALUE = 3


def encode_write(write: Write) -> list[Record]:
    """The records of a Write."""
    records: list[Record] = [
        (_offset_key(write.group, item), None if kept is None else _offset_value(kept))
        for item, kept in write.offsets.items()
    ]
    if write.stored is not None:
        records.append((_group_key(write.group), _group_value(write.stored)))
    elif write.remove_group:
        records.append((_group_key(write.group), None))
    records.extend(write.records)
    return records


def _prefixed(name: str, version: int, message: dict[str, Any]) -> bytes:
    return version.to_bytes(2, "big") + encode_data(name, version, message)


def _offset_key(group: str, item: TopicPartition) -> bytes:
    fields = {"group": group, "topic": item.topic, "partition": item.partition}
    return _prefixed("OffsetCommitKey", _OFFSET_KEY, fields)


def _group_key(group: str) -> bytes:
    return _prefixed("GroupMetadataKey", _GROUP_KEY, {"group": group})


def _offset_value(kept: CommittedOffset) -> bytes:
    fields: dict[str, Any] = {
        "offset": kept.offset,
        "metadata": kept.metadata,
        "commit_timestamp": kept.commit_ms,
    }
    if kept.expire_ms is not None:
        fields["expire_timestamp"] = kept.expire_ms
        return _prefixed("OffsetCommitValue", _OFFSET_VALUE_WITH_EXPIRY, fields)
    fields["leader_epoch"] = kept.leader_epoch
    return _prefixed("OffsetCommitValue", _OFFSET_VALUE, fields)


def _group_value(stored: StoredGroup) -> bytes:
    members = [
        {
            "member_id": member.id,
            "group_instance_id": member.instance,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "rebalance_timeout": member.rebalance_timeout_ms,
            "session_timeout": member.session_timeout_ms,
            "subscription": member.subscription,
            "assignment": member.assignment,
        }
        for member in stored.members
    ]
    fields = {
        "protocol_type": stored.protocol_type,
        "generation": stored.generation,
        "protocol": stored.protocol,
        "leader": stored.leader,
        "current_state_timestamp": stored.state_since_ms,
        "members": members,
    }
    return _prefixed("GroupMetadataValue", _GROUP_VALUE, fields)


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """An offset as the log has it; None removes it."""

    group: str
    item: TopicPartition
    kept: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group as the log has it; None removes it."""

    group: str
    stored: StoredGroup | None


def read_record(entry: Entry) -> OffsetRecord | GroupRecord:
    """Decodes a record. Raises ValueError if it is damaged or of another kind."""
    key, value = entry.key, entry.value
    if key is None:
        raise ValueError("a record without a key")
    version = int.from_bytes(key[:2], "big", signed=True)
    if 0 <= version <= _OFFSET_KEY:
        fields = decode_data("OffsetCommitKey", version, key[2:])
        item = TopicPartition(fields["topic"], fields["partition"])
        return OffsetRecord(fields["group"], item, None if value is None else _read_offset(value))
    if version == _GROUP_KEY:
        group = decode_data("GroupMetadataKey", version, key[2:])["group"]
        return GroupRecord(group, None if value is None else _read_group(group, value))
    raise ValueError(f"a record with a key of version {version}")


def _read_offset(value: bytes) -> CommittedOffset:
    fields = decode_data("OffsetCommitValue", int.from_bytes(value[:2], "big", signed=True), value[2:])
    expire = fields["expire_timestamp"]
    return CommittedOffset(
        offset=fields["offset"],
        leader_epoch=fields["leader_epoch"],
        metadata=fields["metadata"],
        commit_ms=fields["commit_timestamp"],
        expire_ms=None if expire == -1 else expire,
    )


def _read_group(group: str, value: bytes) -> StoredGroup:
    version = int.from_bytes(value[:2], "big", signed=True)
    fields = decode_data("GroupMetadataValue", version, value[2:])
    members = tuple(
        StoredMember(
            id=member["member_id"],
            instance=member["group_instance_id"],
            client_id=member["client_id"],
            client_host=member["client_host"],
            # Version 0 has only one timeout.
            rebalance_timeout_ms=member["session_timeout"] if version == 0 else member["rebalance_timeout"],
            session_timeout_ms=member["session_timeout"],
            subscription=member["subscription"],
            assignment=member["assignment"],
        )
        for member in fields["members"]
    )
    ids = [member.id for member in members]
    instances = [member.instance for member in members if member.instance is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise ValueError("two members are the same")
    if ids and fields["leader"] not in ids:
        raise ValueError("the leader is no member")
    return StoredGroup(
        group=group,
        protocol_type=fields["protocol_type"],
        generation=fields["generation"],
        protocol=fields["protocol"],
        leader=fields["leader"],
        state_since_ms=fields["current_state_timestamp"],
        members=members,
    )


def read_subscription(data: bytes) -> frozenset[str] | None:
    """The topics of a consumer's subscription; None if it cannot be decoded. Every version begins as version
    0.
    """
    if len(data) < 2:
        return None
    try:
        version = min(max(int.from_bytes(data[:2], "big", signed=True), 0), 3)
        return frozenset(decode_data("ConsumerProtocolSubscription", version, data[2:])["topics"])
    except ValueError:
        return None
