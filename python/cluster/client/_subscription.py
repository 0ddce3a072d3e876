"""What a consumer subscribes to, and the topics that match it now.

The group's thread calls `SubscribedTopics`; the application's thread makes a `Subscription`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from logcore import _native

from ._errors import KafkaError

REQUEST_TIMEOUT = 10.0


@dataclass
class Subscription:
    """Topic names, and regular expressions (written with a leading ^)."""

    topics: list[str] = field(default_factory=list)
    patterns: list[re.Pattern[str]] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    """The names that did not exist at the last look; used by the group's thread only."""

    @classmethod
    def of(cls, topics: list[str]) -> Subscription:
        """Splits names from expressions. Raises ValueError for an expression that does not compile."""
        found = cls()
        for topic in topics:
            if topic.startswith("^"):
                try:
                    found.patterns.append(re.compile(topic))
                except re.error as error:
                    raise ValueError(f"{topic!r} is not a regular expression: {error}") from None
            else:
                found.topics.append(topic)
        return found


class SubscribedTopics:
    """Finds a subscription's topics in the cluster's metadata."""

    def __init__(self, network: _native.Network, create: bool) -> None:
        """`create`: asking for a topic may create it (allow.auto.create.topics)."""
        self._network = network
        self._create = create

    def find(self, subscription: Subscription, report: Callable[[KafkaError], None]) -> list[str]:
        """The topics subscribed to: all names, and what the patterns match.

        Reports each missing name once.
        """
        answer = self._ask(None if subscription.patterns else subscription.topics)
        existing = {name for name, (code, *_) in answer.items() if code == 0}
        matched = {
            name
            for name in existing
            if not answer[name][1] and any(pattern.match(name) for pattern in subscription.patterns)
        }
        missing = {name for name in subscription.topics if name not in existing}
        for name in missing - subscription.missing:
            code = answer.get(name, (0, False, []))[0] or KafkaError.UNKNOWN_TOPIC_OR_PART
            if self._create and KafkaError(code).retriable():
                continue
            text = f"Subscribed topic not available: {name}: {KafkaError(code).str()}"
            report(KafkaError(code, text))
        subscription.missing = missing
        return sorted(matched.union(subscription.topics))

    def count_partitions(self, topics: list[str]) -> dict[str, int]:
        """The number of partitions of each topic that exists."""
        return {
            name: len(partitions) for name, (code, _, partitions, _) in self._ask(topics).items() if code == 0
        }

    def _ask(self, topics: list[str] | None) -> dict[str, tuple[int, bool, list[Any], bytes | None]]:
        """Topic -> error code, whether it is internal, partitions, id."""
        answer = self._network.metadata(topics, create=self._create, timeout=REQUEST_TIMEOUT)
        found: dict[str, tuple[int, bool, list[Any], bytes | None]] = answer["topics"]
        return found
