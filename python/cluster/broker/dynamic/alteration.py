"""What AlterConfigs and IncrementalAlterConfigs ask of a resource, as a function from its settings to new ones.

Owns the operations and the checks that need nothing but the request. Pure; any thread. Source:
kafka.server.ConfigAdminManager. Where Kafka 3.9 fails with UNKNOWN_SERVER_ERROR at an operation or a list setting it
does not know, the error here says what is wrong.
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
"""From the settings a resource has to those it shall have; raises the KafkaProtocolError that says why not."""


class Op(IntEnum):
    """What is done to one setting (`AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """An operation on one setting; `op` is the number as it came."""

    name: str
    op: int
    value: str | None


def check_changes(changes: Sequence[Change]) -> None:
    """Refuses a setting that is named twice, and a missing value where one is needed."""
    names = Counter(change.name for change in changes)
    if len(names) < len(changes):
        raise InvalidRequest("Error due to duplicate config keys")
    nulls = [change.name for change in changes if change.op != Op.DELETE and change.value is None]
    if nulls:
        raise InvalidRequest(f"Null value not supported for : {', '.join(nulls)}")


def replacement(changes: Sequence[Change]) -> Alteration:
    """AlterConfigs: the settings given are all there are afterwards."""
    news = {change.name: change.value or "" for change in changes}
    return lambda _: dict(news)


def increments(changes: Sequence[Change], table: Mapping[str, Setting]) -> Alteration:
    """IncrementalAlterConfigs: the settings there are, each changed as asked; lists are those of `table`."""

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
    """The list as it stands, which is the default where the resource does not say."""
    setting = table.get(change.name)
    if setting is None:
        raise InvalidConfig(f"Unknown config name: {change.name}")
    if setting.type != "list":
        verb = "append" if change.op == Op.APPEND else "subtract"
        raise InvalidConfig(f"Config value {verb} is not allowed for config key: {change.name}")
    return config.get(change.name, setting.default or "")
