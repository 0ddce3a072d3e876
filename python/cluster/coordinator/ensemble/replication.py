"""The replication of a member of an ensemble: a log that a majority has on disk.

Owns the order in which a member's parts start, handle the quorum's events, and stop. Runs on the event loop;
calls of the quorum that block run in a thread. Its parts:

=======================  ==========================================================
:mod:`.agreed`           the state, and the zxid, time and session id of each command
:mod:`.applying`         agreed entries into the state, and outcomes to the clients
:mod:`.outbox`           proposed commands, and the clients that wait for them
:mod:`.barriers`         requests that wait until everything agreed on is applied
:mod:`.contact`          the member's role, and whether it serves
:mod:`.sessions`         handshakes, living clients, expired sessions
:mod:`.session_reports`  which clients may be sent anything
:mod:`.membership`       changes of the members
:mod:`.saving`           snapshots for the quorum
:mod:`.exports`          snapshots that an administrator asks for
:mod:`.accounting`       metrics
:mod:`.view`             what administrators see
:mod:`.files`            the configuration in the server's files
=======================  ==========================================================

What a client may rely on:

* Its requests take effect in order, on whichever server. A connection's commands are proposed in order, and
  each takes effect once. A command that comes after the session has moved to another connection is refused.
* A write is answered once this server has applied it, so the client's next read shows it.
* A watch event is sent when its change is applied, before the answer to anything newer. What the clients of
  other servers write is applied within about :data:`WATCHED_MS`, or :data:`UNWATCHED_MS` if no client here
  has a watch, and before a sync is answered.
* It is sent nothing while its session may be over. Such output waits.
* A change of the leader, or of the members, is a delay. The answer to its own change of the members comes
  once this server has applied the change, and its later requests take effect after it.

Only the leader ends sessions, by its monotonic clock, at the earliest a full timeout after it began to lead.
That takes effect only while it leads, and only if the session has not moved. A crash loses nothing that was
answered: a member starts with its newest snapshot and the log behind it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..clock import Timers
from ..connection import Connection
from ..durability.snapshot import walk, write_in_turns
from ..errors import CoordinatorError
from ..keeper import SessionKeeper
from ..metrics import Sizes
from ..protocol.jute import Id
from ..protocol.requests import ConnectRequest, Op, Write
from ..replication import Ensemble, Service
from ..state.machine import Machine
from .accounting import Accounting
from .agreed import Agreed, Proposed
from .applying import Applier, read_snapshot
from .barriers import Barriers
from .contact import Contact
from .exports import Exports
from .files import ConfigurationFiles
from .membership import Membership
from .outbox import Outbox, Waiting
from .own_data import OwnData
from .quorum import Entry, Event, Quorum, QuorumError, QuorumStoppedError, SnapshotSource
from .saving import Saving
from .sessions import MemberSessions
from .view import EnsembleView

TAKE_BYTES = 64 << 10
"""The most that is applied in one turn of the loop."""
TAKES_BEFORE_EXPIRY = 100
"""Before sessions expire, so many turns' events are handled at most: they may report that a client is
alive."""
WATCHED_MS = 1
UNWATCHED_MS = 5
"""The least time between two applications of what other members proposed, where a client here has a watch,
and where none has."""

_logger = logging.getLogger(__name__)


class EnsembleReplication:
    """A :class:`.replication.Replication` over a :class:`.quorum.Quorum`.

    ``open_quorum`` is called in a thread when it starts. ``own_data`` is given to a quorum that awaits a
    state. ``directory`` is the quorum's, ``exports`` is for the snapshots that administrators ask for. Limits
    are in ticks. ``config`` is the `zoo.cfg` that follows the configuration, if it is to follow.
    """

    def __init__(
        self,
        service: Service,
        open_quorum: Callable[[], Quorum],
        *,
        server_id: int,
        sync_limit: int,
        directory: Path,
        exports: Path,
        init_limit: int = 10,
        config: Path | None = None,
        own_data: OwnData | None = None,
        chance: random.Random | None = None,
    ) -> None:
        settings = service.settings
        self._service = service
        self._open_quorum = open_quorum
        self._quorum: Quorum | None = None
        self._directory = directory
        self._exports = Exports(exports, settings.snapshots_retained)
        self._failed = False
        self._events: deque[Event] = deque()
        self._installing: asyncio.Task[None] | None = None
        self._wake_interval_ms = WATCHED_MS
        self._own_data = own_data
        self._begins = False
        """Whether the ensemble is to begin with this server's own data, and has not yet."""
        self._own_data_work: asyncio.Future[None] | None = None
        """What a thread does with that data."""

        timers = self._timers = Timers(self._guarded)
        keeper = self._keeper = SessionKeeper(settings.tick_time_ms, service.clock, self.expire_sessions)
        outbox = self._outbox = Outbox[Waiting](
            self._guarded, timers, lambda: service.turn_over(service.everybody())
        )
        applier = self._applier = Applier(service, outbox, keeper)
        barriers = self._barriers = Barriers(self._guarded, timers)
        contact = self._contact = Contact(
            service,
            timers,
            keeper,
            lambda: self.machine.sessions.all(),
            lambda: self.agreed.index >= 0,
            sync_limit * settings.tick_time_ms,
        )
        self._sessions = MemberSessions(
            service, server_id, contact, keeper, barriers, lambda: self.agreed, self._put
        )
        files = ConfigurationFiles(config, server_id) if config is not None else None
        self._membership = Membership(
            service, server_id, contact, timers, files, lambda: self.agreed, self._put
        )
        applier.connect(self._sessions, self._membership)
        proposals = Sizes()
        self._accounting = Accounting(service.metrics, contact, proposals)
        limits = {"initLimit": init_limit, "syncLimit": sync_limit}
        self._view = EnsembleView(
            server_id, limits, contact, barriers, service.clock, lambda: self.agreed, proposals
        )
        self._saving = Saving(service, timers, chance or random.Random())

    # ---- what it shows ----

    @property
    def agreed(self) -> Agreed:
        """The applied state, and how far it is."""
        return self._applier.agreed

    @property
    def machine(self) -> Machine:
        return self._applier.agreed.machine

    @property
    def mode(self) -> str:
        return self._view.mode

    @property
    def is_open(self) -> bool:
        return self._quorum is not None and not self._failed

    @property
    def is_serving(self) -> bool:
        return self._contact.is_serving

    @property
    def is_reading_only(self) -> bool:
        return self._contact.is_reading_only

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full

    @property
    def is_leading(self) -> bool:
        return self._contact.leads_in != 0

    def deadlines(self) -> list[tuple[int, set[int]]]:
        return self._keeper.deadlines()

    def data_bytes(self) -> tuple[int, int]:
        return _size(self._directory / "snapshots"), _size(self._directory / "log")

    def last_snapshot(self) -> tuple[int, int] | None:
        return self._saving.last

    def configuration(self) -> Mapping[str, object]:
        return self._view.configuration()

    def gauges(self) -> Mapping[str, int]:
        return self._view.gauges()

    def ensemble(self) -> Ensemble:
        return self._view.ensemble()

    # ---- start and stop ----

    async def start(self) -> None:
        """Returns before there is contact to the other members. Clients are served once there is."""
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._open_quorum)
        try:
            quorum = self._quorum = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._quorum = await opening  # so that stop closes it
            raise
        # Before its own data is read, so that the others see at once that this server has some.
        await self._in_thread(quorum.start)
        await self._in_thread(self._exports.clean)
        self._outbox.open(quorum)
        self._barriers.open(quorum)
        self._membership.open(quorum)
        loop.add_reader(quorum.wake_fd, self._wake)
        self._guarded(self._report_sessions)
        self._contact.begin()
        if quorum.awaits_state and self._own_data is not None:
            self._begin_with(quorum, self._own_data)

    async def stop(self) -> None:
        """Hands leadership over. Sessions stay open."""
        self.fail()
        if self._installing is not None:
            await asyncio.wait([self._installing])
        await self._membership.wait_for_files()
        quorum, self._quorum = self._quorum, None
        if quorum is not None:
            await self._in_thread(quorum.stop)
        if self._own_data_work is not None:
            await asyncio.wait([self._own_data_work])
        if self._own_data is not None:
            await self._in_thread(self._own_data.release)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, call)
        except QuorumError as error:
            raise CoordinatorError(str(error)) from error

    def fail(self) -> None:
        self._failed = True
        self._timers.end()
        self._contact.end()
        self._saving.abandon()
        if self._quorum is not None:
            asyncio.get_running_loop().remove_reader(self._quorum.wake_fd)

    def _guarded(self, call: Callable[[], object]) -> None:
        """Ends the service if ``call`` raises."""
        if self._failed:
            return
        try:
            call()
        except QuorumStoppedError as error:
            # The quorum's last event has the reason.
            if self._quorum is not None:
                self._events.extend(self._quorum.take(TAKE_BYTES))
            text = next((event[1] for event in self._events if event[0] == "failed"), error)
            self._service.fail(CoordinatorError(str(text)))
        except Exception as error:
            _logger.exception("applying what was agreed on failed")
            self._service.fail(error)

    # ---- the state it begins with ----

    def _begin_with(self, quorum: Quorum, own: OwnData) -> None:
        """Reads this server's own data in a thread, and gives it to the quorum, which begins with it when
        it may."""
        self._begins = True
        loop, now = asyncio.get_running_loop(), self._service.clock.wall_ms()
        self._own_data_work = loop.run_in_executor(None, lambda: own.give(quorum.first_state(), now))

        def given(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            # If the quorum stopped, its last event has the reason.
            if error is not None and not self._failed and not isinstance(error, QuorumStoppedError):
                self._service.fail(
                    CoordinatorError(f"the ensemble cannot begin with this server's data: {error}")
                )

        self._own_data_work.add_done_callback(given)

    def _begun(self) -> None:
        """The quorum has the state as its own, so the files that it came from are moved away."""
        if self._begins and self._own_data is not None:
            self._begins = False
            put_away = self._own_data.put_away
            self._own_data_work = asyncio.get_running_loop().run_in_executor(None, put_away)

    # ---- the quorum's events ----

    def _wake(self) -> None:
        self._guarded(self._take)

    def _take(self) -> bool:
        """Handles the quorum's events, as many as one turn of the loop should.

        Returns False if there were none.
        """
        quorum = self._quorum
        if quorum is None or self._installing is not None:
            return False
        taken = quorum.take(TAKE_BYTES)
        self._events.extend(taken)
        while self._events and self._installing is None and not self._failed:
            kind, *details = self._events.popleft()
            handle = _HANDLERS.get(str(kind))
            if handle is not None:
                handle(self, *details)
        applied_ms = self._service.clock.wall_ms() if self._accounting.has_applied else 0
        self._membership.follow()
        if self._outbox.is_full:
            self._outbox.send()
        self._service.turn_over(self._applier.take_concerned())
        self._accounting.count(applied_ms)
        transactions = self._accounting.take_transactions()
        if transactions and self._installing is None and not self._failed:
            quorum.applied(self.agreed.index)
            self._saving.applied(transactions, quorum, self.agreed)
        if not self._failed:
            self._set_wake_interval(quorum)
        return bool(taken)

    def _set_wake_interval(self, quorum: Quorum) -> None:
        interval_ms = WATCHED_MS if self._service.is_watched() else UNWATCHED_MS
        if interval_ms != self._wake_interval_ms:
            self._wake_interval_ms = interval_ms
            quorum.set_wake_interval(interval_ms)

    def _entries(self, entries: Sequence[Entry]) -> None:
        self._accounting.applied(entries)
        self._applier.entries(entries)

    def _install(self, source: SnapshotSource, my_next: int) -> None:
        """Begins to replace the state by a snapshot's. Later events wait."""
        self._saving.abandon()
        loop = asyncio.get_running_loop()
        if self._quorum is not None:
            loop.remove_reader(self._quorum.wake_fd)
        self._installing = loop.create_task(self._read_snapshot(source, my_next))

    async def _read_snapshot(self, source: SnapshotSource, my_next: int) -> None:
        began_ms = self._service.clock.monotonic_ms()
        try:
            agreed = await asyncio.get_running_loop().run_in_executor(None, read_snapshot, source)
        except Exception as error:
            self._installing = None
            if not self._failed:
                text = f"the snapshot of entry {source.index} in {self._directory} cannot be read: {error}"
                self._service.fail(CoordinatorError(text))
            return
        self._installing = None
        took_ms = self._service.clock.monotonic_ms() - began_ms
        self._service.metrics.add("dbinittime", took_ms)
        if self.agreed.index < 0:
            self._service.metrics.add("startup_snap_load_time", took_ms)
        self._guarded(lambda: self._installed(agreed, my_next))

    def _installed(self, agreed: Agreed, my_next: int) -> None:
        if self._quorum is None:
            return
        self._begun()
        self._service.metrics.count("snap_count")
        # The outcomes of this member's commands that are in the snapshot will not be reported.
        self._outbox.forget_below(my_next)
        self._applier.install(agreed)
        self._saving.installed(self.machine.last_zxid)
        self._quorum.applied(agreed.index)
        asyncio.get_running_loop().add_reader(self._quorum.wake_fd, self._wake)
        self._take()

    def _took_role(self, role: str, term: int, leader: int, has_majority: bool) -> None:
        # Earlier events are counted in the role that the member had then.
        self._accounting.count(self._service.clock.wall_ms())
        self._contact.took_role(role, term, leader, has_majority)

    def _leading(self, term: int) -> None:
        self._contact.leading(term)
        self._membership.leading(term)

    def _report_acknowledged(self, number: int) -> None:
        for connection in self._sessions.report_acknowledged(number):
            self._applier.concern(connection)

    def _saved(self, index: int, error: str | None) -> None:
        if self._begins and error is not None:
            text = (
                f"the ensemble cannot begin with this server's data, because no snapshot was written: {error}"
            )
            self._service.fail(CoordinatorError(text))
        self._saving.reported(index, error)

    def _quorum_failed(self, text: str) -> None:
        self._service.fail(CoordinatorError(text))

    # ---- what clients ask ----

    def propose(
        self,
        session_id: int,
        op: Op,
        identities: tuple[Id, ...],
        request: Write,
        body: bytes,
        connection: Connection | None = None,
    ) -> None:
        attachment = connection.attachment if connection is not None else 0
        rules = self._service.settings.rules
        command = Proposed(session_id, attachment, 0, op, rules, identities, request, body)
        # A command of the server's own is decoded from its bytes, as the other members do.
        self._put(command, Waiting(connection, proposed=command if connection is not None else None))

    def _put(self, command: Proposed, waiting: Waiting) -> None:
        self._service.metrics.count("sync_processor_request_queued")
        self._outbox.put(command.encode(), waiting)

    def sync(self, answer: Callable[[], None]) -> bool:
        self._barriers.wait(answer)
        return False

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        self._sessions.connect(connection, request, timeout_ms)

    def disconnected(self, connection: Connection) -> None:
        if connection is self._membership.requester:
            self._membership.ended()
        self._sessions.disconnected(connection)

    def heard_from(self, connection: Connection) -> None:
        self._sessions.heard_from(connection)

    def may_send(self, connection: Connection) -> bool:
        return self._sessions.may_send(connection)

    def _report_sessions(self) -> None:
        requester = self._membership.requester
        if requester is not None:
            # Its client is not read until the change of the members has ended.
            self._sessions.heard_from(requester)
        if self._quorum is not None:
            self._sessions.report(self._quorum)
        self._timers.later("report", self._sessions.report_seconds, self._report_sessions)

    def expire_sessions(self) -> None:
        self._guarded(self._expire)

    def _expire(self) -> None:
        # Other members' reports may wait behind the work that kept this process busy.
        takes = 0
        while takes < TAKES_BEFORE_EXPIRY and self._take():
            takes += 1
        self._sessions.expire()

    # ---- snapshots for administrators ----

    async def take_snapshot(self) -> tuple[int, Path]:
        """Saves this member's state, in the format of a standalone server."""
        if not self.is_open:
            raise CoordinatorError(f"the coordinator on {self._directory} is not running")
        zxid, began_ms = self.machine.last_zxid, self._service.clock.monotonic_ms()
        exports, pieces = self._exports, walk(self.machine)
        path = await write_in_turns(
            partial(exports.begin, zxid), pieces, exports.keep, None, lambda: self._failed
        )
        self._service.metrics.add("snapshottime", self._service.clock.monotonic_ms() - began_ms)
        return zxid, path

    async def restore(self, data: bytes) -> int:
        raise CoordinatorError(
            "the state of an ensemble cannot be replaced by a snapshot: restore it into a standalone server"
        )


_HANDLERS: Mapping[str, Callable[..., None]] = {
    "entries": EnsembleReplication._entries,
    "install": EnsembleReplication._install,
    "role": EnsembleReplication._took_role,
    "leading": EnsembleReplication._leading,
    "renewed": lambda self, server_id, sessions: self._sessions.reported(server_id, sessions),
    "renewal_ack": EnsembleReplication._report_acknowledged,
    "barrier": lambda self, number, ok: self._barriers.reported(number, ok),
    "snapshot": EnsembleReplication._saved,
    "flushed": lambda self, flushes: self._accounting.flushed(flushes),
    "warning": lambda _self, text: _logger.warning("%s", text),
    "failed": EnsembleReplication._quorum_failed,
}
"""The handler of each kind of event.

A kind that is not here is a newer quorum's, and means nothing to this server.
"""


def _size(directory: Path) -> int:
    """The bytes of a directory's files; some files may disappear meanwhile."""
    total = 0
    for path in directory.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
