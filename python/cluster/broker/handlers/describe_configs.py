"""DescribeConfigs: the settings of topics, of this broker and of all brokers, and the levels of loggers."""

from __future__ import annotations

import asyncio

from cluster.broker.context import Body, Context, Request, error_message
from cluster.broker.dynamic import loggers
from cluster.broker.dynamic.alteration import BROKER, BROKER_LOGGER, CLIENT_METRICS, TOPIC
from cluster.broker.dynamic.description import (
    Entry,
    broker_entries,
    cluster_entries,
    logger_entries,
    own_topic_entries,
    topic_entries,
)
from cluster.broker.handlers._own_id import require_own_id
from cluster.controller.names import validate_topic_name
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, UnknownTopicOrPartition, for_code
from cluster.time_slice import TimeSlice

API = "DescribeConfigs"

_REPEATED_MAX = 10_000
"""Settings that a response may have repeatedly: a broker's settings thirty times. No tool needs that."""


async def handle(context: Context, request: Request) -> Body:
    """Describes each resource. An unknown kind of resource fails the whole request.

    As in Kafka, an error without a message has an empty one, not null.
    """
    resources, time_slice = request.body["resources"], TimeSlice()
    for item in resources:
        if item["resource_type"] not in _NAMES:
            raise InvalidRequest(f"Unexpected resource type {item['resource_type']}")
        await time_slice.yield_if_over()
    descriptions = _Descriptions(context, request)
    results = []
    for item in resources:
        if item["resource_type"] == TOPIC and context.metadata.topic(item["resource_name"]) is not None:
            await context.topic_configs.get(item["resource_name"])
        results.append(_describe(descriptions, item))
        await asyncio.sleep(0)
    return {"results": results}


def _describe(descriptions: _Descriptions, item: Body) -> Body:
    answer = {name: item[name] for name in ("resource_type", "resource_name")}
    try:
        configs = descriptions.configs(item)
    except KafkaProtocolError as error:
        return answer | {"error_code": error.code, "error_message": error_message(error) or "", "configs": []}
    return answer | {"error_code": NONE, "error_message": "", "configs": configs}


class _Descriptions:
    """The descriptions of one response. Each resource is described once; its names, for example `0` and `00`,
    share it.

    Kafka describes a resource as often as it is named, so the response to a small request has no bound. Here
    repeated descriptions are bounded; a response without repeats is never refused.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._known: dict[tuple[int, str], list[Body]] = {}
        self._of_any_topic: dict[str, Body] = {}
        self._repeated = 0

    def configs(self, item: Body) -> list[Body]:
        """The requested settings. Raises InvalidRequest if too many are repeated."""
        kind = item["resource_type"]
        resource = (kind, _NAMES[kind](self._context, item["resource_name"]))
        repeats = resource in self._known
        if not repeats:
            self._known[resource] = self._described(*resource)
        names = frozenset(item["configuration_keys"] or ())
        configs = [entry for entry in self._known[resource] if not names or entry["name"] in names]
        if repeats:
            self._count(len(configs))
        return configs

    def _described(self, kind: int, name: str) -> list[Body]:
        live = self._context.dynamic.live
        if kind == TOPIC:
            return self._topic(name)
        if kind == BROKER_LOGGER:
            entries = logger_entries(loggers.levels())
        else:
            entries = broker_entries(self._context.broker_id, live) if name else cluster_entries(live)
        return [_shown(self._request, entry) for entry in entries]

    def _topic(self, name: str) -> list[Body]:
        """A topic's settings. Topics share the entries of settings that they do not set themselves, which are
        most.
        """
        topic = self._context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition
        live = self._context.dynamic.live
        if not self._of_any_topic:
            self._of_any_topic = {
                entry.name: _shown(self._request, entry) for entry in topic_entries({}, live)
            }
        config = self._context.topic_configs.known(name)
        own = {entry.name: _shown(self._request, entry) for entry in own_topic_entries(config, live)}
        return list((self._of_any_topic | own).values())

    def _count(self, repeated: int) -> None:
        if self._repeated + repeated > _REPEATED_MAX:
            raise InvalidRequest(
                f"The request names the same resources repeatedly: at most {_REPEATED_MAX} settings are "
                "repeated"
            )
        self._repeated += repeated


def _topic_name(_context: Context, name: str) -> str:
    validate_topic_name(name)
    return name


def _broker_name(context: Context, name: str) -> str:
    if not name:
        return name
    require_own_id(context, name, "Broker", "expected {own} or empty string, but received {name}")
    return str(context.broker_id)


def _loggers_name(context: Context, name: str) -> str:
    if not name:
        raise InvalidRequest("Broker id must not be empty")
    require_own_id(context, name, "Broker", "expected {own} but received {name}")
    return str(context.broker_id)


def _client_metrics_name(_context: Context, name: str) -> str:
    if not name:
        raise InvalidRequest("Client metrics subscription name must not be empty")
    raise InvalidRequest("Config type client-metrics is only supported on KRaft clusters")


_NAMES = {
    TOPIC: _topic_name,
    BROKER: _broker_name,
    BROKER_LOGGER: _loggers_name,
    CLIENT_METRICS: _client_metrics_name,
}
"""By kind: the canonical name of a resource. Raises InvalidRequest for a name that is not allowed."""


def _shown(request: Request, entry: Entry) -> Body:
    shown: Body = {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "is_sensitive": entry.sensitive,
        "config_source": entry.source,
        "config_type": entry.type,
        "documentation": entry.documentation if request.body["include_documentation"] else None,
    }
    # As in Kafka, `is_default` of version 0 stays false.
    if request.api_version > 0 and request.body["include_synonyms"]:
        shown["synonyms"] = [
            {"name": name, "value": value, "source": source} for name, value, source in entry.synonyms
        ]
    return shown


def failure(request: Request, code: int) -> Body:
    """Each resource has the error with its standard message (`DescribeConfigsRequest.getErrorResponse`)."""
    return {
        "results": [
            {
                "error_code": code,
                "error_message": for_code(code).message,
                "resource_type": item["resource_type"],
                "resource_name": item["resource_name"],
                "configs": [],
            }
            for item in request.body["resources"]
        ]
    }
