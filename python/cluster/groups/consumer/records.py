"""The records of consumer groups (KIP-848) in __consumer_offsets.

A key is an int16 version, which says the record's kind, the group's id, and for some kinds the member's id or
the regular expression. A value is an int16 version, 0, and the fields. As Kafka 3.9, and of Kafka 4.0 the
record of a regular expression; its key has version 16. Source: ConsumerGroup*Key, ConsumerGroup*Value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.groups.assignors import Assignment
from cluster.groups.consumer.group import Change, Kind
from cluster.groups.consumer.values import (
    ClassicMember,
    Current,
    MemberState,
    Resolved,
    Subscription,
    Topic,
    Topics,
)
from cluster.model import TopicId
from logcore._native import decode_data, encode_data

_VERSION = 0
_PREFIX = _VERSION.to_bytes(2, "big")


class _Format(NamedTuple):
    """How a kind of record is encoded."""

    name: str
    """The names of its schemas, without Key and Value."""
    subject: str | None
    """The key's second field."""
    fields: Callable[[Any], dict[str, Any]]
    value: Callable[[dict[str, Any]], Any]


def _partitions(assignment: Assignment) -> list[dict[str, Any]]:
    return [{"topic_id": topic, "partitions": sorted(numbers)} for topic, numbers in assignment.items()]


def _assignment(items: list[dict[str, Any]]) -> Assignment:
    return {TopicId(item["topic_id"]): frozenset(item["partitions"]) for item in items if item["partitions"]}


def _topics_fields(topics: Topics) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic_id": topic.id,
                "topic_name": name,
                "num_partitions": topic.partitions,
                "partition_metadata": [],
            }
            for name, topic in topics.items()
        ]
    }


def _topics(fields: dict[str, Any]) -> Topics:
    return {
        item["topic_name"]: Topic(TopicId(item["topic_id"]), item["num_partitions"])
        for item in fields["topics"]
    }


def _subscription_fields(subscription: Subscription) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "instance_id": subscription.instance,
        "rack_id": subscription.rack,
        "client_id": subscription.client_id,
        "client_host": subscription.client_host,
        "subscribed_topic_names": sorted(subscription.topics),
        "subscribed_topic_regex": subscription.regex or "",
        "rebalance_timeout_ms": subscription.rebalance_timeout_ms,
        "server_assignor": subscription.assignor,
    }
    classic = subscription.classic
    if classic is not None:
        fields["classic_member_metadata"] = {
            "session_timeout_ms": classic.session_timeout_ms,
            "supported_protocols": [{"name": name, "metadata": data} for name, data in classic.protocols],
        }
    return fields


def _subscription(fields: dict[str, Any]) -> Subscription:
    classic = fields["classic_member_metadata"]
    return Subscription(
        instance=fields["instance_id"],
        rack=fields["rack_id"],
        client_id=fields["client_id"],
        client_host=fields["client_host"],
        topics=frozenset(fields["subscribed_topic_names"]),
        regex=fields["subscribed_topic_regex"] or None,
        rebalance_timeout_ms=fields["rebalance_timeout_ms"],
        assignor=fields["server_assignor"],
        classic=None
        if classic is None
        else ClassicMember(
            classic["session_timeout_ms"],
            tuple((item["name"], item["metadata"]) for item in classic["supported_protocols"]),
        ),
    )


def _current_fields(current: Current) -> dict[str, Any]:
    return {
        "member_epoch": current.epoch,
        "previous_member_epoch": current.previous_epoch,
        "state": current.state.value,
        "assigned_partitions": _partitions(current.assigned),
        "partitions_pending_revocation": _partitions(current.revoking),
    }


def _current(fields: dict[str, Any]) -> Current:
    number = fields["state"]
    known = number in MemberState.__members__.values()
    return Current(
        fields["member_epoch"],
        fields["previous_member_epoch"],
        MemberState(number) if known else MemberState.UNKNOWN,
        _assignment(fields["assigned_partitions"]),
        _assignment(fields["partitions_pending_revocation"]),
    )


def _resolved_fields(resolved: Resolved) -> dict[str, Any]:
    topics, version, timestamp = resolved
    return {"topics": sorted(topics), "version": version, "timestamp": timestamp}


def _resolved(fields: dict[str, Any]) -> Resolved:
    return Resolved(frozenset(fields["topics"]), fields["version"], fields["timestamp"])


_FORMATS = {
    Kind.EPOCH: _Format("Metadata", None, lambda epoch: {"epoch": epoch}, lambda fields: fields["epoch"]),
    Kind.TOPICS: _Format("PartitionMetadata", None, _topics_fields, _topics),
    Kind.SUBSCRIPTION: _Format("MemberMetadata", "member_id", _subscription_fields, _subscription),
    Kind.TARGET_EPOCH: _Format(
        "TargetAssignmentMetadata",
        None,
        lambda epoch: {"assignment_epoch": epoch},
        lambda fields: fields["assignment_epoch"],
    ),
    Kind.TARGET: _Format(
        "TargetAssignmentMember",
        "member_id",
        lambda assignment: {"topic_partitions": _partitions(assignment)},
        lambda fields: _assignment(fields["topic_partitions"]),
    ),
    Kind.CURRENT: _Format("CurrentMemberAssignment", "member_id", _current_fields, _current),
    Kind.REGEX: _Format("RegularExpression", "regular_expression", _resolved_fields, _resolved),
}

KEY_VERSIONS = frozenset(Kind)
"""The versions of keys of consumer groups' records."""


def _key_version(kind: Kind) -> int:
    """The version of a key's fields. In Kafka 4.0's keys the number before them is only the kind."""
    return 0 if kind is Kind.REGEX else kind


def encode_change(group: str, change: Change) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    form = _FORMATS[change.kind]
    key: dict[str, Any] = {"group_id": group}
    if form.subject is not None:
        key[form.subject] = change.name
    prefix = change.kind.to_bytes(2, "big")
    encoded = prefix + encode_data(f"ConsumerGroup{form.name}Key", _key_version(change.kind), key)
    if change.value is None:
        return encoded, None
    value = encode_data(f"ConsumerGroup{form.name}Value", _VERSION, form.fields(change.value))
    return encoded, _PREFIX + value


def read_change(key: bytes, value: bytes | None) -> tuple[str, Change]:
    """The group and the change of a record whose key has one of KEY_VERSIONS. Raises ValueError if it is
    damaged.
    """
    kind = Kind(int.from_bytes(key[:2], "big", signed=True))
    form = _FORMATS[kind]
    fields = decode_data(f"ConsumerGroup{form.name}Key", _key_version(kind), key[2:])
    name = "" if form.subject is None else fields[form.subject]
    found = None
    if value is not None:
        version = int.from_bytes(value[:2], "big", signed=True)
        found = form.value(decode_data(f"ConsumerGroup{form.name}Value", version, value[2:]))
    return fields["group_id"], Change(kind, name, found)
