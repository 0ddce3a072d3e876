"""The rules for updates of finalized features, and the znode that holds them.

If one failed, an operator would finalize a version that a broker does not have, and that broker would end.
"""

from __future__ import annotations

import pytest

from cluster.controller import znodes
from cluster.controller.features import (
    SUPPORTED,
    TRANSACTION_VERSION,
    FeatureUpdate,
    Upgrade,
    unsupported,
    updated,
)
from cluster.errors import InvalidRequest
from cluster.model import BrokerId, BrokerInfo, VersionRange

NEW = BrokerInfo(BrokerId(1), (), features=SUPPORTED)
OLD = BrokerInfo(BrokerId(2), ())
UP, SAFE, UNSAFE = Upgrade.UPGRADE, Upgrade.SAFE_DOWNGRADE, Upgrade.UNSAFE_DOWNGRADE


@pytest.mark.parametrize(
    ("existing", "level", "kind", "after"),
    [
        (None, 2, UP, 2),
        (None, 1, SAFE, 1),
        (1, 2, UP, 2),
        (2, 1, SAFE, 1),
        (2, 0, SAFE, None),
        (2, 0, UNSAFE, None),
    ],
)
def test_a_version_that_every_broker_supports_is_finalized(
    existing: int | None, level: int, kind: Upgrade, after: int | None
) -> None:
    finalized = {} if existing is None else {TRANSACTION_VERSION: existing}
    levels, results = updated(finalized, [FeatureUpdate(TRANSACTION_VERSION, level, kind)], [NEW])
    assert results == {TRANSACTION_VERSION: None}
    assert levels.get(TRANSACTION_VERSION) == after


@pytest.mark.parametrize(
    ("existing", "name", "level", "kind", "brokers", "why"),
    [
        (None, "", 1, UP, [NEW], "can not be empty"),
        (None, TRANSACTION_VERSION, 1, Upgrade.UNKNOWN, [NEW], "unknown upgrade type"),
        (None, TRANSACTION_VERSION, 0, UP, [NEW], "versionLevel: 0 less than 1 without"),
        (None, TRANSACTION_VERSION, 0, SAFE, [NEW], "non-existing"),
        (2, TRANSACTION_VERSION, 2, UP, [NEW], "Can not upgrade .* to the same value"),
        (2, TRANSACTION_VERSION, 2, SAFE, [NEW], "Can not downgrade .* to the same value"),
        (2, TRANSACTION_VERSION, 1, UP, [NEW], "Can not downgrade finalized feature"),
        (1, TRANSACTION_VERSION, 2, SAFE, [NEW], "can not be greater than"),
        (None, TRANSACTION_VERSION, 3, UP, [NEW], "version 3 of .* is not supported by broker 1"),
        (1, TRANSACTION_VERSION, 2, UP, [NEW, OLD], "is not supported by broker 2"),
        (None, "group.version", 1, UP, [NEW, OLD], "is not supported by brokers 1, 2"),
    ],
)
def test_other_updates_are_refused(
    existing: int | None, name: str, level: int, kind: Upgrade, brokers: list[BrokerInfo], why: str
) -> None:
    finalized = {} if existing is None else {TRANSACTION_VERSION: existing}
    levels, results = updated(finalized, [FeatureUpdate(name, level, kind)], brokers)
    assert levels == finalized
    error = results[name]
    assert isinstance(error, InvalidRequest)
    with pytest.raises(InvalidRequest, match=why):
        raise error


def test_a_broker_knows_what_it_lacks() -> None:
    assert unsupported({TRANSACTION_VERSION: 2}) is None
    assert unsupported({TRANSACTION_VERSION: 3}) == TRANSACTION_VERSION
    assert unsupported({"group.version": 1}) == "group.version"


def test_the_znodes() -> None:
    levels = {TRANSACTION_VERSION: 2}
    data = znodes.encode_features(levels)
    assert data == b'{"version":2,"status":1,"features":{"transaction.version":{"max_version_level":2}}}'
    assert znodes.decode_features(data) == levels
    of_version_1 = b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'
    assert znodes.decode_features(of_version_1) == {"f": 3}
    assert znodes.decode_features(b'{"version":2,"status":0,"features":{}}') == {}
    for damaged in (b"", b"[]", b'{"status":1}', b'{"status":1,"features":{"f":7}}'):
        with pytest.raises(znodes.ZnodeError):
            znodes.decode_features(damaged)
    registered = znodes.decode_broker(NEW.id, znodes.encode_broker(NEW, 0), -1)
    assert registered.features == {TRANSACTION_VERSION: VersionRange(0, 2)}
