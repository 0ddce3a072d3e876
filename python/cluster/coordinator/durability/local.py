"""The replication of a server by itself: one transaction log in its data directory.

Owns the path of a write (log, then apply, then answer), who has which session id, when sessions end, and when snapshots are
taken. All state is touched on the event loop only; a thread of the log engine's appends, unless the disk is quicker than that, one
worker thread opens, rolls and closes logs, another writes snapshots.

Writes that are proposed in one turn of the loop, or while an append is running, become one append with one flush, at the end of the
turn or, where one client alone asks for something, once all of that is read; when it is durable they are applied in order and the service is told of each. So nothing is ever seen that a crash could take back.

A failed append ends the service, because nobody knows what is on the disk. A full disk does not: the same records are appended
again until there is room, and what is proposed meanwhile waits behind them, in order, while reads and handshakes are answered.
Of an append that was refused some may be in the log: recovery takes each transaction id once. A crash loses what nobody was
answered.
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
from ..vigil import is_alone
from .directories import require_alone
from .log import LOG_PREFIX, RecordLog, TransactionLog
from .snapshot import NAME_PREFIX, decode, snapshot_path, walk, write_in_turns

_logger = logging.getLogger(__name__)

_ROOM_PAUSE_SECONDS = 1.0
"""Between two attempts to write to a full disk."""
_HELD_MAX = 1000
"""Writes that wait for room; who asks for more has its connection closed."""


class _Proposal(NamedTuple):
    command: Command
    connection: Connection | None


class LocalReplication:
    """A :class:`.replication.Replication` on one data directory. With ``expire_sessions_at_start`` every session of an
    earlier process is over, and its ephemeral nodes gone, before the first client is served."""

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
        self._waits_for_none = False
        """What is proposed is to be appended by :meth:`go_on`."""
        self._full = False
        self._again: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._next_zxid = 1
        self._next_session_id = 1
        self._since_snapshot = 0
        self._snapshot: asyncio.Task[Path] | None = None
        self._snapshots_asked = 0
        """Those that wait for one that is being written."""
        self._stopping = False
        self._dropped = False
        """Something proposed came to nothing: of it more may be in the log than is applied."""
        self._restoration: asyncio.Task[int] | None = None

    @property
    def is_serving(self) -> bool:
        return self._restoration is None and self.log is not None

    is_open = is_serving

    # ---- life ----

    async def start(self) -> None:
        service = self._service
        settings, clock = service.settings, service.clock
        self.log = TransactionLog(
            self._directory, self._open_log, settings.snapshots_retained, settings.log_dir, clock
        )
        require_alone(self._directory)
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
        """Sessions stay open for a next start. What waits for room is dropped: nobody was answered."""
        self._stopping = True
        self._keeper.stop()
        if self._again is not None:
            self._drop()
        if self._restoration is not None:
            await asyncio.wait([self._restoration])
        await self._drain()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        try:
            await self._save_for_next_start()
        finally:
            await asyncio.get_running_loop().run_in_executor(None, self._close_log)

    def fail(self) -> None:
        self._stopping = True
        self._keeper.stop()
        self._drop()

    def _drop(self) -> None:
        """Nothing of what is proposed is written any more."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._dropped = True
        self._waits_for_none = False
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
        self.go_on()
        if self._proposed or self._appending:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def _recover(self, log: TransactionLog) -> tuple[Machine, int]:
        """Has the log read in its thread. Once begun, that goes to its end."""
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
        # Whoever had the session loses it, before its password is looked at: as in ZooKeeper.
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
        if self._full and not ends_session and (connection is None or len(self._proposed) >= _HELD_MAX):
            # What has lapsed is found again.
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
            if connection is not None and is_alone():
                self._waits_for_none = True
            else:
                asyncio.get_running_loop().call_soon(self._guarded, self._append)

    def go_on(self) -> None:
        if self._waits_for_none:
            self._waits_for_none = False
            self._guarded(self._append)

    def _guarded(self, call: Callable[[], object]) -> None:
        """Whatever goes wrong ends the service, and is told: what is logged is applied, or nobody is served."""
        try:
            call()
        except Exception as error:
            _logger.exception("applying what is logged failed")
            self._service.fail(error)

    def _append(self) -> None:
        """Makes everything proposed so far durable, in one append, and again what was proposed meanwhile."""
        while self.log is not None and self._proposed:
            proposals, self._proposed = self._proposed, []
            if not self._write(self.log, proposals):
                return
        self._appending = False
        self._became_idle()

    def _write(self, log: TransactionLog, proposals: list[_Proposal]) -> bool:
        """True if they are durable, applied, and others may follow at once."""
        records = [proposal.command.encode() for proposal in proposals]
        self._service.metrics.add("sync_processor_batch_size", len(records))
        began_ms = self._service.clock.monotonic_ms()
        is_durable = log.append_soon(
            records, lambda error: self._guarded(lambda: self._appended(error, proposals, began_ms))
        )
        return is_durable and self._durable(proposals, began_ms)

    def _write_again(self, log: TransactionLog, proposals: list[_Proposal]) -> None:
        if self._write(log, proposals):
            self._append()

    def _appended(self, error: Exception | None, proposals: list[_Proposal], began_ms: int) -> None:
        log = self.log
        if log is None:
            return
        if isinstance(error, DiskFullError):
            self._wait_for_room(error, lambda: self._write_again(log, proposals))
        elif error is not None:
            self._service.fail(error)
        elif self._durable(proposals, began_ms):
            self._append()

    def _durable(self, proposals: list[_Proposal], began_ms: int) -> bool:
        """Applies them. False if a new log is begun before others are written."""
        service = self._service
        self._has_room()
        service.metrics.add("fsynctime", service.clock.monotonic_ms() - began_ms)
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
        if self._is_snapshot_due() and self._snapshot is None and not self._snapshots_asked:
            self._begin_snapshot()
            return False
        return True

    def _is_snapshot_due(self) -> bool:
        settings, tree = self._service.settings, self.machine.tree
        if self._since_snapshot < settings.fewest_until_snapshot:
            return False
        return self._since_snapshot >= settings.transactions_until_snapshot(len(tree), tree.data_size())

    def _wait_for_room(self, error: DiskFullError, again: Callable[[], None]) -> None:
        """Has `again` called after a while; nothing else is written before."""
        if self._stopping:
            self._drop()
            return
        if not self._full:
            self._full = True
            _logger.error(
                "no room in %s: %s; the coordinator's writes wait until somebody makes some",
                self._directory,
                error,
            )

        def try_again() -> None:
            self._again = None
            self._guarded(again)

        self._again = asyncio.get_running_loop().call_later(_ROOM_PAUSE_SECONDS, try_again)

    def _require_room(self) -> None:
        if self._full:
            raise DiskFullError(f"there is no room in {self._directory}: make some, and try again then")

    def _has_room(self) -> None:
        if self._full:
            self._full = False
            _logger.warning("there is room in %s again: the coordinator's writes go on", self._directory)

    # ---- snapshots ----

    def _begin_snapshot(self) -> None:
        """Begins to save the applied state. No append is running here, so the next log begins exactly after it; appends go on
        then."""
        log = self.log
        assert log is not None
        self._since_snapshot = 0
        self._save(log).add_done_callback(self._tell_failure)
        self._roll(log, self.machine.last_zxid + 1)

    def _save(self, log: TransactionLog) -> asyncio.Task[Path]:
        """Saves the state as it is now, while others change it."""
        began_ms = self._service.clock.monotonic_ms()
        writing = write_in_turns(
            partial(log.begin_snapshot, self.machine.last_zxid),
            walk(self.machine),
            log.keep,
            self._snapshotter,
            lambda: self._stopping,
        )
        self._snapshot = asyncio.get_running_loop().create_task(writing)
        self._snapshot.add_done_callback(lambda saved: self._saved(saved, began_ms))
        return self._snapshot

    async def _save_for_next_start(self) -> None:
        """At the end, if the next start would take longer to apply what is logged since the last snapshot. A log that may have more
        than is applied stays the newest, as in :meth:`_put_in_place`."""
        log, tree, settings = self.log, self.machine.tree, self._service.settings
        if log is None or self._dropped:
            return
        if not settings.is_snapshot_due_at_stop(self._since_snapshot, len(tree), tree.data_size()):
            return
        saving = self._save(log)
        await asyncio.wait([saving])
        self._tell_failure(saving)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._writer, log.roll, self.machine.last_zxid + 1
            )
        except (OSError, CoordinatorError) as error:
            _logger.warning(
                "no new log was begun in %s: %s; the next start begins one", self._directory, error
            )

    def _roll(self, log: TransactionLog, first_zxid: int) -> None:
        rolling = asyncio.get_running_loop().run_in_executor(self._writer, log.roll, first_zxid)

        def rolled(done: asyncio.Future[None]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if isinstance(error, DiskFullError):
                self._wait_for_room(error, lambda: self._roll(log, first_zxid))
            elif error is not None:
                self._service.fail(error)
            else:
                self._has_room()
                self._guarded(self._append)

        rolling.add_done_callback(rolled)

    def _saved(self, saved: asyncio.Task[Path], began_ms: int) -> None:
        self._snapshot = None
        self._service.metrics.add("snapshottime", self._service.clock.monotonic_ms() - began_ms)

    def _tell_failure(self, saved: asyncio.Task[Path]) -> None:
        """Of a snapshot that nobody asked for."""
        if not saved.cancelled() and (error := saved.exception()) is not None:
            self._service.metrics.count("snapshot_error_count")
            _logger.error("no snapshot was taken in %s: %s; the log keeps everything", self._directory, error)

    async def take_snapshot(self) -> tuple[int, Path]:
        """Beside the running log."""
        self._snapshots_asked += 1
        try:
            while self._snapshot is not None:
                await asyncio.wait([self._snapshot])
            if self.log is None or self._stopping:
                raise CoordinatorError(f"the coordinator on {self._directory} does not run")
            zxid, saving = self.machine.last_zxid, self._save(self.log)
        finally:
            self._snapshots_asked -= 1
        return zxid, await asyncio.shield(saving)

    async def restore(self, data: bytes) -> int:
        """The restored state has the next zxid, so that transaction ids never go back. Its sessions are open, for a whole
        timeout."""
        loop = asyncio.get_running_loop()
        machine = await loop.run_in_executor(None, lambda: Machine(decode(data)))
        log = self.log
        if log is None or self._stopping or not self.is_serving:
            raise CoordinatorError(f"the coordinator on {self._directory} does not serve")
        self._require_room()
        self._restoration = loop.create_task(self._put_in_place(machine, log))
        self._restoration.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._restoration)  # who asked may leave: half of it must not be done

    async def _put_in_place(self, machine: Machine, log: TransactionLog) -> int:
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
            # A stop drops what waits for room. Some of it may be in the log, which then has to stay the newest.
            self._require_room()
            try:
                await loop.run_in_executor(self._snapshotter, log.save, machine.export())
            except OSError:
                saved.unlink(missing_ok=True)
                raise
            await loop.run_in_executor(self._writer, log.roll, zxid + 1)
            self._adopt(machine)
        except BaseException as error:
            if saved.exists():
                # A restart begins with what was restored: nothing may be logged after the old state.
                self._service.fail(error)
            raise
        finally:
            self._restoration = None
            if not self._stopping:
                self._keeper.start(self.machine.sessions.all())
        self._service.metrics.add("restore_time", self._service.clock.monotonic_ms() - began_ms)
        return zxid

    def _adopt(self, machine: Machine) -> None:
        """Goes on with another state."""
        self.machine = machine
        self._since_snapshot = 0
        self._next_zxid = machine.last_zxid + 1
        self._next_session_id = max(self._next_session_id, machine.sessions.last_id + 1)

    # ---- what there is to tell ----

    def data_bytes(self) -> tuple[int, int]:
        snapshots = sum(_size(path) for path in self._directory.glob(f"{NAME_PREFIX}*"))
        return snapshots, sum(_size(path) for path in self._directory.glob(f"{LOG_PREFIX}*/*"))

    def last_snapshot(self) -> tuple[int, int] | None:
        for path in sorted(self._directory.glob(f"{NAME_PREFIX}*"), reverse=True):
            try:
                return int(path.name.removeprefix(NAME_PREFIX), 16), int(path.stat().st_mtime)
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
    """Bytes of a file; none of one that was purged meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
