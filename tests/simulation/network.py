"""A seeded network of processes that may hang, die, and be cut off, also in one direction only.

Each message has a delay of its own, so messages of different connections overtake each other. A message over
a link that is cut is lost. What reaches a hung process waits until it goes on, and so does what it sends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from cluster.peer import Body
from logcore import _native

COORDINATOR = -1
REQUEST_SECONDS = 2.0
"""`controller.socket.timeout.ms` and `request.timeout.ms`: longer than any delay."""

here: ContextVar[Process] = ContextVar("here")
"""The process that the running code belongs to."""


class Process:
    """One process: its tasks end with it."""

    def __init__(self, network: Network, broker: int) -> None:
        self.network = network
        self.broker = broker
        self.alive = True
        self.hung = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.connections: dict[SimulatedPeer, None] = {}
        """Connections of others to this process."""
        self.serve: Callable[[int, int, Body], Coroutine[Any, Any, Body]] | None = None
        self._held: list[Callable[[], None]] = []
        self.context: Context = copy_context()
        self.context.run(here.set, self)

    def post(self, delay: float, work: Callable[[], None]) -> None:
        """Runs `work` in this process after a delay, unless it is dead then."""
        self.network.loop.call_later(delay, self.when_running, work, context=self.context.copy())

    def post_at(self, when: float, work: Callable[[], None]) -> None:
        self.network.loop.call_at(when, self.when_running, work, context=self.context.copy())

    def when_running(self, work: Callable[[], None]) -> None:
        if self.alive and self.hung:
            self._held.append(work)
        elif self.alive:
            work()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.network.loop.create_task(work, context=self.context.copy())

    def resume(self) -> None:
        self.hung = False
        held, self._held = self._held, []
        for work in held:
            self.post(0.0, work)

    def kill(self) -> None:
        self.alive = False
        for peer in list(self.connections):
            self.network.send(self.broker, peer.process, peer.reset)
        # A task that ends may begin another one.
        for _ in range(3):
            for task in list(self.tasks):
                task.cancel()


class Network:
    """The links between processes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.cuts: set[tuple[int, int]] = set()
        """From and to: what is sent there is lost."""
        self.processes: dict[int, Process] = {}
        """By port, which is the broker's id."""
        self.requests = 0
        self.slow = chance.choice((0.02, 0.1, 0.2)) if chance else 0.0
        """How many messages are slow."""
        loop.set_task_factory(_track)

    def delay(self) -> float:
        if self.chance.random() < self.slow:
            return self.chance.uniform(0.05, 1.5)
        return self.chance.uniform(0.0005, 0.01)

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self.cuts

    def send(self, source: int, target: Process, work: Callable[[], None]) -> None:
        """Sends a message to a process."""
        if self.is_cut(source, target.broker):
            return

        def arrive() -> None:
            if not self.is_cut(source, target.broker):
                work()

        target.post(self.delay(), arrive)


def _track(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = here.get(None) if context is None else context.get(here)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
    return task


class SimulatedPeer:
    """A connection to another broker. Stands in for `cluster.peer.Peer`."""

    def __init__(self, host: str, port: int, client_id: str, timeout_ms: int) -> None:
        self.process = here.get()
        self._network = self.process.network
        self._port = port
        self._to: Process | None = None
        self._lost = asyncio.Event()
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[Body] | None = None

    async def connect(self) -> None:
        async with self._turn:
            await self._connected()

    async def lost(self) -> None:
        await self._lost.wait()

    async def _connected(self) -> Process:
        if self._to is not None:
            return self._to
        network, source = self._network, self.process.broker
        await asyncio.sleep(network.delay())
        if network.is_cut(source, self._port) or network.is_cut(self._port, source):
            await asyncio.sleep(REQUEST_SECONDS)
            raise TimeoutError(f"broker {self._port} cannot be reached")
        target = network.processes.get(self._port)
        if target is None or not target.alive or target.serve is None:
            raise ConnectionRefusedError(f"nothing listens at broker {self._port}")
        self._to = target
        self._lost.clear()
        target.connections[self] = None
        return target

    async def request(self, api_key: int, version: int, body: Body) -> Body:
        encoded = _native.encode_request(api_key, version, body)
        async with self._turn:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    target = await self._connected()
                    answer = self._answer = self._network.loop.create_future()
                    self._ask(target, answer, api_key, version, encoded)
                    return await answer
            except BaseException:
                self.close()
                raise

    def _ask(
        self, target: Process, answer: asyncio.Future[Body], api_key: int, version: int, encoded: bytes
    ) -> None:
        network, source = self._network, self.process
        network.requests += 1

        async def handle() -> None:
            assert target.serve is not None
            body = _native.decode_request(api_key, version, encoded)
            result = await target.serve(api_key, version, body)
            back = _native.encode_response(api_key, version, result)
            target.when_running(lambda: network.send(target.broker, source, lambda: take(back)))

        def take(back: bytes) -> None:
            if not answer.done():
                answer.set_result(_native.decode_response(api_key, version, back))

        def go() -> None:
            network.send(source.broker, target, lambda: target.spawn(handle()))

        source.when_running(go)

    def reset(self) -> None:
        """The other process ended."""
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(f"broker {self._port} closed the connection"))

    def close(self) -> None:
        if self._to is not None:
            self._to.connections.pop(self, None)
            self._to = None
            self._lost.set()
