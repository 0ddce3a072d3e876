"""DescribeConfigs: the settings of topics and of this broker, with where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.broker.config import BrokerConfig
from cluster.broker.context import Body, Context, Request
from cluster.broker.settings import CONFIG_TYPES, Setting, as_text, broker_settings, topic_settings
from cluster.broker.topic_policy import (
    SOURCE_BROKER_FILE,
    SOURCE_DEFAULT,
    Synonym,
    synonyms_of,
    topic_value,
)
from cluster.controller.names import validate_topic_name
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, UnknownTopicOrPartition

API_KEY = 32
VERSIONS = (0, 4)

_TOPIC = 2
_BROKER = 4


async def handle(context: Context, request: Request) -> Body:
    """Describes each resource by itself."""
    return {"results": [_describe(context, request, item) for item in request.body["resources"]]}


def _describe(context: Context, request: Request, item: Body) -> Body:
    answer: Body = {
        "resource_type": item["resource_type"],
        "resource_name": item["resource_name"],
        "configs": [],
    }
    try:
        if item["resource_type"] == _TOPIC:
            configs = _topic(context, request, item)
        elif item["resource_type"] == _BROKER:
            configs = _broker(context, request, item)
        else:
            raise InvalidRequest(f"Unsupported resource type: {item['resource_type']}")
    except KafkaProtocolError as error:
        return answer | {"error_code": error.code, "error_message": str(error)}
    return answer | {"error_code": NONE, "error_message": None, "configs": configs}


def _wanted(item: Body, settings: Iterable[Setting]) -> Iterable[Setting]:
    names = item["configuration_keys"]
    return [setting for setting in settings if not names or setting.name in names]


def _topic(context: Context, request: Request, item: Body) -> list[Body]:
    validate_topic_name(item["resource_name"])
    topic = context.metadata.topic(item["resource_name"])
    if topic is None:
        raise UnknownTopicOrPartition
    return [
        _entry(
            request,
            setting,
            topic_value(setting, topic.config, context.config),
            synonyms_of(setting, topic.config, context.config),
            read_only=False,
        )
        for setting in _wanted(item, topic_settings().values())
    ]


def _broker(context: Context, request: Request, item: Body) -> list[Body]:
    name = item["resource_name"]
    if not name:
        # The cluster's dynamic defaults; none can be set yet.
        return []
    if not name.removeprefix("-").isdecimal():
        raise InvalidRequest(f"Broker id must be an integer, but it is: {name}")
    if int(name) != context.broker_id:
        raise InvalidRequest(
            f"Unexpected broker id, expected {context.broker_id} or empty string, but received {name}"
        )
    config = context.config
    return [
        _entry(
            request,
            setting,
            None if setting.sensitive else _broker_value(context, setting),
            _broker_synonyms(setting, config),
            # Those that Kafka can change while running are not changed here: there is no AlterConfigs.
            read_only=True,
        )
        for setting in _wanted(item, (s for s in broker_settings().values() if not s.internal))
    ]


def _broker_value(context: Context, setting: Setting) -> str | None:
    if setting.name in ("broker.id", "node.id"):
        return str(context.broker_id)
    return as_text(context.config.values[setting.name])


def _broker_synonyms(setting: Setting, config: BrokerConfig) -> list[Synonym]:
    found: list[Synonym] = []
    if setting.name in config.given:
        found.append((setting.name, config.given[setting.name], SOURCE_BROKER_FILE))
    if setting.default is not None:
        found.append((setting.name, setting.default, SOURCE_DEFAULT))
    return found


def _entry(
    request: Request, setting: Setting, value: str | None, synonyms: list[Synonym], read_only: bool
) -> Body:
    source = synonyms[0][2] if synonyms else SOURCE_DEFAULT
    entry: Body = {
        "name": setting.name,
        "value": value,
        "read_only": read_only,
        "is_sensitive": setting.sensitive,
        "config_source": source,
        "config_type": CONFIG_TYPES[setting.type],
        "documentation": None,
    }
    if request.api_version == 0:
        entry["is_default"] = source == SOURCE_DEFAULT
    elif request.body["include_synonyms"]:
        entry["synonyms"] = [
            {"name": name, "value": None if setting.sensitive else text, "source": origin}
            for name, text, origin in synonyms
        ]
    return entry


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
