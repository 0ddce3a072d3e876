"""The coordinator's server: ZooKeeper's client protocol over one durable tree.

Owns the listening socket, the path of a write (log, then apply, then answer), sessions' lives and when
snapshots are taken. All state is touched on the event loop only; one worker thread appends to the log,
another writes snapshots.

The path of a write: requests that arrive in one turn of the loop, or while an append is running, become one
append with one flush; when it is durable they are applied in order, watch events go out, and each is
answered. A read is answered from the applied state once its client's earlier requests are. So nothing is
ever seen that a crash could take back, every client's requests take effect in order, and an event precedes
the state it announces.

A failed append ends the service: every connection is closed, :attr:`CoordinatorServer.failed` gets the
error, and nothing is answered any more, because nobody knows what is on the disk. A crash loses what nobody
was answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import replies, words
from ._engine import open_engine_log
from .acl import READ, Subject
from .clock import Clock, SystemClock
from .connection import Connection, Phase
from .containers import ContainerKeeper
from .errors import Code, CoordinatorError, ZooKeeperError
from .jute import Id, Writer
from .log import RecordLog, TransactionLog
from .machine import Command, Failed, Machine, MultiDone, Outcome, Result
from .metrics import READS, WRITES, ServerMetrics, Sizes
from .ports import NO_PORT, ClientPorts
from .reads import Client, answer
from .requests import (
    CloseSession,
    ConnectRequest,
    Create,
    CreateSession,
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
    encode_create_session,
    encode_refusal,
)
from .sessions import PASSWORD_BYTES, Session, SessionExpiry, first_session_id
from .settings import Settings
from .snapshot import decode, snapshot_path
from .statistics import Traffic
from .tls import SecurePort, TlsSettings
from .tree import Event
from .view import view
from .watches import Notification, WatchManager

_logger = logging.getLogger(__name__)

STAT_BYTES = 68
_WATCH_METRICS = {
    Event.CREATED: "node_created_watch_count",
    Event.DELETED: "node_deleted_watch_count",
    Event.DATA_CHANGED: "node_changed_watch_count",
    Event.CHILDREN_CHANGED: "node_children_watch_count",
}


class _Proposal(NamedTuple):
    command: Command
    connection: Connection | None


class CoordinatorServer:
    """A ZooKeeper-compatible server on one data directory.

    A ``port`` of -1 is none, but for the ``secure`` one; with ``unified`` the plain port takes TLS, too. With
    ``expire_sessions_at_start`` every session of an earlier process is over, and its ephemeral nodes gone, before the
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
    ) -> None:
        self.directory = Path(data_dir)
        self._host = host
        self.port = port
        self.settings = settings or Settings()
        self._secure = secure
        self._unified = unified
        self.secure_port = NO_PORT
        self._expire_at_start = expire_sessions_at_start
        self.clock = clock or SystemClock()
        self._open_log = open_log or partial(open_engine_log, request_bytes_max=self.settings.max_buffer)

        self.machine = Machine()
        self.watches: WatchManager[Connection] = WatchManager()
        self.expiry = SessionExpiry(self.settings.tick_time_ms)
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._expiry_armed_for = 0
        self.connections: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._by_session: dict[int, Connection] = {}
        self._with_output: list[Connection] = []
        self.traffic = Traffic()
        self.metrics = ServerMetrics()
        self.response_sizes = Sizes()
        self.auth_failed = self.plain_remote = self.plain_local = 0
        self._containers = ContainerKeeper(self.settings, self._lapsed, self._propose_deletion)

        self._log: TransactionLog | None = None
        self._writer = ThreadPoolExecutor(1, "coordinator-log")
        self._snapshotter = ThreadPoolExecutor(1, "coordinator-snapshot")
        self._proposed: list[_Proposal] = []
        self._appending = False
        self._idle: asyncio.Future[None] | None = None
        self._next_zxid = 1
        self._next_session_id = 1
        self._since_snapshot = 0
        self._snapshot: asyncio.Future[None] | None = None

        self._ports = ClientPorts(
            partial(Connection, self),
            self._may_enter,
            self._handshake_failed,
            self.settings.handshake_timeout_ms,
        )
        self._stopping = False
        self._restoration: asyncio.Task[int] | None = None
        self.started_ms = 0
        self.failed: asyncio.Future[None] | None = None

    # ---- life ----

    async def start(self) -> int:
        """Recovers, listens, and returns the port, the secure one if there is no other. Raises CoordinatorError."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        try:
            self._log = TransactionLog(self.directory, self._open_log, self.settings.snapshots_retained)
            began_ms = self.clock.monotonic_ms()
            self.machine, self._since_snapshot = await self._recover(self._log)
            self.metrics.add("dbinittime", self.clock.monotonic_ms() - began_ms)
            self.metrics.add("startup_txns_loaded", self._since_snapshot)
            self._next_zxid = self.machine.last_zxid + 1
            first_id = first_session_id(self.clock.wall_ms(), self.settings.server_id)
            self._next_session_id = max(first_id, self.machine.sessions.last_id) + 1
            await self._adopt_sessions()
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
        """Connections that are in TLS's handshake."""
        return self._ports.handshakes

    def _may_enter(self, address: str, of_it: int, entering: int) -> bool:
        """Whether one more may begin its handshake: they count as connections do."""
        settings = self.settings
        if 0 < settings.max_handshakes <= entering:
            self.metrics.count("tls_handshake_exceeded")
            return False
        return self._has_room(address, self._by_address[address] + of_it, len(self.connections) + entering)

    def _has_room(self, address: str, same: int, all_together: int) -> bool:
        """Whether there may be one more connection of an address of which there are so many."""
        for what, count, most in (
            (f"{address} has", same, self.settings.max_client_connections),
            ("all together have", all_together, self.settings.max_connections),
        ):
            if 0 < most <= count:
                self.metrics.count("connection_rejected")
                _logger.warning("refusing a connection of %s: %s %d already", address, what, most)
                return False
        return True

    def _handshake_failed(self, address: str, error: Exception) -> None:
        self.metrics.count("unsuccessful_handshake")
        _logger.info("closing the connection of %s: no TLS: %s", address, error or "it took too long")

    @property
    def is_serving(self) -> bool:
        """Whether clients are answered."""
        return not self._stopping and self._restoration is None and self._log is not None

    async def _adopt_sessions(self) -> None:
        """Gives recovered sessions a full timeout anew, or ends them."""
        now = self.clock.monotonic_ms()
        for session in self.machine.sessions.all():
            if self._expire_at_start:
                self._propose_close(session.id)
            else:
                self.expiry.track(session.id, session.timeout_ms, now)
        await self._drain()
        self._arm_expiry()

    async def stop(self) -> None:
        """Ends the service; what was answered is on disk. Sessions stay open for a next start. Safe to
        repeat."""
        self._close_connections()
        if self._restoration is not None:
            await asyncio.wait([self._restoration])
        await self._drain()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        await asyncio.get_running_loop().run_in_executor(None, self._close_log)
        await self._ports.wait_closed()

    def _close_log(self) -> None:
        self._snapshotter.shutdown()
        if self._log is not None:
            log, self._log = self._log, None
            self._writer.submit(log.close).result()
        self._writer.shutdown()

    async def _drain(self) -> None:
        """Waits until every proposed write is applied, or the server failed."""
        if self._proposed or self._appending:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def _recover(self, log: TransactionLog) -> tuple[Machine, int]:
        """Has the log read in its thread. Once begun, that goes to its end."""
        recovering = asyncio.get_running_loop().run_in_executor(self._writer, log.recover)
        try:
            return await asyncio.shield(recovering)
        except asyncio.CancelledError:
            _logger.warning("stopping once the log in %s is open", self.directory)
            await recovering
            raise

    def _close_connections(self) -> None:
        self._stopping = True
        self._stop_timers()
        self._ports.close()
        self._abort_all()

    def _stop_timers(self) -> None:
        self._containers.stop()
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def _fail(self, error: BaseException) -> None:
        _logger.error("the coordinator stops: %s: %s", self.directory, error)
        self.metrics.count("unrecoverable_error_count")
        self._close_connections()
        self._proposed.clear()
        self._appending = False
        self._became_idle()
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(
                CoordinatorError(f"the coordinator's log in {self.directory} failed: {error}")
            )
            self.failed.exception()  # seen: nobody has to await it

    def _became_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._idle = None

    # ---- connections (called by Connection) ----

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        if not self.is_serving:
            return False
        has_room = self._has_room(
            connection.address, self._by_address[connection.address], len(self.connections)
        )
        self.connections[connection] = None
        self._by_address[connection.address] += 1
        if not has_room:
            return False
        if not connection.is_secure:
            if connection.address.startswith("127.") or connection.address == "::1":
                self.plain_local += 1
            else:
                self.plain_remote += 1
        connection.handshake_timer = asyncio.get_running_loop().call_later(
            self.settings.handshake_timeout_ms / 1000, self._sessionless, connection
        )
        return True

    def _sessionless(self, connection: Connection) -> None:
        """The connection has no session after all this time."""
        self.metrics.count("sessionless_connections_expired")
        connection.close()

    def disconnected(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]
        self.watches.remove_watcher(connection)
        if self._by_session.get(connection.session_id) is connection:
            del self._by_session[connection.session_id]

    def four_letter_word(self, word: bytes, on_secure: bool = False) -> str | None:
        """The answer to an administrator, or None for what is no question."""
        self.traffic.received += 1
        return words.answer(word, self.settings.words_whitelist, lambda: view(self, on_secure))

    def connect(self, connection: Connection, request: ConnectRequest) -> None:
        """A handshake: a new session, or one of this client's again."""
        self.metrics.count("connection_request_count")
        if self._stopping or request.last_zxid_seen > self.machine.last_zxid:
            # The client has seen a state newer than ours: serving it would take it back in time.
            _logger.warning(
                "closing the connection of %s: it has seen zxid %#x, we are at %#x",
                connection.address,
                request.last_zxid_seen,
                self.machine.last_zxid,
            )
            connection.close()
            return
        timeout_ms = self.settings.session_timeout_ms(request.timeout_ms)
        if request.session_id != 0:
            # Whoever had the session loses it, before its password is looked at: as in ZooKeeper.
            previous = self._by_session.pop(request.session_id, None)
            if previous is not None:
                previous.close()
                self.watches.remove_watcher(previous)
            known = self.machine.sessions.proves(request.session_id, request.password)
            session = self.machine.sessions.find(request.session_id) if known else None
            if session is None:
                connection.send(replies.connected(0, 0, bytes(PASSWORD_BYTES), connection.sends_read_only))
                connection.close()
            else:
                self._established(connection, session._replace(timeout_ms=timeout_ms))
            return
        birth = CreateSession(timeout_ms, secrets.token_bytes(PASSWORD_BYTES))
        session_id, self._next_session_id = self._next_session_id, self._next_session_id + 1
        body = encode_create_session(birth)
        self._propose(session_id, Op.CREATE_SESSION, (), birth, body, connection)

    def _established(self, connection: Connection, session: Session) -> None:
        self._by_session[session.id] = connection
        self.expiry.track(session.id, session.timeout_ms, self.clock.monotonic_ms())
        self._arm_expiry()
        connection.opened(session.id, session.timeout_ms)
        connection.send(
            replies.connected(session.timeout_ms, session.id, session.password, connection.sends_read_only)
        )

    def heard_from(self, connection: Connection) -> None:
        self.expiry.touch(connection.session_id, self.clock.monotonic_ms())

    def write(self, connection: Connection, op: Op, request: Write, body: bytes) -> None:
        """Sends a write on its way; the connection hears of it by ``complete_write``."""
        if isinstance(request, Reconfig):
            enabled = self.settings.reconfig_enabled  # for one server alone there is nothing to change
            self.refuse(connection, Code.UNIMPLEMENTED if enabled else Code.RECONFIG_DISABLED)
        else:
            self._propose(connection.session_id, op, connection.identities, request, body, connection)

    def refuse(self, connection: Connection, code: Code) -> None:
        """Refuses a write that takes a transaction id all the same."""
        self._propose(connection.session_id, Op.ERROR, (), Refuse(code), encode_refusal(code), connection)

    def read(self, connection: Connection, xid: int, request: Read, subject: Subject) -> None:
        """Answers a read from the applied state."""
        client = Client(connection, connection.session_id, subject)
        try:
            answered = answer(request, client, self.machine, self.watches)
        except ZooKeeperError as error:
            self.reply(connection, xid, error.code)
            return
        self._count_read(request)
        self._notify(answered.missed, replies.UNKNOWN_ZXID)
        xid = replies.PING_XID if isinstance(request, Ping) else xid
        self.reply(connection, xid, answered.code, answered.body)

    def _count_read(self, request: Read) -> None:
        """As in ``DataTree.updateReadStat``: a Stat counts 68 bytes."""
        if not isinstance(request, Exists | GetData | GetChildren) or request.path is None:
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
        """Answers with the newest transaction id."""
        self.answer_now(connection, xid, self.machine.last_zxid, code, body)

    def answer_now(
        self, connection: Connection, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b""
    ) -> None:
        """Answers, whatever else the client waits for."""
        connection.send(replies.reply(xid, zxid, code, body))

    def has_output(self, connection: Connection) -> None:
        self._with_output.append(connection)

    def send_all(self) -> None:
        """Sends what this turn of the loop produced, one write per connection."""
        while self._with_output:
            self._with_output.pop().flush()

    # ---- writes ----

    def _propose(
        self,
        session_id: int,
        op: Op,
        identities: tuple[Id, ...],
        request: Write,
        body: bytes,
        connection: Connection | None = None,
    ) -> None:
        zxid, self._next_zxid = self._next_zxid, self._next_zxid + 1
        command = Command(
            zxid, self.clock.wall_ms(), session_id, op, self.settings.rules, identities, request, body
        )
        self._proposed.append(_Proposal(command, connection))
        self.metrics.count("sync_processor_request_queued")
        if not self._appending:
            self._appending = True
            asyncio.get_running_loop().call_soon(self._append)

    def _propose_close(self, session_id: int) -> None:
        self._propose(session_id, Op.CLOSE_SESSION, (), CloseSession(), b"")

    def _lapsed(self) -> list[str]:
        return self.machine.tree.lapsed(self.clock.wall_ms(), self.settings.container_max_never_used_ms)

    def _propose_deletion(self, path: str) -> None:
        body = Writer().string(path).finish()
        self._propose(0, Op.DELETE_CONTAINER, (), DeleteContainer(path), body)

    def _append(self) -> None:
        """Makes everything proposed so far durable, in one append."""
        proposals, self._proposed = self._proposed, []
        if not proposals or self._log is None:
            self._appending = False
            self._became_idle()
            return
        records = [proposal.command.encode() for proposal in proposals]
        self.metrics.add("sync_processor_batch_size", len(records))
        began_ms = self.clock.monotonic_ms()
        appended = asyncio.get_running_loop().run_in_executor(self._writer, self._log.append, records)
        appended.add_done_callback(lambda done: self._durable(done, proposals, began_ms))

    def _durable(self, appended: asyncio.Future[None], proposals: list[_Proposal], began_ms: int) -> None:
        if appended.cancelled() or self._log is None:
            return
        error = appended.exception()
        if error is not None:
            self._fail(error)
            return
        self.metrics.add("fsynctime", self.clock.monotonic_ms() - began_ms)
        for command, connection in proposals:
            outcome = self.machine.apply(command)
            self._after(command, outcome, connection)
        for _command, connection in proposals:
            if connection is not None:
                connection.pump()
        self.send_all()
        self._since_snapshot += len(proposals)
        if self._since_snapshot >= self.settings.snapshot_transactions and self._snapshot is None:
            self._begin_snapshot()
        self._append()

    def _after(self, command: Command, outcome: Outcome, connection: Connection | None) -> None:
        """Tells everybody concerned what a command did: watchers first, then its client."""
        self._count_write(command, outcome)
        for change in outcome.changes:
            fired = self.watches.fire(change)
            for event, count in Counter(each.event for each in fired).items():
                self.metrics.add(_WATCH_METRICS[event], count)
            self._notify(fired, command.zxid)
        if outcome.opened_session is not None:
            if connection is not None and connection.phase is Phase.CONNECTING:
                self._established(connection, outcome.opened_session)
            else:  # the client left during its handshake; the session ends like any other
                session = outcome.opened_session
                self.expiry.track(session.id, session.timeout_ms, self.clock.monotonic_ms())
                self._arm_expiry()
        elif connection is not None:
            connection.complete_write(command.zxid, *replies.encode_result(outcome.result))
        if outcome.closed_session:
            self.expiry.forget(outcome.closed_session)
            current = self._by_session.pop(outcome.closed_session, None)
            if current is not None:
                current.close()

    def _count_write(self, command: Command, outcome: Outcome) -> None:
        """As in ``DataTree.updateWriteStat``; and what a quota forbade."""
        for event, path, *_acls in outcome.changes:
            node = self.machine.tree.find(path) if event is not Event.DELETED else None
            self.metrics.add_in_namespace(WRITES, path, node.state.size if node is not None else 0)
        requests: Sequence[Write] = (command.request,)
        results: Sequence[Result] = (outcome.result,)
        if isinstance(command.request, Multi) and isinstance(outcome.result, MultiDone):
            requests, results = command.request.operations, outcome.result.results
        for request, result in zip(requests, results, strict=True):
            if result == Failed(Code.QUOTA_EXCEEDED) and isinstance(request, Create | SetData):
                self.metrics.count_quota_exceeded(request.path or "")

    def _notify(self, notifications: list[Notification[Connection]], zxid: int) -> None:
        """Tells those who may read what has changed."""
        for connection, event, path, acl in notifications:
            if connection.subject.may(READ, acl):
                connection.notify(replies.notification(event, path, zxid))

    def _begin_snapshot(self) -> None:
        """Saves the applied state. No append is running here, so the next log begins exactly after it."""
        log = self._log
        assert log is not None
        self._since_snapshot = 0
        state = self.machine.export()
        loop = asyncio.get_running_loop()
        rolled = loop.run_in_executor(self._writer, log.roll, state.last_zxid + 1)
        rolled.add_done_callback(self._rolled)
        began_ms = self.clock.monotonic_ms()
        self._snapshot = loop.run_in_executor(self._snapshotter, log.save, state)
        self._snapshot.add_done_callback(lambda saved: self._saved(saved, began_ms))

    def _rolled(self, rolled: asyncio.Future[None]) -> None:
        if not rolled.cancelled() and (error := rolled.exception()) is not None:
            self._fail(error)

    def _saved(self, saved: asyncio.Future[None], began_ms: int) -> None:
        self._snapshot = None
        self.metrics.add("snapshottime", self.clock.monotonic_ms() - began_ms)
        if not saved.cancelled() and (error := saved.exception()) is not None:
            self.metrics.count("snapshot_error_count")
            _logger.error("no snapshot was taken in %s: %s; the log keeps everything", self.directory, error)

    async def take_snapshot(self) -> tuple[int, Path]:
        """Saves the applied state beside the running log, and returns its zxid and its file. Raises OSError."""
        log = self._log
        if log is None:
            raise CoordinatorError(f"the coordinator on {self.directory} does not run")
        state = self.machine.export()
        began_ms = self.clock.monotonic_ms()
        await asyncio.get_running_loop().run_in_executor(self._snapshotter, log.save, state)
        self.metrics.add("snapshottime", self.clock.monotonic_ms() - began_ms)
        return state.last_zxid, snapshot_path(self.directory, state.last_zxid)

    async def restore(self, data: bytes) -> int:
        """Puts a snapshot in the place of everything there is, ends every connection, and returns the zxid that the
        restored state has: the next one, so that transaction ids never go back. Its sessions are open, for a whole timeout.
        Raises JuteError or ValueError for what is no snapshot, OSError when it cannot be saved; then nothing is changed.
        """
        loop = asyncio.get_running_loop()
        machine = await loop.run_in_executor(None, lambda: Machine(decode(data)))
        log = self._log
        if log is None or not self.is_serving:
            raise CoordinatorError(f"the coordinator on {self.directory} does not serve")
        self._restoration = loop.create_task(self._put_in_place(machine, log))
        self._restoration.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._restoration)  # who asked may leave: half of it must not be done

    async def _put_in_place(self, machine: Machine, log: TransactionLog) -> int:
        loop = asyncio.get_running_loop()
        began_ms = self.clock.monotonic_ms()
        self._stop_timers()
        self._abort_all()
        await self._drain()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        zxid = max(self.machine.last_zxid, machine.last_zxid) + 1
        machine.last_zxid = zxid
        machine.sessions.last_id = max(self.machine.sessions.last_id, machine.sessions.last_id)
        saved = snapshot_path(self.directory, zxid)
        try:
            try:
                await loop.run_in_executor(self._snapshotter, log.save, machine.export())
            except OSError:
                saved.unlink(missing_ok=True)
                raise
            await loop.run_in_executor(self._writer, log.roll, zxid + 1)
            self._adopt(machine)
        except BaseException as error:
            if saved.exists():
                self._fail(
                    error
                )  # a restart begins with what was restored: nothing may be logged after the old state
            raise
        finally:
            self._restoration = None
            if not self._stopping:
                self._containers.start()
                self._arm_expiry()
        self.metrics.add("restore_time", self.clock.monotonic_ms() - began_ms)
        return zxid

    def _adopt(self, machine: Machine) -> None:
        """Goes on with another state, whose sessions are heard from now."""
        self.machine = machine
        self._since_snapshot = 0
        self._next_zxid = machine.last_zxid + 1
        self._next_session_id = max(self._next_session_id, machine.sessions.last_id + 1)
        self.expiry = SessionExpiry(self.settings.tick_time_ms)
        now = self.clock.monotonic_ms()
        for session in machine.sessions.all():
            self.expiry.track(session.id, session.timeout_ms, now)

    # ---- expiry ----

    def expire_sessions(self) -> None:
        """Ends the sessions whose time is over by the clock; the timer calls it, and tests that bring a
        clock."""
        for session_id in self.expiry.take_expired(self.clock.monotonic_ms()):
            _logger.info("session %#x expired", session_id)
            self.metrics.count("stale_sessions_expired")
            self._propose_close(session_id)
        self._arm_expiry()

    def _arm_expiry(self) -> None:
        """Wakes up at the next deadline."""
        deadline = self.expiry.next_deadline()
        if deadline is None or self._stopping:
            return
        if self._expiry_timer is not None:
            if self._expiry_armed_for <= deadline:
                return
            self._expiry_timer.cancel()
        delay_ms = max(deadline - self.clock.monotonic_ms(), 1)
        self._expiry_armed_for = deadline
        self._expiry_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._expiry_due)

    def _expiry_due(self) -> None:
        self._expiry_timer = None
        late_ms = self.clock.monotonic_ms() - self._expiry_armed_for
        if late_ms > self.settings.tick_time_ms:
            # We were suspended or starved: clients' pings wait in their sockets. Hear them first.
            _logger.warning("this process did not run for %d ms; sessions get that time", late_ms)
            self.expiry.postpone(late_ms)
            self._arm_expiry()
        else:
            self.expire_sessions()
