"""The broker's configuration as it is now: the file, over it the cluster's dynamic defaults, over them its own.

Owns the three layers and the one immutable `BrokerConfig` made of them, which is replaced whole: who wants a
setting asks `current` each time. Owns no check and no znode. Not persistent: the layers are read anew at the start.
Used on the event loop only. Source: kafka.server.DynamicBrokerConfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cluster.broker.config import BrokerConfig

LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)")
"""A setting of one listener; the group is the setting it stands in for."""

_SAME_SETTING = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
"""The scheduler's interval is the default of the other, which is not so the other way round."""

_SUFFIXES = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
"""Settings of a listener that may have a mechanism's name before theirs."""


def base_name(name: str) -> str:
    """The setting that a listener's setting stands in for; any other name stays as it is."""
    found = LISTENER_PREFIX.fullmatch(name)
    if found is None:
        return name
    return next((suffix for suffix in _SUFFIXES if found[1].endswith(suffix)), found[1])


def synonyms(name: str, listeners: bool = True) -> tuple[str, ...]:
    """The names that say the same as `name`, the one that wins first; `listeners`: with the base of a listener's."""
    for group in _SAME_SETTING:
        if name in group:
            return group
    if name == _FLUSH[0]:
        return _FLUSH
    base = base_name(name)
    return (name, base) if listeners and base != name else (name,)


def overlaid(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """`lower` with the settings of `upper`, each of which takes the place of all its synonyms."""
    merged = dict(lower)
    for name, value in upper.items():
        for other in synonyms(name, listeners=False):
            merged.pop(other, None)
        merged[name] = value
    return merged


class LiveConfig:
    """The layers and what they make together."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        """What the broker was started with."""
        self.cluster: dict[str, str] = {}
        """The dynamic defaults of all brokers."""
        self.own: dict[str, str] = {}
        """The dynamic settings of this broker."""
        self.current = static
        """What holds now."""

    def effective(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """What would hold with these dynamic settings; ConfigError when they contradict one another or the file."""
        return BrokerConfig.parse(overlaid(overlaid(self.static.given, cluster), own))
