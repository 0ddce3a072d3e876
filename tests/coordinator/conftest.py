"""A coordinator and kazoo clients for each test; everything is stopped at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from .support import WAIT_SECONDS, Coordinator, LoopThread, RawClient

StartCoordinator = Callable[..., Coordinator]
Connect = Callable[..., KazooClient]
OpenRaw = Callable[[], RawClient]


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def start_coordinator(loop_thread: LoopThread, tmp_path: Path) -> Iterator[StartCoordinator]:
    """A factory of servers; the default directory is one per test."""
    running: list[Coordinator] = []

    def start(directory: Path | None = None, **options: Any) -> Coordinator:
        coordinator = Coordinator(loop_thread, directory or tmp_path / "coordinator", **options)
        running.append(coordinator)
        return coordinator

    yield start
    for coordinator in running:
        coordinator.stop()


@pytest.fixture
def coordinator(start_coordinator: StartCoordinator) -> Coordinator:
    return start_coordinator()


@pytest.fixture
def connect(coordinator: Coordinator) -> Iterator[Connect]:
    """A factory of started kazoo clients."""
    clients: list[KazooClient] = []

    def start(target: Coordinator | None = None, **options: Any) -> KazooClient:
        client = KazooClient(
            hosts=(target or coordinator).hosts, timeout=options.pop("timeout", 10.0), **options
        )
        clients.append(client)
        client.start(timeout=WAIT_SECONDS)
        return client

    yield start
    for client in clients:
        client.stop()
        client.close()


@pytest.fixture
def client(connect: Connect) -> KazooClient:
    return connect()


@pytest.fixture
def open_raw(coordinator: Coordinator) -> Iterator[OpenRaw]:
    """A factory of connections that speak raw frames."""
    opened: list[RawClient] = []

    def start() -> RawClient:
        opened.append(RawClient(coordinator.port))
        return opened[-1]

    yield start
    for raw in opened:
        raw.close()
