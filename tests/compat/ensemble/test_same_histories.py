"""The same long random histories of several clients on an ensemble of Apache's, each client on another member, and on another set of
servers: every reply, stat, transaction id and watch event is compared, ids up to where a history begins.

A member may be behind another one for a while; after each request all clients are brought up to it by a sync, and what they are
told until then must be the same. If these fail, a program on an ensemble is told something else by us than by Apache ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.coordinator.state.acl import digest_identity
from tests.compat.test_zookeeper import SUPER, Pair, play_all
from tests.compat.zookeeper_peer import TICK_MS

from .members import ALONE_AND_TOGETHER, APACHE, OURS, Maker, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

# Sessions last as long as where one server is asked. The ticks are short: by them a member waits for the others when they begin, and
# one of Apache's that takes itself for the leader meanwhile asks again only then.
SETTINGS = {
    "tickTime": "500",
    "minSessionTimeout": str(2 * TICK_MS),
    "maxSessionTimeout": str(20 * TICK_MS),
    "initLimit": "20",
    "syncLimit": "20",
    "DigestAuthenticationProvider.superDigest": digest_identity(SUPER).id,
}
HISTORIES = 3
OTHERS = [each for each in ALONE_AND_TOGETHER if each != (APACHE, 3)]


@pytest.fixture(scope="module", params=OTHERS, ids=[f"{maker.name}-{count}" for maker, count in OTHERS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Apache's three, and others."""
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
