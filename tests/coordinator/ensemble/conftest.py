"""Three servers in one process over a fake replicated log, for blocking clients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from cluster.coordinator import CoordinatorServer, Settings
from cluster.coordinator.ensemble.replication import EnsembleReplication
from tests.coordinator.support import WAIT_SECONDS, LoopThread, RawClient

from .fake_quorum import Delays, FakeEnsemble, FakeQuorum

SEED = 7
SETTINGS = Settings(
    tick_time_ms=1000, max_client_connections=0, read_only_mode=True, words_whitelist=frozenset({"*"})
)


class Ensemble:
    """Servers and their quorums by number. They belong to the loop's thread; use :meth:`call` from a test."""

    def __init__(self, thread: LoopThread, directory: Path, settings: Settings) -> None:
        self.thread = thread
        self.directory = directory
        self.settings = settings
        delays = Delays(detection=0.05, election=(0.05, 0.1))
        self.log = FakeEnsemble(
            thread.loop, [1, 2, 3], random.Random(SEED), lambda: 1_700_000_000_000, delays
        )
        self.quorums: dict[int, FakeQuorum] = {}
        self.servers: dict[int, CoordinatorServer] = {}
        self.ports: dict[int, int] = {}

    def start(self, number: int) -> None:
        quorum = self.quorums[number] = FakeQuorum(self.log, number)

        def replicate(service: Any) -> EnsembleReplication:
            return EnsembleReplication(
                service,
                lambda: quorum,
                server_id=number,
                sync_limit=2,
                directory=self.directory / str(number),
                exports=self.directory / f"exports{number}",
            )

        server = self.servers[number] = CoordinatorServer(
            self.directory / str(number),
            port=self.ports.get(number, 0),
            settings=self.settings,
            replicate=replicate,
        )
        self.ports[number] = self.thread.run(server.start())

    def stop(self, number: int) -> None:
        self.thread.run(self.servers.pop(number).stop())

    def call(self, function: Callable[[], Any]) -> Any:
        return self.thread.call(function)

    def wait(self, what: Callable[[], object]) -> None:
        self.thread.wait(what)

    def wait_until_serving(self, *numbers: int) -> None:
        self.wait(lambda: all(self.servers[number].is_serving for number in numbers or self.servers))

    def replication(self, number: int) -> EnsembleReplication:
        found = self.servers[number].replication
        assert isinstance(found, EnsembleReplication)
        return found

    def cut(self, *numbers: int) -> None:
        """Cuts off these members and reconnects all others."""

        def change() -> None:
            self.log.cut = set(numbers)
            self.log.changed()

        self.call(change)

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[number]}" for number in self.servers)

    def ask(self, number: int, word: str) -> str:
        raw = RawClient(self.ports[number])
        raw.socket.sendall(word.encode() + b"\n")
        try:
            return raw.read_all().decode()
        finally:
            raw.close()


StartEnsemble = Callable[..., Ensemble]
Connect = Callable[..., KazooClient]


@pytest.fixture
def start_ensemble(loop_thread: LoopThread, tmp_path: Path) -> Iterator[StartEnsemble]:
    started: list[Ensemble] = []

    def start(settings: Settings = SETTINGS, numbers: tuple[int, ...] = (1, 2, 3)) -> Ensemble:
        ensemble = Ensemble(loop_thread, tmp_path, settings)
        started.append(ensemble)
        for number in numbers:
            ensemble.start(number)
        return ensemble

    yield start
    for ensemble in started:
        for number in list(ensemble.servers):
            ensemble.stop(number)


@pytest.fixture
def ensemble(start_ensemble: StartEnsemble) -> Ensemble:
    ensemble = start_ensemble()
    ensemble.wait_until_serving()
    return ensemble


@pytest.fixture
def connect_to(ensemble: Ensemble) -> Iterator[Connect]:
    """A factory of connected kazoo clients, for one server or for all."""
    clients: list[KazooClient] = []

    def start(number: int = 0, **options: Any) -> KazooClient:
        hosts = f"127.0.0.1:{ensemble.ports[number]}" if number else ensemble.hosts
        client = KazooClient(hosts=hosts, timeout=options.pop("timeout", 10.0), **options)
        clients.append(client)
        client.start(timeout=WAIT_SECONDS)
        return client

    yield start
    for client in clients:
        client.stop()
        client.close()
