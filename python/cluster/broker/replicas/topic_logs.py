"""The data plane's logs, with the settings of topics parsed.

Kafka stores a topic's settings as they were written; the data plane gets their parsed values, here as in
`BrokerConfig.server_settings`. A setting that the data plane refuses is logged once and left out; the
partition opens with the other settings. Called by the replica manager's threads, one at a time. Not
persistent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from cluster.broker.replicas.logs import Logs, PartitionSpec
from cluster.broker.settings import ConfigError, as_text, topic_settings

log = logging.getLogger(__name__)


class TopicLogs:
    """`Logs` that takes topic settings as they were written."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._refused: dict[str, dict[str, str]] = {}
        """By topic: the settings that the data plane refused, with their values."""

    def create_partition(self, spec: PartitionSpec) -> None:
        """Opens or creates a partition's log."""

        def create(accepted: dict[str, str]) -> None:
            self._logs.create_partition(replace(spec, config=accepted))

        self._apply(spec.topic, spec.config, create)

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        """Applies settings to the logs of a topic."""
        self._refused.pop(topic, None)
        self._apply(topic, config, lambda accepted: self._logs.update_topic_config(topic, accepted))

    def stop_partition(self, topic: str, partition: int, delete: bool) -> None:
        """Stops serving a partition, and deletes its log if `delete`."""
        self._logs.stop_partition(topic, partition, delete)

    def set_brokers(self, brokers: list[tuple[int, str, int]]) -> None:
        """Sets the addresses at which followers reach leaders."""
        self._logs.set_brokers(brokers)

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        """Sets the number of the topic's partitions and this broker's offline ones."""
        self._logs.know_topic(topic, id, partitions, offline)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._refused.pop(topic, None)
        self._logs.forget_topic(topic)

    def partitions_left(self) -> int:
        """How many more logs can be created before the limit of open files or of mappings is near."""
        return self._logs.partitions_left()

    def _apply(self, topic: str, config: Mapping[str, str], apply: Callable[[dict[str, str]], None]) -> None:
        from logcore._native import ServerConfigError

        refused = self._refused.get(topic, {})
        accepted = {name: text for name, text in canonical(config).items() if refused.get(name) != text}
        while True:
            try:
                return apply(accepted)
            except ServerConfigError as error:
                name = str(error).partition("=")[0]
                if name not in accepted:
                    raise
                self._refused.setdefault(topic, {})[name] = accepted.pop(name)
                log.error(
                    "a setting of topic %s is not applied, and the broker's default is used: %s; "
                    "give %s another value, or delete it (kafka-configs.sh --alter)",
                    topic,
                    error,
                    name,
                )


def canonical(config: Mapping[str, str]) -> dict[str, str]:
    """The settings with canonical values: `gzip ` becomes `gzip`. Invalid values stay, and the data plane
    refuses them.
    """
    return {name: _canonical(name, text) for name, text in config.items()}


def _canonical(name: str, text: str) -> str:
    setting = topic_settings().get(name)
    try:
        value = None if setting is None else as_text(setting.parse(text))
    except ConfigError:
        value = None
    return text if value is None else value
