"""The coordinator's server: ZooKeeper's client protocol over one replicated tree.

Owns the ports, the connections and their watches. The replication (:mod:`.replication`) owns the state: how a
write becomes durable, and when a session ends. All state is used on the event loop.

A write goes to the replication, which reports when it takes effect. Then its watch events are sent, and its
client is answered. A read is answered from the applied state, after the client's earlier requests. So each
client's requests take effect in order, and an event is sent before any answer that shows its change.

If the replication fails, every connection is closed, :attr:`CoordinatorServer.failed` gets the error, and no
request is answered any more. A crash loses only what was not answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from .admin import words
from .admin.view import view
from .clock import Clock, SystemClock
from .connection import Connection, Phase
from .containers import ContainerKeeper
from .durability.engine import open_engine_log
from .durability.local import LocalReplication
from .durability.log import RecordLog
from .errors import AnswerTooLargeError, Code, CoordinatorError, ZooKeeperError
from .metrics import READS, WRITES, ServerMetrics, Sizes, Traffic
from .ports.clients import NO_PORT, ClientPorts
from .ports.tls import SecurePort, TlsSettings
from .protocol import replies
from .protocol.jute import Writer
from .protocol.replies import Event, Failed, MultiDone, Result
from .protocol.requests import (
    ConnectRequest,
    Create,
    DeleteContainer,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Op,
    Ping,
    Read,
    Reconfig,
    Refuse,
    SetData,
    Write,
    encode_refusal,
)
from .replication import Replication, Service
from .settings.server import Settings
from .state.acl import READ, Subject
from .state.machine import Command, Machine, Outcome
from .state.reads import Client, answer
from .state.sessions import PASSWORD_BYTES, Session
from .state.watches import Notification, WatchManager
from .unread import Unread

_logger = logging.getLogger(__name__)

STAT_BYTES = 68
_DELETED = Event.DELETED
_COUNTED_READS = (Exists, GetData, GetChildren)
_WATCH_METRICS = {
    Event.CREATED: "node_created_watch_count",
    Event.DELETED: "node_deleted_watch_count",
    Event.DATA_CHANGED: "node_changed_watch_count",
    Event.CHILDREN_CHANGED: "node_children_watch_count",
}


class CoordinatorServer:
    """A ZooKeeper-compatible server on one data directory.

    With a ``port`` of -1 there is only the ``secure`` one. With ``unified`` the plain port takes TLS, too.
    ``replicate`` makes the replication; without it the server is standalone. A standalone server with
    ``expire_sessions_at_start`` ends the sessions of the last process, with their ephemeral nodes, before the
    first client is served.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        settings: Settings | None = None,
        secure: SecurePort | None = None,
        unified: TlsSettings | None = None,
        expire_sessions_at_start: bool = False,
        clock: Clock | None = None,
        open_log: Callable[[Path], RecordLog] | None = None,
        replicate: Callable[[Service], Replication] | None = None,
    ) -> None:
        self.directory = Path(data_dir)
        self._host = host
        self.port = port
        self.settings = settings or Settings()
        self._secure = secure
        self._unified = unified
        self.secure_port = NO_PORT
        self.clock = clock or SystemClock()
        self.metrics = ServerMetrics()
        open_log = open_log or partial(open_engine_log, request_bytes_max=self.settings.max_buffer)
        self.replication: Replication = (
            replicate(self)
            if replicate is not None
            else LocalReplication(self, self.directory, open_log, expire_sessions_at_start)
        )
        self.watches: WatchManager[Connection] = WatchManager()
        self.connections: dict[Connection, None] = {}
        self.unread = Unread()
        self._by_address: Counter[str] = Counter()
        self._by_session: dict[int, Connection] = {}
        self._with_output: list[Connection] = []
        self.traffic = Traffic()
        self.response_sizes = Sizes()
        self.auth_failed = self.plain_remote = self.plain_local = 0
        self._containers = ContainerKeeper(self.settings, self._expired_nodes, self._propose_deletion)
        self._ports = ClientPorts(
            partial(Connection, self),
            self._may_enter,
            self._handshake_failed,
            self.settings.handshake_timeout_ms,
        )
        self._stopping = False
        self.started_ms = 0
        self.failed: asyncio.Future[None] | None = None

    # ---- start and stop ----

    async def start(self) -> int:
        """Recovers, listens, and returns the port: the secure one if there is no other.

        Raises CoordinatorError.
        """
        self.failed = asyncio.get_running_loop().create_future()
        try:
            await self.replication.start()
            self.port, self.secure_port = await self._ports.listen(
                self._host, self.port, self._secure, self._unified
            )
            self._containers.start()
        except BaseException:
            await self.stop()
            raise
        self.started_ms = self.clock.monotonic_ms()
        _logger.info("coordinator on %s:%d, data in %s", self._host, self.port, self.directory)
        return self.port if self.port != NO_PORT else self.secure_port

    @property
    def handshakes(self) -> int:
        """The number of connections in a TLS handshake."""
        return self._ports.handshakes

    @property
    def client_address(self) -> tuple[str, int] | None:
        """The host and port for clients without TLS, if there is one."""
        return (self._host, self.port) if self.port != NO_PORT else None

    def _may_enter(self, address: str, of_it: int, entering: int) -> bool:
        """Whether one more connection may begin its TLS handshake. Handshakes count as connections."""
        settings = self.settings
        if 0 < settings.max_handshakes <= entering:
            self.metrics.count("tls_handshake_exceeded")
            return False
        return self._may_connect(address, self._by_address[address] + of_it, len(self.connections) + entering)

    def _may_connect(self, address: str, same: int, all_together: int) -> bool:
        """Whether there may be one more connection of an address that has ``same`` ones."""
        for what, count, most in (
            (f"{address} has", same, self.settings.max_client_connections),
            ("all clients together have", all_together, self.settings.max_connections),
        ):
            if 0 < most <= count:
                self.metrics.count("connection_rejected")
                _logger.warning("refusing a connection of %s: %s %d connections already", address, what, most)
                return False
        return True

    def _handshake_failed(self, address: str, error: Exception) -> None:
        self.metrics.count("unsuccessful_handshake")
        _logger.info(
            "closing the connection of %s: the TLS handshake failed: %s", address, error or "it took too long"
        )

    @property
    def machine(self) -> Machine:
        """The applied state."""
        return self.replication.machine

    @property
    def is_serving(self) -> bool:
        """Whether clients are answered."""
        return not self._stopping and self.replication.is_serving

    async def stop(self) -> None:
        """Ends the service.

        What was answered is on disk, and sessions stay open for the next start. Safe to repeat.
        """
        self._close_connections()
        try:
            await self.replication.stop()
        finally:
            await self._ports.wait_closed()

    def _close_connections(self) -> None:
        self._stopping = True
        self._containers.stop()
        self._ports.close()
        self.abort_all()

    # ---- called by the replication ----

    def abort_all(self) -> None:
        """Closes every connection, without sending queued output."""
        for connection in list(self.connections):
            connection.abort()

    def listen_at(self, host: str, port: int) -> None:
        """Moves the port for clients without TLS. Open connections stay."""
        if not self._stopping and self.port != NO_PORT and (host, port) != (self._host, self.port):
            _logger.info(
                "the client port moves to %s:%d, from %s:%d",
                host,
                port,
                self._host,
                self.port,
            )
            self._host, self.port = host, port
            self._ports.move(host, port, self._unified)

    def fail(self, error: BaseException) -> None:
        """Ends the service, because the state cannot be changed any more."""
        _logger.error("the coordinator stops: %s: %s", self.directory, error)
        self.metrics.count("unrecoverable_error_count")
        self._close_connections()
        self.replication.fail()
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(
                CoordinatorError(f"the coordinator's log in {self.directory} failed: {error}")
            )
            self.failed.exception()  # so that asyncio does not report it as never retrieved

    def established(self, connection: Connection, session: Session) -> None:
        """The session is the connection's."""
        self._by_session[session.id] = connection
        connection.opened(session.id, session.timeout_ms)
        connection.send(
            replies.connected(
                session.timeout_ms,
                session.id,
                session.password,
                connection.sends_read_only,
                connection.is_read_only,
            )
        )

    def refused(self, connection: Connection) -> None:
        """Answers that the session which the connection asked for is over, and closes the connection."""
        connection.send(replies.connected(0, 0, bytes(PASSWORD_BYTES), connection.sends_read_only))
        connection.close()

    def from_the_future(self, connection: Connection, zxid: int) -> None:
        """Closes the connection of a client that has seen a newer state.

        Serving it would take it back in time.
        """
        _logger.warning(
            "closing the connection of %s: it has seen zxid %#x, and this server is at %#x",
            connection.address,
            zxid,
            self.machine.last_zxid,
        )
        connection.close()

    def release(self, session_id: int) -> None:
        """Closes the connection that has the session here, if any."""
        previous = self._by_session.pop(session_id, None)
        if previous is not None:
            previous.close()
            self.watches.remove_watcher(previous)

    def holder(self, session_id: int) -> Connection | None:
        """Returns the connection that has the session here."""
        return self._by_session.get(session_id)

    def everybody(self) -> list[Connection]:
        """Returns all connections."""
        return list(self.connections)

    def is_watched(self) -> bool:
        """Whether any client here has a watch."""
        return not self.watches.is_empty

    def applied(self, command: Command, outcome: Outcome, connection: Connection | None) -> None:
        """A command has taken effect: sends its watch events, then answers its client."""
        self._count_write(command, outcome)
        if not self.watches.is_empty:
            for change in outcome.changes:
                if fired := self.watches.fire(change):
                    for event, count in Counter(each.event for each in fired).items():
                        self.metrics.add(_WATCH_METRICS[event], count)
                    self._notify(fired, command.zxid)
        if outcome.opened_session is not None:
            # If the client has left during the handshake, the session ends like any other.
            if connection is not None and connection.phase is Phase.CONNECTING:
                self.established(connection, outcome.opened_session)
        elif connection is not None:
            connection.complete_write(command.zxid, *self._encode(command, outcome))
        if outcome.closed_session:
            current = self._by_session.pop(outcome.closed_session, None)
            if current is not None and current is connection:
                current.session_ended()
            elif current is not None:
                current.abort()  # it may not read, and its queued output was for this session

    def _encode(self, command: Command, outcome: Outcome) -> tuple[Code, bytes]:
        """Encodes the answer to a write. The write has taken effect even if this fails."""
        try:
            return replies.encode_result(outcome.result)
        except Exception:
            _logger.exception("answering transaction %#x failed", command.zxid)
            return Code.MARSHALLING_ERROR, b""

    def turn_over(self, connections: Iterable[Connection | None]) -> None:
        """Nothing more is applied in this turn of the loop: handles what these connections sent behind
        their writes, and sends."""
        for connection in connections:
            if connection is not None:
                connection.pump()
        self.send_all()

    # ---- connections (called by Connection) ----

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        if self._stopping or not self.replication.is_open:
            return False
        is_allowed = self._may_connect(
            connection.address, self._by_address[connection.address], len(self.connections)
        )
        self.connections[connection] = None
        self._by_address[connection.address] += 1
        if not is_allowed:
            return False
        if not connection.is_secure:
            if connection.address.startswith("127.") or connection.address == "0:0:0:0:0:0:0:1":
                self.plain_local += 1
            else:
                self.plain_remote += 1
        connection.handshake_timer = asyncio.get_running_loop().call_later(
            self.settings.handshake_timeout_ms / 1000, self._sessionless, connection
        )
        return True

    def _sessionless(self, connection: Connection) -> None:
        """The connection has no session, and its time to get one is over."""
        self.metrics.count("sessionless_connections_expired")
        connection.close()

    def disconnected(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]
        self.watches.remove_watcher(connection)
        self.replication.disconnected(connection)
        if self._by_session.get(connection.session_id) is connection:
            del self._by_session[connection.session_id]

    def four_letter_word(self, word: bytes, on_secure: bool = False) -> str | None:
        """Returns the answer to a four-letter word, None for other bytes."""
        self.traffic.received += 1
        return words.answer(word, self.settings.words_whitelist, lambda: view(self, on_secure))

    def connect(self, connection: Connection, request: ConnectRequest) -> None:
        """Handles a handshake, which asks for a new session or an existing one."""
        self.metrics.count("connection_request_count")
        if not self.is_serving and not self.replication.is_reading_only:
            connection.close()
        else:
            timeout_ms = self.settings.session_timeout_ms(request.timeout_ms)
            self.replication.connect(connection, request, timeout_ms)

    def write(self, connection: Connection, op: Op, request: Write, body: bytes) -> None:
        """Proposes a write. The connection's ``complete_write`` is called when it has taken effect."""
        if isinstance(request, Reconfig) and (refused := self._refused_reconfig()) is not None:
            self.refuse(connection, refused)
        else:
            identities = connection.subject.identities
            self.replication.propose(connection.session_id, op, identities, request, body, connection)

    def _refused_reconfig(self) -> Code | None:
        if not self.settings.reconfig_enabled:
            return Code.RECONFIG_DISABLED
        return Code.UNIMPLEMENTED if self.replication.ensemble() is None else None

    def refuse(self, connection: Connection, code: Code) -> None:
        """Refuses a write that takes a transaction id nevertheless."""
        self.replication.propose(
            connection.session_id, Op.ERROR, (), Refuse(code), encode_refusal(code), connection
        )

    def read(self, connection: Connection, xid: int, request: Read, subject: Subject) -> None:
        """Answers a read from the applied state."""
        client = Client(connection, connection.session_id, subject)
        try:
            answered = answer(request, client, self.machine, self.watches)
        except ZooKeeperError as error:
            self.reply(connection, xid, error.code)
            return
        except AnswerTooLargeError as error:
            _logger.warning("disconnecting %s: %s", connection.address, error)
            connection.abort()
            return
        except Exception:
            # As in ZooKeeper (``FinalRequestProcessor``): a defect costs the request, not the connection.
            _logger.exception("answering %s of %s failed", type(request).__name__, connection.address)
            self.reply(connection, xid, Code.MARSHALLING_ERROR)
            return
        self._count_read(request)
        self._notify(answered.missed, replies.UNKNOWN_ZXID)
        xid = replies.PING_XID if isinstance(request, Ping) else xid
        self.reply(connection, xid, answered.code, answered.body)

    def _count_read(self, request: Read) -> None:
        """Counts as ``DataTree.updateReadStat``: a Stat has 68 bytes."""
        if not isinstance(request, _COUNTED_READS) or request.path is None:
            return
        node = self.machine.tree.find(request.path)
        if node is not None:
            size = STAT_BYTES
            if isinstance(request, GetData):
                size += node.state.size
            elif isinstance(request, GetChildren):
                size += sum(map(len, node.children or ()))
            self.metrics.add_in_namespace(READS, request.path, size)

    def reply(self, connection: Connection, xid: int, code: Code = Code.OK, body: bytes = b"") -> None:
        """Answers the connection's oldest request, with the newest transaction id."""
        connection.respond(replies.reply(xid, self.machine.last_zxid, code, body))

    def answer_now(
        self, connection: Connection, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b""
    ) -> None:
        """Answers at once, before older requests."""
        connection.send(replies.reply(xid, zxid, code, body))

    def has_output(self, connection: Connection) -> None:
        self._with_output.append(connection)

    def send_all(self) -> None:
        """Sends what this turn of the loop produced, with one write for each connection."""
        while self._with_output:
            self._with_output.pop().flush()

    # ---- writes ----

    def _expired_nodes(self) -> list[str]:
        if not self.is_serving or not self.replication.is_leading:
            return []
        return self.machine.tree.expired(self.clock.wall_ms(), self.settings.container_max_never_used_ms)

    def _propose_deletion(self, path: str) -> None:
        if self.is_serving and self.replication.is_leading:
            body = Writer().string(path).finish()
            self.replication.propose(0, Op.DELETE_CONTAINER, (), DeleteContainer(path), body)

    def _count_write(self, command: Command, outcome: Outcome) -> None:
        """Counts as ``DataTree.updateWriteStat``, and what a quota refused."""
        for event, path, *_acls in outcome.changes:
            node = self.machine.tree.find(path) if event is not _DELETED else None
            self.metrics.add_in_namespace(WRITES, path, node.state.size if node is not None else 0)
        requests: Sequence[Write]
        results: Sequence[Result]
        if isinstance(command.request, Multi) and isinstance(outcome.result, MultiDone):
            requests, results = command.request.operations, outcome.result.results
        elif isinstance(outcome.result, Failed):
            requests, results = (command.request,), (outcome.result,)
        else:
            return
        for request, result in zip(requests, results, strict=True):
            if (
                isinstance(result, Failed)
                and result.code is Code.QUOTA_EXCEEDED
                and isinstance(request, Create | SetData)
            ):
                self.metrics.count_quota_exceeded(request.path or "")

    def _notify(self, notifications: list[Notification[Connection]], zxid: int) -> None:
        """Sends watch events to the clients that may read the node."""
        encoded: dict[tuple[Event, str], bytes] = {}
        for connection, event, path, acl in notifications:
            if connection.subject.may(READ, acl):
                data = encoded.get((event, path))
                if data is None:
                    data = encoded[event, path] = replies.notification(event, path, zxid)
                connection.notify(data)

    # ---- for administrators ----

    async def take_snapshot(self) -> tuple[int, Path]:
        """Saves the applied state in a file. Returns its zxid and the file. Raises OSError."""
        return await self.replication.take_snapshot()

    async def restore(self, data: bytes) -> int:
        """Replaces the whole state by a snapshot, ends every connection, and returns the new zxid.

        Raises JuteError or ValueError if the data is not a snapshot, OSError if it fails; nothing is changed
        then.
        """
        return await self.replication.restore(data)

    def expire_sessions(self) -> None:
        """Ends the sessions whose time is over. For tests with a clock of their own."""
        self.replication.expire_sessions()
