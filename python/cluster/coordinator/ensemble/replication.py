"""The replication of a member of an ensemble: a log that a majority has on disk.

Owns the way from what was agreed on to the clients of this server: every member applies the same entries in the same order,
and each answers the commands that it proposed itself, after it has applied them. Runs on the event loop; blocking calls of
the quorum are in a thread. Its parts:

=====================  ======================================================
:mod:`.agreed`         the state, and what gives each command its place in it
:mod:`.outbox`         what is proposed, and who waits for it
:mod:`.barriers`       who waits until everything agreed on is applied
:mod:`.contact`        what this member is, and whether it serves
:mod:`.touches`        which clients may be told anything
:mod:`.saving`         snapshots
:mod:`.exports`        snapshots that somebody asks for
:mod:`.ensemble_view`  what is told of it
:mod:`.files`          the configuration in the server's files
=====================  ======================================================

What a client may rely on:

* Its requests take effect in order, whichever server it sends them to: a connection's commands are proposed in order and each
  counts once, and one that comes behind the session's move to another connection is refused.
* Its connection answers a write once this server has applied it, so what it reads afterwards has it.
* A watch's event is queued when its change is applied, before the answer to anything newer. What other servers' clients do is
  applied within :data:`WATCHED_MS` or so, or :data:`UNWATCHED_MS` where nobody watches; and before a sync is answered. Where
  nobody waits for anything either, and others want the processor, it is as much later again, and a slice of theirs.
* It is told nothing when it could be that its session is over: what is to be sent to it waits.
* A change of the leader is a delay, and so is one of the members. Its own change of the members is answered once this server has
  applied it; what it sends behind it takes effect behind it.

The leader alone ends sessions, by its monotonic clock, each a full timeout after it began to lead at the earliest; what it
ends counts only while it leads, and if the session has not moved. A crash loses nothing that anybody was answered: a member
starts with its newest snapshot and the log behind it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..clock import Timers
from ..connection import Connection
from ..durability import collector
from ..durability.snapshot import walk, write_in_turns
from ..errors import Code, CoordinatorError, JuteError
from ..keeper import SessionKeeper
from ..metrics import Sizes
from ..protocol.jute import Id
from ..protocol.replies import Begun, Failed
from ..protocol.requests import (
    CloseSession,
    ConnectRequest,
    CreateSession,
    EndReconfig,
    Op,
    Reconfig,
    Write,
    encode_create_session,
    encode_end_reconfig,
    encode_reconfig,
)
from ..replication import Ensemble, Service
from ..state.acl import Rules
from ..state.machine import Machine
from ..state.members import Member, judge_voters, split_client
from ..state.sessions import PASSWORD_BYTES, Session, first_session_id
from .agreed import Agreed, Applied, Proposed, decode_proposed
from .barriers import Barriers
from .contact import Contact
from .exports import Exports
from .files import ConfigurationFiles
from .outbox import Outbox
from .own_data import OwnData
from .quorum import Entry, Event, Flush, Quorum, QuorumError, QuorumStoppedError, SnapshotSource
from .saving import Saving
from .snapshot import read
from .touches import Touches, unpack
from .view import EnsembleView

TAKE_BYTES = 64 << 10
"""What is applied in one turn of the loop."""
TAKES_BEFORE_EXPIRY = 100
"""So much is applied at most before sessions end, to hear first who was heard from."""
WATCHED_MS = 1
UNWATCHED_MS = 5
"""What others propose is applied together, no more often than this, by whether a client here would be told of it."""
TOUCH_MS_MAX = 500
SETTLE_SECONDS = 1.0
"""What a new leader leaves servers to be heard from before it refuses a change of the members for want of them."""
_READ_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """Who is told of a command. Of a handshake also when it was proposed, and what it asked; of another request of a client
    what its bytes say, so that they are not read again."""

    connection: Connection | None
    asked_ms: int = 0
    request: ConnectRequest | None = None
    proposed: Proposed | None = None


_NOBODY = _Waiting(None)
_MOVED = Failed(Code.SESSION_MOVED)


class EnsembleReplication:
    """A :class:`.replication.Replication` over a :class:`.quorum.Quorum`.

    ``open_quorum`` is called in a thread when it starts; ``own_data`` is what a quorum that awaits a state is given. ``directory``
    is the quorum's, ``exports`` where snapshots are put that somebody asks for. Limits are in ticks. ``config`` is the `zoo.cfg`
    that follows the configuration, if it is to.
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
        self._server_id = server_id
        self._directory = directory
        self._exports = Exports(exports, settings.snapshots_retained)
        self._failed = False

        self.agreed = Agreed()
        self._events: deque[Event] = deque()
        self._installing: asyncio.Task[None] | None = None
        self._timers = Timers(self._guarded)
        self._outbox: Outbox[_Waiting] = Outbox(
            self._guarded, self._timers, lambda: service.turn_over(service.everybody())
        )
        self._barriers = Barriers(self._guarded, self._timers)
        self._keeper = SessionKeeper(settings.tick_time_ms, service.clock, self.expire_sessions)
        self._contact = Contact(
            service,
            self._timers,
            self._keeper,
            lambda: self.machine.sessions.all(),
            lambda: self.agreed.index >= 0,
            sync_limit * settings.tick_time_ms,
        )
        self._proposals = Sizes()
        self._view = EnsembleView(
            server_id,
            {"initLimit": init_limit, "syncLimit": sync_limit},
            self._contact,
            self._barriers,
            service.clock,
            lambda: self.agreed,
            self._proposals,
        )
        self._patience_ms = WATCHED_MS
        self._saving = Saving(service, self._timers, chance or random.Random(), self._waiting)

        self._touches = Touches()
        least_ms = max(settings.least_session_timeout_ms, 1)
        self._touch_seconds = max(min(settings.tick_time_ms / 4, TOUCH_MS_MAX, least_ms / 6), 1) / 1000
        self._held: dict[Connection, None] = {}
        self._concerned: dict[Connection, None] = {}
        self._was_asked = False
        """A client spoke since the last turn."""
        self._applied: list[Entry] = []
        self._flushes: list[Flush] = []
        """What was applied and heard of, and not counted yet."""
        self._transactions = 0
        """Those of which neither the quorum nor the next snapshot knows yet."""
        self._local_sessions = 0
        self._reconfigures: Connection | None = None
        """Who asked for the change of the members that is under way, if it was here."""
        self._has_new_members = False
        self._files = ConfigurationFiles(config, server_id) if config is not None else None
        self._own_data = own_data
        self._begins = False
        """The ensemble is to begin with this server's own data, and did not yet."""
        self._moving: asyncio.Future[None] | None = None
        """What a thread does with that."""

    # ---- what there is to tell ----

    @property
    def machine(self) -> Machine:
        return self.agreed.machine

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

    # ---- life ----

    async def start(self) -> None:
        """Returns before there is contact: clients are served once there is."""
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._open_quorum)
        try:
            self._quorum = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._quorum = await opening  # what is open has to be closed
            raise
        # Before its own data is read, so that the others see at once that there is some.
        await self._in_thread(self._quorum.start)
        await self._in_thread(self._exports.clean)
        self._outbox.open(self._quorum)
        self._barriers.open(self._quorum)
        loop.add_reader(self._quorum.wake_fd, self._wake)
        self._guarded(self._touch_round)
        self._contact.begin()
        if self._quorum.awaits_state and self._own_data is not None:
            self._begin_with(self._quorum, self._own_data)

    async def stop(self) -> None:
        """Hands leadership over. Sessions stay open. Until a snapshot is on disk that is due for the next start, this is a member
        like any other."""
        await self._save_for_next_start()
        self.fail()
        if self._installing is not None:
            await asyncio.wait([self._installing])
        if self._files is not None:
            await self._files.wait()
        quorum, self._quorum = self._quorum, None
        if quorum is not None:
            await self._in_thread(quorum.stop)
        if self._moving is not None:
            await asyncio.wait([self._moving])
        if self._own_data is not None:
            await self._in_thread(self._own_data.release)

    async def _save_for_next_start(self) -> None:
        quorum = self._quorum
        if quorum is None or self._failed or self._installing is not None:
            return
        saved: list[asyncio.Future[None]] = []
        self._guarded(lambda: saved.append(self._saving.before_stop(quorum, self.agreed)))
        if saved:
            await saved[0]

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
        """Whatever goes wrong ends the service, and is told."""
        if self._failed:
            return
        try:
            call()
        except QuorumStoppedError as error:
            # Its last event says why.
            if self._quorum is not None:
                self._events.extend(self._quorum.take(TAKE_BYTES))
            text = next((event[1] for event in self._events if event[0] == "failed"), error)
            self._service.fail(CoordinatorError(str(text)))
        except Exception as error:
            _logger.exception("applying what was agreed on failed")
            self._service.fail(error)

    # ---- what it begins with ----

    def _begin_with(self, quorum: Quorum, own: OwnData) -> None:
        """Has this server's own data read and given to the quorum, which begins with it when it may."""
        self._begins = True
        loop, now = asyncio.get_running_loop(), self._service.clock.wall_ms()
        self._moving = loop.run_in_executor(None, lambda: own.give(quorum.first_state(), now))

        def given(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            # Of a quorum that stopped its last event says why.
            if error is not None and not self._failed and not isinstance(error, QuorumStoppedError):
                self._service.fail(
                    CoordinatorError(f"the ensemble cannot begin with this server's data: {error}")
                )

        self._moving.add_done_callback(given)

    def _begun(self) -> None:
        """The quorum has the state as its own: the files that it was in are not to be taken for it again."""
        if self._begins and self._own_data is not None:
            self._begins = False
            self._moving = asyncio.get_running_loop().run_in_executor(None, self._own_data.put_away)

    # ---- what was agreed on ----

    def _wake(self) -> None:
        self._guarded(self._take)

    def _take(self, lets_others: bool = True) -> bool:
        """Does what happened, as much of it as one turn of the loop takes. False when there was nothing. ``lets_others``: whoever
        else is to run on this core goes first, if nobody here waits."""
        if self._quorum is None or self._installing is not None:
            return False
        taken = self._quorum.take(TAKE_BYTES)
        self._events.extend(taken)
        lets_others, self._was_asked = lets_others and self._is_at_leisure(), False
        lets_until_ms = self._service.clock.monotonic_ms() + UNWATCHED_MS if lets_others else 0
        while self._events and self._installing is None and not self._failed:
            kind, *details = self._events.popleft()
            handle = _HANDLERS.get(str(kind))
            if handle is not None:
                handle(self, *details)
            if lets_until_ms and self._events:
                # It may be whom a client of another member waits for.
                os.sched_yield()
                if self._service.clock.monotonic_ms() >= lets_until_ms:
                    lets_until_ms = 0
        applied_ms = self._service.clock.wall_ms() if self._applied else 0
        if self._has_new_members and self._contact.has_majority:
            # Before there is contact they may be those of long ago.
            self._has_new_members = False
            self._follow_configuration()
        if self._outbox.is_full:
            self._outbox.send()
        concerned, self._concerned = self._concerned, {}
        self._service.turn_over(concerned)
        self._account(self._quorum, applied_ms)
        if not self._failed:
            self._be_patient(self._quorum)
        return bool(taken)

    def _is_at_leisure(self) -> bool:
        """Nobody here waits: no watch is set, nothing that was asked here is on its way, and no client spoke since the last turn."""
        is_asked = self._was_asked or not self._outbox.is_empty or len(self._barriers) > 0
        return self._patience_ms == UNWATCHED_MS and self.is_serving and not is_asked

    def _waiting(self) -> int:
        return 0 if self._is_at_leisure() else max(len(self._outbox), 1)

    def _be_patient(self, quorum: Quorum) -> None:
        patience_ms = WATCHED_MS if self._service.is_watched() else UNWATCHED_MS
        if patience_ms != self._patience_ms:
            self._patience_ms = patience_ms
            quorum.be_patient(patience_ms)

    def _entries(self, entries: Sequence[Entry]) -> None:
        agreed = self.agreed
        self._applied.extend(entries)
        for index, term, time_ms, commands, members in entries:
            agreed.begin(index, term, time_ms)
            for mine, ticket, data in commands:
                waiting = self._outbox.claim(ticket) if mine else _NOBODY
                connection, _asked_ms, _request, proposed = waiting
                if connection is not None:
                    connection.catch_up()
                self._tell(agreed.apply_proposed(proposed or decode_proposed(data)), waiting)
            if members is not None:
                before = agreed.members
                changed = agreed.apply_members([Member(*each) for each in members])
                if changed is not None:
                    self._tell(changed, _NOBODY)
                self._has_new_members |= agreed.members != before

    def _account(self, quorum: Quorum, applied_ms: int) -> None:
        """What happened is counted once whoever waited has the answer. ``applied_ms``: the wall clock's when it was applied."""
        self._count_flushes()
        self._count_applied(applied_ms)
        transactions, self._transactions = self._transactions, 0
        if transactions and self._installing is None and not self._failed:
            quorum.applied(self.agreed.index)
            self._saving.applied(transactions, quorum, self.agreed)

    def _tell(self, applied: Applied, waiting: _Waiting) -> None:
        """Tells whom a command concerns what it did."""
        command, outcome, attachment, ends_reconfig = applied
        service, connection = self._service, waiting.connection
        if ends_reconfig:
            connection, self._reconfigures = self._reconfigures, None
        if connection is not None:
            self._concerned[connection] = None
        session = outcome.opened_session
        if isinstance(outcome.result, Begun):
            is_there = connection is not None and service.holder(connection.session_id) is connection
            self._reconfigures = connection if is_there else None
            self._reconfigure()
        elif session is not None:
            self._keeper.track(session)
            if command.op is Op.ATTACH:
                service.release(session.id)
            if connection is not None and waiting.request is not None:
                self._found(connection, session, attachment, waiting)
        elif waiting.request is not None and connection is not None:
            service.refused(connection)
        elif connection is not None and outcome.result == _MOVED:
            connection.close()  # as ZooKeeper: the client has another
        else:
            service.applied(command, outcome, connection)
            if outcome.closed_session:
                self._keeper.forget(outcome.closed_session)

    def _count_applied(self, now: int) -> None:
        entries, self._applied = self._applied, []
        metrics, role, latency_ms = self._service.metrics, self._contact.role, self._contact.latency_ms
        # What is agreed on comes here at once if it is this server's own, and others' some milliseconds later.
        agreed = "quorum_ack_latency" if role == "leader" else "commit_propagation_latency"
        acknowledged, propagated = metrics.advanced[agreed], metrics.advanced["propagation_latency"]
        total = 0
        for _index, _term, time_ms, commands, _members in entries:
            number = len(commands)
            total += number
            self._transactions += max(number, 1)
            if (latency := latency_ms(time_ms, now)) is not None:
                acknowledged.add(latency, number)
                propagated.add(latency, number)
            if role == "leader":
                for _mine, _ticket, data in commands:
                    self._proposals.add(len(data))
        counters = metrics.counters
        counters["commit_count"] += total
        if role == "leader":
            counters["proposal_count"] += total
        elif role != "looking":
            counters["learner_commit_received_count"] += total
            if role == "follower":
                counters["learner_proposal_received_count"] += total

    def _install(self, source: SnapshotSource, my_next: int) -> None:
        """Begins anew with a snapshot; what happens meanwhile waits."""
        self._saving.abandon()
        loop = asyncio.get_running_loop()
        if self._quorum is not None:
            loop.remove_reader(self._quorum.wake_fd)
        self._installing = loop.create_task(self._read_snapshot(source, my_next))

    async def _read_snapshot(self, source: SnapshotSource, my_next: int) -> None:
        began_ms = self._service.clock.monotonic_ms()
        try:
            agreed = await asyncio.get_running_loop().run_in_executor(None, _read_all, source)
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
        self.agreed = agreed
        self._service.metrics.count("snap_count")
        self._saving.installed(self.machine.last_zxid)
        self._outbox.forget_below(my_next)
        self._reconfigures = None
        # What their watches have missed is not known; who waits for a command that is in it does not get to know of it.
        self._service.abort_all()
        self._has_new_members = True
        self._quorum.applied(agreed.index)
        asyncio.get_running_loop().add_reader(self._quorum.wake_fd, self._wake)
        self._take()

    # ---- who the members are ----

    def _reconfigure(self, patience: bool = False) -> None:
        """At the leader: has the change of the members that is under way made, or refuses it. ``patience``: it may turn out
        a little later that the servers for it are there."""
        asked, term, quorum = self.agreed.reconfiguration, self._contact.leads_in, self._quorum
        if asked is None or not term or quorum is None:
            return
        code = Code.NO_AUTH
        try:
            if not quorum.has_quorum(asked.members):
                if patience:
                    self._timers.later("reconfigure", SETTLE_SECONDS, self._reconfigure)
                    return
                code = Code.NEW_CONFIG_NO_QUORUM
            elif asked.is_allowed:
                quorum.change_members(term, asked.members)
                return
        except QuorumStoppedError:
            raise
        except (QuorumError, ValueError) as error:
            _logger.warning("the ensemble's members cannot be what was asked for: %s", error)
            code = Code.BAD_ARGUMENTS
        end = EndReconfig(asked.zxid, code)
        self._put(
            Proposed(0, 0, term, Op.END_RECONFIG, Rules.NONE, (), end, encode_end_reconfig(end)), _NOBODY
        )

    def _follow_configuration(self) -> None:
        """The members are others: the operator is told of a bad number, and what follows them does."""
        agreed = self.agreed
        if agreed.version and (judged := judge_voters(sum(not each.observer for each in agreed.members))):
            _logger.warning("%s", judged)
        if self._files is not None:
            self._files.follow(agreed.members, agreed.version)
            own = next((each for each in agreed.members if each.server_id == self._server_id), None)
            if own is not None and own.client:
                self._service.listen_at(*split_client(own.client))

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
        # What is made here is read from its bytes like anybody's.
        self._put(command, _Waiting(connection, proposed=command if connection is not None else None))

    def _put(self, command: Proposed, waiting: _Waiting) -> None:
        self._service.metrics.count("sync_processor_request_queued")
        self._outbox.put(command.encode(), waiting)

    def go_on(self) -> None:
        """Nothing waits: what is proposed in one turn of the loop goes together, or at once."""

    def sync(self, answer: Callable[[], None]) -> bool:
        self._barriers.wait(answer)
        return False

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if self.is_reading_only:
            self._connect_read_only(connection, request, timeout_ms)
        elif request.last_zxid_seen > self.machine.last_zxid:
            # What was agreed on may not be here yet. Whether it is from the future is known before anybody loses a session.
            self._barriers.wait(lambda: self._let_in(connection, request, timeout_ms))
        else:
            self._let_in(connection, request, timeout_ms)

    def _let_in(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if not connection.is_connecting:
            return  # the client is gone
        if request.last_zxid_seen > self.machine.last_zxid:
            self._service.from_the_future(connection, request.last_zxid_seen)
            return
        sessions = self.machine.sessions
        password = request.password if request.session_id else secrets.token_bytes(PASSWORD_BYTES)
        birth = CreateSession(timeout_ms, password)
        op, name = Op.CREATE_SESSION, self._server_id
        if request.session_id:
            # Whoever had the session here loses it, before its password is looked at: as in ZooKeeper.
            self._service.release(request.session_id)
            self._service.metrics.count("connection_revalidate_count")
            if request.session_id in sessions and not sessions.proves(request.session_id, password):
                self._service.refused(connection)  # a session that is not known here may be known elsewhere
                return
            op, name = Op.ATTACH, request.session_id
        rules, body = self._service.settings.rules, encode_create_session(birth)
        now = self._service.clock.monotonic_ms()
        self._put(Proposed(name, 0, 0, op, rules, (), birth, body), _Waiting(connection, now, request))

    def _found(self, connection: Connection, session: Session, attachment: int, waiting: _Waiting) -> None:
        """This connection is the session's last, by all that is applied."""
        if not connection.is_connecting or waiting.request is None:
            return  # the client is gone; the session ends like any other
        connection.attachment = attachment
        self._touches.established(session.id, waiting.asked_ms)
        self._service.established(connection, session)

    def _connect_read_only(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if not connection.accepts_read_only:
            _logger.info("closing the connection of %s: it wants to write", connection.address)
            connection.close()
        elif request.session_id and not self.machine.sessions.proves(request.session_id, request.password):
            connection.close()  # whether that session is over is not known here
        elif request.last_zxid_seen > self.machine.last_zxid:
            self._service.from_the_future(connection, request.last_zxid_seen)
        else:
            connection.is_read_only = True
            session = Session(request.session_id, timeout_ms, request.password)
            if not session.id:
                self._local_sessions += 1
                first_id = first_session_id(self._service.clock.wall_ms(), self._server_id)
                password = secrets.token_bytes(PASSWORD_BYTES)
                session = Session(first_id + self._local_sessions, timeout_ms, password)
            self._service.established(connection, session)

    def disconnected(self, connection: Connection) -> None:
        self._held.pop(connection, None)
        if connection is self._reconfigures:
            self._reconfigures = None
        if self._service.holder(connection.session_id) in (None, connection):
            self._touches.gone(connection.session_id)

    # ---- who lives ----

    def heard_from(self, connection: Connection) -> None:
        self._was_asked = True
        if not connection.is_read_only:
            self._touches.heard(connection.session_id)
            self._keeper.touch(connection.session_id)

    def may_send(self, connection: Connection) -> bool:
        if connection.timeout_ms == 0 or connection.is_read_only:
            return True
        known_ms = self._touches.known_ms(connection.session_id)
        now = self._service.clock.monotonic_ms()
        if known_ms is not None and now - known_ms <= connection.timeout_ms // 3:
            return True
        self._held[connection] = None
        return False

    def _touch_round(self) -> None:
        """Tells the leader whom this server has heard from."""
        if self._reconfigures is not None:
            # It is not read meanwhile.
            self.heard_from(self._reconfigures)
        packed, sessions = self._touches.pack()
        if self._quorum is not None:
            now = self._service.clock.monotonic_ms()
            self._touches.sent(self._quorum.touch(packed), now, sessions)
        self._timers.later("touch", self._touch_seconds, self._touch_round)

    def _touch_acknowledged(self, number: int) -> None:
        self._touches.acknowledged(number)
        held, self._held = self._held, {}
        for connection in held:
            connection.go_on()
            self._concerned[connection] = None

    def _touched(self, server_id: int, sessions: bytes) -> None:
        self._contact.heard_of(server_id)
        for session_id in unpack(sessions):
            self._keeper.touch(session_id)

    def expire_sessions(self) -> None:
        self._guarded(self._expire)

    def _expire(self) -> None:
        """Hears first what others have heard: their news may wait behind what kept this process busy."""
        takes = 0
        while takes < TAKES_BEFORE_EXPIRY and self._take(lets_others=False):
            takes += 1
        rules, term = self._service.settings.rules, self._contact.leads_in
        for session_id in self._keeper.take_expired():
            self._service.metrics.count("stale_sessions_expired")
            attachment = self.agreed.attachments.get(session_id, 0)
            close = Proposed(session_id, attachment, term, Op.CLOSE_SESSION, rules, (), CloseSession(), b"")
            self._put(close, _NOBODY)

    # ---- the whole state ----

    async def take_snapshot(self) -> tuple[int, Path]:
        """Of this server's state, in the format of a server by itself."""
        if not self.is_open:
            raise CoordinatorError(f"the coordinator on {self._directory} does not run")
        zxid, began_ms = self.machine.last_zxid, self._service.clock.monotonic_ms()
        exports, pieces = self._exports, walk(self.machine)
        path = await write_in_turns(
            partial(exports.begin, zxid), pieces, exports.keep, None, lambda: self._failed
        )
        self._service.metrics.add("snapshottime", self._service.clock.monotonic_ms() - began_ms)
        return zxid, path

    async def restore(self, data: bytes) -> int:
        raise CoordinatorError(
            "an ensemble's state cannot be replaced by a snapshot: restore it into a server that runs by itself"
        )

    # ---- the quorum's other words ----

    def _took_role(self, role: str, term: int, leader: int, has_majority: bool) -> None:
        # What came before is of what this member was then.
        self._count_flushes()
        self._count_applied(self._service.clock.wall_ms())
        self._contact.took_role(role, term, leader, has_majority)

    def _leading(self, term: int) -> None:
        self._contact.leading(term)
        self._reconfigure(patience=True)
        if self._files is not None and not self.agreed.version:
            # The first configuration has a version, as ZooKeeper's: one that changes nothing gives it one.
            same = Reconfig(None, None, None, -1)
            rules = self._service.settings.rules | Rules.SKIP_ACL
            self._put(Proposed(0, 0, term, Op.RECONFIG, rules, (), same, encode_reconfig(same)), _NOBODY)

    def _barrier(self, number: int, ok: bool) -> None:
        self._barriers.told(number, ok)

    def _saved(self, index: int, error: str | None) -> None:
        if self._begins and error is not None:
            text = f"the ensemble cannot begin with this server's data, of which no snapshot was written: {error}"
            self._service.fail(CoordinatorError(text))
        self._saving.told(index, error)

    def _flushed(self, flushes: Sequence[Flush]) -> None:
        self._flushes.extend(flushes)

    def _count_flushes(self) -> None:
        flushes, self._flushes = self._flushes, []
        metrics, contact = self._service.metrics, self._contact
        role, latency_ms = contact.role, contact.latency_ms
        for took_ms, entries in flushes:
            metrics.add("fsynctime", took_ms)
            number = 0
            for commands, time_ms, came_ms, on_disk_ms in entries:
                number += commands
                if role == "follower" and (came := latency_ms(time_ms, came_ms)) is not None:
                    metrics.advanced["proposal_latency"].add(came, commands)
                if role != "observer" and (on_disk := latency_ms(time_ms, on_disk_ms)) is not None:
                    metrics.advanced["proposal_ack_creation_latency"].add(on_disk, commands)
            if number:
                metrics.add("sync_processor_batch_size", number)

    def _warning(self, text: str) -> None:
        _logger.warning("%s", text)

    def _quorum_failed(self, text: str) -> None:
        self._service.fail(CoordinatorError(text))


_HANDLERS: Mapping[str, Callable[..., None]] = {
    "entries": EnsembleReplication._entries,
    "install": EnsembleReplication._install,
    "role": EnsembleReplication._took_role,
    "leading": EnsembleReplication._leading,
    "touched": EnsembleReplication._touched,
    "touch_ack": EnsembleReplication._touch_acknowledged,
    "barrier": EnsembleReplication._barrier,
    "snapshot": EnsembleReplication._saved,
    "flushed": EnsembleReplication._flushed,
    "warning": EnsembleReplication._warning,
    "failed": EnsembleReplication._quorum_failed,
}
"""What is done with each kind of event; others are of a newer quorum, and nothing to this server."""


def _read_all(source: SnapshotSource) -> Agreed:
    """Raises OSError, JuteError, ValueError."""
    data = bytearray()
    while part := source.read(_READ_BYTES):
        data += part
    with collector.spared():
        agreed = read(bytes(data))
        collector.keep(len(agreed.machine.tree))
    if agreed.index != source.index:
        raise JuteError(f"it is of entry {agreed.index}")
    return agreed


def _size(directory: Path) -> int:
    """Bytes of the files in a directory, some of which may be gone meanwhile."""
    total = 0
    for path in directory.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
