"""The client ports: a plain one, one with TLS, one that takes both.

Owns their sockets and TLS contexts. The server decides which connections may enter. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..errors import CoordinatorError
from .listener import Listener, cannot_listen
from .renewal import Renewal
from .tls import SecurePort, TlsSettings

NO_PORT = -1
MOVE_PAUSE_SECONDS = 1.0
_CLIENTS = "clientPortAddress or this server's line server.N"

_logger = logging.getLogger(__name__)


class ClientPorts:
    """``made`` makes the protocol of a connection, from whether it is TLS; ``may_enter`` and ``failed`` are
    those of a :class:`.listener.Listener`. A ``port`` of :data:`NO_PORT` is none; with ``unified`` it takes
    TLS, too."""

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
        self._handshake_timeout = handshake_timeout_ms / 1000
        self._listening: list[Listener] = []
        self._renewals: dict[TlsSettings, Renewal] = {}
        self._first: Listener | None = None
        """The one that takes plain connections."""
        self._moving: asyncio.Task[None] | None = None

    async def listen(
        self, host: str, port: int, secure: SecurePort | None, unified: TlsSettings | None
    ) -> tuple[int, int]:
        """Returns the plain port and the one with TLS. Raises CoordinatorError."""
        secure_port = NO_PORT
        if port != NO_PORT:
            port = await self._listen_first(host, port, unified)
        if secure is not None:
            secure_port = await self._with_tls(secure)
        return port, secure_port

    async def _listen_first(self, host: str, port: int, unified: TlsSettings | None) -> int:
        if unified is not None:
            port = await self._with_tls(SecurePort(host, port, unified), accepts_plain=True)
        else:
            port = await self._plain(host, port)
        self._first = self._listening[-1]
        return port

    def move(self, host: str, port: int, unified: TlsSettings | None) -> None:
        """Begins to move the plain port. Open connections stay. If the new port is not free, a warning
        says so, and the move is tried again."""
        if self._moving is not None:
            self._moving.cancel()
        self._moving = asyncio.get_running_loop().create_task(self._move(host, port, unified))

    async def _move(self, host: str, port: int, unified: TlsSettings | None) -> None:
        # The old port is closed first: both may have one number, on different addresses.
        if self._first is not None:
            first, self._first = self._first, None
            self._listening.remove(first)
            first.close()
            await first.wait_closed()
        while True:
            try:
                await self._listen_first(host, port, unified)
                return
            except CoordinatorError as error:
                _logger.error("%s; trying again", error)
                await asyncio.sleep(MOVE_PAUSE_SECONDS)

    def close(self) -> None:
        """Stops to accept. Safe to repeat."""
        if self._moving is not None:
            self._moving.cancel()
        for each in self._listening:
            each.close()
        for renewal in self._renewals.values():
            renewal.close()

    async def wait_closed(self) -> None:
        """Returns when the ports are free."""
        if self._moving is not None:
            await asyncio.wait([self._moving])
            self.close()  # the move may have opened a port in the meantime
        for each in self._listening:
            await each.wait_closed()
        self._listening.clear()
        for renewal in self._renewals.values():
            await renewal.wait_closed()

    @property
    def handshakes(self) -> int:
        """The number of connections in a TLS handshake."""
        return sum(each.entering for each in self._listening if each.takes_tls)

    async def _plain(self, host: str, port: int) -> int:
        listener = Listener(self._made, lambda *_entering: True, self._failed)
        return await self._begin(listener, host, port, _CLIENTS)

    async def _with_tls(self, port: SecurePort, accepts_plain: bool = False) -> int:
        renewal = self._renewal(port.tls)
        listener = Listener(
            self._made,
            self._may_enter,
            self._failed,
            context=lambda: renewal.context,
            accepts_plain=accepts_plain,
            timeout_seconds=self._handshake_timeout,
        )
        setting = _CLIENTS if accepts_plain else "secureClientPortAddress"
        return await self._begin(listener, port.host, port.port, setting)

    def _renewal(self, tls: TlsSettings) -> Renewal:
        """Returns one for all ports with the same settings. Raises CoordinatorError."""
        if tls not in self._renewals:
            self._renewals[tls] = Renewal(tls)
            self._renewals[tls].start()
        return self._renewals[tls]

    async def _begin(self, listener: Listener, host: str, port: int, setting: str) -> int:
        self._listening.append(listener)
        try:
            return await listener.start(host, port)
        except (OSError, UnicodeError) as error:
            self._listening.remove(listener)
            raise cannot_listen("the coordinator", host, port, error, setting) from error
