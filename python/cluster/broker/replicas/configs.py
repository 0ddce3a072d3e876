"""The topics' own settings, read from the coordinator when they are first needed (ZkConfigRepository).

A notice of a change, or the topic's end, drops what was read. Lives on the event loop. Not persistent.
"""

from __future__ import annotations

import logging

from cluster.controller import ZooKeeper, znodes

log = logging.getLogger(__name__)


class TopicConfigs:
    """The settings by topic."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk.repeating()
        self._known: dict[str, dict[str, str]] = {}
        self._changes = 0
        """How often settings changed. A read that a change overtook is repeated."""

    async def get(self, topic: str) -> dict[str, str]:
        """A topic's own settings. If they cannot be read, none, and the log says so. Not to be changed."""
        known = self._known.get(topic)
        if known is not None:
            return known
        path = znodes.topic_config_path(topic)
        while True:
            changes = self._changes
            found = await self._zk.find(path)
            if changes == self._changes:
                break
        try:
            config = znodes.decode_config(path, found[0] if found else None)
        except znodes.ZnodeError as error:
            log.error(
                "topic %s has the broker's defaults for its settings: %s; write it as Kafka does "
                "(zookeeper-shell set), and start the broker again",
                topic,
                error,
            )
            config = {}
        return self._known.setdefault(topic, config)

    async def topics(self) -> set[str]:
        """The names of the topics that the coordinator has."""
        return set(await self._zk.children(znodes.TOPICS))

    def known(self, topic: str) -> dict[str, str]:
        """What was last read of a topic's settings; none before."""
        return self._known.get(topic, {})

    def forget(self, topic: str) -> None:
        """The settings changed, or the topic is gone."""
        self._changes += 1
        self._known.pop(topic, None)
