"""The replication of a member of an ensemble: a log that a majority has on disk.

Owns the way from what was agreed on to the clients of this server: every member applies the same entries in the same order,
and each answers the commands that it proposed itself, after it has applied them. Around that: who has which session
(:mod:`.touches`, and the leader's deadlines), whether this server may say anything to its clients, snapshots, and what
happens while there is no contact to a majority. Runs on the event loop; blocking calls of the quorum are in a thread.

What a client may rely on:

* Its requests take effect in order, whichever server it sends them to: a connection's commands are proposed in order and each
  counts once, and one that comes behind the session's move to another connection is refused.
* Its connection answers a write once this server has applied it, so what it reads afterwards has it.
* A watch's event is queued when its change is applied, before the answer to anything newer.
* It is told nothing when it could be that its session is over (:mod:`.touches`): what is to be sent to it waits.
* A change of the leader is a delay. A server that has been without a majority for ``syncLimit`` ticks closes its clients.

The leader alone ends sessions, by its monotonic clock, each a full timeout after it began to lead at the earliest; what it
ends counts only while it leads, and if the session has not moved. A crash loses nothing that anybody was answered: a member
starts with its newest snapshot and the log behind it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .agreed import Agreed, Applied, Proposed
from .errors import Code, CoordinatorError, JuteError
from .jute import Id
from .keeper import SessionKeeper
from .machine import Failed, Machine
from .members import Member, configured_members, members_text
from .quorum import Entry, Event, Quorum, QuorumFullError, QuorumStoppedError, SnapshotSink, SnapshotSource
from .replication import Service
from .requests import CloseSession, ConnectRequest, CreateSession, Op, Write, encode_create_session
from .sessions import PASSWORD_BYTES, Session, first_session_id
from .snapshot import write_snapshot
from .touches import Touches, unpack
from .tree import CONFIG
from .walk import read, walk
from .words import Ensemble

if TYPE_CHECKING:
    from .connection import Connection

TAKE_BYTES = 64 << 10
"""What is applied in one turn of the loop."""
BATCH_COMMANDS = 1024
BATCH_BYTES = 1 << 20
"""What is proposed in one call."""
TAKES_BEFORE_EXPIRY = 100
"""So much is applied at most before sessions end, to hear first who was heard from."""
TOUCH_MS_MAX = 500
FULL_PAUSE = 0.02
"""Seconds until the quorum is asked again whether there is room, if nothing is agreed on before."""
BARRIER_PAUSE = 0.05
"""Seconds until a barrier is asked for again that was refused: nobody leads."""
WALK_PAUSE = 0.004
"""Seconds between two slices of a snapshot."""
WALK_PAUSE_FULL = 0.05
"""The same, while the disk is slower."""
READ_ONLY_MS_MIN = 2000
"""Read-only service begins no earlier than this, and a tick, after the other ended (``QuorumPeer``)."""
_READ_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """Who is told of a command; ``request`` is that of a handshake."""

    connection: Connection | None
    asked_ms: int
    request: ConnectRequest | None


_NOBODY = _Waiting(None, 0, None)


class EnsembleReplication:
    """A :class:`.replication.Replication` over a :class:`.quorum.Quorum`.

    ``open_quorum`` is called in a thread when it starts. ``directory`` is the quorum's, ``exports`` where snapshots are put
    that somebody asks for. Limits are in ticks.
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
        chance: random.Random | None = None,
    ) -> None:
        settings = service.settings
        self._service = service
        self._open_quorum = open_quorum
        self._quorum: Quorum | None = None
        self._server_id = server_id
        self._patience_ms = sync_limit * settings.tick_time_ms
        self._directory = directory
        self._exports = exports
        self._limits = {"initLimit": init_limit, "syncLimit": sync_limit}
        self._chance = chance or random.Random()
        self._agreed = Agreed()

        self._role, self._term, self._leader = "looking", 0, 0
        self._in_contact = False
        self._leads_in = 0
        self._leads_since_ms = 0
        self._heard_of: dict[int, int] = {}
        self._keeper = SessionKeeper(settings.tick_time_ms, service.clock, self.expire_sessions)
        self._touches = Touches()
        least_ms = max(settings.least_session_timeout_ms, 1)
        self._touch_seconds = max(min(settings.tick_time_ms / 4, TOUCH_MS_MAX, least_ms / 6), 1) / 1000
        self._timers: dict[str, asyncio.TimerHandle] = {}

        self._proposed: deque[tuple[bytes, _Waiting]] = deque()
        self._waiting: deque[tuple[int, _Waiting]] = deque()
        self._sending = False
        self.is_full = False
        self._syncs: list[Callable[[], None]] = []
        self._barriers: dict[int, list[Callable[[], None]]] = {}
        self._held: dict[Connection, None] = {}
        self._concerned: dict[Connection, None] = {}

        self._events: deque[Event] = deque()
        self._installing: asyncio.Task[None] | None = None
        self._walk: tuple[SnapshotSink, Generator[bytes, None, None], int, int] | None = None
        self._saving: tuple[int, int] | None = None
        self._saved: tuple[int, int] | None = None
        self._until_snapshot = self._next_distance()
        self._local_sessions = 0
        self.is_serving = self.is_reading_only = False
        self._failed = False

    # ---- what there is to tell ----

    @property
    def machine(self) -> Machine:
        return self._agreed.machine

    @property
    def agreed(self) -> Agreed:
        """The applied state, with what belongs to an ensemble."""
        return self._agreed

    @property
    def mode(self) -> str:
        if self.is_reading_only:
            return "read-only"
        if self._role != "looking":
            return self._role
        own = next((member for member in self.members if member.server_id == self._server_id), None)
        return "observer" if own is not None and own.observer else "follower"

    @property
    def is_open(self) -> bool:
        return self._quorum is not None and not self._failed

    @property
    def is_leading(self) -> bool:
        return self._leads_in != 0

    def deadlines(self) -> list[tuple[int, set[int]]]:
        return self._keeper.deadlines()

    def data_bytes(self) -> tuple[int, int]:
        return _size(self._directory / "snapshots"), _size(self._directory / "log")

    def last_snapshot(self) -> tuple[int, int] | None:
        return self._saved

    def configuration(self) -> Mapping[str, object]:
        own = next((member for member in self.members if member.server_id == self._server_id), None)
        if own is None:
            return {}
        return {
            **self._limits,
            "electionAlg": 3,
            "electionPort": own.election_port,
            "quorumPort": own.quorum_port,
            "peerType": int(own.observer),
        }

    def gauges(self) -> Mapping[str, int]:
        """As ``LeaderZooKeeperServer`` and ``QuorumZooKeeperServer`` register them. In step is who was heard from lately."""
        members = self.members
        found = {"quorum_size": sum(not member.observer for member in members)}
        if self.is_leading:
            now = self._service.clock.monotonic_ms()
            in_step = {number for number, at in self._heard_of.items() if now - at < self._patience_ms}
            observers = {member.server_id for member in members if member.observer}
            found |= {
                "learners": len(in_step),
                "synced_followers": len(in_step - observers),
                "synced_non_voting_followers": 0,
                "synced_observers": len(in_step & observers),
                "pending_syncs": sum(map(len, self._barriers.values())),
                "leader_uptime": now - self._leads_since_ms,
            }
        return found

    def ensemble(self) -> Ensemble:
        members = self.members
        leader = next((member for member in members if member.server_id == self._leader), None)
        state = {"leader": "leading", "follower": "following", "observer": "observing"}.get(self._role)
        lines = members_text(members).splitlines()
        voters = dict(line.removeprefix("server.").split("=", 1) for line in lines if ":observer" not in line)
        return Ensemble(
            self._server_id,
            (leader.server_id, leader.host) if leader is not None else None,
            voters,
            self.gauges().get("synced_observers", 0),
            (self.machine.tree.node(CONFIG).state.data or b"").decode(),
            f"{state} - broadcast" if state and self._in_contact else "looking",
        )

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is in the ensemble, by all that is applied."""
        return configured_members(self.machine.tree.node(CONFIG).state.data or b"")

    # ---- life ----

    async def start(self) -> None:
        """Returns before there is contact: clients are served once there is."""
        loop = asyncio.get_running_loop()
        self._quorum = await loop.run_in_executor(None, self._open_quorum)
        await loop.run_in_executor(None, self._quorum.start)
        loop.add_reader(self._quorum.wake_fd, self._wake)
        self._guarded(self._touch_round)
        self._await_contact()

    async def stop(self) -> None:
        """Hands leadership over. Sessions stay open."""
        self.fail()
        loop = asyncio.get_running_loop()
        if self._installing is not None:
            await asyncio.wait([self._installing])
        quorum, self._quorum = self._quorum, None
        if quorum is not None:
            loop.remove_reader(quorum.wake_fd)
            await loop.run_in_executor(None, quorum.stop)

    def fail(self) -> None:
        self._failed = True
        self.is_serving = self.is_reading_only = False
        self._keeper.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._end_walk()
        if self._quorum is not None:
            asyncio.get_running_loop().remove_reader(self._quorum.wake_fd)

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        """Calls once, later; a timer of the same name gives way."""
        self._cancel(name)
        if not self._failed:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._due, name, call)

    def _due(self, name: str, call: Callable[[], None]) -> None:
        del self._timers[name]
        self._guarded(call)

    def _cancel(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _guarded(self, call: Callable[[], None]) -> None:
        """Whatever goes wrong ends the service, and is told."""
        if self._failed:
            return
        try:
            call()
        except QuorumStoppedError as error:
            self._wake_if_failed(error)
        except Exception as error:
            _logger.exception("applying what was agreed on failed")
            self._service.fail(error)

    def _wake_if_failed(self, error: QuorumStoppedError) -> None:
        """The last event says why."""
        if self._quorum is not None:
            self._events.extend(self._quorum.take(TAKE_BYTES))
        failed = next((event[1] for event in self._events if event[0] == "failed"), error)
        self._service.fail(CoordinatorError(str(failed)))

    # ---- proposals ----

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
        self._put(command, _Waiting(connection, 0, None) if connection is not None else _NOBODY)

    def _put(self, command: Proposed, waiting: _Waiting) -> None:
        self._proposed.append((command.encode(), waiting))
        self._service.metrics.count("sync_processor_request_queued")
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._guarded, self._send)

    def _send(self) -> None:
        """Proposes what this turn of the loop produced. What the quorum has no room for waits, and clients are not read."""
        self._sending = False
        quorum = self._quorum
        if quorum is None:
            return
        while self._proposed:
            commands: list[bytes] = []
            size = 0
            for command, _waiting in self._proposed:
                size += len(command)
                if commands and (size > BATCH_BYTES or len(commands) == BATCH_COMMANDS):
                    break
                commands.append(command)
            try:
                ticket = quorum.propose(commands)
            except QuorumFullError:
                self.is_full = True
                self._later("full", FULL_PAUSE, self._send)
                return
            self._service.metrics.add("sync_processor_batch_size", len(commands))
            for number in range(len(commands)):
                self._waiting.append((ticket + number, self._proposed.popleft()[1]))
        if self.is_full:
            self.is_full = False
            self._service.turn_over(self._service.everybody())

    def sync(self, answer: Callable[[], None]) -> bool:
        if not self._syncs:
            asyncio.get_running_loop().call_soon(self._guarded, self._ask_barrier)
        self._syncs.append(answer)
        return False

    def _ask_barrier(self) -> None:
        if self._quorum is not None and self._syncs:
            try:
                number = self._quorum.read_barrier()
            except QuorumFullError:
                self._later("barrier", BARRIER_PAUSE, self._ask_barrier)
                return
            self._barriers[number], self._syncs = self._syncs, []

    # ---- events ----

    def _wake(self) -> None:
        self._guarded(self._take)

    def _take(self) -> None:
        """Does what happened, as much of it as one turn of the loop takes."""
        quorum = self._quorum
        if quorum is None or self._installing is not None:
            return
        self._events.extend(quorum.take(TAKE_BYTES))
        self._handle_all()

    def _handle_all(self) -> None:
        while self._events and self._installing is None and not self._failed:
            self._handle(self._events.popleft())
        if self.is_full and self._proposed:
            self._send()
        concerned, self._concerned = self._concerned, {}
        self._service.turn_over(concerned)

    def _handle(self, event: Event) -> None:
        kind, *rest = event
        handler = _HANDLERS.get(str(kind))
        if handler is not None:
            handler(self, *rest)

    def _entries(self, entries: Sequence[Entry]) -> None:
        agreed, metrics = self._agreed, self._service.metrics
        for index, term, time_ms, commands, members in entries:
            agreed.begin(index, term, time_ms)
            for mine, ticket, data in commands:
                waiting = self._claim(ticket) if mine else _NOBODY
                self._tell(agreed.apply(data), waiting)
            metrics.count("commit_count", len(commands))
            self._until_snapshot -= max(len(commands), 1)
            if members is not None:
                changed = agreed.apply_members([Member(*each) for each in members])
                if changed is not None:
                    self._service.applied(changed.command, changed.outcome, None)
        if self._quorum is not None and entries:
            self._quorum.applied(agreed.index)
            if self._until_snapshot <= 0 and self._walk is None and self._saving is None:
                self._begin_walk()

    def _claim(self, ticket: int) -> _Waiting:
        found, waiting = self._waiting.popleft()
        assert found == ticket, f"command {ticket} counted, and {found} is the next that was proposed"
        return waiting

    def _tell(self, applied: Applied, waiting: _Waiting) -> None:
        """Tells whom a command concerns what it did."""
        command, outcome, attachment = applied
        service, connection = self._service, waiting.connection
        if connection is not None:
            self._concerned[connection] = None
        session = outcome.opened_session
        if session is not None:
            self._keeper.track(session)
            if command.op is Op.ATTACH:
                service.release(session.id)
            if connection is not None and waiting.request is not None:
                self._found(connection, session, attachment, waiting)
        elif waiting.request is not None and connection is not None:
            service.refused(connection)
        elif connection is not None and outcome.result == Failed(Code.SESSION_MOVED):
            connection.close()  # as ZooKeeper: the client has another
        else:
            if outcome.closed_session:
                self._keeper.forget(outcome.closed_session)
                self._touches.gone(outcome.closed_session)
            service.applied(command, outcome, connection)

    # ---- sessions ----

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        if self.is_reading_only:
            self._connect_read_only(connection, request, timeout_ms)
            return
        now = self._service.clock.monotonic_ms()
        password = request.password if request.session_id else secrets.token_bytes(PASSWORD_BYTES)
        birth = CreateSession(timeout_ms, password)
        op, name = Op.CREATE_SESSION, self._server_id
        if request.session_id:
            # Whoever had the session here loses it, before its password is looked at: as in ZooKeeper.
            self._service.release(request.session_id)
            self._service.metrics.count("connection_revalidate_count")
            op, name = Op.ATTACH, request.session_id
        command = Proposed(
            name, 0, 0, op, self._service.settings.rules, (), birth, encode_create_session(birth)
        )
        self._put(command, _Waiting(connection, now, request))

    def _found(self, connection: Connection, session: Session, attachment: int, waiting: _Waiting) -> None:
        """This connection is the session's last, by all that is applied."""
        assert waiting.request is not None
        if not connection.is_connecting:
            return  # the client is gone; the session ends like any other
        if waiting.request.last_zxid_seen > self.machine.last_zxid:
            self._service.from_the_future(connection, waiting.request.last_zxid_seen)
            return
        connection.attachment = attachment
        self._touches.established(session.id, waiting.asked_ms)
        self._service.established(connection, session)

    def _connect_read_only(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        sessions = self.machine.sessions
        if not connection.accepts_read_only:
            _logger.info("closing the connection of %s: it wants to write", connection.address)
            connection.close()
        elif request.session_id and not sessions.proves(request.session_id, request.password):
            connection.close()  # whether that session is over is not known here
        elif request.last_zxid_seen > self.machine.last_zxid:
            self._service.from_the_future(connection, request.last_zxid_seen)
        else:
            connection.is_read_only = True
            session_id = request.session_id
            if not session_id:
                self._local_sessions += 1
                session_id = first_session_id(self._service.clock.wall_ms(), self._server_id)
                session_id += self._local_sessions
            password = request.password if request.session_id else secrets.token_bytes(PASSWORD_BYTES)
            self._service.established(connection, Session(session_id, timeout_ms, password))

    def disconnected(self, connection: Connection) -> None:
        self._held.pop(connection, None)
        if self._service.holder(connection.session_id) in (None, connection):
            self._touches.gone(connection.session_id)

    def heard_from(self, connection: Connection) -> None:
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
        packed, sessions = self._touches.pack()
        if self._quorum is not None:
            now = self._service.clock.monotonic_ms()
            self._touches.sent(self._quorum.touch(packed), now, sessions)
        self._later("touch", self._touch_seconds, self._touch_round)

    def _touch_acknowledged(self, number: int) -> None:
        self._touches.acknowledged(number)
        held, self._held = self._held, {}
        for connection in held:
            connection.go_on()
            self._concerned[connection] = None

    def _touched(self, server_id: int, sessions: bytes) -> None:
        self._heard_of[server_id] = self._service.clock.monotonic_ms()
        for session_id in unpack(sessions):
            self._keeper.touch(session_id)

    def expire_sessions(self) -> None:
        self._guarded(self._expire)

    def _expire(self) -> None:
        """Hears first what others have heard: their news may wait behind what kept this process busy."""
        quorum = self._quorum
        for _turn in range(TAKES_BEFORE_EXPIRY):
            if quorum is None or self._installing is not None or not (events := quorum.take(TAKE_BYTES)):
                break
            self._events.extend(events)
            self._handle_all()
        for session_id in self._keeper.take_expired():
            attachment = self._agreed.attachments.get(session_id, 0)
            self._service.metrics.count("stale_sessions_expired")
            close = Proposed(
                session_id,
                attachment,
                self._leads_in,
                Op.CLOSE_SESSION,
                self._service.settings.rules,
                (),
                CloseSession(),
                b"",
            )
            self._put(close, _NOBODY)

    # ---- roles and contact ----

    def _took_role(self, role: str, term: int, leader: int, in_contact: bool) -> None:
        if (role, term, leader) != (self._role, self._term, self._leader):
            _logger.info("%s in term %d, the leader is server %d", role, term, leader)
            if role == "looking":
                self._service.metrics.count("looking_count")
        self._role, self._term, self._leader = role, term, leader
        if role != "leader" or term != self._leads_in:
            self._end_leading()
        if in_contact == self._in_contact:
            return
        self._in_contact = in_contact
        if in_contact:
            self._cancel("contact")
            self._serve()
        else:
            if self._leads_in:
                self._keeper.stop()
            self._later("contact", self._patience_ms / 1000, self._lost_contact)

    def _leading(self, term: int) -> None:
        if term < self._term or self._failed:
            return
        self._leads_in = term
        self._heard_of.clear()
        self._leads_since_ms = self._service.clock.monotonic_ms()
        self._keeper.start(self.machine.sessions.all())

    def _end_leading(self) -> None:
        self._leads_in = 0
        self._keeper.stop()

    def _serve(self) -> None:
        """There is contact to a majority."""
        self._cancel("read-only")
        if self.is_reading_only:
            self._service.abort_all()
        self.is_reading_only = False
        self.is_serving = True
        if self._leads_in:
            # While it had no contact it heard of nobody: every session has a full timeout anew.
            self._keeper.start(self.machine.sessions.all())

    def _lost_contact(self) -> None:
        """Without a majority for so long that clients had better look for another server."""
        if self.is_serving:
            _logger.warning(
                "no contact to a majority of the ensemble for %d ms: clients are closed until there is; look whether the "
                "other servers run and are reached",
                self._patience_ms,
            )
        self.is_serving = False
        self._service.abort_all()
        self._await_contact()

    def _await_contact(self) -> None:
        settings = self._service.settings
        if settings.read_only_mode:
            wait_ms = max(READ_ONLY_MS_MIN, settings.tick_time_ms)
            self._later("read-only", wait_ms / 1000, self._begin_reading_only)

    def _begin_reading_only(self) -> None:
        if not self.is_serving:
            _logger.warning("serving reads only, to clients that said they may be: there is no majority")
            self.is_reading_only = True

    def _barrier(self, number: int, ok: bool) -> None:
        answers = self._barriers.pop(number, [])
        if ok:
            for answer in answers:
                answer()
        elif answers:
            if not self._syncs:
                self._later("barrier", BARRIER_PAUSE, self._ask_barrier)
            self._syncs += answers

    # ---- snapshots ----

    def _next_distance(self) -> int:
        """As ``SyncRequestProcessor``: members do not all save at once."""
        half = max(self._service.settings.snapshot_transactions // 2, 1)
        return half + self._chance.randrange(half)

    def _begin_walk(self) -> None:
        assert self._quorum is not None
        self._until_snapshot = self._next_distance()
        sink = self._quorum.snapshot_begin(self._agreed.index)
        pieces = walk(self._agreed)
        self._walk = sink, pieces, self.machine.last_zxid, self._service.clock.monotonic_ms()
        self._walk_on()

    def _walk_on(self) -> None:
        """Writes one slice."""
        if self._walk is None:
            return
        sink, pieces, zxid, began_ms = self._walk
        piece = next(pieces, None)
        try:
            if piece is not None:
                keeps_up = sink.write(piece)
                self._later("walk", WALK_PAUSE if keeps_up else WALK_PAUSE_FULL, self._walk_on)
                return
            sink.finish()
        except QuorumFullError as error:
            self._end_walk()
            self._not_saved(str(error))
            return
        self._saving, self._walk = (zxid, began_ms), None

    def _end_walk(self) -> None:
        self._cancel("walk")
        if self._walk is not None:
            sink, pieces, _zxid, _began_ms = self._walk
            self._walk = None
            pieces.close()
            sink.abort()

    def _snapshot_told(self, _index: int, error: str | None) -> None:
        if self._saving is None:
            return
        (zxid, began_ms), self._saving = self._saving, None
        self._service.metrics.add("snapshottime", self._service.clock.monotonic_ms() - began_ms)
        if error is None:
            self._saved = zxid, int(self._service.clock.wall_ms() / 1000)
        else:
            self._not_saved(error)

    def _not_saved(self, error: str) -> None:
        self._service.metrics.count("snapshot_error_count")
        _logger.error("no snapshot was taken in %s: %s; the log keeps everything", self._directory, error)

    def _install(self, source: SnapshotSource, my_next: int) -> None:
        """Begins anew with a snapshot; what happens meanwhile waits."""
        self._end_walk()
        self._saving = None
        if self._quorum is not None:
            asyncio.get_running_loop().remove_reader(self._quorum.wake_fd)
        self._installing = asyncio.get_running_loop().create_task(self._installed(source, my_next))

    async def _installed(self, source: SnapshotSource, my_next: int) -> None:
        began_ms = self._service.clock.monotonic_ms()
        try:
            agreed = await asyncio.get_running_loop().run_in_executor(None, _read_all, source)
            if agreed.index != source.index:
                raise JuteError(f"it is of entry {agreed.index}")
        except Exception as error:
            self._installing = None
            if not self._failed:
                text = f"the snapshot of entry {source.index} in {self._directory} cannot be read: {error}"
                self._service.fail(CoordinatorError(text))
            return
        self._installing = None
        if self._failed or self._quorum is None:
            return
        self._agreed = agreed
        self._until_snapshot = self._next_distance()
        self._saved = self.machine.last_zxid, int(self._service.clock.wall_ms() / 1000)
        self._service.metrics.add("dbinittime", self._service.clock.monotonic_ms() - began_ms)
        self._service.metrics.count("snap_count")
        while self._waiting and self._waiting[0][0] < my_next:
            self._waiting.popleft()
        # What their watches have missed is not known; who waits for a command that is in it does not get to know of it.
        self._service.abort_all()
        self._quorum.applied(agreed.index)
        asyncio.get_running_loop().add_reader(self._quorum.wake_fd, self._wake)
        self._wake()

    async def take_snapshot(self) -> tuple[int, Path]:
        """Of this server's state, in the format of a server by itself."""
        if not self.is_open:
            raise CoordinatorError(f"the coordinator on {self._directory} does not run")
        state = self.machine.export()
        began_ms = self._service.clock.monotonic_ms()

        def save() -> Path:
            self._exports.mkdir(parents=True, exist_ok=True)
            return write_snapshot(self._exports, state)

        path = await asyncio.get_running_loop().run_in_executor(None, save)
        self._service.metrics.add("snapshottime", self._service.clock.monotonic_ms() - began_ms)
        return state.last_zxid, path

    async def restore(self, data: bytes) -> int:
        raise CoordinatorError(
            "an ensemble's state is not replaced while it runs: stop all servers, and start a new ensemble from a snapshot"
        )

    # ---- the quorum's words ----

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
    "snapshot": EnsembleReplication._snapshot_told,
    "warning": EnsembleReplication._warning,
    "failed": EnsembleReplication._quorum_failed,
}
"""What is done with each kind of event; others are of a newer quorum, and nothing to this server."""


def _read_all(source: SnapshotSource) -> Agreed:
    data = bytearray()
    while part := source.read(_READ_BYTES):
        data += part
    return read(bytes(data))


def _size(directory: Path) -> int:
    """Bytes of the files in a directory, some of which may be gone meanwhile."""
    total = 0
    for path in directory.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
