"""The broker's current configuration: the file, the cluster's dynamic defaults over it, the broker's own over
these.

Owns the three layers and the immutable `BrokerConfig` made of them, which is replaced as a whole, so callers
read `current` each time. Not persistent: the start reads the layers. Lives on the event loop. Source:
kafka.server.DynamicBrokerConfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cluster.broker.config import BrokerConfig

LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)")
"""A setting of one listener; the group is the general setting."""

_SAME_SETTING = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
"""The second is the default of the first, but not the reverse."""

_SUFFIXES = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
"""Settings of a listener that may have a mechanism's name as a prefix."""


def base_name(name: str) -> str:
    """The general setting of a listener's setting; any other name stays as it is."""
    found = LISTENER_PREFIX.fullmatch(name)
    if found is None:
        return name
    return next((suffix for suffix in _SUFFIXES if found[1].endswith(suffix)), found[1])


def synonyms(name: str, listeners: bool = True) -> tuple[str, ...]:
    """The names with the same meaning as `name`, by precedence. `listeners`: with the general name of a
    listener's.
    """
    for group in _SAME_SETTING:
        if name in group:
            return group
    if name == _FLUSH[0]:
        return _FLUSH
    base = base_name(name)
    return (name, base) if listeners and base != name else (name,)


def overlaid(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """`lower` with the settings of `upper`. Each replaces all its synonyms."""
    merged = dict(lower)
    for name, value in upper.items():
        for other in synonyms(name, listeners=False):
            merged.pop(other, None)
        merged[name] = value
    return merged


class LiveConfig:
    """The layers and the configuration made of them."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        """The configuration of the file."""
        self.cluster: dict[str, str] = {}
        """The dynamic defaults of all brokers."""
        self.own: dict[str, str] = {}
        """The dynamic settings of this broker."""
        self.current = static
        """The configuration in force."""

    def effective(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """The configuration with these dynamic settings. Raises ConfigError if they contradict one another or
        the file.
        """
        return BrokerConfig.parse(overlaid(overlaid(self.static.given, cluster), own))
