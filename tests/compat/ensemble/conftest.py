"""Servers for the tests of other projects' clients, started once for all of these tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from tests.coordinator.support import WAIT_SECONDS

from .members import SERVER_COUNTS, Ensemble, ensemble

Connect = Callable[..., KazooClient]


@pytest.fixture(
    scope="session",
    params=SERVER_COUNTS,
    ids=[f"{maker.name}-{count}" for maker, count in SERVER_COUNTS],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A single server, then an ensemble, of each implementation under test."""
    maker, count = request.param
    with ensemble(maker, tmp_path_factory.mktemp(f"{maker.name}-{count}"), count) as running:
        yield running


@pytest.fixture
def chroot(servers: Ensemble) -> str:
    """The path of a new node that only this test uses."""
    path = f"/test-{uuid.uuid4().hex}"
    client = KazooClient(servers.hosts)
    client.start(WAIT_SECONDS)
    client.create(path)
    client.stop()
    client.close()
    return path


@pytest.fixture
def connect(servers: Ensemble, chroot: str) -> Iterator[Connect]:
    """Makes connected kazoo clients below ``chroot``, each on the next member."""
    clients: list[KazooClient] = []

    def start(**options: object) -> KazooClient:
        hosts = servers.hosts_from(len(clients))
        client = KazooClient(hosts + chroot, timeout=10.0, randomize_hosts=False, **options)
        clients.append(client)
        client.start(WAIT_SECONDS)
        return client

    yield start
    for client in clients:
        client.stop()
        client.close()
