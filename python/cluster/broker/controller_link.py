"""Requests of this broker to the controller, wherever it is now.

Opens one connection to the broker that metadata name as the controller. A controller on this broker is called
without a socket. A request under way fails when another broker becomes the controller, because the old one
may hang. The caller repeats what fails. Lives on the event loop. Source: NodeToControllerChannelManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cluster.broker.replicas import MetadataCache
from cluster.errors import NotController
from cluster.model import BrokerId
from cluster.peer import Body, Peer

Local = Callable[[int, int, Body], Awaitable[Body]]
"""Answers a request on this broker: API key, version, body."""


class ControllerLink:
    """The way to the controller."""

    def __init__(
        self, metadata: MetadataCache, local: BrokerId, listener: str, timeout_ms: int, answer_here: Local
    ) -> None:
        self._metadata = metadata
        self._local = local
        self._listener = listener
        self._timeout_ms = timeout_ms
        self._answer_here = answer_here
        self._peer: tuple[str, int, Peer] | None = None
        metadata.on_controller_change(self.close)

    async def request(self, api_key: int, version: int, body: Body) -> Body:
        """Sends a request and returns the answer. Raises OSError (also after the timeout), ValueError, or
        NotController if no controller is known.
        """
        controller = self._metadata.controller_id
        if controller == self._local:
            # It may wait for a coordinator that is gone.
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._answer_here(api_key, version, body)
        info = self._metadata.brokers.get(controller)
        endpoint = None if info is None else info.endpoint(self._listener)
        if endpoint is None:
            raise NotController("No controller is known yet.")
        if self._peer is None or self._peer[:2] != (endpoint.host, endpoint.port):
            self.close()
            peer = Peer(endpoint.host, endpoint.port, f"broker-{self._local}", self._timeout_ms)
            self._peer = endpoint.host, endpoint.port, peer
        return await self._peer[2].request(api_key, version, body)

    def close(self) -> None:
        """Closes the connection. A request under way fails with OSError."""
        if self._peer is not None:
            self._peer[2].close()
            self._peer = None
