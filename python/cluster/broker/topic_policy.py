"""What settings a topic may have, what it gets by default, and what its settings look like to
DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.broker.config import BrokerConfig
from cluster.broker.settings import ConfigError, Setting, Value, as_text, topic_settings
from cluster.controller import TopicDefaults
from cluster.errors import InvalidConfig

SOURCE_TOPIC = 1
SOURCE_BROKER_FILE = 4
SOURCE_DEFAULT = 5
"""Where a value is from (`DescribeConfigsResponse.ConfigSource`)."""


def check_topic_config(config: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises InvalidConfig naming the first setting that a topic cannot have, or cannot have together with another or
    with the broker's default of another (`LogConfig.validate`).
    """
    table = topic_settings()
    values: dict[str, Value] = {}
    for name, text in config.items():
        setting = table.get(name)
        if setting is None:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        try:
            values[name] = setting.parse(text)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from None

    def lag(name: str) -> int:
        value = values[name] if name in values else broker.topic_default(table[name])
        assert isinstance(value, int)
        return value

    least, most = lag("min.compaction.lag.ms"), lag("max.compaction.lag.ms")
    if least > most:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )


def topic_defaults(config: BrokerConfig) -> TopicDefaults:
    """The broker's defaults for topics that do not say."""
    return TopicDefaults(
        config.number("num.partitions"),
        config.number("default.replication.factor"),
        lambda topic: check_topic_config(topic, config),
    )


def offsets_topic_config(config: BrokerConfig) -> dict[str, str | None]:
    """The settings of __consumer_offsets (GroupCoordinatorService's topic configs)."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.number("offsets.topic.segment.bytes")),
    }


Synonym = tuple[str, str | None, int]
"""Name, value and source."""


def synonyms_of(setting: Setting, own: Mapping[str, str], config: BrokerConfig) -> list[Synonym]:
    """Every place the setting's value may come from, the one that counts first."""
    found: list[Synonym] = [(setting.name, own[setting.name], SOURCE_TOPIC)] if setting.name in own else []
    broker = [name for name, _ in setting.synonyms]
    lower = [(name, config.given[name], SOURCE_BROKER_FILE) for name in broker if name in config.given]
    for name in broker:
        default = config.defaults_text(name)
        if default is not None:
            lower.append((name, default, SOURCE_DEFAULT))
    # As Kafka does: a list that does not lead up to the setting's first name says nothing about it.
    while lower and lower[0][0] != broker[0]:
        lower.pop(0)
    return found + lower


def topic_source(setting: Setting, own: Mapping[str, str], config: BrokerConfig) -> int:
    """Where the topic's value of a setting is from."""
    found = synonyms_of(setting, own, config)
    return found[0][2] if found else SOURCE_DEFAULT


def topic_value(setting: Setting, own: Mapping[str, str], config: BrokerConfig) -> str | None:
    """The topic's value of a setting, None when it is not to be shown."""
    if setting.sensitive:
        return None
    return own[setting.name] if setting.name in own else as_text(config.topic_default(setting))
