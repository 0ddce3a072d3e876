"""DescribeConfigs: the settings of topics, of this broker, of all brokers, and the levels of its loggers."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request, told
from cluster.broker.dynamic import loggers
from cluster.broker.dynamic.alteration import BROKER, BROKER_LOGGER, CLIENT_METRICS, TOPIC
from cluster.broker.dynamic.description import (
    SOURCE_DEFAULT,
    Entry,
    broker_entries,
    cluster_entries,
    logger_entries,
    topic_entries,
)
from cluster.broker.handlers._own_id import require_own_id
from cluster.controller.names import validate_topic_name
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, UnknownTopicOrPartition

API_KEY = 32
VERSIONS = (0, 4)


async def handle(context: Context, request: Request) -> Body:
    """Describes each resource by itself; a kind of resource that there is not fails the whole request. Where there is
    nothing to say of an error its message is empty, not absent, as Kafka's is.
    """
    resources = request.body["resources"]
    for item in resources:
        if item["resource_type"] not in _DESCRIBERS:
            raise InvalidRequest(f"Unexpected resource type {item['resource_type']}")
    return {"results": [_describe(context, request, item) for item in resources]}


def _describe(context: Context, request: Request, item: Body) -> Body:
    answer = {name: item[name] for name in ("resource_type", "resource_name")}
    try:
        entries = _DESCRIBERS[item["resource_type"]](context, item["resource_name"])
    except KafkaProtocolError as error:
        return answer | {"error_code": error.code, "error_message": told(error) or "", "configs": []}
    names = item["configuration_keys"]
    return answer | {
        "error_code": NONE,
        "error_message": "",
        "configs": [_shown(request, entry) for entry in entries if not names or entry.name in names],
    }


def _topic(context: Context, name: str) -> list[Entry]:
    validate_topic_name(name)
    topic = context.metadata.topic(name)
    if topic is None:
        raise UnknownTopicOrPartition
    return topic_entries(topic.config, context.dynamic.live)


def _broker(context: Context, name: str) -> list[Entry]:
    if not name:
        return cluster_entries(context.dynamic.live)
    require_own_id(context, name, "Broker", "expected {own} or empty string, but received {name}")
    return broker_entries(context.broker_id, context.dynamic.live)


def _loggers(context: Context, name: str) -> list[Entry]:
    if not name:
        raise InvalidRequest("Broker id must not be empty")
    require_own_id(context, name, "Broker", "expected {own} but received {name}")
    return logger_entries(loggers.levels())


def _client_metrics(_context: Context, name: str) -> list[Entry]:
    if not name:
        raise InvalidRequest("Client metrics subscription name must not be empty")
    raise InvalidRequest("Config type client-metrics is only supported on KRaft clusters")


_DESCRIBERS = {TOPIC: _topic, BROKER: _broker, BROKER_LOGGER: _loggers, CLIENT_METRICS: _client_metrics}


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
    if request.api_version == 0:
        shown["is_default"] = entry.source == SOURCE_DEFAULT
    elif request.body["include_synonyms"]:
        shown["synonyms"] = [
            {"name": name, "value": value, "source": source} for name, value, source in entry.synonyms
        ]
    return shown


def failure(request: Request, code: int) -> Body:
    """Each resource has the error."""
    return {
        "results": [
            {
                "error_code": code,
                "error_message": None,
                "resource_type": item["resource_type"],
                "resource_name": item["resource_name"],
                "configs": [],
            }
            for item in request.body["resources"]
        ]
    }
