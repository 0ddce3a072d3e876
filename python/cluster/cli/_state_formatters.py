"""How `console-consumer` prints the records of `__consumer_offsets` and `__transaction_state`: JSON, as
OffsetsMessageFormatter, GroupMetadataMessageFormatter and TransactionLogMessageFormatter of
org.apache.kafka.tools.consumer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from logcore._native import data_to_json

Format = Callable[[bytes | None, bytes | None], bytes]
"""Takes a record's key and value; returns its line, or nothing for a record that is not printed."""

PACKAGE = "org.apache.kafka.tools.consumer."
_OFFSET_KEYS = (0, 1)
_GROUP_KEYS = (2,)
_TRANSACTION_KEYS = (0,)

OLD_NAMES = {
    "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter": PACKAGE
    + "OffsetsMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$GroupMetadataMessageFormatter": PACKAGE
    + "GroupMetadataMessageFormatter",
    "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter": PACKAGE
    + "TransactionLogMessageFormatter",
}


def _formatter(
    schema: str, keys: tuple[int, ...], value_versions: int, skipped: tuple[int, ...] = ()
) -> Format:
    """`keys`: versions of this schema's key; `value_versions`: the last version of its value; `skipped`:
    versions of keys that are not printed.
    """

    def line(key: bytes | None, value: bytes | None) -> bytes:
        parts: dict[str, Any] = {"key": None, "value": None}
        if key is not None:
            version = _version(key)
            if version in skipped:
                return b""
            parts["key"] = {"version": version, "data": _data(f"{schema}Key", version, key, version in keys)}
        if value is not None:
            version = _version(value)
            known = 0 <= version <= value_versions
            parts["value"] = {"version": version, "data": _data(f"{schema}Value", version, value, known)}
        return json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"

    return line


def _version(data: bytes) -> int:
    """The version before the data. Raises ValueError."""
    if len(data) < 2:
        raise ValueError("it has no version")
    return int.from_bytes(data[:2], "big", signed=True)


def _data(schema: str, version: int, data: bytes, known: bool) -> Any:
    return json.loads(data_to_json(schema, version, data[2:])) if known else "unknown"


STATE_FORMATTERS: dict[str, Format] = {
    PACKAGE + "OffsetsMessageFormatter": _formatter("OffsetCommit", _OFFSET_KEYS, 4, _GROUP_KEYS),
    PACKAGE + "GroupMetadataMessageFormatter": _formatter("GroupMetadata", _GROUP_KEYS, 4, _OFFSET_KEYS),
    PACKAGE + "TransactionLogMessageFormatter": _formatter("TransactionLog", _TRANSACTION_KEYS, 1),
}
