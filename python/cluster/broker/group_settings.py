"""The settings of groups of the consumer protocol (`group.consumer.*`)."""

from __future__ import annotations

from cluster.broker.config import BrokerConfig
from cluster.broker.settings import ConfigError
from cluster.groups import ASSIGNORS, ConsumerLimits

_PROTOCOLS = "group.coordinator.rebalance.protocols"
_POLICY = "group.consumer.migration.policy"
_ASSIGNORS = "group.consumer.assignors"

_PACKAGE = "org.apache.kafka.coordinator.group.assignor."
_CLASSES = {f"{_PACKAGE}{name.capitalize()}Assignor": name for name in ASSIGNORS}

_POLICIES = {
    "bidirectional": (True, True),
    "upgrade": (True, False),
    "downgrade": (False, True),
    "disabled": (False, False),
}
"""Whether a group may change to the consumer protocol, and back."""


def consumer_protocol(config: BrokerConfig) -> bool:
    """The broker serves the consumer protocol. As Kafka 4.0, it does unless it is configured not to."""
    protocols = config.values["group.coordinator.rebalance.protocols"]
    assert isinstance(protocols, list)
    return _PROTOCOLS not in config.given or "consumer" in protocols


def consumer_limits(config: BrokerConfig) -> ConsumerLimits:
    """The settings. Raises ConfigError."""
    policy = (
        (config.text("group.consumer.migration.policy") or "").lower()
        if _POLICY in config.given
        else "bidirectional"
    )
    if policy not in _POLICIES:
        raise ConfigError(_POLICY, policy, f"one of {', '.join(_POLICIES)} is needed")
    upgrade, downgrade = _POLICIES[policy]
    return ConsumerLimits(
        session_timeout_ms=_within(
            "group.consumer.{}session.timeout.ms",
            config.number("group.consumer.session.timeout.ms"),
            config.number("group.consumer.min.session.timeout.ms"),
            config.number("group.consumer.max.session.timeout.ms"),
        ),
        heartbeat_interval_ms=_within(
            "group.consumer.{}heartbeat.interval.ms",
            config.number("group.consumer.heartbeat.interval.ms"),
            config.number("group.consumer.min.heartbeat.interval.ms"),
            config.number("group.consumer.max.heartbeat.interval.ms"),
        ),
        members_max=config.number("group.consumer.max.size"),
        assignors=_assignors(config),
        upgrade=upgrade,
        downgrade=downgrade,
    )


def _within(name: str, value: int, low: int, high: int) -> int:
    """The value. Raises ConfigError if it is not within the bounds that the broker's settings say."""
    if not low <= value <= high:
        bounds = f"a number from {name.format('min.')} to {name.format('max.')} is needed"
        raise ConfigError(name.format(""), value, bounds)
    return value


def _assignors(config: BrokerConfig) -> tuple[str, ...]:
    """The assignors, by the names of Kafka 4.0 or the classes of Kafka 3.9."""
    given = config.values["group.consumer.assignors"]
    assert isinstance(given, list)
    names = tuple(dict.fromkeys(_CLASSES.get(name, name) for name in given))
    unknown = [name for name in names if name not in ASSIGNORS]
    if unknown or not names:
        raise ConfigError(_ASSIGNORS, ",".join(given), f"a list of {', '.join(ASSIGNORS)} is needed")
    return names
