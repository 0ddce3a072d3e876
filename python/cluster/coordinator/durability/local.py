"""The replication of a standalone server: one transaction log in its data directory.

Owns the way of a write (log, apply, answer), session ids, the end of sessions, and the times of snapshots.
All state is used on the event loop. A thread of the log engine appends, one worker thread opens, rolls and
closes logs, and another writes snapshots.

Writes that are proposed in one turn of the loop, or while an append is running, become the next append, with
one flush. When that is durable they are applied in order, and the service gets each. So no client sees
anything that a crash could undo.

A failed append ends the service, because the state of the disk is unknown then. A full disk does not. The
same records are appended again until there is space; later writes wait behind them, while reads and
handshakes are answered. Part of a refused append may be in the log: recovery takes each transaction id once.
A crash loses only writes that were not answered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..connection import Connection
from ..errors import CoordinatorError, DiskFullError
from ..keeper import SessionKeeper
from ..protocol.jute import Id
from ..protocol.requests import CloseSession, ConnectRequest, CreateSession, Op, Write, encode_create_session
from ..replication import Service
from ..state.machine import Command, Machine
from ..state.sessions import PASSWORD_BYTES, first_session_id
from .directories import LOG_PREFIX
from .log import RecordLog, TransactionLog
from .snapshot import SNAPSHOT_PREFIX, decode, snapshot_path, walk, write_in_turns

_logger = logging.getLogger(__name__)

_FULL_DISK_PAUSE_SECONDS = 1.0
"""Between two attempts to write to a full disk."""
_WAITING_MAX = 1000
"""Writes that wait on a full disk. The connection of a client that sends more is closed."""


class _Proposal(NamedTuple):
    command: Command
    connection: Connection | None


class LocalReplication:
    """A :class:`.replication.Replication` on one data directory.

    With ``expire_sessions_at_start`` all sessions of the last process end, with their ephemeral nodes, before
    the first client is served.
    """

    mode = "standalone"
    is_leading = True
    is_full = False
    is_reading_only = False

    def __init__(
        self,
        service: Service,
        directory: Path,
        open_log: Callable[[Path], RecordLog],
        expire_sessions_at_start: bool,
    ) -> None:
        self.machine = Machine()
        self.log: TransactionLog | None = None
        self._service = service
        self._directory = directory
        self._open_log = open_log
        self._expire_at_start = expire_sessions_at_start
        self._keeper = SessionKeeper(service.settings.tick_time_ms, service.clock, self.expire_sessions)
        self._writer = ThreadPoolExecutor(1, "coordinator-log")
        self._snapshotter = ThreadPoolExecutor(1, "coordinator-snapshot")
        self._proposed: list[_Proposal] = []
        self._appending = False
        self._disk_full = False
        self._retry: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._next_zxid = 1
        self._next_session_id = 1
        self._since_snapshot = 0
        self._snapshot: asyncio.Task[Path] | None = None
        self._snapshots_asked = 0
        """Requested snapshots that wait for the one that is being written."""
        self._stopping = False
        self._restoration: asyncio.Task[int] | None = None

    @property
    def is_serving(self) -> bool:
        return self._restoration is None and self.log is not None

    is_open = is_serving

    # ---- start and stop ----

    async def start(self) -> None:
        service = self._service
        settings, clock = service.settings, service.clock
        self.log = TransactionLog(
            self._directory, self._open_log, settings.snapshots_retained, settings.log_dir, clock
        )
        self.log.directories.require_standalone()
        began_ms = clock.monotonic_ms()
        self.machine, self._since_snapshot = await self._recover(self.log)
        service.metrics.add("dbinittime", clock.monotonic_ms() - began_ms)
        service.metrics.add("startup_snap_load_time", self.log.snapshot_ms)
        if self._since_snapshot:
            service.metrics.add("startup_txns_loaded", self._since_snapshot)
            service.metrics.add("startup_txns_load_time", self.log.replay_ms)
        self._next_zxid = self.machine.last_zxid + 1
        first_id = first_session_id(clock.wall_ms(), settings.server_id)
        self._next_session_id = max(first_id, self.machine.sessions.last_id) + 1
        if self._expire_at_start:
            for session in self.machine.sessions.all():
                self._propose_close(session.id)
        await self._drain()
        self._keeper.start(self.machine.sessions.all())

    async def stop(self) -> None:
        """Sessions stay open for the next start.

        Writes that wait on a full disk are dropped; none of them was answered.
        """
        self._stopping = True
        self._keeper.stop()
        if self._retry is not None:
            self._drop()
        if self._restoration is not None:
            await asyncio.wait([self._restoration])
        await self._drain()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        await asyncio.get_running_loop().run_in_executor(None, self._close_log)

    def fail(self) -> None:
        self._stopping = True
        self._keeper.stop()
        self._drop()

    def _drop(self) -> None:
        """Drops all proposed writes."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._proposed.clear()
        self._appending = False
        self._became_idle()

    def _close_log(self) -> None:
        self._snapshotter.shutdown()
        if self.log is not None:
            log, self.log = self.log, None
            self._writer.submit(log.close).result()
        self._writer.shutdown()

    async def _drain(self) -> None:
        """Waits until every proposed write is applied, or the server failed."""
        if self._proposed or self._appending:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def _recover(self, log: TransactionLog) -> tuple[Machine, int]:
        """Reads the log on the writer thread. A recovery that has begun runs to its end."""
        recovering = asyncio.get_running_loop().run_in_executor(self._writer, log.recover)
        try:
            return await asyncio.shield(recovering)
        except asyncio.CancelledError:
            _logger.warning("stopping once the log in %s is open", self._directory)
            await recovering
            raise

    def _became_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._idle = None

    # ---- sessions ----

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if request.last_zxid_seen > self.machine.last_zxid:
            self._service.from_the_future(connection, request.last_zxid_seen)
            return
        if request.session_id == 0:
            birth = CreateSession(timeout_ms, secrets.token_bytes(PASSWORD_BYTES))
            session_id, self._next_session_id = self._next_session_id, self._next_session_id + 1
            self.propose(session_id, Op.CREATE_SESSION, (), birth, encode_create_session(birth), connection)
            return
        # As in ZooKeeper, the old connection loses the session before the password is checked.
        self._service.release(request.session_id)
        self._service.metrics.count("connection_revalidate_count")
        known = self.machine.sessions.proves(request.session_id, request.password)
        session = self.machine.sessions.find(request.session_id) if known else None
        if session is None:
            self._service.refused(connection)
        else:
            session = session._replace(timeout_ms=timeout_ms)
            self._keeper.track(session)
            self._service.established(connection, session)

    def disconnected(self, connection: Connection) -> None:
        pass

    def heard_from(self, connection: Connection) -> None:
        self._keeper.touch(connection.session_id)

    def may_send(self, connection: Connection) -> bool:
        return True

    def sync(self, answer: Callable[[], None]) -> bool:
        return True

    def expire_sessions(self) -> None:
        for session_id in self._keeper.take_expired():
            self._service.metrics.count("stale_sessions_expired")
            self._propose_close(session_id)

    def deadlines(self) -> list[tuple[int, set[int]]]:
        return self._keeper.deadlines()

    def _propose_close(self, session_id: int) -> None:
        self.propose(session_id, Op.CLOSE_SESSION, (), CloseSession(), b"")

    # ---- writes ----

    def propose(
        self,
        session_id: int,
        op: Op,
        identities: tuple[Id, ...],
        request: Write,
        body: bytes,
        connection: Connection | None = None,
    ) -> None:
        service = self._service
        ends_session = connection is None and op is Op.CLOSE_SESSION
        if (
            self._disk_full
            and not ends_session
            and (connection is None or len(self._proposed) >= _WAITING_MAX)
        ):
            # The server's own deletions are proposed again later.
            if connection is not None:
                connection.close()
            return
        zxid, self._next_zxid = self._next_zxid, self._next_zxid + 1
        command = Command(
            zxid, service.clock.wall_ms(), session_id, op, service.settings.rules, identities, request, body
        )
        self._proposed.append(_Proposal(command, connection))
        service.metrics.count("sync_processor_request_queued")
        if not self._appending:
            self._appending = True
            asyncio.get_running_loop().call_soon(self._guarded, self._append_next)

    def _guarded(self, call: Callable[[], object]) -> None:
        """Ends the service if ``call`` raises: what is logged must be applied before anyone is served."""
        try:
            call()
        except Exception as error:
            _logger.exception("applying what is logged failed")
            self._service.fail(error)

    def _append_next(self) -> None:
        """Appends everything proposed so far."""
        if self.log is None or not self._proposed:
            self._appending = False
            self._became_idle()
        else:
            proposals, self._proposed = self._proposed, []
            self._append(self.log, proposals)

    def _append(self, log: TransactionLog, proposals: list[_Proposal]) -> None:
        records = [proposal.command.encode() for proposal in proposals]
        self._service.metrics.add("sync_processor_batch_size", len(records))
        began_ms = self._service.clock.monotonic_ms()
        log.append(records, lambda error: self._guarded(lambda: self._appended(error, proposals, began_ms)))

    def _appended(self, error: Exception | None, proposals: list[_Proposal], began_ms: int) -> None:
        log = self.log
        if log is None:
            return
        if isinstance(error, DiskFullError):
            self._retry_later(error, lambda: self._append(log, proposals))
        elif error is not None:
            self._service.fail(error)
        else:
            self._disk_has_space()
            self._service.metrics.add("fsynctime", self._service.clock.monotonic_ms() - began_ms)
            self._apply(proposals)
            if self._is_snapshot_due() and self._snapshot is None and not self._snapshots_asked:
                self._begin_snapshot(log)
            else:
                self._append_next()

    def _apply(self, proposals: list[_Proposal]) -> None:
        service = self._service
        now_ms, propagation = service.clock.wall_ms(), service.metrics.advanced["propagation_latency"]
        for command, connection in proposals:
            if command.time_ms <= now_ms:
                propagation.add(now_ms - command.time_ms)
            if connection is not None:
                connection.catch_up()
            outcome = self.machine.apply(command)
            if outcome.opened_session is not None:
                self._keeper.track(outcome.opened_session)
            elif outcome.closed_session:
                self._keeper.forget(outcome.closed_session)
            service.applied(command, outcome, connection)
        service.turn_over(connection for _command, connection in proposals)
        self._since_snapshot += len(proposals)

    def _retry_later(self, error: DiskFullError, retry: Callable[[], None]) -> None:
        """Calls ``retry`` after a pause. Nothing else is written before."""
        if self._stopping:
            self._drop()
            return
        if not self._disk_full:
            self._disk_full = True
            _logger.error(
                "the disk of %s is full: %s; the coordinator's writes wait until there is space",
                self._directory,
                error,
            )

        def call() -> None:
            self._retry = None
            self._guarded(retry)

        self._retry = asyncio.get_running_loop().call_later(_FULL_DISK_PAUSE_SECONDS, call)

    def _require_space(self) -> None:
        if self._disk_full:
            raise DiskFullError(f"the disk of {self._directory} is full: make space, then try again")

    def _disk_has_space(self) -> None:
        if self._disk_full:
            self._disk_full = False
            _logger.warning("the disk of %s has space again: the coordinator's writes go on", self._directory)

    # ---- snapshots ----

    def _is_snapshot_due(self) -> bool:
        settings, tree = self._service.settings, self.machine.tree
        if self._since_snapshot < settings.fewest_until_snapshot:
            return False
        return self._since_snapshot >= settings.transactions_until_snapshot(len(tree), tree.data_size())

    def _begin_snapshot(self, log: TransactionLog) -> None:
        """Begins to save the applied state.

        No append is running, so the next log begins exactly after that state.
        """
        self._since_snapshot = 0
        self._save(log).add_done_callback(self._report_failure)
        self._roll(log, self.machine.last_zxid + 1)

    def _save(self, log: TransactionLog) -> asyncio.Task[Path]:
        """Begins to save the present state, while later writes change it."""
        began_ms = self._service.clock.monotonic_ms()
        writing = write_in_turns(
            partial(log.begin_snapshot, self.machine.last_zxid),
            walk(self.machine),
            log.keep,
            self._snapshotter,
            lambda: self._stopping,
        )
        self._snapshot = asyncio.get_running_loop().create_task(writing)
        self._snapshot.add_done_callback(lambda _saved: self._saved(began_ms))
        return self._snapshot

    def _roll(self, log: TransactionLog, first_zxid: int) -> None:
        rolling = asyncio.get_running_loop().run_in_executor(self._writer, log.roll, first_zxid)

        def rolled(done: asyncio.Future[None]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if isinstance(error, DiskFullError):
                self._retry_later(error, lambda: self._roll(log, first_zxid))
            elif error is not None:
                self._service.fail(error)
            else:
                self._disk_has_space()
                self._guarded(self._append_next)

        rolling.add_done_callback(rolled)

    def _saved(self, began_ms: int) -> None:
        self._snapshot = None
        self._service.metrics.add("snapshottime", self._service.clock.monotonic_ms() - began_ms)

    def _report_failure(self, saved: asyncio.Task[Path]) -> None:
        """Logs the failure of a snapshot that no administrator asked for."""
        if not saved.cancelled() and (error := saved.exception()) is not None:
            self._service.metrics.count("snapshot_error_count")
            _logger.error("no snapshot was taken in %s: %s; the log keeps everything", self._directory, error)

    async def take_snapshot(self) -> tuple[int, Path]:
        """The log goes on meanwhile."""
        self._snapshots_asked += 1
        try:
            while self._snapshot is not None:
                await asyncio.wait([self._snapshot])
            if self.log is None or self._stopping:
                raise CoordinatorError(f"the coordinator on {self._directory} is not running")
            zxid, saving = self.machine.last_zxid, self._save(self.log)
        finally:
            self._snapshots_asked -= 1
        return zxid, await asyncio.shield(saving)

    async def restore(self, data: bytes) -> int:
        """The restored state gets the next zxid, so that zxids never go back.

        Its sessions are open for a full timeout.
        """
        loop = asyncio.get_running_loop()
        machine = await loop.run_in_executor(None, lambda: Machine(decode(data)))
        log = self.log
        if log is None or self._stopping or not self.is_serving:
            raise CoordinatorError(f"the coordinator on {self._directory} is not serving")
        self._require_space()
        self._restoration = loop.create_task(self._replace_state(machine, log))
        self._restoration.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._restoration)  # it is finished even if the caller leaves

    async def _replace_state(self, machine: Machine, log: TransactionLog) -> int:
        loop = asyncio.get_running_loop()
        began_ms = self._service.clock.monotonic_ms()
        self._keeper.stop()
        self._service.abort_all()
        await self._drain()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        zxid = max(self.machine.last_zxid, machine.last_zxid) + 1
        machine.last_zxid = zxid
        machine.sessions.last_id = max(self.machine.sessions.last_id, machine.sessions.last_id)
        saved = snapshot_path(self._directory, zxid)
        try:
            # A stop drops writes that wait on a full disk. Part of them may be in the log, which then has to
            # stay the newest.
            self._require_space()
            try:
                await loop.run_in_executor(self._snapshotter, log.save, machine.export())
            except OSError:
                saved.unlink(missing_ok=True)
                raise
            await loop.run_in_executor(self._writer, log.roll, zxid + 1)
            self._adopt(machine)
        except BaseException as error:
            if saved.exists():
                # The next start will use the restored state, so nothing may be logged after the old one.
                self._service.fail(error)
            raise
        finally:
            self._restoration = None
            if not self._stopping:
                self._keeper.start(self.machine.sessions.all())
        self._service.metrics.add("restore_time", self._service.clock.monotonic_ms() - began_ms)
        return zxid

    def _adopt(self, machine: Machine) -> None:
        self.machine = machine
        self._since_snapshot = 0
        self._next_zxid = machine.last_zxid + 1
        self._next_session_id = max(self._next_session_id, machine.sessions.last_id + 1)

    # ---- for administrators ----

    def data_bytes(self) -> tuple[int, int]:
        logs = self._service.settings.log_dir or self._directory
        snapshots = sum(_size(path) for path in self._directory.glob(f"{SNAPSHOT_PREFIX}*"))
        return snapshots, sum(_size(path) for path in logs.glob(f"{LOG_PREFIX}*/*"))

    def last_snapshot(self) -> tuple[int, int] | None:
        for path in sorted(self._directory.glob(f"{SNAPSHOT_PREFIX}*"), reverse=True):
            try:
                return int(path.name.removeprefix(SNAPSHOT_PREFIX), 16), int(path.stat().st_mtime)
            except (ValueError, FileNotFoundError):
                continue
        return None

    def configuration(self) -> Mapping[str, object]:
        return {}

    def ensemble(self) -> None:
        return None

    def gauges(self) -> Mapping[str, int]:
        return {}


def _size(path: Path) -> int:
    """The file's bytes; 0 if it was purged meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
