"""The ensembles that the tests of faults use. If these fail, no test of an ensemble means anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.compat.conftest import missing
from tests.compat.test_zookeeper import create, multi
from tests.compat.zookeeper_peer import apache_zookeeper
from tests.coordinator.histories.history import NODE_EXISTS, OK
from tests.coordinator.support import WAIT_SECONDS, RawClient

from .apache_log import read_transactions
from .members import MAKERS_OF_ENSEMBLES, NOT_SERVING, Ensemble, Maker, clock_library, ensemble

HOUR_MS = 3_600_000
pytestmark = pytest.mark.compat


@pytest.fixture(scope="module", params=MAKERS_OF_ENSEMBLES, ids=[maker.name for maker in MAKERS_OF_ENSEMBLES])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    maker: Maker = request.param
    directory = tmp_path_factory.mktemp("three")
    with ensemble(maker, directory, 3, clock=clock_library(directory)) as running:
        yield running


def test_a_killed_leader_is_replaced_and_comes_back(three: Ensemble) -> None:
    client = KazooClient(three.hosts, timeout=10.0)
    client.start(WAIT_SECONDS)
    try:
        client.create("/before", b"x")
        leader = three.leader()
        leader.kill()
        assert not leader.runs
        assert leader.mode() == NOT_SERVING
        assert three.leader() is not leader
        assert client.retry(client.get, "/before")[0] == b"x"
        three.heal()
        assert sorted(member.mode() for member in three.members) == ["follower", "follower", "leader"]
    finally:
        client.stop()
        client.close()


def test_a_resumed_follower_serves_again(three: Ensemble) -> None:
    follower = three.followers()[0]
    follower.suspend()
    assert follower.mode() == NOT_SERVING
    follower.resume()
    three.wait_until_serving()
    assert follower.mode() == "follower"


def test_shifted_clocks_show_in_a_nodes_times(three: Ensemble) -> None:
    if three.members[0].clock is None:
        missing("cc", "apt-get install gcc")
    client = KazooClient(three.hosts, timeout=10.0)
    client.start(WAIT_SECONDS)
    try:
        client.create("/clock")
        before = client.set("/clock", b"").mtime
        for member in three.members:
            member.jump(HOUR_MS)
        ahead = client.set("/clock", b"").mtime
        assert HOUR_MS <= ahead - before < 2 * HOUR_MS
    finally:
        for member in three.members:
            member.jump(0)
        client.stop()
        client.close()


def test_apaches_log_has_the_error_of_a_refused_write(tmp_path: Path) -> None:
    requests = (create("/a"), create("/a"), multi(create("/b"), create("/a"), create("/c")))
    with apache_zookeeper(tmp_path, {}, {}) as port:
        client = RawClient(port)
        _timeout, session, _password = client.connect()
        for xid, request in enumerate(requests, 1):
            client.request(xid, request.op, request.body)
        found = read_transactions([tmp_path / "zookeeper"], 0)
        client.close()
    errors = {each.xid: each.error for each in found if each.session == session and each.xid > 0}
    assert errors == {1: OK, 2: NODE_EXISTS, 3: NODE_EXISTS}
