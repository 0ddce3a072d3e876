"""The event loop's busy polling. If these fail, it sleeps although its clients are quick, or never sleeps."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from cluster.coordinator import event_loop
from cluster.coordinator.busy_poll import (
    DESCRIPTORS_MAX,
    POLL_SECONDS,
    SHORT_WAITS,
    BusyPollSelector,
    Ready,
)
from cluster.coordinator.durability.engine import EngineLog
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import Op

from .conftest import StartCoordinator
from .support import RawClient


class Sockets:
    """A selector on a socket pair, a fake clock, and the timeouts given to the system's selector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.gave_way = 0
        self.timeouts: list[float | None] = []
        self.selector = BusyPollSelector(lambda: self.now, self.give_way)
        self.near, self.far = socket.socketpair()
        self.far.send(b"x")
        self.selector.register(self.near, selectors.EVENT_READ)
        look = selectors.DefaultSelector.select
        self._left = 0.0
        """Seconds until there is something to read. Only a wait lets time pass."""

        def select(selector: selectors.BaseSelector, timeout: float | None = None) -> Ready:
            self.timeouts.append(timeout)
            if timeout != 0:
                self.now += self._left
                self._left = 0.0
            return look(selector, 0) if self._left < 1e-9 else []

        monkeypatch.setattr(selectors.DefaultSelector, "select", select)

    def give_way(self) -> None:
        """Takes ten microseconds."""
        self.gave_way += 1
        self.now += 10e-6
        self._left -= 10e-6

    def wait(self, comes_after: float, timeout: float | None = None) -> list[float | None]:
        """Waits for a byte that arrives after ``comes_after``. Returns the system selector's timeouts."""
        self._left = comes_after
        self.timeouts.clear()
        [(key, events)] = self.selector.select(timeout)
        assert (key.fileobj, events) == (self.near, selectors.EVENT_READ)
        return list(self.timeouts)

    def close(self) -> None:
        self.selector.close()
        self.near.close()
        self.far.close()


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sockets]:
    sockets = Sockets(monkeypatch)
    yield sockets
    sockets.close()


def test_polls_after_enough_short_waits(sockets: Sockets) -> None:
    for _ in range(SHORT_WAITS):
        assert sockets.wait(POLL_SECONDS / 2) == [None]
    assert sockets.gave_way == 0
    for _ in range(3):
        assert set(sockets.wait(POLL_SECONDS / 2, timeout=20.0)) == {0}
    assert sockets.gave_way == 3 * 5


def test_sleeps_again_after_a_poll_that_found_nothing(sockets: Sockets) -> None:
    for _ in range(SHORT_WAITS):
        sockets.wait(0)
    *polls, last = sockets.wait(1.0, timeout=20.0)
    assert set(polls) == {0}
    assert last == 20.0
    assert sockets.gave_way <= POLL_SECONDS / 10e-6 + 1
    for _ in range(SHORT_WAITS):
        assert sockets.wait(0) == [None], "the count did not begin again"
    assert sockets.wait(0) == [0]


def test_one_long_wait_among_short_ones_prevents_polling(sockets: Sockets) -> None:
    for _ in range(3):
        for _ in range(SHORT_WAITS - 1):
            assert sockets.wait(0) == [None]
        assert sockets.wait(2 * POLL_SECONDS) == [None]
    assert sockets.gave_way == 0


def test_does_not_poll_for_many_clients(sockets: Sockets) -> None:
    others = [socket.socketpair() for _ in range(DESCRIPTORS_MAX)]
    try:
        for near, far in others:
            far.send(b"x")
            sockets.selector.register(near, selectors.EVENT_READ)
        for _ in range(2 * SHORT_WAITS):
            sockets.timeouts.clear()
            assert len(sockets.selector.select()) == DESCRIPTORS_MAX + 1
            assert sockets.timeouts == [None]
        sockets.selector.unregister(others[-1][0])
        for _ in range(SHORT_WAITS):
            assert len(sockets.selector.select()) == DESCRIPTORS_MAX
        sockets.timeouts.clear()
        sockets.selector.select()
        assert sockets.timeouts == [0], "it does not poll although a client has left"
        sockets.selector.register(others[-1][0], selectors.EVENT_READ)
        sockets.selector.select()
        sockets.timeouts.clear()
        sockets.selector.select()
        assert sockets.timeouts == [None], "it polls although a client was added"
    finally:
        for near, far in others:
            near.close()
            far.close()


def test_short_timeouts_are_passed_on_and_not_counted(sockets: Sockets) -> None:
    for _ in range(2 * SHORT_WAITS):
        assert sockets.wait(0, timeout=0) == [0]
        assert sockets.wait(0, timeout=POLL_SECONDS) == [POLL_SECONDS]
    assert sockets.wait(0) == [None], "short timeouts were counted as short waits"


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
    """A log that counts the records of each append."""

    batches: ClassVar[list[int]] = []

    def append(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        self.batches.append(len(records))
        super().append(records, done)


# If this failed, each client's write would need its own flush.
def test_writes_of_one_step_of_the_loop_are_one_append(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    server = start_coordinator(tmp_path / "counting", open_log=CountingLog)
    clients = [RawClient(server.port) for _ in range(3)]
    for client in clients:
        client.connect()
    CountingLog.batches.clear()
    write = Writer().i32(1).i32(Op.SET_DATA).string("/none").buffer(b"x").i32(-1).finish()
    for asking in (clients[:1], clients, clients[:1]):
        is_blocked, may_go_on = threading.Event(), threading.Event()
        server.thread.loop.call_soon_threadsafe(
            lambda blocked, go: (blocked.set(), go.wait(20)), is_blocked, may_go_on
        )
        assert is_blocked.wait(20)
        for client in asking:
            client.send(write)
        may_go_on.set()
        for client in asking:
            assert client.reply()[2] == Code.NO_NODE
    for client in clients:
        client.close()
    assert CountingLog.batches == [1, 3, 1]
