"""kazoo's client as ZooKeeper's own behaves: requests of any kind, every event handed over with its transaction id, watches that are
set again on a new connection, and a session that expired is not replaced.

A `Client` belongs to a `Session`. Its callbacks run in kazoo's connection thread; what a server sends that makes no sense ends the
connection, which is made anew, and never that thread.
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
"""Of a reply: more than a server sends whose jute.maxbuffer is in the usual range."""
REPLY_HEADER_BYTES = 16
SET_WATCHES_XID = -8


class Request(NamedTuple):
    """What kazoo sends, with the names it looks for: the operation, its body, and what reads the reply's body.

    `settle` is called in the connection thread with the reply's error code, before anyone else learns of it, and returns the
    one to go on with.
    """

    type: int
    body: bytes
    read: Callable[[bytes, int], Any]
    settle: Callable[[int], int] | None = None

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        return self.read(buffer, offset)


class Client(KazooClient):  # type: ignore[misc]
    """Connects to `hosts` (`host:port,host:port`), and connects again, by itself. Raises ValueError for hosts it cannot read.

    Set before `begin`: `on_state`, called with each of kazoo's KeeperState; `on_event`, with a watch event's type, state,
    path and transaction id; `set_watches`, which returns what is sent first on a new connection, given the last transaction id.
    """

    on_state: Callable[[str], None]
    on_event: Callable[[EventType, int, str, int], None]
    set_watches: Callable[[int], list[Request]]

    def __init__(self, hosts: str, timeout_ms: int, read_only: bool, tls: dict[str, Any]) -> None:
        # What kazoo has to say (each attempt to connect) is of use only to those who ask for it.
        logging.getLogger("kazoo").addHandler(logging.NullHandler())
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0)
        names = ",".join(each.strip() for each in hosts.split(","))
        super().__init__(
            hosts=names, timeout=timeout_ms / 1000, read_only=read_only, connection_retry=retry, **tls
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)

    def begin(self) -> None:
        """Starts to connect; requests made from here on wait for the connection."""
        self._state = KeeperState.CONNECTING
        self.start_async()

    def send(self, request: Request) -> Any:
        """Has a request sent; kazoo's AsyncResult of it."""
        pending = self.handler.async_result()
        self._call(request, pending)
        return pending

    def end(self) -> None:
        """Closes the session. A server that does not answer is waited for no longer than the session's timeout, or 10 s."""
        try:
            self.stop()
            # Of a session that ended by itself, too.
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
    """Of the frame that was read last."""

    def _connect_loop(self, retry: Any) -> Any:
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            # No server of the list has an answer: neither has what waits for one.
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
            raise ConnectionDropped(f"a frame of {length} bytes is none")
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
        if isinstance(request, Request) and request.settle is not None:
            error = request.settle(error)
        if error != 0 and error not in EXCEPTIONS:
            error = SYSTEM_ERROR
        return super()._read_response(header._replace(err=error), buffer, offset)
