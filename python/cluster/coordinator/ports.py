"""The ports that clients connect to: a plain one, one with TLS, one that takes both.

Owns their sockets; who may come in is the server's to say. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .listener import Listener, cannot_listen
from .tls import SecurePort, TlsSettings, server_context

NO_PORT = -1


class ClientPorts:
    """``made`` makes the protocol of a connection, told whether it is TLS; ``may_enter`` and ``failed`` are a
    :class:`.listener.Listener`'s. A ``port`` of :data:`NO_PORT` is none; with ``unified`` it takes TLS, too."""

    def __init__(
        self,
        made: Callable[[bool], asyncio.Protocol],
        may_enter: Callable[[str, int, int], bool],
        failed: Callable[[str, Exception], None],
        handshake_timeout_ms: int,
    ) -> None:
        self._made = made
        self._may_enter = may_enter
        self._failed = failed
        self._patience = handshake_timeout_ms / 1000
        self._listening: list[asyncio.Server | Listener] = []

    async def listen(
        self, host: str, port: int, secure: SecurePort | None, unified: TlsSettings | None
    ) -> tuple[int, int]:
        """Returns the port and the one with TLS. Raises CoordinatorError."""
        secure_port = NO_PORT
        if unified is not None and port != NO_PORT:
            port = await self._with_tls(SecurePort(host, port, unified), accepts_plain=True)
        elif port != NO_PORT:
            port = await self._plain(host, port)
        if secure is not None:
            secure_port = await self._with_tls(secure)
        return port, secure_port

    def close(self) -> None:
        """Accepts no more. Safe to repeat."""
        for each in self._listening:
            each.close()

    async def wait_closed(self) -> None:
        """Returns when the ports are free."""
        for each in self._listening:
            await each.wait_closed()
        self._listening.clear()

    @property
    def handshakes(self) -> int:
        """Connections that are in TLS's handshake."""
        return sum(each.entering for each in self._listening if isinstance(each, Listener))

    async def _plain(self, host: str, port: int) -> int:
        try:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: self._made(False), host, port)
        except OSError as error:
            raise cannot_listen("the coordinator", host, port, error) from error
        self._listening.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _with_tls(self, port: SecurePort, accepts_plain: bool = False) -> int:
        listener = Listener(
            self._made,
            self._may_enter,
            self._failed,
            context=server_context(port.tls),
            accepts_plain=accepts_plain,
            patience_seconds=self._patience,
        )
        self._listening.append(listener)
        try:
            return await listener.start(port.host, port.port)
        except OSError as error:
            raise cannot_listen("the coordinator", port.host, port.port, error) from error
