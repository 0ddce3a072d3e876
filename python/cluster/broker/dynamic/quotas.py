"""Client quotas: their entities, their values, filters on them, and their form for the data plane.

Owns the entities (user, client-id, both, ip; each by name or as the default), the paths of their znodes, and
the checks of kafka.server.ZkAdminManager. Values are text, as in the znodes. The znodes of users also have
their SCRAM credentials: nothing here shows, changes or removes a key that is not a quota. Pure; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cluster.broker.settings import java_double
from cluster.controller import znodes
from cluster.errors import InvalidRequest, UnsupportedVersion

USER = "user"
CLIENT = "client-id"
IP = "ip"
_TYPES = (USER, CLIENT, IP)

_CLIENT_KEYS = {
    "producer_byte_rate": "LONG",
    "consumer_byte_rate": "LONG",
    "request_percentage": "DOUBLE",
    "controller_mutation_rate": "DOUBLE",
}
IP_KEY = "connection_creation_rate"
_IP_KEYS = {IP_KEY: "INT"}
"""Quotas and their types (`QuotaConfigs`)."""

_NO_NODES = (".", "..")

_BOUNDS = {"LONG": 2**63 - 1, "INT": 2**31 - 1}
_EPSILON = 1e-6
_NO_LIMIT = float(2**63 - 1)
"""The value of an infinite quota (Kafka's default of each). Unlike infinity it has no NaN results."""

Entity = Mapping[str, str | None]
"""From an entity's types to names; None is the default entity."""

ClientQuota = tuple[str | None, str | None, dict[str, float]]
"""User, client id and values for the data plane. None: the entity has no such part; "": the default."""


class QuotaOp(NamedTuple):
    """A quota to set, or with None to remove."""

    key: str
    value: float | None


def entity_path(entity: Entity) -> str:
    """The znode of an entity below /config. Raises InvalidRequest for a combination of types that is not
    allowed.
    """
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in _TYPES:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")
        if name in _NO_NODES:
            # Kafka answers UNKNOWN_SERVER_ERROR: the encoding of names keeps dots, and ZooKeeper refuses
            # them.
            raise InvalidRequest(f"The {kind} {name} cannot have quotas, because no znode can have this name")
    node = {
        kind: znodes.DEFAULT_ENTITY if name is None else znodes.sanitize(name)
        for kind, name in entity.items()
    }
    if IP in node and len(node) > 1:
        raise InvalidRequest(
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity."
        )
    if IP in node:
        return f"ips/{node[IP]}"
    if USER in node:
        clients = f"/clients/{node[CLIENT]}" if CLIENT in node else ""
        return f"users/{node[USER]}{clients}"
    return f"clients/{node[CLIENT]}"


def entity_of(path: str) -> dict[str, str | None] | None:
    """The entity of a znode below /config; None if it is not an entity's."""
    names = [None if part == znodes.DEFAULT_ENTITY else znodes.desanitize(part) for part in path.split("/")]
    match path.split("/"):
        case ["users", _]:
            return {USER: names[1]}
        case ["users", _, "clients", _]:
            return {USER: names[1], CLIENT: names[3]}
        case ["clients", _]:
            return {CLIENT: names[1]}
        case ["ips", _]:
            return {IP: names[1]}
    return None


def alteration(entity: Entity, ops: Sequence[QuotaOp]) -> Callable[[Mapping[str, str]], dict[str, str]]:
    """A function from the settings in an entity's znode to new ones. Raises InvalidRequest for an invalid
    quota.
    """
    keys = _IP_KEYS if IP in entity else _CLIENT_KEYS
    values = {op.key: None if op.value is None else _text(op.key, op.value, keys) for op in ops}

    def alter(config: Mapping[str, str]) -> dict[str, str]:
        altered = dict(config)
        for key, value in values.items():
            if value is not None:
                altered[key] = value
            elif key in keys:
                altered.pop(key, None)
        return altered

    return alter


def _text(key: str, value: float, keys: Mapping[str, str]) -> str:
    kind = keys.get(key)
    if kind is None:
        raise InvalidRequest(f"Invalid configuration key {key}")
    if math.isnan(value) or value < 0:
        raise InvalidRequest(f"Configuration {key} must be a number of at least 0")
    if kind == "DOUBLE":
        return java_double(value)
    whole = int(min(value + _EPSILON, _BOUNDS[kind]))
    if abs(float(whole) - value) > _EPSILON:
        raise InvalidRequest(f"Configuration {key} must be a {kind} value")
    return str(whole)


def values_of(path: str, config: Mapping[str, str]) -> dict[str, float]:
    """The quotas among the settings of an entity's znode, without those that are not numbers."""
    keys = _IP_KEYS if path.startswith("ips/") else _CLIENT_KEYS
    found = {}
    for key in keys:
        try:
            value = float(config[key])
        except (KeyError, ValueError):
            continue
        if not math.isnan(value):
            found[key] = value
    return found


class Component(NamedTuple):
    """One part of a filter: entities with this type, and with this `name` if `exact` (None: the default)."""

    exact: bool
    name: str | None = None


_EXACT, _DEFAULT, _ANY = range(3)


def component(match_type: int, name: str | None) -> Component:
    """A part of a filter of DescribeClientQuotas."""
    if match_type == _EXACT:
        return Component(True, name)
    if match_type == _DEFAULT:
        return Component(True)
    if match_type == _ANY:
        return Component(False)
    raise InvalidRequest(f"Unexpected match type: {match_type}")


def check_filter(types: Sequence[str]) -> None:
    """Refuses types that cannot be in one filter."""
    for kind in types:
        if not kind:
            raise InvalidRequest("Unexpected empty filter component entity type")
        if kind not in _TYPES:
            raise UnsupportedVersion(f"Custom entity type '{kind}' not supported")
        if types.count(kind) > 1:
            shown = "client" if kind == CLIENT else kind
            raise InvalidRequest(f"Duplicate {shown} filter component entity type")
    if IP in types and len(types) > 1:
        raise InvalidRequest(
            "Invalid entity filter component combination, IP filter component should not be used with "
            "user or clientId filter component."
        )


def matches(components: Mapping[str, Component], strict: bool, entity: Entity) -> bool:
    """A filter finds the entity. A `strict` filter finds no entity with other types."""
    for kind, wanted in components.items():
        if kind not in entity or (wanted.exact and entity[kind] != wanted.name):
            return False
    return not strict or all(kind in components for kind in entity)


def client_quotas(configs: Mapping[str, Mapping[str, str]]) -> list[ClientQuota]:
    """The quotas of users and clients from all settings by znode."""
    found: list[ClientQuota] = []
    for path, config in configs.items():
        entity, values = entity_of(path), values_of(path, config)
        if entity is not None and IP not in entity and values:
            # Kafka stores negative quotas, which pass nothing.
            limits = {key: min(max(value, 0.0), _NO_LIMIT) for key, value in values.items()}
            found.append((_part(entity, USER), _part(entity, CLIENT), limits))
    return found


def _part(entity: Entity, kind: str) -> str | None:
    return (entity[kind] or "") if kind in entity else None


def ip_rates(configs: Mapping[str, Mapping[str, str]]) -> dict[str | None, float]:
    """Connections a second by address or host name (None: all others) from all settings by znode."""
    found: dict[str | None, float] = {}
    for path, config in configs.items():
        entity, values = entity_of(path), values_of(path, config)
        if entity is not None and IP in entity and values:
            found[entity[IP]] = min(max(values[IP_KEY], 0.0), _NO_LIMIT)
    return found
