"""The rules for updates of features (KIP-584), and the features that this broker supports. Pure.

A finalized feature has the same version on all brokers. In ZooKeeper mode none is finalized until an operator
does it, with kafka-features.sh. Source: KafkaController.validateFeatureUpdate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from cluster.errors import InvalidRequest, KafkaProtocolError
from cluster.model import BrokerInfo, VersionRange

TRANSACTION_VERSION = "transaction.version"
"""1: records of __transaction_state are of version 1. 2: an epoch a transaction (KIP-890, KIP-1022)."""

SUPPORTED = {TRANSACTION_VERSION: VersionRange(0, 2)}
"""What this broker supports."""

Levels = Mapping[str, int]
"""The versions of finalized features, by name."""


class Upgrade(IntEnum):
    """What a request says of its update (`FeatureUpdate.UpgradeType`)."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A wanted version of a feature. Below 1 with a downgrade, the feature is not finalized any more."""

    name: str
    level: int
    kind: Upgrade


class Finalized(NamedTuple):
    """The finalized features, and their epoch: the version of the znode."""

    levels: Levels = MappingProxyType({})
    epoch: int = -1


def unsupported(levels: Levels) -> str | None:
    """The finalized feature whose version this broker does not support; None if there is none."""
    return next(
        (name for name, level in levels.items() if name not in SUPPORTED or level not in SUPPORTED[name]),
        None,
    )


def updated(
    finalized: Levels, updates: Iterable[FeatureUpdate], brokers: Iterable[BrokerInfo]
) -> tuple[Levels, dict[str, KafkaProtocolError | None]]:
    """The finalized features afterwards, and the result of each update. `brokers`: those that live."""
    levels, results, alive = dict(finalized), dict[str, KafkaProtocolError | None](), list(brokers)
    for update in updates:
        error = _refusal(update, finalized.get(update.name), alive)
        results[update.name] = error
        if error is not None:
            continue
        if update.level < 1:
            del levels[update.name]
        else:
            levels[update.name] = update.level
    return levels, results


def _refusal(
    update: FeatureUpdate, existing: int | None, brokers: list[BrokerInfo]
) -> KafkaProtocolError | None:
    name, level, kind = update
    if not name:
        return InvalidRequest("Feature name can not be empty.")
    if kind is Upgrade.UNKNOWN:
        return InvalidRequest("Received unknown upgrade type.")
    if level < 1:
        if kind is Upgrade.UPGRADE:
            return InvalidRequest(
                f"Can not provide versionLevel: {level} less than 1 without setting the SAFE downgradeType "
                "in the request."
            )
        return (
            None if existing is not None else InvalidRequest("Can not delete non-existing finalized feature.")
        )
    if existing is not None:
        if level == existing:
            verb = "downgrade" if kind is Upgrade.SAFE_DOWNGRADE else "upgrade"
            return InvalidRequest(
                f"Can not {verb} a finalized feature from existing versionLevel:{existing} to the same value."
            )
        if level < existing and kind is not Upgrade.SAFE_DOWNGRADE:
            return InvalidRequest(
                f"Can not downgrade finalized feature from existing versionLevel:{existing} to provided "
                f"versionLevel:{level} without setting the downgradeType to SAFE in the request."
            )
        if level > existing and kind is not Upgrade.UPGRADE:
            return InvalidRequest(
                "When the downgradeType is set to SAFE in the request, the provided "
                f"versionLevel:{level} can not be greater than existing versionLevel:{existing}."
            )
    lacking = [broker.id for broker in brokers if level not in broker.features.get(name, VersionRange(0, 0))]
    if lacking:
        return InvalidRequest(
            "Could not apply finalized feature update because brokers were found to have incompatible "
            f"versions for the feature: version {level} of {name} is not supported by {_named(lacking)}."
        )
    return None


def _named(brokers: Sequence[int]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, sorted(brokers)))}"
