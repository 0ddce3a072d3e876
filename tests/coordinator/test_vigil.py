"""A loop that stays awake for quick clients. If these fail, it does not, or never sleeps."""

from __future__ import annotations

import asyncio
import inspect
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from cluster.coordinator import event_loop
from cluster.coordinator.connection import Connection
from cluster.coordinator.durability.engine import EngineLog
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.vigil import PARTIES, QUICK, VIGIL_SECONDS, Ready, VigilSelector, is_alone

from .conftest import StartCoordinator
from .support import RawClient


class Sockets:
    """A selector that reads from one end of a pair, a clock, and every timeout that the system was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.gave_way = 0
        self.asked: list[float | None] = []
        self.selector = VigilSelector(lambda: self.now, self.give_way)
        self.near, self.far = socket.socketpair()
        self.far.send(b"x")
        self.selector.register(self.near, selectors.EVENT_READ)
        look = selectors.DefaultSelector.select
        self._left = 0.0
        """Seconds until there is something to read; the clock stands still while nobody waits."""

        def select(selector: selectors.BaseSelector, timeout: float | None = None) -> Ready:
            self.asked.append(timeout)
            if timeout != 0:
                self.now += self._left
                self._left = 0.0
            return look(selector, 0) if self._left < 1e-9 else []

        monkeypatch.setattr(selectors.DefaultSelector, "select", select)

    def give_way(self) -> None:
        """Ten microseconds go by."""
        self.gave_way += 1
        self.now += 10e-6
        self._left -= 10e-6

    def wait(self, comes_after: float, timeout: float | None = None) -> list[float | None]:
        """Waits for what comes then, and returns what the system was asked for."""
        self._left = comes_after
        self.asked.clear()
        [(key, events)] = self.selector.select(timeout)
        assert (key.fileobj, events) == (self.near, selectors.EVENT_READ)
        return list(self.asked)

    def close(self) -> None:
        self.selector.close()
        self.near.close()
        self.far.close()


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sockets]:
    sockets = Sockets(monkeypatch)
    yield sockets
    sockets.close()


def test_it_sleeps_until_clients_are_quick_and_then_looks(sockets: Sockets) -> None:
    for _ in range(QUICK):
        assert sockets.wait(VIGIL_SECONDS / 2) == [None]
    assert sockets.gave_way == 0
    for _ in range(3):
        assert set(sockets.wait(VIGIL_SECONDS / 2, timeout=20.0)) == {0}
    assert sockets.gave_way == 3 * 5


def test_it_sleeps_again_when_nothing_comes(sockets: Sockets) -> None:
    for _ in range(QUICK):
        sockets.wait(0)
    *looks, last = sockets.wait(1.0, timeout=20.0)
    assert set(looks) == {0}
    assert last == 20.0
    assert sockets.gave_way <= VIGIL_SECONDS / 10e-6 + 1
    # Nothing has to be waited for longer than before.
    for _ in range(QUICK):
        assert sockets.wait(0) == [None]
    assert sockets.wait(0) == [0]


def test_one_slow_client_among_quick_ones_is_enough(sockets: Sockets) -> None:
    for _ in range(3):
        for _ in range(QUICK - 1):
            assert sockets.wait(0) == [None]
        assert sockets.wait(2 * VIGIL_SECONDS) == [None]
    assert sockets.gave_way == 0


def test_many_clients_keep_nobody_awake(sockets: Sockets) -> None:
    others = [socket.socketpair() for _ in range(PARTIES)]
    try:
        for near, far in others:
            far.send(b"x")
            sockets.selector.register(near, selectors.EVENT_READ)
        for _ in range(2 * QUICK):
            sockets.asked.clear()
            assert len(sockets.selector.select()) == PARTIES + 1
            assert sockets.asked == [None]
        sockets.selector.unregister(others[-1][0])
        for _ in range(QUICK):
            assert len(sockets.selector.select()) == PARTIES
        sockets.asked.clear()
        sockets.selector.select()
        assert sockets.asked == [0], "two keep it awake"
        sockets.selector.register(others[-1][0], selectors.EVENT_READ)
        sockets.selector.select()
        sockets.asked.clear()
        sockets.selector.select()
        assert sockets.asked == [None], "until there are three"
    finally:
        for near, far in others:
            near.close()
            far.close()


def test_who_would_not_wait_longer_is_not_kept_awake(sockets: Sockets) -> None:
    for _ in range(2 * QUICK):
        assert sockets.wait(0, timeout=0) == [0]
        assert sockets.wait(0, timeout=VIGIL_SECONDS) == [VIGIL_SECONDS]
    assert sockets.wait(0) == [None], "they say nothing of how quick clients are"


def test_an_event_loop_runs_on_it() -> None:
    async def ping_pong() -> int:
        served: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1):
                served.append(data)
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(100):
            writer.write(b"x")
            assert await reader.read(1) == b"x"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return len(served)

    with asyncio.Runner(loop_factory=event_loop) as runner:
        assert runner.run(asyncio.wait_for(ping_pong(), 20)) == 100


class CountingLog(EngineLog):
    """A disk that says how many records it was given at once, and in which call of a client's."""

    batches: ClassVar[list[tuple[int, bool]]] = []

    def append_soon(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> bool:
        reading = any(
            frame.function == "data_received" and isinstance(frame.frame.f_locals["self"], Connection)
            for frame in inspect.stack(0)
        )
        self.batches.append((len(records), reading))
        return super().append_soon(records, done)


# If this failed, each of many clients' writes would have a flush of its own, or a single client's would wait for nobody.
def test_what_comes_together_is_appended_together_and_what_comes_alone_at_once(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    server = start_coordinator(tmp_path / "counting", open_log=CountingLog)
    clients = [RawClient(server.port) for _ in range(3)]
    for client in clients:
        client.connect()
    CountingLog.batches.clear()
    write = Writer().i32(1).i32(Op.SET_DATA).string("/none").buffer(b"x").i32(-1).finish()
    for asking in (clients[:1], clients, clients[:1]):
        is_held, go_on = threading.Event(), threading.Event()
        if len(asking) > 1:
            server.thread.loop.call_soon_threadsafe(
                lambda held, go: (held.set(), go.wait(20)), is_held, go_on
            )
            assert is_held.wait(20)
        for client in asking:
            client.send(write)
        go_on.set()
        for client in asking:
            assert client.reply()[2] == Code.NO_NODE
    for client in clients:
        client.close()
    assert CountingLog.batches == [(1, True), (3, False), (1, True)]


def test_in_another_kind_of_loop_nobody_is_known_to_be_alone() -> None:
    async def ask() -> bool:
        return is_alone()

    assert not asyncio.run(ask())
