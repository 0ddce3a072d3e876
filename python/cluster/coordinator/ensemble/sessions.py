"""The sessions of a member's clients: which connections get a session, which may get responses, and which
sessions have expired.

Owns the steps of a handshake, the connections that get no responses until their handshake ends, and the
reports to the leader (:mod:`.session_reports`). Every member takes part in all sessions: a session that moves
from one server to another is attached by a command like any other. Only the leader ends sessions. Runs on the
event loop; a crash ends the connections, not the sessions.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from ..connection import Connection
from ..keeper import SessionKeeper
from ..protocol.requests import CloseSession, ConnectRequest, CreateSession, Op, encode_create_session
from ..replication import Service
from ..state.sessions import PASSWORD_BYTES, Session, first_session_id
from .agreed import Agreed, Proposed
from .barriers import Barriers
from .contact import Contact
from .outbox import NO_CLIENT, Waiting
from .quorum import Quorum
from .session_reports import SessionReports, unpack

REPORT_MS_MAX = 500
"""The longest time between two reports to the leader."""

_logger = logging.getLogger(__name__)


class MemberSessions:
    """``agreed`` returns the applied state, ``propose`` sends a command on its way."""

    def __init__(
        self,
        service: Service,
        server_id: int,
        contact: Contact,
        keeper: SessionKeeper,
        barriers: Barriers,
        agreed: Callable[[], Agreed],
        propose: Callable[[Proposed, Waiting], None],
    ) -> None:
        settings = service.settings
        self._service = service
        self._server_id = server_id
        self._contact = contact
        self._keeper = keeper
        self._barriers = barriers
        self._agreed = agreed
        self._propose = propose
        self._reports = SessionReports()
        least_ms = max(settings.least_session_timeout_ms, 1)
        self.report_seconds = max(min(settings.tick_time_ms / 4, REPORT_MS_MAX, least_ms / 6), 1) / 1000
        self._silenced: dict[Connection, None] = {}
        """Connections that wait until the leader is known to have heard of their sessions."""
        self._read_only_sessions = 0

    # ---- handshakes ----

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if self._contact.is_reading_only:
            self._connect_read_only(connection, request, timeout_ms)
        elif request.last_zxid_seen > self._agreed().machine.last_zxid:
            # What the client saw may be agreed on and not applied here yet. That is known before any session
            # is touched.
            self._barriers.wait(lambda: self._admit(connection, request, timeout_ms))
        else:
            self._admit(connection, request, timeout_ms)

    def _admit(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if not connection.is_connecting:
            return  # the client has left
        machine = self._agreed().machine
        if request.last_zxid_seen > machine.last_zxid:
            self._service.from_the_future(connection, request.last_zxid_seen)
            return
        sessions = machine.sessions
        password = request.password if request.session_id else secrets.token_bytes(PASSWORD_BYTES)
        birth = CreateSession(timeout_ms, password)
        op, name = Op.CREATE_SESSION, self._server_id
        if request.session_id:
            # As in ZooKeeper, the old connection loses the session before the password is checked.
            self._service.release(request.session_id)
            self._service.metrics.count("connection_revalidate_count")
            if request.session_id in sessions and not sessions.proves(request.session_id, password):
                self._service.refused(connection)
                return
            # A session that is unknown here may be known to the other members, so the command is proposed.
            op, name = Op.ATTACH, request.session_id
        rules, body = self._service.settings.rules, encode_create_session(birth)
        now = self._service.clock.monotonic_ms()
        self._propose(Proposed(name, 0, 0, op, rules, (), birth, body), Waiting(connection, now, request))

    def found(self, connection: Connection, session: Session, attachment: int, waiting: Waiting) -> None:
        """The session was created for, or attached to, this connection. No later command has moved it."""
        if not connection.is_connecting:
            return  # the client has left, and its session ends like any other
        connection.attachment = attachment
        self._reports.established(session.id, waiting.asked_ms)
        self._service.established(connection, session)

    def _connect_read_only(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        machine = self._agreed().machine
        if not connection.accepts_read_only:
            _logger.info(
                "closing the connection of %s: this server has no majority, and the client does not accept "
                "a read-only server",
                connection.address,
            )
            connection.close()
        elif request.session_id and not machine.sessions.proves(request.session_id, request.password):
            connection.close()  # without a majority it is not known whether the session is over
        elif request.last_zxid_seen > machine.last_zxid:
            self._service.from_the_future(connection, request.last_zxid_seen)
        else:
            connection.is_read_only = True
            session = Session(request.session_id, timeout_ms, request.password)
            if not session.id:
                self._read_only_sessions += 1
                first_id = first_session_id(self._service.clock.wall_ms(), self._server_id)
                password = secrets.token_bytes(PASSWORD_BYTES)
                session = Session(first_id + self._read_only_sessions, timeout_ms, password)
            self._service.established(connection, session)

    def disconnected(self, connection: Connection) -> None:
        self._silenced.pop(connection, None)
        if self._service.holder(connection.session_id) in (None, connection):
            self._reports.gone(connection.session_id)

    # ---- which clients are alive ----

    def heard_from(self, connection: Connection) -> None:
        if not connection.is_read_only:
            self._reports.heard(connection.session_id)
            self._keeper.touch(connection.session_id)

    def may_send(self, connection: Connection) -> bool:
        """Whether the client may be sent anything: whatever it gets tells it that its session is alive."""
        if connection.timeout_ms == 0 or connection.is_read_only:
            return True
        reported_ms = self._reports.reported_ms(connection.session_id)
        now = self._service.clock.monotonic_ms()
        if reported_ms is not None and now - reported_ms <= connection.timeout_ms // 3:
            return True
        self._silenced[connection] = None
        return False

    def report(self, quorum: Quorum) -> None:
        """Reports to the leader which sessions this member has heard from."""
        packed, sessions = self._reports.pack()
        now = self._service.clock.monotonic_ms()
        self._reports.sent(quorum.renew_sessions(packed), now, sessions)

    def report_acknowledged(self, number: int) -> list[Connection]:
        """The quorum's event ``renewal_ack``. Returns the connections that go on."""
        self._reports.acknowledged(number)
        silenced, self._silenced = self._silenced, {}
        for connection in silenced:
            connection.resume()
        return list(silenced)

    def reported(self, server_id: int, sessions: bytes) -> None:
        """The quorum's event ``renewed``: at the leader, a member's report."""
        self._contact.heard_of(server_id)
        for session_id in unpack(sessions):
            self._keeper.touch(session_id)

    def expire(self) -> None:
        """At the leader: proposes the end of the sessions whose deadline has passed."""
        rules, term = self._service.settings.rules, self._contact.leads_in
        attachments = self._agreed().attachments
        for session_id in self._keeper.take_expired():
            self._service.metrics.count("stale_sessions_expired")
            attachment = attachments.get(session_id, 0)
            close = Proposed(session_id, attachment, term, Op.CLOSE_SESSION, rules, (), CloseSession(), b"")
            self._propose(close, NO_CLIENT)
