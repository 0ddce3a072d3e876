"""Extends kazoo's client to behave as ZooKeeper's own client.

It sends requests of any kind and reports every event with its transaction id. It sets watches again on a new
connection, and does not replace a session that expired.

A `Client` belongs to a `Session`. Its callbacks run in kazoo's connection thread. A reply that makes no sense
ends the connection but not the thread, which connects again.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionDropped, WriterNotClosedException
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import ReplyHeader, int_int_struct, int_struct, read_string
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError, KazooRetry

from cluster.cli.zookeeper.errors import SYSTEM_ERROR
from cluster.cli.zookeeper.watches import ONCE, EventType

MAX_FRAME_BYTES = 64 << 20
"""The largest reply that is read: more than servers send with a usual jute.maxbuffer."""
REPLY_HEADER_BYTES = 16
SET_WATCHES_XID = -8


class Request(NamedTuple):
    """A request with the attributes that kazoo needs: operation, body, and a function that reads the reply's
    body.

    `on_reply` is called first of all, in the connection thread, with the reply's error code. It returns the
    error code that counts.
    """

    type: int
    body: bytes
    read: Callable[[bytes, int], Any]
    on_reply: Callable[[int], int] | None = None

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        return self.read(buffer, offset)


class Client(KazooClient):  # type: ignore[misc]
    """Connects to `hosts` (`host:port,host:port`) and reconnects by itself. Raises ValueError for hosts that
    it cannot parse.

    Before `begin` these must be set:

    - `on_state`, called with each of kazoo's KeeperState;
    - `on_event`, called with a watch event's type, state, path and transaction id;
    - `set_watches`, called with the last transaction id; returns the first requests on a new connection.
    """

    on_state: Callable[[str], None]
    on_event: Callable[[EventType, int, str, int], None]
    set_watches: Callable[[int], list[Request]]

    def __init__(self, hosts: str, timeout_ms: int, read_only: bool, tls: dict[str, Any]) -> None:
        # Without a handler, Python would print kazoo's warnings about each attempt to connect.
        logging.getLogger("kazoo").addHandler(logging.NullHandler())
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0)
        names = ",".join(each.strip() for each in hosts.split(","))
        super().__init__(
            hosts=names, timeout=timeout_ms / 1000, read_only=read_only, connection_retry=retry, **tls
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)

    def begin(self) -> None:
        """Starts to connect. Requests from now on wait for the connection."""
        self._state = KeeperState.CONNECTING
        self.start_async()

    def send(self, request: Request) -> Any:
        """Sends a request; returns kazoo's AsyncResult."""
        pending = self.handler.async_result()
        self._call(request, pending)
        return pending

    def end(self) -> None:
        """Closes the session. Waits for the server's answer, but not longer than the session's timeout or
        10 s.
        """
        try:
            self.stop()
            # `stop` does nothing for a session that ended by itself.
            self._safe_close()
        except WriterNotClosedException:
            return
        self.close()

    def _session_callback(self, state: str) -> None:
        before = self._state
        super()._session_callback(state)
        if state in (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED):
            self._stopped.set()
        if state != before:
            self.on_state(state)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    _zxid = -1
    """The transaction id of the last frame."""

    def _connect_loop(self, retry: Any) -> Any:
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            # No server of the list answered, so the waiting requests fail.
            self.client._notify_pending(KeeperState.CONNECTING)
            raise

    def _connect(self, host: str, hostip: str, port: int) -> tuple[int, int]:
        timeouts: tuple[int, int] = super()._connect(host, hostip, port)
        for request in self.client.set_watches(self.client.last_zxid):
            self._submit(request, timeouts[1] / 1000, SET_WATCHES_XID)
        return timeouts

    def _read_header(self, timeout: float) -> tuple[ReplyHeader, bytes, int]:
        (length,) = int_struct.unpack(self._read(int_struct.size, timeout))
        if not REPLY_HEADER_BYTES <= length <= MAX_FRAME_BYTES:
            raise ConnectionDropped(f"a frame cannot have {length} bytes")
        frame = self._read(length, timeout)
        header, offset = ReplyHeader.deserialize(frame, 0)
        self._zxid = header.zxid
        return header, frame, offset

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        try:
            kind, state = int_int_struct.unpack_from(buffer, offset)
            path, _offset = read_string(buffer, offset + int_int_struct.size)
            event = EventType(kind)
        except (struct.error, ValueError) as error:
            raise ConnectionDropped(f"an event that cannot be read: {error}") from None
        if event in ONCE and path is not None:
            self.client.on_event(event, state, path, self._zxid)

    def _read_response(self, header: ReplyHeader, buffer: bytes, offset: int) -> Any:
        if header.xid == SET_WATCHES_XID:
            return None
        if not self.client._pending or self.client._pending[0][2] != header.xid:
            raise ConnectionDropped(f"a reply to a request that was not made, xid {header.xid}")
        request = self.client._pending[0][0]
        error = header.err
        if isinstance(request, Request) and request.on_reply is not None:
            error = request.on_reply(error)
        if error != 0 and error not in EXCEPTIONS:
            error = SYSTEM_ERROR
        return super()._read_response(header._replace(err=error), buffer, offset)
