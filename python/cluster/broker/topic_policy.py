"""Checks of a topic's settings, and the settings of __consumer_offsets. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cluster.broker.config import BrokerConfig
from cluster.broker.settings import ConfigError, Value, topic_settings
from cluster.errors import InvalidConfig

_THROTTLED = re.compile(r"([0-9]+:[0-9]+)?")
"""A throttled replica: partition and broker (`ThrottledReplicaListValidator`)."""


def check_topic_config(config: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises InvalidConfig for the first setting that is not allowed, alone or together with another setting
    or the broker's default of it (`LogConfig.validate`).
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

    _check_throttled(values)
    _check_remote(values)
    least, most = lag("min.compaction.lag.ms"), lag("max.compaction.lag.ms")
    if least > most:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )


def _check_throttled(values: Mapping[str, Value]) -> None:
    for name in ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"):
        replicas = values.get(name)
        if not isinstance(replicas, list) or replicas == ["*"]:
            continue
        # There may be very many. A loop in Python lets other threads run.
        if not all(_THROTTLED.fullmatch(replica) for replica in replicas):
            shown = ",".join(replicas)
            raise InvalidConfig(f"{name}={shown} is not allowed: * or PARTITION:BROKER pairs are needed")


def _check_remote(values: Mapping[str, Value]) -> None:
    """Refuses tiered storage, and its settings that Kafka refuses in ZooKeeper mode."""
    for name in ("remote.log.delete.on.disable", "remote.log.copy.disable"):
        if values.get(name) is True:
            raise InvalidConfig(
                "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable` "
                "under Zookeeper's mode."
            )
    if values.get("remote.storage.enable") is True:
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


def transactions_topic_config(config: BrokerConfig) -> dict[str, str | None]:
    """The settings of __transaction_state (TransactionStateManager.transactionTopicConfigs)."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.number("transaction.state.log.min.isr")),
        "segment.bytes": str(config.number("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }


def offsets_topic_config(config: BrokerConfig) -> dict[str, str | None]:
    """The settings of __consumer_offsets (GroupCoordinatorService's topic configs)."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.number("offsets.topic.segment.bytes")),
    }
