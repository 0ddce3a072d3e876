"""DescribeConfigs' entries: each setting of a resource, its value, and every source of a value.

Owns the order of sources and the flags of kafka.server.ConfigHelper: a topic's own settings, this broker's
dynamic ones, the cluster's, the file, the defaults. An unknown setting is shown without its value, because it
may be a password. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cluster.broker.dynamic.broker_rules import THREADS_AT_START, described_settings, is_dynamic
from cluster.broker.dynamic.live import LiveConfig, base_name, synonyms
from cluster.broker.settings import (
    CONFIG_TYPES,
    ConfigError,
    Setting,
    as_text,
    broker_settings,
    topic_settings,
)
from cluster.model import BrokerId

UNKNOWN_SOURCE = 0
SOURCE_TOPIC = 1
SOURCE_BROKER = 2
SOURCE_CLUSTER = 3
SOURCE_BROKER_FILE = 4
SOURCE_DEFAULT = 5
SOURCE_LOGGER = 6
"""Sources of a value (`DescribeConfigsResponse.ConfigSource`)."""

UNKNOWN_TYPE = 0


class Synonym(NamedTuple):
    """A source of a value."""

    name: str
    value: str | None
    source: int


class Entry(NamedTuple):
    """One setting of a resource. The first of `synonyms` is the source in force."""

    name: str
    value: str | None
    source: int
    synonyms: tuple[Synonym, ...] = ()
    read_only: bool = False
    sensitive: bool = False
    type: int = UNKNOWN_TYPE
    documentation: str | None = None


def topic_entries(own: Mapping[str, str], live: LiveConfig) -> list[Entry]:
    """Every setting of a topic. `own` are those that the topic sets."""
    known = {setting.name: _topic_entry(setting, {}, live) for setting in topic_settings().values()}
    return list((known | {entry.name: entry for entry in own_topic_entries(own, live)}).values())


def own_topic_entries(own: Mapping[str, str], live: LiveConfig) -> list[Entry]:
    """The entries of the settings that a topic sets."""
    known = topic_settings()
    return [
        _topic_entry(known[name], own, live)
        if name in known
        else Entry(name, None, SOURCE_TOPIC, (Synonym(name, None, SOURCE_TOPIC),), sensitive=True)
        for name in own
    ]


def _topic_entry(setting: Setting, own: Mapping[str, str], live: LiveConfig) -> Entry:
    found = topic_synonyms(setting, own, live)
    return Entry(
        setting.name,
        topic_value(setting, own, live),
        _first_source(found),
        found,
        sensitive=setting.sensitive,
        type=CONFIG_TYPES[setting.type],
        documentation=_documentation(setting),
    )


def topic_synonyms(setting: Setting, own: Mapping[str, str], live: LiveConfig) -> tuple[Synonym, ...]:
    """Every source of a topic's setting."""
    lower = _broker_synonyms(setting.synonyms[0][0], live, setting.sensitive) if setting.synonyms else ()
    if setting.name not in own:
        return lower
    return (Synonym(setting.name, topic_value(setting, own, live), SOURCE_TOPIC), *lower)


def topic_value(setting: Setting, own: Mapping[str, str], live: LiveConfig) -> str | None:
    """A topic's parsed value of a setting; None if it is sensitive."""
    if setting.sensitive:
        return None
    if setting.name not in own:
        return as_text(live.current.topic_default(setting))
    try:
        return as_text(setting.parse(own[setting.name]))
    except ConfigError:
        # Another program wrote an invalid value into the znode.
        return own[setting.name]


def broker_entries(broker: BrokerId, live: LiveConfig) -> list[Entry]:
    """Every setting of this broker, with unknown ones."""
    values = {
        name: as_text(live.current.values[name])
        for name, setting in broker_settings().items()
        if not setting.internal
    }
    values |= {"broker.id": str(broker), "node.id": str(broker)}
    values |= {name: text for name, text in live.current.given.items() if name not in broker_settings()}
    return [_broker_entry(name, value, live) for name, value in values.items()]


def cluster_entries(live: LiveConfig) -> list[Entry]:
    """The dynamic defaults of all brokers."""
    found = [_broker_entry(name, value, live) for name, value in live.cluster.items()]
    dynamic = [tuple(item for item in entry.synonyms if item.source == SOURCE_CLUSTER) for entry in found]
    return [
        entry._replace(synonyms=kept, source=_first_source(kept))
        for entry, kept in zip(found, dynamic, strict=True)
    ]


def logger_entries(levels: Mapping[str, str]) -> list[Entry]:
    """The level of every logger."""
    return [Entry(name, level, SOURCE_LOGGER) for name, level in levels.items()]


def _broker_entry(name: str, value: str | None, live: LiveConfig) -> Entry:
    setting = described_settings().get(name) or described_settings().get(base_name(name))
    sensitive = setting is None or setting.sensitive
    found = _broker_synonyms(name, live, sensitive)
    return Entry(
        name,
        None if sensitive else value,
        _first_source(found),
        found,
        read_only=not is_dynamic(name),
        sensitive=sensitive,
        type=UNKNOWN_TYPE if setting is None else CONFIG_TYPES[setting.type],
        documentation=None if setting is None else _documentation(setting),
    )


def _broker_synonyms(wanted: str, live: LiveConfig, sensitive: bool) -> tuple[Synonym, ...]:
    names = synonyms(wanted)
    layers = (
        (SOURCE_BROKER, live.own),
        (SOURCE_CLUSTER, live.cluster),
        (SOURCE_BROKER_FILE, _with_node_id(live.static.given)),
        (SOURCE_DEFAULT, _defaults(names)),
    )
    found = [
        Synonym(name, None if sensitive else layer[name], source)
        for source, layer in layers
        for name in names
        if name in layer
    ]
    # As in Kafka, the first source has the setting's own name; those before it are left out.
    while found and found[0].name != wanted:
        found.pop(0)
    return tuple(found)


def _with_node_id(given: Mapping[str, str]) -> Mapping[str, str]:
    """To Kafka `broker.id` and `node.id` are one setting (`KafkaConfig.populateSynonyms`)."""
    return {**given, "node.id": given["broker.id"]} if "broker.id" in given else given


def _defaults(names: tuple[str, ...]) -> dict[str, str]:
    settings = ((name, broker_settings().get(name)) for name in names)
    return {name: item.default for name, item in settings if item is not None and item.default is not None}


def _first_source(found: tuple[Synonym, ...]) -> int:
    return found[0].source if found else SOURCE_DEFAULT


def _documentation(setting: Setting) -> str:
    """A setting's type, default, valid values and effect, in one or two sentences."""
    default = "no default" if setting.default is None else f"default '{setting.default}'"
    valid = "" if setting.valid == "-" else f", valid: {setting.valid.replace('|', ' or ')}"
    dynamic = " It can be changed while the broker runs." if setting.dynamic else ""
    if setting.name in THREADS_AT_START:
        dynamic = " A change takes effect at the next start."
    effect = "" if setting.has_effect else " It has no effect in this broker."
    return f"{setting.type}, {default}{valid}.{dynamic}{effect}"
