"""A client's connection: bytes to requests, and replies in the order of the requests.

Owns the framing, the handshake, and the queue of the client's requests. The server
(:class:`.server.CoordinatorServer`) carries the requests out. Runs on the event loop; a crash ends the
connection and not the session.

A frame, a handshake or a login that cannot be decoded ends the connection. Any other request that cannot be
decoded is answered MarshallingError. Three things are answered before older requests: a login, an unknown
operation, and a request of a client that has to log in first. The last two also end the connection, as in
ZooKeeper. A login counts for the requests that follow it.

Reading stops during a handshake and while too many requests are in flight, so a connection's memory is
bounded by the frame size and :data:`OUTSTANDING_BYTES_MAX`. A client that is slow to read its replies is
still read, because its pings keep its session alive. While it leaves :data:`SLOW_BYTES` unread, its reads are
answered only when its next write is about to take effect. What it leaves unread is bounded by
:data:`UNSENT_BYTES_MAX`, and what all clients leave by :mod:`.unread`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from .client_identity import ClientIdentity, TooManyIdentitiesError
from .clock import Clock
from .errors import Code, JuteError, MissingValueError
from .metrics import ClientTraffic, ServerMetrics, Sizes, Traffic
from .ports.listener import peer_address
from .protocol import replies
from .protocol.jute import Reader, Writer
from .protocol.requests import (
    OPERATION_NAMES,
    READS,
    WRITES,
    Auth,
    ConnectRequest,
    Op,
    Read,
    Sasl,
    Sync,
    Write,
    accepts_read_only,
    decode_auth,
    decode_connect,
    decode_read,
    decode_sasl,
    decode_write,
)
from .protocol.sasl import SaslError
from .settings.server import Settings
from .state.acl import Subject
from .state.machine import Machine
from .state.sessions import deadline_of
from .unread import Unread

OUTSTANDING_MAX = 1000
"""The requests of one client in flight.

ZooKeeper's ``globalOutstandingLimit`` is for all clients together.
"""
OUTSTANDING_BYTES_MAX = 4 << 20
"""The bytes of these requests. A larger one is in flight alone."""
_PENDING_BYTES = 512
"""The memory of a request besides its own bytes."""
TIME_SLICE_MS = 10
"""After this time on one client's requests the loop serves the other clients."""
FLUSH_BYTES = 64 << 10
"""At this much output it is passed to the transport, which reports whether the client keeps up."""
SLOW_BYTES = 1 << 20
"""A client that leaves this much unread is slow: answers that can wait do wait."""
UNSENT_BYTES_MAX = 64 << 20
"""A client that leaves this much unread is disconnected.

Watch events are the only output without another bound.
"""
LINGER_SECONDS = 30.0
"""A client has this time to read its last replies after the server closed the connection."""

_ALONE = frozenset({Op.GET_ALL_CHILDREN_NUMBER, Op.GET_EPHEMERALS, Op.MULTI_READ})
"""Reads that may take long although they and their answers are short.

The next request is read once such a read is answered.
"""

_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = _LENGTH.size
"""The length before a frame is not part of any count of bytes."""

_REFUSED = "NA"
"""The name in ``cons`` of a write that was refused."""

_logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """The state of a connection."""

    NEW = enum.auto()
    CONNECTING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


# A member of an enum takes ten times as long to look up, and each request needs some of them.
_OPEN, _CLOSED = Phase.OPEN, Phase.CLOSED
_AUTH, _SASL, _PING, _RECONFIG, _CLOSE_SESSION = Op.AUTH, Op.SASL, Op.PING, Op.RECONFIG, Op.CLOSE_SESSION
_OK = Code.OK


class SessionGate(Protocol):
    """What a connection asks of the state behind its server (:class:`.replication.Replication`)."""

    @property
    def is_full(self) -> bool:
        """Whether too many proposals wait. Then nothing is read from clients."""

    def heard_from(self, connection: Connection) -> None:
        """The client sent something."""

    def may_send(self, connection: Connection) -> bool:
        """Whether the client may be sent anything.

        If not, :meth:`Connection.resume` is called once it may.
        """

    def sync(self, answer: Callable[[], None]) -> bool:
        """Returns True if the applied state has every write that was answered before; else calls
        ``answer`` once it has."""


class Host(Protocol):
    """What a connection asks of its server (:class:`.server.CoordinatorServer`)."""

    settings: Settings
    clock: Clock
    metrics: ServerMetrics
    traffic: Traffic
    response_sizes: Sizes
    unread: Unread
    auth_failed: int

    @property
    def machine(self) -> Machine:
        """The applied state."""

    @property
    def replication(self) -> SessionGate:
        """What orders writes and ends sessions."""

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone."""

    def has_output(self, connection: Connection) -> None:
        """The connection has bytes to send at the end of this turn of the loop."""

    def send_all(self) -> None:
        """Sends what this turn of the loop produced."""

    def four_letter_word(self, word: bytes, on_secure: bool) -> str | None:
        """The answer to an administrator, or None for other bytes."""

    def connect(self, connection: Connection, request: ConnectRequest) -> None:
        """Handles a handshake."""

    def write(self, connection: Connection, op: Op, request: Write, body: bytes) -> None:
        """Proposes a write; :meth:`Connection.complete_write` is called when it is done."""

    def refuse(self, connection: Connection, code: Code) -> None:
        """Refuses a write that takes a transaction id all the same."""

    def read(self, connection: Connection, xid: int, request: Read, subject: Subject) -> None:
        """Answers a read."""

    def reply(self, connection: Connection, xid: int, code: Code = Code.OK, body: bytes = b"") -> None:
        """Answers the connection's oldest request."""

    def answer_now(
        self, connection: Connection, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b""
    ) -> None:
        """Answers at once, before older requests."""


class Pending:
    """A request that is not answered yet.

    A read is answered by the time it is first in the queue, for the identities with which it was sent; a sync
    not while it ``waits``. A refused request has a ``refusal``. A write waits for its ``answer``.
    """

    __slots__ = (
        "answer",
        "began_ms",
        "is_refused",
        "op",
        "read",
        "refusal",
        "size",
        "subject",
        "waits",
        "xid",
    )

    def __init__(self, xid: int, op: int, size: int, began_ms: int) -> None:
        self.xid = xid
        self.op = op
        self.size = size
        self.began_ms = began_ms
        self.read: Read | None = None
        self.subject: Subject | None = None
        self.refusal = _OK
        self.is_refused = False
        """A write that changed nothing."""
        self.answer: bytes | None = None
        self.waits = False


class Connection(asyncio.Protocol):
    """``secure``: its transport is TLS."""

    def __init__(self, server: Host, secure: bool = False) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._pending: deque[Pending] = deque()
        self._writes: deque[Pending] = deque()
        self._reading = True
        self._writable = True
        self._has_unread = False
        """What :class:`.unread.Unread` knows."""
        self._silenced = False
        self._session_is_over = False
        self._yielded = False
        self._outstanding_bytes = 0
        self._answered_now = 0
        """Logins that were answered since the client is slow."""
        self._heard = False
        self._now_ms = 0
        self._syncs = 0
        self._birth: Pending | None = None
        """The handshake, if it asks for a new session."""
        self.phase = Phase.NEW
        self.session_id = 0
        self.handshake_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self.attachment = 0
        """In an ensemble, the number of this connection among those of its session."""
        self.sends_read_only = False
        self.accepts_read_only = False
        self.is_read_only = False
        self.address = ""
        self.port = 0
        self.timeout_ms = 0
        self.established_ms = server.clock.wall_ms()
        self._made_ms = server.clock.monotonic_ms()
        self.traffic = ClientTraffic()
        self.is_secure = secure
        self._identity = ClientIdentity(server.settings, "")
        self.subject = self._identity.subject

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory for this client: received and not handled, or not yet sent."""
        return len(self._received) + self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes that stay in memory until the client reads: replies, and requests that wait to be
        answered."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._out_bytes + unsent + (0 if self._writable else self._outstanding_bytes)

    @property
    def outstanding(self) -> int:
        """Requests that are not answered yet."""
        return len(self._pending)

    @property
    def is_connecting(self) -> bool:
        """Whether the client waits for the answer to its handshake."""
        return self.phase is Phase.CONNECTING

    @property
    def interest(self) -> int:
        """A selector's bits: 1 while the client is read, 4 while output for it waits."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return (1 if self._reading and self.phase is not Phase.CLOSED else 0) | (4 if unsent else 0)

    @property
    def deadline_ms(self) -> int:
        """When the connection ends if the client sends nothing more, by the monotonic clock: the end of its
        session, or of its time to get one."""
        settings = self._server.settings
        if self.timeout_ms == 0:
            return deadline_of(self._made_ms, settings.handshake_timeout_ms, settings.tick_time_ms)
        return deadline_of(self._now_ms, self.timeout_ms, settings.tick_time_ms)

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(SLOW_BYTES, SLOW_BYTES - FLUSH_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = peer_address(peer) if peer else ""
        self.port = int(peer[1]) if peer else 0
        self._identity = ClientIdentity(self._server.settings, self.address)
        self.subject = self._identity.subject
        if not self._server.admit(self) or not self._read_certificate(transport):
            self.close()

    def _read_certificate(self, transport: asyncio.Transport) -> bool:
        """Adds the identities of the client's certificate, if it sent one.

        Returns False if the certificate is not usable.
        """
        tls = transport.get_extra_info("ssl_object")
        if tls is None or tls.context.verify_mode == ssl.CERT_NONE:
            return True
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None:
            return True
        try:
            self._identity.add_certificate(certificate)
        except (ValueError, TooManyIdentitiesError) as error:
            _logger.warning(
                "closing the connection of %s: its certificate is not usable: %s", self.address, error
            )
            self._server.auth_failed += 1
            return False
        self.subject = self._identity.subject
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.phase is not _CLOSED:  # the client or the network closed it
            self._server.metrics.count("connection_drop_count")
        self.phase = Phase.CLOSED
        self._stop_timers()
        self._forget_pending()
        self._writes.clear()
        self._out.clear()
        self._received.clear()
        self._server.unread.report(self, 0)
        self._server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._server.metrics.count("bytes_received_count", len(data))
        try:
            self.pump()
        finally:
            self._server.send_all()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._answered_now = 0
        self._bound_unsent()
        self._answer()
        self.pump()
        self._server.send_all()

    # ---- frames ----

    def pump(self) -> None:
        """Handles received frames, as many as may be handled now."""
        received = self._received
        if not received:
            if not self._reading:
                self._set_reading(self._may_read())
            return
        position = 0
        self._heard = False
        self._now_ms = self._server.clock.monotonic_ms()
        try:
            while len(received) - position >= _LENGTH_BYTES and self._may_read():
                (length,) = _LENGTH.unpack_from(received, position)
                if not 0 <= length <= self._server.settings.max_buffer:
                    self._no_frame(bytes(received[position : position + _LENGTH_BYTES]), length)
                    return
                begin, end = position + _LENGTH_BYTES, position + _LENGTH_BYTES + length
                if end > len(received):
                    break
                position = end
                self._handle(bytes(received[begin:end]))
                if end < len(received):
                    self._yield_after_slice(self._now_ms, self._server.clock.monotonic_ms())
        except JuteError as error:
            _logger.info("closing the connection of %s: it sent a malformed request: %s", self.address, error)
            self.close()
        del received[:position]
        self._set_reading(self._may_read())
        if not self._writable:
            self._bound_unsent()

    def _yield_after_slice(self, began_ms: int, now_ms: int) -> None:
        """Leaves the rest for the loop's next turn if this one took long."""
        if now_ms - began_ms > TIME_SLICE_MS and not self._yielded:
            self._yielded = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._yielded = False
        self._answer()
        self.pump()
        self._server.send_all()

    def _may_read(self) -> bool:
        if self.phase is not _OPEN:
            return self.phase is Phase.NEW
        return (
            not self._silenced
            and not self._yielded
            and not self._syncs
            # A request behind a change of the members takes effect after it.
            and not (self._writes and self._writes[-1].op is _RECONFIG)
            and not (self._pending and self._pending[-1].op in _ALONE)
            and len(self._pending) < OUTSTANDING_MAX
            and self._outstanding_bytes < OUTSTANDING_BYTES_MAX
            and self._answered_now < OUTSTANDING_MAX
            and not self._server.replication.is_full
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
        """The first bytes are not a length: a four-letter word of an administrator, or garbage."""
        text = self._server.four_letter_word(word, self.is_secure) if self.phase is Phase.NEW else None
        if text is None:
            _logger.info(
                "closing the connection of %s: it sent a frame of %d bytes, and at most %d are allowed",
                self.address,
                length,
                self._server.settings.max_buffer,
            )
        else:
            self.traffic.received += 1
            self.send(text.encode("utf-8"))
        self.close()

    def _handle(self, body: bytes) -> None:
        server = self._server
        self.traffic.received += 1
        server.traffic.received += 1
        if self.phase is not _OPEN:
            request = decode_connect(body)
            self.phase = Phase.CONNECTING
            self.sends_read_only = request.sends_read_only
            self.accepts_read_only = accepts_read_only(body)
            if request.session_id == 0:
                self._birth = Pending(0, Op.CREATE_SESSION, 0, self._now_ms)
                server.metrics.count("prep_processor_request_queued")
            server.connect(self, request)
            return
        reader = Reader(body)
        xid, op = reader.i32(), reader.i32()
        if op in (_AUTH, _SASL) and not self._writable:
            self._answered_now += 1
        if op == _AUTH:
            self._authenticate(xid, decode_auth(reader))
        elif op == _SASL:
            self._log_in(xid, decode_sasl(reader))
        elif not self._identity.may_proceed:
            _logger.warning("closing the connection of %s: it has to authenticate first", self.address)
            server.answer_now(self, xid, replies.NO_ZXID, Code.SESSION_CLOSED_REQUIRE_AUTH)
            self.close()
        else:
            if not self._heard:
                self._heard = True
                server.replication.heard_from(self)
            server.metrics.count("prep_processor_request_queued")
            if (write := WRITES.get(op)) is not None:
                self._write(xid, write, reader, body)
            elif op in READS:
                self._read(xid, op, reader, len(body))
            else:
                server.answer_now(self, xid, replies.UNKNOWN_ZXID, Code.UNIMPLEMENTED)
                self.close()

    def _write(self, xid: int, op: Op, reader: Reader, body: bytes) -> None:
        pending = self._ask(xid, op, len(body))
        if self.is_read_only:
            if op is Op.CLOSE_SESSION:
                pending.answer = replies.reply(xid, self._server.machine.last_zxid, Code.OK, b"")
                self._answer(at_least=pending)
                self.close()
            else:
                self._refuse(pending, Code.NOT_READ_ONLY)
            return
        try:
            request = decode_write(op, reader)
        except Exception as error:
            self._log_defect(op, error)
            if op is Op.MULTI and not isinstance(error, MissingValueError):
                self._writes.append(pending)
                self._server.refuse(self, Code.MARSHALLING_ERROR)
            else:
                self._refuse(pending, Code.MARSHALLING_ERROR)
            return
        self._writes.append(pending)
        self._server.write(self, op, request, body[8:])

    def _log_defect(self, op: int, error: Exception) -> None:
        """Logs an error in decoding that is not the client's fault."""
        if not isinstance(error, JuteError):
            _logger.error("decoding operation %d of %s failed", op, self.address, exc_info=error)

    def _ask(self, xid: int, op: int, size: int) -> Pending:
        pending = Pending(xid, op, size + _PENDING_BYTES, self._now_ms)
        self._pending.append(pending)
        self._outstanding_bytes += pending.size
        return pending

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._outstanding_bytes = 0

    def _refuse(self, pending: Pending, code: Code) -> None:
        """Refuses a write when it is first in the queue, without a transaction id."""
        pending.refusal, pending.is_refused = code, True
        self._answer()

    def _read(self, xid: int, op: int, reader: Reader, size: int) -> None:
        pending = self._ask(xid, op, size)
        try:
            pending.read = decode_read(op, reader)
            pending.subject = self.subject
        except Exception as error:
            self._log_defect(op, error)
            pending.refusal = Code.MARSHALLING_ERROR
        if isinstance(pending.read, Sync):
            if self.is_read_only:
                pending.read, pending.refusal = None, Code.NOT_READ_ONLY
            else:
                # No more is read meanwhile: a later write could take effect before reads that were sent
                # before it.
                pending.waits = not self._server.replication.sync(partial(self._synced, pending))
                self._syncs += pending.waits
        self._answer()

    def _synced(self, pending: Pending) -> None:
        pending.waits = False
        self._syncs -= 1
        self._answer()
        self.pump()

    # ---- answers ----

    def _answer(self, at_least: Pending | None = None) -> None:
        """Answers requests in order, while the client reads its replies and its time slice lasts. Those up to
        ``at_least`` are answered in any case."""
        began_ms = self._server.clock.monotonic_ms()
        while self._pending and self.phase is _OPEN:
            if at_least is None and (self._yielded or not self._writable):
                return
            pending = self._pending[0]
            if pending.waits:
                return
            if pending.read is not None and pending.subject is not None:
                self._server.read(self, pending.xid, pending.read, pending.subject)
            elif pending.refusal is not _OK:
                self._server.reply(self, pending.xid, pending.refusal)
            elif pending.answer is None:
                return
            else:
                self.respond(pending.answer)
            self._pending.popleft()
            if pending is at_least:
                at_least = None
            self._outstanding_bytes -= pending.size
            now_ms = self._server.clock.monotonic_ms()
            self._answered(pending, now_ms)
            if pending.op is _CLOSE_SESSION:
                # Nothing behind it is answered; the server closes the connection.
                self._forget_pending()
            self._yield_after_slice(began_ms, now_ms)

    def _answered(self, pending: Pending, now_ms: int) -> None:
        traffic, server = self.traffic, self._server
        took_ms = now_ms - pending.began_ms
        traffic.latency.add(took_ms)
        server.traffic.latency.add(took_ms)
        metrics = server.metrics
        changes = pending.op in WRITES or pending is self._birth
        (metrics.update_latency if changes else metrics.read_latency).add(took_ms)
        traffic.last_operation = _REFUSED if pending.is_refused else OPERATION_NAMES.get(pending.op, _REFUSED)
        if pending.xid >= 0:
            traffic.last_cxid = pending.xid
        traffic.last_zxid = server.machine.last_zxid
        traffic.last_response_ms = now_ms

    def catch_up(self) -> None:
        """Answers the reads before the client's next write, which is about to take effect, even if the client
        is slow (``CommitProcessor``)."""
        if self._writes and (self._yielded or not self._writable):
            self._answer(at_least=self._writes[0])

    def complete_write(self, zxid: int, code: Code, body: bytes) -> None:
        """The oldest write of this client is durable and applied. Its answer is sent before any event of a
        later write (``FinalRequestProcessor``)."""
        if self._writes:
            pending = self._writes.popleft()
            pending.answer = replies.reply(pending.xid, zxid, code, body)
            pending.is_refused = code is not _OK
            self._answer(at_least=pending)

    def _authenticate(self, xid: int, request: Auth) -> None:
        if self._identity.authenticate(request):
            self.subject = self._identity.subject
            self._server.answer_now(self, xid, replies.NO_ZXID)
        else:
            self._server.auth_failed += 1
            self._server.answer_now(self, xid, replies.NO_ZXID, Code.AUTH_FAILED)
            self.close()

    def _log_in(self, xid: int, request: Sasl) -> None:
        token: bytes | None = None
        try:
            token = self._identity.log_in(request.token)
            self.subject = self._identity.subject
        except SaslError as error:
            _logger.warning("%s could not log in: %s", self.address, error)
            self._server.auth_failed += 1
            authentication = self._server.settings.authentication
            if not authentication.allows_failed_sasl or authentication.requires_sasl:
                required = authentication.requires_sasl
                code = Code.SESSION_CLOSED_REQUIRE_AUTH if required else Code.AUTH_FAILED
                self._answer_sasl(xid, None, code)
                self.close()
                return
        self._answer_sasl(xid, token)

    def _answer_sasl(self, xid: int, token: bytes | None, code: Code = Code.OK) -> None:
        body = Writer().buffer(token).finish()
        self._server.answer_now(self, xid, replies.NO_ZXID, code, body)

    def notify(self, data: bytes) -> None:
        """Queues a watch event."""
        self._server.metrics.count("watch_bytes", len(data) - _LENGTH_BYTES)
        self.send(data)

    def respond(self, data: bytes) -> None:
        """Queues the answer to the oldest request, and counts it as a response; the bytes of a ping's
        answer do not count."""
        size = len(data) - _LENGTH_BYTES
        self._server.response_sizes.add(size)
        if self._pending[0].op != _PING:
            self._server.metrics.count("response_bytes", size)
        self.send(data)

    def send(self, data: bytes) -> None:
        """Queues bytes. The server sends them at the end of this turn of the loop."""
        if self.phase is _CLOSED:
            return
        self.traffic.sent += 1
        self._server.traffic.sent += 1
        if not self._out:
            self._server.has_output(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Passes queued bytes to the transport.

        While nothing may be sent they stay, and the client is not read.
        """
        if self._out and self._transport is not None:
            if not self._session_is_over and not self._server.replication.may_send(self):
                self._silenced = True
                self._bound_unsent()
                return
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(data)
            self._bound_unsent()

    def _bound_unsent(self) -> None:
        unread = self.unread_bytes
        if unread > UNSENT_BYTES_MAX:
            _logger.warning(
                "disconnecting %s: it left more than %d bytes unread", self.address, UNSENT_BYTES_MAX
            )
            self.abort()
        elif unread or self._has_unread:
            self._has_unread = unread > 0
            self._server.unread.report(self, unread)

    def resume(self) -> None:
        """The client may be sent output again."""
        self._silenced = False
        self.flush()

    def opened(self, session_id: int, timeout_ms: int) -> None:
        """The handshake is over."""
        self.phase = Phase.OPEN
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self._stop_timers()
        if self._birth is not None:
            self._answered(self._birth, self._server.clock.monotonic_ms())

    def abort(self) -> None:
        """Closes, without sending queued output."""
        self.phase = Phase.CLOSED
        if self._transport is not None:
            self._transport.abort()

    def _stop_timers(self) -> None:
        for timer in (self.handshake_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self.handshake_timer = self._linger_timer = None

    def session_ended(self) -> None:
        """The client has ended its session: sends the answer, and closes.

        No output can make it believe any more that its session is alive.
        """
        self._session_is_over = True
        self.close()

    def close(self) -> None:
        """Sends queued output, then closes: within :data:`LINGER_SECONDS`, whether the client has read it
        or not."""
        if self._transport is None:
            return
        self.flush()
        self.phase = Phase.CLOSED
        self._transport.close()
        if self._linger_timer is None:
            self._linger_timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
