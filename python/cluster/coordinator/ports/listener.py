"""A listening socket whose connections are plain, TLS, or either.

Owns a connection from its accept to its protocol: its first byte, the TLS handshake, their time limit, and
their number. A peer that sends nothing costs only a socket until its time is over: asyncio's 256 KiB of
buffers for TLS are made after the first byte. Runs on the event loop.

As with Java's sockets, one that listens on all addresses takes both families, even if its address is 0.0.0.0.
A peer's address is written as Java writes it. Plain connections are accepted here, too, because an
asyncio.Server of Python 3.11 leaks the socket that it accepts while it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import logging
import math
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from ..errors import CoordinatorError
from ..state.acl import address_identity
from ..state.members import host_and_port

BACKLOG = 4096
"""Connections that may wait to be accepted, within the kernel's limit (``net.core.somaxconn``). The client's
kernel tries another one again a second later. After a restart all clients come at once."""
ACCEPTS_A_TURN = 16
"""Plain connections that are accepted in one turn of the loop.

Of those with TLS, which cost more, it is one.
"""
ACCEPT_PAUSE_SECONDS = 1.0
"""After a failed accept. Most likely the process is out of descriptors."""
SHUTDOWN_SECONDS = 2.0
"""The time that a peer has to answer the end of TLS."""
_HANDSHAKE = b"\x16"
"""The first byte of every TLS connection (RFC 8446, 5.1). In a frame's length it would exceed every limit."""

_logger = logging.getLogger(__name__)


class Listener:
    """Accepts connections.

    ``made`` makes the protocol of a connection, from whether it is TLS. ``may_enter`` decides about one more
    connection: it gets the address, and the numbers of connections without a protocol, of the address and of
    all. ``failed`` is called for one that fails. Without ``context`` all are plain. With it all are TLS, or
    with ``accepts_plain`` those that begin as TLS; it returns the context of a handshake.
    """

    def __init__(
        self,
        made: Callable[[bool], asyncio.BaseProtocol],
        may_enter: Callable[[str, int, int], bool],
        failed: Callable[[str, Exception], None],
        *,
        context: Callable[[], ssl.SSLContext] | None = None,
        accepts_plain: bool = False,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._made = made
        self._may_enter = may_enter
        self._failed = failed
        self._context = context
        self._accepts_plain = accepts_plain
        self._timeout = timeout_seconds
        self._by_address: Counter[str] = Counter()
        self._entering: dict[socket.socket, tuple[str, float]] = {}
        """The connections without a protocol: their address, and the time of their accept."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    async def start(self, host: str, port: int) -> int:
        """Listens on all addresses of a host, at one port, and returns the port. Raises OSError."""
        if is_everywhere(host):
            self._sockets = [listen_everywhere(port)]
        else:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._sockets = listen_at(dict.fromkeys((family, address) for family, *_others, address in found))
        for listening in self._sockets:
            listening.setblocking(False)
            self._begin(self._accept(listening))
        return int(self._sockets[0].getsockname()[1])

    @property
    def takes_tls(self) -> bool:
        return self._context is not None

    @property
    def entering(self) -> int:
        """The number of connections without a protocol."""
        return len(self._entering)

    @property
    def entering_since(self) -> float:
        """The loop's time when the oldest of them was accepted; infinite if there is none."""
        return next((since for _host, since in self._entering.values()), math.inf)

    def drop_first(self) -> None:
        """Ends the oldest of them."""
        accepted = next(iter(self._entering))
        self._leave(accepted)
        with contextlib.suppress(OSError):  # the peer has left
            accepted.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stops to accept, and ends the connections without a protocol. Safe to repeat."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns when the port is free."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        for listening in self._sockets:
            listening.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("accepting connections failed", exc_info=error)

    async def _accept(self, listening: socket.socket) -> None:
        at_once = 1 if self.takes_tls else ACCEPTS_A_TURN
        with listening:
            for accepts in itertools.count(1):
                try:
                    accepted, address = listening.accept()
                except BlockingIOError:
                    # If it were cancelled now, `sock_accept` would lose an accepted socket.
                    await _readable(listening)
                    continue
                except OSError as error:
                    _logger.warning("a connection could not be accepted: %s; trying again", error)
                    await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                accepted.setblocking(False)
                # asyncio does this only for sockets with a named protocol, and that of `create_server` has
                # none.
                with contextlib.suppress(OSError):  # the peer has left
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                host = peer_address(address)
                if self._may_enter(host, self._by_address[host], self.entering):
                    self._by_address[host] += 1
                    self._entering[accepted] = host, asyncio.get_running_loop().time()
                    self._begin(self._enter(accepted, host)).add_done_callback(
                        partial(self._entered, accepted)
                    )
                else:
                    accepted.close()
                if accepts % at_once == 0:
                    await asyncio.sleep(0)  # other work has its turn, however many wait to be accepted

    async def _enter(self, accepted: socket.socket, host: str) -> None:
        context: ssl.SSLContext | None = None
        try:
            async with asyncio.timeout(self._timeout):
                if self._context is not None:
                    if await _begins_tls(accepted):
                        context = self._context()
                    elif not self._accepts_plain:
                        raise ssl.SSLError("its first byte is not that of TLS")
                secure = context is not None
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._made(secure),
                    accepted,
                    ssl=context,
                    ssl_handshake_timeout=self._timeout if secure else None,
                    ssl_shutdown_timeout=SHUTDOWN_SECONDS if secure else None,
                )
        except Exception as error:  # of the socket, TLS, a certificate, or the timeout
            accepted.close()
            self._failed(host, error)
        finally:
            self._leave(accepted)

    def _entered(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        """Also called for a task that was cancelled before it began."""
        if task.cancelled():
            accepted.close()
        self._leave(accepted)

    def _leave(self, accepted: socket.socket) -> None:
        if accepted in self._entering:
            host, _since = self._entering.pop(accepted)
            self._by_address[host] -= 1
            if not self._by_address[host]:
                del self._by_address[host]


async def _begins_tls(accepted: socket.socket) -> bool:
    """Waits for the first byte, and does not take it from the socket."""
    await _readable(accepted)
    return accepted.recv(1, socket.MSG_PEEK) == _HANDSHAKE


async def _readable(waited_for: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def has_come() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(waited_for, has_come)
    try:
        await readable
    finally:
        loop.remove_reader(waited_for)


def is_everywhere(host: str) -> bool:
    """Whether a host means all addresses of the machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listen_at(addresses: Iterable[tuple[socket.AddressFamily, tuple[Any, ...]]]) -> list[socket.socket]:
    """Returns a socket for each address, all at the first one's port. Raises OSError.

    An address that this machine does not have is left out if there is another.
    """
    listening: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, (host, port, *scope) in addresses:
            if listening:
                port = listening[0].getsockname()[1]
            try:
                listening.append(socket.create_server((host, port, *scope), family=family, backlog=BACKLOG))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
        if missing is not None and not listening:
            raise missing
    except OSError:
        for each in listening:
            each.close()
        raise
    return listening


def listen_everywhere(port: int) -> socket.socket:
    """Returns a socket for both families, or for IPv4 if the machine has no IPv6. Raises OSError."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)


def peer_address(name: tuple[Any, ...]) -> str:
    """Returns the address in a socket's name, as Java writes it:

    ::ffff:a.b.c.d of an IPv6 socket is a.b.c.d.
    """
    return address_identity(str(name[0])).id


def cannot_listen(
    what: str, host: str, port: int, error: OSError | UnicodeError, setting: str, mend: str = ""
) -> CoordinatorError:
    """Returns the error for a port that is not free.

    ``setting`` has the host, ``mend`` is the advice if the host is right.
    """
    advice = mend or "stop what uses the port or choose another"
    if isinstance(error, (socket.gaierror, UnicodeError)):  # the numbers of the former are not errno's
        reason = f"{host} cannot be resolved ({error.strerror if isinstance(error, OSError) else error})"
        advice = f"give {setting} an address of this machine, or a name that DNS or /etc/hosts has"
    else:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EADDRNOTAVAIL:
            advice = f"give {setting} an address of this machine"
    return CoordinatorError(f"{what} cannot listen on {host_and_port(host, port)}: {reason}; {advice}")
