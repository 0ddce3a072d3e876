"""The channels from the controller to the brokers, its own included: each sends one request at a time.

A request that fails is put back and sent again, merged with what has come since, until it is answered or the
channel closes. The driver learns answers and refused connections through `ChannelEvents`. The controller's
own broker gets the same requests without a socket. Lives on the event loop, one task a broker. Nothing is on
disk: a new controller sends everything again. Source: ControllerChannelManager.RequestSendThread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from cluster.controller.requests import VERSIONS, LiveBrokers, Pending, Request, Sender, body_of
from cluster.errors import NONE, for_code
from cluster.model import BrokerId, BrokerInfo
from cluster.peer import Body

log = logging.getLogger(__name__)

_PAUSE_FIRST_SECONDS, _PAUSE_MAX_SECONDS = 0.1, 1.0
"""Between two attempts at a request. The pause doubles."""


class Transport(Protocol):
    """The way to one broker."""

    async def request(self, api_key: int, version: int, body: Body) -> Body:
        """Sends a request and returns the answer. Raises OSError or ValueError."""

    async def connect(self) -> None:
        """Sees whether the broker listens. Raises OSError."""

    async def lost(self) -> None:
        """Returns when the connection has ended, as it does when the broker's process ends."""

    def close(self) -> None:
        """Ends a request under way."""


class ChannelEvents(Protocol):
    """What the channels report to the controller's driver, on the event loop."""

    def answered(self, broker: BrokerId, request: Request, answer: Body) -> None:
        """A broker answered."""

    def connection_refused(self, broker: BrokerId) -> None:
        """Nothing listens at a broker's address."""

    def connection_made(self, broker: BrokerId) -> None:
        """A broker answered whose address had refused a connection."""


class Cluster(Protocol):
    """What a request is filled with when it is sent."""

    def sender(self, broker: BrokerId) -> Sender:
        """This controller, for a request to `broker`."""

    def alive(self) -> LiveBrokers:
        """The brokers that are alive."""


class Channel:
    """The channel to one broker."""

    def __init__(
        self,
        broker: BrokerId,
        transport: Transport,
        cluster: Cluster,
        events: ChannelEvents,
        listener: str,
        pending: Pending,
    ) -> None:
        self.pending = pending
        self._broker = broker
        self._transport = transport
        self._cluster = cluster
        self._events = events
        self._listener = listener
        self._refused = False
        """The last attempt to connect was refused."""
        self._is_failing = False
        """The last request was not answered, which the log says."""
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.create_task(self._run(), name=f"channel to broker {broker}")
        self.flush()

    def flush(self) -> None:
        """Sends what is pending."""
        if self.pending:
            self._idle.clear()
            self._arrived.set()

    async def delivered(self) -> None:
        """Returns when the broker has answered everything, or the channel is closed."""
        await self._idle.wait()

    async def close(self) -> None:
        """Sends nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._transport.close()
        self._idle.set()

    async def _run(self) -> None:
        # From now on the end of the broker's process is noticed, also while nothing is sent.
        await self._connect()
        while True:
            if not await self._arrives():
                await self._connect()
                continue
            self._arrived.clear()
            pause = _PAUSE_FIRST_SECONDS
            while (request := self.pending.take()) is not None:
                if await self._send(request):
                    pause = _PAUSE_FIRST_SECONDS
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_SECONDS)
            self._idle.set()

    async def _arrives(self) -> bool:
        """Waits for something to send. Returns False if the connection ends first."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        lost = asyncio.ensure_future(self._transport.lost())
        try:
            await asyncio.wait((arrived, lost), return_when=asyncio.FIRST_COMPLETED)
            return arrived.done()
        finally:
            arrived.cancel()
            lost.cancel()

    async def _connect(self) -> None:
        """Connects, and tries again until that succeeds."""
        pause = _PAUSE_FIRST_SECONDS
        while True:
            try:
                await self._transport.connect()
                break
            except OSError as error:
                self._failed(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_SECONDS)
        self._answers()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, ConnectionRefusedError) and not self._refused:
            self._refused = True
            self._events.connection_refused(self._broker)

    def _answers(self) -> None:
        if self._refused:
            self._refused = False
            self._events.connection_made(self._broker)

    async def _send(self, request: Request) -> bool:
        """Sends a request. Without an answer it is pending again, and the result is False."""
        body = body_of(request, self._cluster.sender(self._broker), self._cluster.alive(), self._listener)
        try:
            answer = await self._transport.request(request.api_key, VERSIONS[request.api_key], body)
        except asyncio.CancelledError:
            self.pending.put_back(request)
            raise
        except Exception as error:
            self.pending.put_back(request)
            if not self._is_failing:
                self._is_failing = True
                # Only a broker on this side of the socket, the controller's own, fails in another way.
                is_of_network = isinstance(error, OSError | ValueError)
                log.warning(
                    "broker %d does not answer the controller, which tries again: %s",
                    self._broker,
                    error,
                    exc_info=not is_of_network,
                )
            self._failed(error)
            return False
        self._is_failing = False
        self._answers()
        if answer["error_code"] != NONE:
            refusal = for_code(answer["error_code"])()
            log.warning("broker %d refused a request of the controller: %s", self._broker, refusal)
        self._events.answered(self._broker, request, answer)
        return True


class Channels:
    """The channels to all registered brokers."""

    def __init__(
        self,
        connect: Callable[[BrokerInfo], Transport],
        cluster: Cluster,
        events: ChannelEvents,
        listener: str,
    ) -> None:
        self._connect = connect
        self._cluster = cluster
        self._events = events
        self._listener = listener
        self._channels: dict[BrokerId, tuple[BrokerInfo, Channel]] = {}

    async def set_brokers(self, brokers: Mapping[BrokerId, BrokerInfo]) -> None:
        """The registered brokers. A broker that registered again gets a new channel, with nothing pending."""
        kept: dict[BrokerId, Pending] = {}
        for broker, (before, channel) in list(self._channels.items()):
            info = brokers.get(broker)
            if info == before:
                continue
            del self._channels[broker]
            await channel.close()
            if info is not None and info.epoch == before.epoch:
                kept[broker] = channel.pending
        for broker, info in brokers.items():
            if broker not in self._channels:
                pending = kept.get(broker, Pending())
                transport = self._connect(info)
                channel = Channel(broker, transport, self._cluster, self._events, self._listener, pending)
                self._channels[broker] = info, channel

    def all_pending(self) -> Iterator[tuple[BrokerId, Pending]]:
        """Each broker, with what it has not been sent."""
        return ((broker, channel.pending) for broker, (_, channel) in self._channels.items())

    def pending(self, broker: BrokerId) -> Pending | None:
        """What a broker has not been sent; None if there is no channel to it."""
        found = self._channels.get(broker)
        return None if found is None else found[1].pending

    def flush(self) -> None:
        """Sends what is pending, to every broker."""
        for _, channel in self._channels.values():
            channel.flush()

    async def delivered(self, broker: BrokerId) -> None:
        """Returns when a broker has answered everything sent to it."""
        found = self._channels.get(broker)
        if found is not None:
            await found[1].delivered()

    async def close(self) -> None:
        """Closes every channel."""
        await self.set_brokers({})
