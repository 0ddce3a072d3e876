"""AlterConfigs and IncrementalAlterConfigs as functions from a resource's settings to new ones.

Owns the operations and the checks that need only the request. Pure; any thread. Source:
kafka.server.ConfigAdminManager. For an unknown operation or list setting Kafka 3.9 answers
UNKNOWN_SERVER_ERROR; here the error names the mistake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from cluster.broker.settings import Setting
from cluster.errors import InvalidConfig, InvalidRequest

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
"""Kinds of resources (`ConfigResource.Type`)."""

Alteration = Callable[[Mapping[str, str]], dict[str, str]]
"""Makes the new settings of a resource from its current ones. Raises KafkaProtocolError."""


class Op(IntEnum):
    """An operation on one setting (`AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """An operation on one setting. `op` is the number in the request, which may be no `Op`."""

    name: str
    op: int
    value: str | None


def check_changes(changes: Sequence[Change]) -> None:
    """Refuses duplicate settings, and missing values for operations that need one."""
    names = Counter(change.name for change in changes)
    if len(names) < len(changes):
        raise InvalidRequest("Error due to duplicate config keys")
    nulls = [change.name for change in changes if change.op != Op.DELETE and change.value is None]
    if nulls:
        raise InvalidRequest(f"Null value not supported for : {', '.join(nulls)}")


def replacement(changes: Sequence[Change]) -> Alteration:
    """AlterConfigs: replaces all settings."""
    news = {change.name: change.value or "" for change in changes}
    return lambda _: dict(news)


def increments(changes: Sequence[Change], table: Mapping[str, Setting]) -> Alteration:
    """IncrementalAlterConfigs: changes single settings. `table` says which are lists."""

    def alter(config: Mapping[str, str]) -> dict[str, str]:
        altered = dict(config)
        for change in changes:
            _apply(altered, change, table)
        return altered

    return alter


def _apply(config: dict[str, str], change: Change, table: Mapping[str, Setting]) -> None:
    value = change.value or ""
    match change.op:
        case Op.SET:
            config[change.name] = value
        case Op.DELETE:
            config.pop(change.name, None)
        case Op.APPEND:
            before = _words(_list_text(config, change, table))
            known = set(before)
            news = [word for word in value.split(",") if word not in known]
            config[change.name] = ",".join(before + news)
        case Op.SUBTRACT:
            gone = Counter(value.split(","))
            kept = []
            for word in _list_text(config, change, table).split(","):
                if gone[word]:
                    gone[word] -= 1
                else:
                    kept.append(word)
            config[change.name] = ",".join(kept)
        case _:
            raise InvalidRequest(f"Unknown operations type {change.op}")


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


def _list_text(config: Mapping[str, str], change: Change, table: Mapping[str, Setting]) -> str:
    """The current list; the default if the resource does not set it."""
    setting = table.get(change.name)
    if setting is None:
        raise InvalidConfig(f"Unknown config name: {change.name}")
    if setting.type != "list":
        verb = "append" if change.op == Op.APPEND else "subtract"
        raise InvalidConfig(f"Config value {verb} is not allowed for config key: {change.name}")
    return config.get(change.name, setting.default or "")
