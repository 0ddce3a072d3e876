"""Shared by the coordinator's tests: a fake clock, a server on an event loop in a thread, and a raw protocol
client.

The server needs its own thread because kazoo blocks the test's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from cluster.coordinator import CoordinatorServer, Settings, event_loop
from tests.ports import free_port

T = TypeVar("T")

WAIT_SECONDS = 20.0


class FakeClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class LoopThread:
    """An event loop in a thread, of the kind that `logcore coordinator` uses."""

    def __init__(self) -> None:
        self.loop = event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_SECONDS)

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function on the loop, in one step."""

        async def once() -> T:
            return function()

        return self.run(once())

    def wait(self, what: Callable[[], object]) -> None:
        """Polls the condition on the loop until it holds."""

        async def until() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                while not what():
                    await asyncio.sleep(0.005)

        self.run(until())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_SECONDS)
        self.loop.close()


class Coordinator:
    """A server for tests that use blocking clients."""

    def __init__(
        self,
        thread: LoopThread,
        directory: Path,
        port: int | None = None,
        clock: FakeClock | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        self.thread = thread
        self.directory = directory
        self.clock = clock or FakeClock()
        self.server = CoordinatorServer(
            directory,
            port=free_port() if port is None else port,  # not 0, to keep the port over a restart
            clock=self.clock,
            settings=settings or Settings(max_client_connections=0),
            **options,
        )
        self.port = thread.run(self.server.start())
        self._stopped = False

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def pass_time(self, milliseconds: int) -> None:
        """Moves the clock and expires sessions in one step, so that no client's request comes between."""

        def move() -> None:
            self.clock.now_ms += milliseconds
            self.server.expire_sessions()

        self.thread.call(move)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.thread.run(self.server.stop())


class RawClient:
    """A blocking client connection that sends and receives raw frames."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), WAIT_SECONDS)

    def send(self, payload: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def receive(self) -> bytes:
        """The next frame; empty when the server closed the connection."""
        header = self._exactly(4)
        return self._exactly(struct.unpack(">i", header)[0]) if header else b""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            data += part
        return data

    def read_all(self) -> bytes:
        """Reads until the server closes the connection."""
        data = b""
        while part := self.socket.recv(65536):
            data += part
        return data

    def connect(
        self, timeout_ms: int = 10_000, session_id: int = 0, password: bytes = bytes(16), last_zxid: int = 0
    ) -> tuple[int, int, bytes]:
        """Opens or resumes a session.

        Returns timeout, session id and password; zeros if the server refused.
        """
        self.send(
            struct.pack(">iqiqi", 0, last_zxid, timeout_ms, session_id, len(password)) + password + b"\0"
        )
        answer = self.receive()
        if not answer:
            raise ConnectionError("the server closed the connection")
        _version, timeout, session, length = struct.unpack_from(">iiqi", answer)
        return timeout, session, answer[20 : 20 + length]

    def request(self, xid: int, op: int, body: bytes = b"") -> tuple[int, int, int, bytes]:
        """Sends one request and returns the next frame: xid, zxid, error, body."""
        self.send(struct.pack(">ii", xid, op) + body)
        return self.reply()

    def reply(self) -> tuple[int, int, int, bytes]:
        answer = self.receive()
        if not answer:
            raise ConnectionError("the server closed the connection")
        xid, zxid, error = struct.unpack_from(">iqi", answer)
        return xid, zxid, error, answer[16:]

    def close(self) -> None:
        self.socket.close()
