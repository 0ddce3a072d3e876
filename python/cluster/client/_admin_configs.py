"""`AdminClient`'s operations on settings: describe and alter.

They run in the calling thread. A resource is its type's number and its name, as in Kafka's protocol: the
numbers of brokers' loggers (8) and client metrics (16) have no name in confluent-kafka.
"""

from __future__ import annotations

import re
from typing import Any

from ._admin_types import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, ResourceType
from ._errors import KafkaException, failure_of
from ._requests import ANY_BROKER, Requests

BROKER_LOGGER = 8
CLIENT_METRICS = 16

Resource = tuple[int, str]


def describe(
    requests: Requests, resources: list[Resource], timeout: float
) -> dict[Resource, list[dict[str, Any]] | KafkaException]:
    """The settings of each resource as the response has them."""
    described: dict[Resource, list[dict[str, Any]] | KafkaException] = {}
    for broker, asked in _by_broker(resources, ANY_BROKER).items():
        message = {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configuration_keys": None}
                for kind, name in asked
            ],
            "include_synonyms": True,
        }
        response = requests.send_until("DescribeConfigs", message, broker=broker, timeout=timeout)
        for result in response["results"]:
            key = (result["resource_type"], result["resource_name"])
            described[key] = failure_of(result) or result["configs"]
    return described


def alter(
    requests: Requests,
    api: str,
    changes: dict[Resource, list[dict[str, Any]]],
    *,
    validate_only: bool,
    broker: int,
    timeout: float,
) -> dict[Resource, KafkaException | None]:
    """AlterConfigs or IncrementalAlterConfigs; the failure of each resource, or None."""
    altered: dict[Resource, KafkaException | None] = {}
    for node, asked in _by_broker(list(changes), broker).items():
        message = {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configs": changes[kind, name]}
                for kind, name in asked
            ],
            "validate_only": validate_only,
        }
        response = requests.send_until(api, message, broker=node, timeout=timeout)
        for result in response["responses"]:
            altered[result["resource_type"], result["resource_name"]] = failure_of(result)
    return altered


def change(entry: ConfigEntry) -> dict[str, Any]:
    """An entry of IncrementalAlterConfigs. Raises ValueError without an operation."""
    if entry.incremental_operation is None:
        raise ValueError(f"{entry.name}: incremental_operation must be set")
    deleted = entry.incremental_operation is AlterConfigOpType.DELETE
    return {
        "name": entry.name,
        "config_operation": entry.incremental_operation.value,
        "value": None if deleted else entry.value,
    }


def key(resource: ConfigResource) -> Resource:
    return (resource.restype_int, resource.name)


def _by_broker(resources: list[Resource], otherwise: int) -> dict[int, list[Resource]]:
    """Only the broker itself knows and changes its own settings; any broker takes the others."""
    found: dict[int, list[Resource]] = {}
    for kind, name in resources:
        own = kind in (ResourceType.BROKER.value, BROKER_LOGGER) and re.fullmatch("[0-9]{1,10}", name)
        found.setdefault(int(name) if own else otherwise, []).append((kind, name))
    return found


def config_entry(entry: dict[str, Any]) -> ConfigEntry:
    """A setting of the response in confluent-kafka's shape."""
    source = _source(entry.get("config_source", -1))
    synonyms = {
        synonym["name"]: ConfigEntry(
            synonym["name"], synonym["value"], _source(synonym["source"]), is_synonym=True
        )
        for synonym in entry.get("synonyms") or []
    }
    return ConfigEntry(
        entry["name"],
        entry["value"],
        source,
        entry["read_only"],
        bool(entry.get("is_default")) or source is ConfigSource.DEFAULT_CONFIG,
        entry["is_sensitive"],
        synonyms=synonyms,
    )


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN_CONFIG
