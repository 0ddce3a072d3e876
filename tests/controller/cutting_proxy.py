"""A coordinator behind a proxy that cuts the connection at one request, and a broker on it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.client import KazooClient

from cluster.broker import Broker, BrokerConfig
from cluster.coordinator import CoordinatorServer

from ..broker.wire import Wire

_PING = 11
_CLOSE = -11


@dataclass
class Cutter:
    """The proxy. It counts requests without pings and cuts the connection at the `at`-th, before it is
    forwarded or (`after`) before it is answered.
    """

    coordinator: int
    port: int = 0
    seen: int = 0
    at: int = 0
    after: bool = False
    expires: bool = False
    """The cut also ends the session."""
    ended: bool = False
    """The session of the cut has ended."""
    away: bool = False
    """There is no connection after a cut."""
    cuts: int = 0
    requests: list[bytes] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def arm(self, at: int, after: bool = False) -> None:
        """Starts counting again; 0 cuts nothing."""
        self.seen, self.cuts, self.at, self.after = 0, 0, at, after
        self.ended = False
        self.requests.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upper: asyncio.StreamWriter | None = None
        answers: asyncio.Task[None] | None = None
        try:
            if self.away and self.cuts:
                return
            back, upper = await asyncio.open_connection("127.0.0.1", self.coordinator)
            first = await frame(reader)
            upper.write(first)
            writer.write(await frame(back))
            answers = asyncio.create_task(self._answer(back, writer))
            while True:
                request = await frame(reader)
                [kind] = struct.unpack_from(">i", request, 8)
                if kind != _PING:
                    self.seen += 1
                    self.requests.append(request)
                    if self.seen == self.at:
                        self.cuts += 1
                        if self.expires:
                            answers.cancel()
                            await asyncio.gather(answers, return_exceptions=True)
                            upper.write(struct.pack(">iii", 8, 0, _CLOSE))
                            # The server closes the connection of a session that has ended.
                            await back.read()
                            self.ended = True
                            return
                        if self.after:
                            await self._carried_out(request, back, upper, answers)
                        return
                upper.write(request)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self._tasks.discard(task)
            if answers is not None:
                answers.cancel()
            for one in (writer, upper):
                if one is not None:
                    one.close()

    async def _carried_out(
        self,
        request: bytes,
        back: asyncio.StreamReader,
        upper: asyncio.StreamWriter,
        answers: asyncio.Task[None],
    ) -> None:
        """Forwards a request, and stores its response."""
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        upper.write(request)
        while (await frame(back))[4:8] != request[4:8]:
            pass

    async def _answer(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                writer.write(await frame(back))

    async def stop(self) -> None:
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


def properties(directory: Path, port: int) -> dict[str, str]:
    return {
        "broker.id": "0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / "kafka-logs"),
        "zookeeper.connect": f"127.0.0.1:{port}",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "auto.create.topics.enable": "false",
    }


@asynccontextmanager
async def coordinator(directory: Path) -> AsyncIterator[tuple[Cutter, KazooClient]]:
    """A coordinator behind a proxy, and a client that does not use the proxy."""
    async with AsyncExitStack() as stack:
        server = CoordinatorServer(directory / "coordinator", "127.0.0.1", 0)
        port = await server.start()
        stack.push_async_callback(server.stop)
        cutter = Cutter(port)
        listener = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
        cutter.port = listener.sockets[0].getsockname()[1]
        stack.push_async_callback(cutter.stop)
        stack.callback(listener.close)
        client = KazooClient(f"127.0.0.1:{port}")
        await asyncio.to_thread(client.start)
        stack.push_async_callback(asyncio.to_thread, client.close)
        stack.push_async_callback(asyncio.to_thread, client.stop)
        yield cutter, client


@asynccontextmanager
async def running(directory: Path, port: int, **settings: str) -> AsyncIterator[Broker]:
    """A broker that uses a coordinator's port."""
    broker = Broker(BrokerConfig.parse(properties(directory, port) | settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Cutter, KazooClient, Broker, Wire]]:
    """Both, a client of the coordinator without the proxy, and a connection to the broker."""
    async with (
        coordinator(directory) as (cutter, client),
        running(directory, cutter.port) as broker,
        Wire(broker.bootstrap) as wire,
    ):
        yield cutter, client, broker, wire
