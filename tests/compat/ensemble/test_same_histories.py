"""The same long random histories on an Apache ensemble and on other servers, with several clients on
different members.

Every reply, stat, transaction id and watch event is compared; ids are relative to the history's start.
Members may lag behind each other, so every client syncs after each request; everything it receives until then
must be the same. If these fail, programs get other answers from our ensemble than from Apache ZooKeeper's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.coordinator.state.acl import digest_identity
from tests.compat.test_zookeeper import SUPER, Pair, play_all
from tests.compat.zookeeper_peer import TICK_MS

from .members import APACHE, OURS, SERVER_COUNTS, Maker, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

# The session timeouts of the tests of a single server. Short ticks shorten the start: a member of Apache's
# that takes itself for the leader looks again only after initLimit ticks.
SETTINGS = {
    "tickTime": "500",
    "minSessionTimeout": str(2 * TICK_MS),
    "maxSessionTimeout": str(20 * TICK_MS),
    "initLimit": "20",
    "syncLimit": "20",
    "DigestAuthenticationProvider.superDigest": digest_identity(SUPER).id,
}
HISTORIES = 3
OTHERS = [each for each in SERVER_COUNTS if each != (APACHE, 3)]


@pytest.fixture(scope="module", params=OTHERS, ids=[f"{maker.name}-{count}" for maker, count in OTHERS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """An Apache ensemble of three, and the other servers."""
    maker: Maker
    maker, count = request.param
    directory = tmp_path_factory.mktemp("same")
    with (
        ensemble(APACHE, directory / "theirs", 3, SETTINGS) as theirs,
        ensemble(maker, directory / "others", count, SETTINGS) as others,
    ):
        yield Pair(theirs.servers, others.servers, True, counts_reconnects=maker is OURS and count > 1)


def test_long_histories_are_the_same(pair: Pair) -> None:
    play_all(pair, HISTORIES)
