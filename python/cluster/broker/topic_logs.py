"""The data plane as the controller commands it: a topic's settings, which Kafka keeps as they were written, go to it as
their values.

Owns the way of a topic's own settings into the data plane, the same when a topic is made, changed and opened at the
start; the broker's defaults go as values too (`BrokerConfig.server_settings`). A setting that the data plane refuses is
named in the log once and left out, and keeps neither the partition nor the other settings back. Called by the
controller's threads, of which only one is at a topic at a time. Not persistent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from cluster.broker.settings import ConfigError, as_text, topic_settings
from cluster.controller import Logs, Replica

log = logging.getLogger(__name__)


class TopicLogs:
    """The logs of topics (`cluster.controller.Logs`), with settings as they were written."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._refused: dict[str, dict[str, str]] = {}
        """By topic: settings, with the values that the data plane did not take."""

    def create_partition(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        leader_epoch: int,
        leader_id: int,
        config: dict[str, str],
        new: bool = True,
        replicas: Sequence[Replica] = (),
        isr: Sequence[int] = (),
    ) -> None:
        """Opens or creates a partition's log."""

        def create(taken: dict[str, str]) -> None:
            self._logs.create_partition(
                topic, topic_id, partition, leader_epoch, leader_id, taken, new, replicas, isr
            )

        self._give(topic, config, create)

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        """Gives the logs of a topic their settings."""
        self._refused.pop(topic, None)
        self._give(topic, config, lambda taken: self._logs.update_topic_config(topic, taken))

    def delete_topic(self, topic: str) -> None:
        """Closes and deletes the logs of a topic."""
        self._refused.pop(topic, None)
        self._logs.delete_topic(topic)

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        """Tells what the cluster has of a topic."""
        self._logs.know_topic(topic, id, partitions, offline)

    def forget_topic(self, topic: str) -> None:
        """The cluster has the topic no longer."""
        self._logs.forget_topic(topic)

    def partition_room(self) -> int:
        """How many more logs may be created before the limit of open files or of mappings is near."""
        return self._logs.partition_room()

    def _give(self, topic: str, config: Mapping[str, str], give: Callable[[dict[str, str]], None]) -> None:
        from logcore._native import ServerConfigError

        refused = self._refused.get(topic, {})
        taken = {name: text for name, text in canonical(config).items() if refused.get(name) != text}
        while True:
            try:
                return give(taken)
            except ServerConfigError as error:
                name = str(error).partition("=")[0]
                if name not in taken:
                    raise
                self._refused.setdefault(topic, {})[name] = taken.pop(name)
                log.error(
                    "a setting of topic %s is left out, and the broker's default holds in its place: %s; "
                    "give %s another value, or delete it (kafka-configs.sh --alter)",
                    topic,
                    error,
                    name,
                )


def canonical(config: Mapping[str, str]) -> dict[str, str]:
    """The settings with the texts of their values, so that `gzip ` is `gzip`. Those that have no value, which another program
    stored, stay as they are: the data plane says what is wrong.
    """
    return {name: _canonical(name, text) for name, text in config.items()}


def _canonical(name: str, text: str) -> str:
    setting = topic_settings().get(name)
    try:
        value = None if setting is None else as_text(setting.parse(text))
    except ConfigError:
        value = None
    return text if value is None else value
