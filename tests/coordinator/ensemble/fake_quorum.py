"""A perfect replicated log in one process, which keeps the promises of
:mod:`cluster.coordinator.ensemble.quorum`.

A seed decides everything that the promises leave open: delays, elections, members without contact, commands
that are resent and count once, snapshots, and members that start from one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.coordinator.ensemble.quorum import Event, QuorumFullError, QuorumStoppedError

Command = tuple[int, int, bytes]  # member, ticket, bytes
MemberTuple = tuple[int, str, int, int, str, bool]
SEQUENCE_BITS = 40


@dataclass
class LogEntry:
    index: int
    term: int
    time_ms: int
    commands: list[Command]
    members: list[MemberTuple] | None = None
    at: float = 0.0


@dataclass
class Delays:
    """Ranges of seconds, from which each delay is drawn."""

    proposal: tuple[float, float] = (0.0005, 0.004)
    delivery: tuple[float, float] = (0.0005, 0.006)
    election: tuple[float, float] = (0.2, 0.6)
    detection: float = 0.3


class FakeEnsemble:
    """The log and its leader. All methods run on one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ids: Sequence[int],
        chance: random.Random,
        now_ms: Callable[[], int],
        delays: Delays | None = None,
        observers: Sequence[int] = (),
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.now_ms = now_ms
        self.delays = delays or Delays()
        self.members: list[MemberTuple] = [
            (number, "127.0.0.1", 2000 + number, 3000 + number, "", number in observers)
            for number in sorted([*ids, *observers])
        ]
        self.candidates = list(self.members)
        """All servers, whether they are members now or not."""
        self.voters = set(ids)
        self.observers = set(observers)
        self.changes = 0
        """Changes of the members that were requested."""
        self.log: list[LogEntry] = []
        self.term = 0
        self.leader = 0
        self.running: dict[int, FakeQuorum] = {}
        self.cut: set[int] = set()
        self.counted: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.saved: dict[int, tuple[int, bytes, dict[int, int]]] = {}
        self.first_kept = 0
        self.live_installs = self.walks = 0
        self.electing = False

    def draw(self, between: tuple[float, float]) -> float:
        return self.chance.uniform(*between)

    def later(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        self.loop.call_later(seconds, call, *arguments)

    def run(self, call: Callable[[], None]) -> None:
        """Runs the call on the loop and waits for it, from any thread."""
        try:
            on_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            call()
            return

        async def once() -> None:
            call()

        asyncio.run_coroutine_threadsafe(once(), self.loop).result(20)

    # ---- members and elections ----

    def connected(self) -> set[int]:
        return {number for number in self.running if number not in self.cut}

    def has_majority(self) -> bool:
        return len(self.connected() & self.voters) * 2 > len(self.voters)

    def changed(self) -> None:
        """Reacts to a change of the connected members: drops a lost leader, elects one, updates roles."""
        is_out = self.leader not in self.connected() & self.voters
        if self.leader and (is_out or not self.has_majority()):
            self.leader = 0
        if not self.leader and self.has_majority() and not self.electing:
            self.electing = True
            self.later(self.draw(self.delays.election), self.elect)
        self.update_roles()

    def elect(self) -> None:
        self.electing = False
        candidates = sorted(self.connected() & self.voters)
        if self.leader or not self.has_majority():
            return
        self.term += self.chance.choice((1, 1, 2))
        self.leader = self.chance.choice(candidates)
        if not self.log:
            self.append([], list(self.members), term=0)
        self.append([])
        self.update_roles()
        for number in self.connected():
            self.running[number].resend()

    def depose(self) -> None:
        """Starts another election although the leader is connected."""
        if self.leader:
            self.leader = 0
            self.changed()

    def become(self, members: list[MemberTuple]) -> None:
        """Replaces the members."""
        self.members = sorted(members)
        self.observers = {member[0] for member in members if member[5]}
        self.voters = {member[0] for member in members} - self.observers
        self.append([], list(self.members))
        self.changed()

    def update_roles(self) -> None:
        for number, quorum in self.running.items():
            quorum.role_changed(self.leader if number not in self.cut else 0)

    # ---- the log ----

    def append(
        self, commands: list[Command], members: list[MemberTuple] | None = None, term: int | None = None
    ) -> None:
        counts = []
        for member, ticket, data in commands:
            last = self.counted.get(member)
            is_first_of_start = (last is None or ticket >> SEQUENCE_BITS > last >> SEQUENCE_BITS) and (
                ticket & ((1 << SEQUENCE_BITS) - 1)
            ) == 0
            if is_first_of_start or (last is not None and ticket == last + 1):
                self.counted[member] = ticket
                counts.append((member, ticket, data))
        time_ms = self.now_ms() + self.chance.randint(-50, 50) if commands else 0
        self.log.append(
            LogEntry(
                len(self.log), self.term if term is None else term, time_ms, counts, members, self.loop.time()
            )
        )
        for quorum in self.running.values():
            quorum.advance()


def index_of(saved: tuple[int, bytes, dict[int, int]]) -> int:
    return saved[0]


@dataclass
class Source:
    index: int
    term: int
    data: bytes
    position: int = 0

    def read(self, max: int) -> bytes:
        part = self.data[self.position : self.position + max]
        self.position += len(part)
        return part


@dataclass
class Sink:
    quorum: FakeQuorum
    index: int
    counted: dict[int, int]
    data: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes) -> bool:
        self.data += data
        return self.quorum.ensemble.chance.random() > 0.1

    def finish(self) -> None:
        ensemble = self.quorum.ensemble
        ensemble.later(ensemble.draw((0, 0.02)), self._saved)

    def _saved(self) -> None:
        ensemble, quorum = self.quorum.ensemble, self.quorum
        if quorum.stopped:
            return
        ensemble.saved[quorum.number] = (self.index, bytes(self.data), self.counted)
        ensemble.first_kept = max(ensemble.first_kept, self.index + 1 - ensemble.chance.randint(0, 30))
        quorum.put(("snapshot", self.index, None))

    def abort(self) -> None:
        self.data.clear()


class FakeQuorum:
    """One member. ``wiped``: it has lost its disk, and may need another member's snapshot."""

    awaits_state = False

    def __init__(
        self, ensemble: FakeEnsemble, number: int, outstanding_max: int = 1000, wiped: bool = False
    ) -> None:
        self.ensemble = ensemble
        self.number = number
        self.outstanding_max = outstanding_max
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopped = False
        self.events: deque[Event] = deque()
        self.delivered = 0  # entries that were put into self.events
        self.due = 0  # entries that may be delivered
        self.role: tuple[str, int, int, bool] | None = None
        self.led_in = 0
        self.start_number = ensemble.starts[number] = ensemble.starts.get(number, 0) + 1
        self.sequence = 0
        self.outstanding: deque[tuple[int, bytes]] = deque()
        self.rounds = 0
        self.wake_interval_ms = 1
        self.barriers = 0
        self.applied_index = -1
        self.fail_text: str | None = None
        others = [saved[0] for member, saved in ensemble.saved.items() if member != number]
        if wiped and others:
            ensemble.saved.pop(number, None)
            # A member with a disk keeps its log from its own snapshot on.
            ensemble.first_kept = min(ensemble.first_kept, max(others) + 1)

    # ---- called by the driver ----

    def start(self) -> None:
        self.ensemble.run(self.begin)

    def stop(self) -> None:
        self.ensemble.run(self.end)

    def begin(self) -> None:
        ensemble = self.ensemble
        saved = ensemble.saved.get(self.number)
        if ensemble.saved and (saved is None or saved[0] + 1 < ensemble.first_kept):
            saved = max(ensemble.saved.values(), key=index_of)
        if saved is not None:
            self.install(*saved)
        ensemble.running[self.number] = self
        self.advance()
        ensemble.changed()

    def end(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.ensemble.running.pop(self.number, None)
            self.events.clear()
            os.close(self.wake_fd)
            self.ensemble.changed()

    def propose(self, commands: Sequence[bytes]) -> int:
        self.require_running()
        if self.outstanding and len(self.outstanding) + len(commands) > self.outstanding_max:
            raise QuorumFullError(f"{len(self.outstanding)} commands wait")
        first = self.start_number << SEQUENCE_BITS | self.sequence
        for number, data in enumerate(commands):
            self.outstanding.append((first + number, bytes(data)))
        self.sequence += len(commands)
        self.send()
        return first

    def take(self, max_bytes: int) -> list[Event]:
        if self.stopped:
            return []
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return []
        taken = []
        for _ in range(self.ensemble.chance.randint(1, 20)):
            if not self.events:
                break
            taken.append(self.events.popleft())
        if self.events:
            os.eventfd_write(self.wake_fd, 1)
        return taken

    def set_wake_interval(self, milliseconds: int) -> None:
        self.require_running()
        self.wake_interval_ms = milliseconds

    def applied(self, index: int) -> None:
        assert self.applied_index <= index < self.delivered
        self.applied_index = index

    def read_barrier(self) -> int:
        self.require_running()
        self.barriers += 1
        delay = self.ensemble.draw(self.ensemble.delays.proposal) * 2
        self.ensemble.later(delay, self.barred, self.barriers)
        return self.barriers

    def renew_sessions(self, sessions: bytes) -> int:
        self.require_running()
        self.rounds += 1
        delay = self.ensemble.draw(self.ensemble.delays.proposal)
        self.ensemble.later(delay, self.renewal_arrives, self.rounds, sessions, self.ensemble.term)
        return self.rounds

    def has_quorum(self, servers: Sequence[MemberTuple]) -> bool:
        self.require_running()
        voters = {server[0] for server in servers if not server[5]}
        leads = self.ensemble.leader == self.number and self.in_contact
        return leads and 2 * len(self.ensemble.connected() & voters) > len(voters)

    def change_members(self, term: int, servers: Sequence[MemberTuple]) -> None:
        self.require_running()
        delay = self.ensemble.draw(self.ensemble.delays.proposal) * 4
        self.ensemble.later(delay, self.members_change, term, [tuple(server) for server in servers])

    def members_change(self, term: int, servers: list[MemberTuple]) -> None:
        """Changes the members if this member still leads; otherwise the next leader must do it."""
        ensemble = self.ensemble
        ensemble.changes += 1
        if self.in_contact and ensemble.leader == self.number and ensemble.term == term:
            ensemble.become(servers)

    def status(self) -> dict[str, object]:
        return {"in_step": sorted(self.ensemble.connected())}

    def snapshot_begin(self, index: int) -> Sink:
        assert index == self.applied_index
        counted: dict[int, int] = {}
        for entry in self.ensemble.log[: index + 1]:
            for member, ticket, _data in entry.commands:
                counted[member] = ticket
        return Sink(self, index, counted)

    def first_state(self) -> Sink:
        raise AssertionError("this ensemble begins without data")

    def require_running(self) -> None:
        if self.stopped or self.fail_text is not None:
            raise QuorumStoppedError(self.fail_text or "it has stopped")

    # ---- events ----

    @property
    def in_contact(self) -> bool:
        return (
            not self.stopped
            and self.number not in self.ensemble.cut
            and self.ensemble.leader != 0
            and self.ensemble.has_majority()
        )

    def put(self, *events: Event) -> None:
        if not self.stopped:
            self.events.extend(events)
            os.eventfd_write(self.wake_fd, 1)

    def fail(self, text: str) -> None:
        self.put(("failed", text))
        self.fail_text = text

    def send(self) -> None:
        """Sends all outstanding commands, also those sent before; each counts once."""
        if self.in_contact and self.outstanding:
            delay = self.ensemble.draw(self.ensemble.delays.proposal)
            self.ensemble.later(delay, self.arrives, list(self.outstanding), self.ensemble.term)

    def arrives(self, commands: list[tuple[int, bytes]], term: int) -> None:
        if self.in_contact and term == self.ensemble.term:
            self.ensemble.append([(self.number, ticket, data) for ticket, data in commands])

    def resend(self) -> None:
        self.send()

    def advance(self) -> None:
        """Schedules the delivery of the log's new entries, after a delay of this member's own."""
        if self.in_contact and self.due < len(self.ensemble.log):
            self.ensemble.later(
                self.ensemble.draw(self.ensemble.delays.delivery), self.deliver, len(self.ensemble.log)
            )

    def deliver(self, until: int) -> None:
        if self.stopped or self.number in self.ensemble.cut:
            return
        self.deliver_now(until)
        leads = self.ensemble.leader == self.number
        term = self.ensemble.term
        if leads and self.led_in < term:
            blank = next(entry.index for entry in self.ensemble.log if entry.term == term)
            if self.delivered > blank:
                self.led_in = term
                self.put(("leading", term))

    def deliver_now(self, until: int) -> None:
        if self.delivered < self.ensemble.first_kept:
            self.install(*max(self.ensemble.saved.values(), key=index_of))
            self.ensemble.live_installs += 1
        entries = []
        for entry in self.ensemble.log[self.delivered : until]:
            commands = []
            for member, ticket, data in entry.commands:
                mine = bool(self.outstanding) and (member, ticket) == (self.number, self.outstanding[0][0])
                if mine:
                    self.outstanding.popleft()
                commands.append((mine, ticket, data))
            entries.append((entry.index, entry.term, entry.time_ms, commands, entry.members))
        self.delivered = self.due = max(self.delivered, until)
        while entries:
            some = self.ensemble.chance.randint(1, len(entries))
            self.put(("entries", entries[:some]))
            entries = entries[some:]

    def install(self, index: int, data: bytes, counted: dict[int, int]) -> None:
        assert index >= self.delivered, "the snapshot is older than the member's state"
        last = counted.get(self.number, -1)
        while self.outstanding and self.outstanding[0][0] <= last:
            self.outstanding.popleft()
        my_next = (
            last + 1 if last >> SEQUENCE_BITS == self.start_number else self.start_number << SEQUENCE_BITS
        )
        self.delivered = self.due = index + 1
        self.put(("install", Source(index, self.ensemble.log[index].term, data), my_next))

    def role_changed(self, leader: int) -> None:
        """Schedules the report of the member's role."""
        delay = self.ensemble.delays.detection if not leader else self.ensemble.draw((0.001, 0.02))
        self.ensemble.later(delay, self.report_role)

    def report_role(self) -> None:
        """Delivers all entries agreed on before, then reports the role if it has changed."""
        if self.stopped:
            return
        contact = self.in_contact
        if contact:
            self.deliver(len(self.ensemble.log))
            name = "leader" if self.ensemble.leader == self.number else "follower"
            if self.number in self.ensemble.observers:
                name = "observer"
            role = (name, self.ensemble.term, self.ensemble.leader, True)
            self.send()
        else:
            role = ("looking", self.ensemble.term, 0, False)
        if role != self.role:
            self.role = role
            self.put(("role", *role))

    def renewal_arrives(self, number: int, sessions: bytes, term: int) -> None:
        ensemble = self.ensemble
        if not self.in_contact or ensemble.term != term:
            return
        if ensemble.leader != self.number:
            ensemble.running[ensemble.leader].put(("renewed", self.number, sessions))
        ensemble.later(ensemble.draw(ensemble.delays.proposal), self.renewal_acknowledged, number, term)

    def renewal_acknowledged(self, number: int, term: int) -> None:
        if self.in_contact and self.ensemble.term == term:
            self.put(("renewal_ack", number))

    def barred(self, number: int) -> None:
        if not self.in_contact:
            self.put(("barrier", number, False))
            return
        self.deliver_now(len(self.ensemble.log))
        self.put(("barrier", number, True))
