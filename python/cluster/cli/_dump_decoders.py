"""How `logcore dump-log` prints keys and values: as text, as numbers, or as records of Kafka's own topics.

The texts are those of DumpLogSegments (Apache Kafka 3.9): JSON for `__consumer_offsets`, one line of names
and values for `__transaction_state`. Of `__consumer_offsets`, it decodes commits, classic groups and groups
of the consumer protocol (KIP-848). Other types are named and skipped, as Kafka's tool does with unknown
types.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

from cluster.cli._common import CommandError

Parsed = tuple[str | None, str | None]
Parse = Callable[[int, bytes | None, bytes | None], Parsed]
"""Takes offset, key and value of a record; returns the texts for key and value. None is not printed."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _number(layout: str, name: str) -> Callable[[bytes], str]:
    def decode(data: bytes) -> str:
        try:
            return str(struct.unpack(layout, data)[0])
        except struct.error:
            size = struct.calcsize(layout)
            raise CommandError(f"{name} takes {size} bytes, but a record has {len(data)}") from None

    return decode


# By Kafka's name. For plain bytes, Kafka prints a Java object's address; here they are printed in
# hexadecimal.
DECODERS: dict[str, Callable[[bytes], str]] = {
    "StringDecoder": _text,
    "LongDecoder": _number(">q", "LongDecoder"),
    "IntegerDecoder": _number(">i", "IntegerDecoder"),
    "DefaultDecoder": bytes.hex,
}
SHORT_NAMES = {
    "string": "StringDecoder",
    "long": "LongDecoder",
    "integer": "IntegerDecoder",
    "byte": "DefaultDecoder",
}
PACKAGE = "org.apache.kafka.tools.api."
OLD_PACKAGE = "kafka.serializer."


def check_name(name: str, flag: str) -> None:
    """Refuses a decoder that is not one of Kafka's. Other Java classes cannot be loaded here."""
    plain = name.removeprefix(PACKAGE).removeprefix(OLD_PACKAGE)
    if SHORT_NAMES.get(plain, plain) not in DECODERS:
        known = ", ".join([*SHORT_NAMES, *(PACKAGE + decoder for decoder in DECODERS)])
        raise CommandError(f"{flag}: no decoder {name!r}; the decoders are {known}", status=2)


def decoder(name: str) -> Callable[[bytes], str]:
    """The decoder with a checked name. Warns of a deprecated name, as Kafka does."""
    plain = name.removeprefix(PACKAGE).removeprefix(OLD_PACKAGE)
    if name.startswith(OLD_PACKAGE):
        print(f"{name} is deprecated. Please use {PACKAGE}{plain} instead")
    return DECODERS[SHORT_NAMES.get(plain, plain)]


def plain_parser(key_decoder: str, value_decoder: str) -> Parse:
    # The value's first, as in Kafka: their warnings come in this order.
    decode_value = decoder(value_decoder)
    decode_key = decoder(key_decoder)

    def parse(_: int, key: bytes | None, value: bytes | None) -> Parsed:
        return (
            None if key is None else decode_key(key),
            None if value is None else decode_value(value),
        )

    return parse


# ---- __consumer_offsets ----

# Each schema's fields: the codec's name, Kafka's name in JSON, the first and the last version that have it.
LATEST = 32767
Fields = tuple[tuple[str, str, int, int], ...]
OFFSET_KEY: Fields = (
    ("group", "group", 0, LATEST),
    ("topic", "topic", 0, LATEST),
    ("partition", "partition", 0, LATEST),
)
OFFSET_VALUE: Fields = (
    ("offset", "offset", 0, LATEST),
    ("leader_epoch", "leaderEpoch", 3, LATEST),
    ("metadata", "metadata", 0, LATEST),
    ("commit_timestamp", "commitTimestamp", 0, LATEST),
    ("expire_timestamp", "expireTimestamp", 1, 1),
)
GROUP_KEY: Fields = (("group", "group", 0, LATEST),)
GROUP_VALUE: Fields = (
    ("protocol_type", "protocolType", 0, LATEST),
    ("generation", "generation", 0, LATEST),
    ("protocol", "protocol", 0, LATEST),
    ("leader", "leader", 0, LATEST),
    ("current_state_timestamp", "currentStateTimestamp", 2, LATEST),
)
MEMBER: Fields = (
    ("member_id", "memberId", 0, LATEST),
    ("group_instance_id", "groupInstanceId", 3, LATEST),
    ("client_id", "clientId", 0, LATEST),
    ("client_host", "clientHost", 0, LATEST),
    ("rebalance_timeout", "rebalanceTimeout", 1, LATEST),
    ("session_timeout", "sessionTimeout", 0, LATEST),
)
TOPIC_PARTITIONS: Fields = (("topic", "topic", 0, LATEST), ("partitions", "partitions", 0, LATEST))
# The records of the consumer protocol's groups, by the version of their keys. Every version has all fields.
CONSUMER_GROUP = {
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
}
UUIDS = ("topic_id",)
# Fields that are not shown when they are null.
TAGGED = ("classic_member_metadata",)


def _fields(message: dict[str, Any], fields: Fields, version: int) -> dict[str, Any]:
    return {shown: message[name] for name, shown, first, last in fields if first <= version <= last}


def _shows(fields: Fields) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    return lambda message, version: _fields(message, fields, version)


def _binary(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _embedded(name: str, data: bytes, show: Callable[[dict[str, Any], int], dict[str, Any]]) -> Any:
    """The consumer protocol's data in a member. Bytes that are not in its format are shown as bytes."""
    from logcore._native import ProtocolError, decode_data

    if len(data) < 2:
        return _binary(data)
    version = int.from_bytes(data[:2], "big", signed=True)
    try:
        return show(decode_data(name, version, data[2:]), version)
    except ProtocolError:
        return _binary(data)


def _subscription(message: dict[str, Any], version: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"topics": message["topics"], "userData": _binary(message["user_data"])}
    if version >= 1:
        owned = message["owned_partitions"]
        shown["ownedPartitions"] = [_fields(topic, TOPIC_PARTITIONS, 0) for topic in owned]
    if version >= 2:
        shown["generationId"] = message["generation_id"]
    if version >= 3:
        shown["rackId"] = message["rack_id"]
    return shown


def _assignment(message: dict[str, Any], _: int) -> dict[str, Any]:
    assigned = message["assigned_partitions"]
    return {
        "assignedPartitions": [_fields(topic, TOPIC_PARTITIONS, 0) for topic in assigned],
        "userData": _binary(message["user_data"]),
    }


def _group_value(message: dict[str, Any], version: int) -> dict[str, Any]:
    shown = _fields(message, GROUP_VALUE, version)
    consumers = message["protocol_type"] == "consumer"
    shown["members"] = []
    for member in message["members"]:
        row = _fields(member, MEMBER, version)
        for name, schema, show in (
            ("subscription", "ConsumerProtocolSubscription", _subscription),
            ("assignment", "ConsumerProtocolAssignment", _assignment),
        ):
            data = member[name]
            row[name] = _embedded(schema, data, show) if consumers else _binary(data)
        shown["members"].append(row)
    return shown


def _whole(message: dict[str, Any]) -> dict[str, Any]:
    """All fields, with Kafka's names."""
    return {
        _kafka_name(name): _uuid(value) if name in UUIDS else _value(value)
        for name, value in message.items()
        if not (value is None and name in TAGGED)
    }


def _shows_all(message: dict[str, Any], _: int) -> dict[str, Any]:
    return _whole(message)


def _kafka_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _whole(value)
    if isinstance(value, list):
        return [_value(element) for element in value]
    return _binary(value) if isinstance(value, bytes) else value


def _uuid(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _json(kind: str, version: int, data: dict[str, Any]) -> str:
    return json.dumps({kind: str(version), "data": data}, ensure_ascii=False, separators=(",", ":"))


Show = Callable[[dict[str, Any], int], dict[str, Any]]
"""Takes a decoded message and its version; returns what is shown of it."""

# For each version of a key: the name of its schemas, and what is shown of the key and of the value.
OFFSETS_RECORDS: dict[int, tuple[str, Show, Show]] = {
    **dict.fromkeys((0, 1), ("OffsetCommit", _shows(OFFSET_KEY), _shows(OFFSET_VALUE))),
    2: ("GroupMetadata", _shows(GROUP_KEY), _group_value),
    **{version: (name, _shows_all, _shows_all) for version, name in CONSUMER_GROUP.items()},
}


def offsets_parser(offset: int, key: bytes | None, value: bytes | None) -> Parsed:
    from logcore._native import ProtocolError

    if key is None:
        raise CommandError(
            f"Failed to decode message at offset {offset} using offset topic decoder (message had a missing"
            " key)"
        )
    try:
        version = _version("key", key)
        if version not in OFFSETS_RECORDS:
            return f"Unknown record type {version} at offset {offset}, skipping.", None
        schema, show_key, show_value = OFFSETS_RECORDS[version]
        shown_key = _part("key", f"{schema}Key", key, "type", show_key)
        if value is None:
            return shown_key, "<DELETE>"
        return shown_key, _part("value", f"{schema}Value", value, "version", show_value)
    except ProtocolError as error:
        return f"Error at offset {offset}, skipping. {error}", None


def _version(what: str, data: bytes) -> int:
    from logcore._native import ProtocolError

    if len(data) < 2:
        raise ProtocolError(f"Could not read version from {what}'s buffer.")
    return int.from_bytes(data[:2], "big", signed=True)


def _part(what: str, schema: str, data: bytes, label: str, show: Show) -> str:
    """A key or a value as JSON. An error has Kafka's message, followed by the codec's."""
    from logcore._native import ProtocolError, decode_data

    version = _version(what, data)
    try:
        message = decode_data(schema, version, data[2:])
    except ProtocolError as error:
        reason = f"Could not read record with version {version} from {what}'s buffer due to: {error}."
        raise ProtocolError(reason) from None
    return _json(label, version, show(message, version))


# ---- __transaction_state ----

TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def transactions_parser(offset: int, key: bytes | None, value: bytes | None) -> Parsed:
    from logcore._native import ProtocolError, decode_data

    if key is None or len(key) < 2:
        raise CommandError(f"the record at offset {offset} does not have a key of the transaction log")
    version = int.from_bytes(key[:2], "big", signed=True)
    if version != 0:
        return f"unknown::version={version}", None
    try:
        name = decode_data("TransactionLogKey", version, key[2:])["transactional_id"]
        return f"transaction_metadata::transactionalId={name}", _transaction(value)
    except ProtocolError as error:
        raise CommandError(
            f"the record at offset {offset} is not a record of the transaction log: {error}"
        ) from None


def _transaction(value: bytes | None) -> str:
    from logcore._native import ProtocolError, decode_data

    if value is None:
        return "<DELETE>"
    if len(value) < 2:
        raise ProtocolError(f"the value has {len(value)} bytes, too few for a version")
    message = decode_data("TransactionLogValue", int.from_bytes(value[:2], "big", signed=True), value[2:])
    status = message["transaction_status"]
    if not 0 <= status < len(TRANSACTION_STATES):
        raise ProtocolError(f"{status} is not a state of a transaction")
    partitions = [
        f"{topic['topic']}-{partition}"
        for topic in message["transaction_partitions"] or ()
        for partition in topic["partition_ids"]
    ]
    return (
        f"producerId:{message['producer_id']},producerEpoch:{message['producer_epoch']},"
        f"state={TRANSACTION_STATES[status]},partitions=[{','.join(partitions)}],"
        f"txnLastUpdateTimestamp={message['transaction_last_update_timestamp_ms']},"
        f"txnTimeoutMs={message['transaction_timeout_ms']}"
    )
