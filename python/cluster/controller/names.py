"""Valid topic names, and which topics are internal (org.apache.kafka.common.internals.Topic). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cluster.errors import InvalidTopicException
from cluster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})

NAME_LENGTH_MAX = 249
"""A directory's name has at most 255 characters, of which a dash and the partition's digits take six."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicException if `name` is not a valid topic name."""
    if not name:
        raise InvalidTopicException("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopicException("Topic name is invalid: '.' or '..' is not allowed")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicException(
            f"Topic name is invalid: the length of '{name}' is longer than "
            f"the max allowed length {NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicException(
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )


def is_internal(name: str) -> bool:
    """The topic is one of Kafka's internal topics."""
    return name in INTERNAL_TOPICS


class TopicNames:
    """Existing topic names. Two names collide if they differ only in dots and underscores: their metrics are
    equal.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._folded: dict[str, str] = {}
        for name in names:
            self.add(name)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Adds a name."""
        self._names.add(name)
        self._folded.setdefault(_folded(name), name)

    def colliding(self, name: str) -> str | None:
        """The existing topic that collides with `name`."""
        return self._folded.get(_folded(name))


def _folded(name: str) -> str:
    return name.replace(".", "_")
