"""One client's connection: bytes to requests, and its replies in order.

Owns framing, the handshake's state, the queue that keeps a client's requests in order, and the client's
identities. What requests do is the server's (:class:`.server.CoordinatorServer`). Runs on the event loop.
Whatever is wrong with a client's bytes closes its connection and nothing else; the session lives on until
it expires.

Reading stops while a handshake or too many writes are in flight, and while the client does not read its
replies, so memory per connection is bounded by the frame size and :data:`OUTSTANDING_MAX`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from typing import TYPE_CHECKING

from . import replies
from .acl import digest_identity
from .errors import Code, JuteError
from .jute import MAX_BUFFER, Id, Reader
from .requests import (
    Auth,
    CreateSession,
    Op,
    Read,
    Write,
    decode_connect,
    decode_request,
)

if TYPE_CHECKING:
    from .server import CoordinatorServer

OUTSTANDING_MAX = 1000
"""Requests of one client in flight; ZooKeeper's ``globalOutstandingLimit``, here per client."""
IDENTITIES_MAX = 16
"""Identities one connection may add: they travel with each of its writes."""
FLUSH_BYTES = 64 << 10
"""Output that is handed to the transport at once, which then says whether the client keeps up."""
UNSENT_BYTES_MAX = 64 << 20
"""A client that leaves this much unread (watch events, in the end) is cut off."""

_logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """Where a connection stands."""

    NEW = enum.auto()
    CONNECTING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class Pending:
    """A request not answered yet: a read to be answered in its turn, or a write whose answer arrives."""

    __slots__ = ("answer", "read", "xid")

    def __init__(self, xid: int, read: Read | None) -> None:
        self.xid = xid
        self.read = read
        self.answer: bytes | None = None


class Connection(asyncio.Protocol):
    """A client."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._pending: deque[Pending] = deque()
        self._writes: deque[Pending] = deque()
        self._reading = True
        self._writable = True
        self.phase = Phase.NEW
        self.session_id = 0
        self.handshake_timer: asyncio.TimerHandle | None = None
        self.sends_read_only = False
        self.address = ""
        self.identities: tuple[Id, ...] = ()

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for this client: received and not handled, or not yet sent."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return len(self._received) + self._out_bytes + unsent

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.identities = (Id("ip", self.address),)
        if not self._server.admit(self):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.phase = Phase.CLOSED
        self._stop_handshake_timer()
        self._pending.clear()
        self._writes.clear()
        self._out.clear()
        self._received.clear()
        self._server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self.pump()
        self._server.send_all()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._answer()
        self.pump()
        self._server.send_all()

    # ---- frames ----

    def pump(self) -> None:
        """Handles as many received frames as may be handled now."""
        position = 0
        received = self._received
        try:
            while self._may_read() and len(received) - position >= 4:
                length = int.from_bytes(received[position : position + 4], "big", signed=True)
                if not 0 <= length <= MAX_BUFFER:
                    self._no_frame(bytes(received[position : position + 4]), length)
                    return
                if len(received) - position - 4 < length:
                    break
                body = bytes(received[position + 4 : position + 4 + length])
                position += 4 + length
                self._handle(body)
        except JuteError as error:
            _logger.info("closing the connection of %s: a malformed request: %s", self.address, error)
            self.close()
        del received[:position]
        self._set_reading(self._may_read())

    def _may_read(self) -> bool:
        return (
            self.phase in (Phase.NEW, Phase.OPEN) and self._writable and len(self._pending) < OUTSTANDING_MAX
        )

    def _set_reading(self, reading: bool) -> None:
        if self._transport is None or reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _no_frame(self, word: bytes, length: int) -> None:
        """A four-letter word of an administrator, or garbage."""
        text = self._server.four_letter_word(word) if self.phase is Phase.NEW else None
        if text is None:
            _logger.info(
                "closing the connection of %s: a frame of %d bytes, at most %d are allowed",
                self.address,
                length,
                MAX_BUFFER,
            )
        else:
            self.send(text.encode("utf-8"))
        self.close()

    def _handle(self, body: bytes) -> None:
        if self.phase is Phase.NEW:
            request = decode_connect(body)
            self.phase = Phase.CONNECTING
            self.sends_read_only = request.sends_read_only
            self._server.connect(self, request)
            return
        reader = Reader(body)
        xid, op = reader.i32(), reader.i32()
        self._server.heard_from(self)
        asked = decode_request(op, reader)
        if isinstance(asked, CreateSession):
            raise JuteError("createSession is no client's request")
        if isinstance(asked, Write):
            pending = Pending(xid, None)
            self._pending.append(pending)
            self._writes.append(pending)
            self._server.write(self, Op(op), asked, body[8:])
        else:
            self._pending.append(Pending(xid, asked))
            self._answer()

    # ---- answers ----

    def _answer(self) -> None:
        """Answers what can be answered in order, while the client takes its replies."""
        while self._pending and self._writable and self.phase is Phase.OPEN:
            pending = self._pending[0]
            if pending.read is None:
                if pending.answer is None:
                    return
                self.send(pending.answer)
            elif isinstance(pending.read, Auth):
                self._authenticate(pending.xid, pending.read)
            else:
                self._server.read(self, pending.xid, pending.read)
            self._pending.popleft()

    def complete_write(self, zxid: int, code: Code, body: bytes) -> None:
        """The oldest write of this client is durable and applied."""
        if self._writes:
            pending = self._writes.popleft()
            pending.answer = replies.reply(pending.xid, zxid, code, body)
            self._answer()

    def _authenticate(self, xid: int, request: Auth) -> None:
        """Adds an identity; a scheme we do not know ends the connection, as ZooKeeper does."""
        identity = digest_identity(request.credentials) if request.scheme == "digest" else None
        if request.scheme == "ip":
            identity = self.identities[0]
        if identity is None or len(self.identities) > IDENTITIES_MAX:
            self._server.reply(self, xid, Code.AUTH_FAILED)
            self.close()
            return
        if identity not in self.identities:
            self.identities += (identity,)
        self._server.reply(self, xid)

    def send(self, data: bytes) -> None:
        """Queues bytes; the server sends them at the end of this turn."""
        if self.phase is Phase.CLOSED:
            return
        if not self._out:
            self._server.has_output(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands queued bytes to the transport."""
        if self._out and self._transport is not None:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                _logger.warning("cutting off %s: it does not read its replies", self.address)
                self.abort()

    def opened(self, session_id: int) -> None:
        """The handshake is over."""
        self.phase = Phase.OPEN
        self.session_id = session_id
        self._stop_handshake_timer()

    def abort(self) -> None:
        """Closes without sending what is queued."""
        self.phase = Phase.CLOSED
        if self._transport is not None:
            self._transport.abort()

    def _stop_handshake_timer(self) -> None:
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None

    def close(self) -> None:
        """Sends what is queued, then closes."""
        if self._transport is None:
            return
        self.flush()
        self.phase = Phase.CLOSED
        self._transport.close()
