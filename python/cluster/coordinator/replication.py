"""The seam between the server and what makes its writes durable and agreed on.

Owns the two protocols and nothing else. A :class:`Replication` keeps the state: it puts writes in order, makes them durable,
applies them, and decides when sessions are over. A :class:`Service` (:class:`.server.CoordinatorServer`) keeps the clients: it
is told what was applied, in order. There are two replications: :mod:`.local` of a server by itself, :mod:`.ensemble` of a
member of an ensemble. Everything is called on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from .clock import Clock
from .connection import Connection, SessionGate
from .metrics import ServerMetrics, Sizes
from .protocol.jute import Id
from .protocol.requests import ConnectRequest, Op, Write
from .settings.server import Settings
from .state.machine import Command, Machine, Outcome
from .state.members import Member
from .state.sessions import Session


class Ensemble(NamedTuple):
    """What a member knows of its ensemble. ``leader``: its id and its host, or None. ``membership``: of ``conf``. ``state``: as
    ``getDetailedPeerState`` tells it. ``proposals``: the sizes of a leader's."""

    server_id: int
    leader: tuple[int, str] | None
    members: tuple[Member, ...]
    observers: int
    membership: str
    state: str
    proposals: Sizes | None

    @property
    def own(self) -> Member | None:
        """This server's line, if it is listed."""
        return next((member for member in self.members if member.server_id == self.server_id), None)


class Service(Protocol):
    """What a replication asks of the server that it belongs to."""

    settings: Settings
    clock: Clock
    metrics: ServerMetrics

    def applied(self, command: Command, outcome: Outcome, connection: Connection | None) -> None:
        """A command took effect: watchers are told, then ``connection``, which sent it, is answered."""

    def turn_over(self, connections: Iterable[Connection | None]) -> None:
        """No more is applied in this turn of the loop: these go on with what they sent behind their writes, and everything
        queued is sent."""

    def established(self, connection: Connection, session: Session) -> None:
        """The connection has the session."""

    def refused(self, connection: Connection) -> None:
        """The session that the connection asked for is over: it is told so, and closed."""

    def from_the_future(self, connection: Connection, zxid: int) -> None:
        """The connection's client has seen a state that is newer than the newest there is: it is closed."""

    def release(self, session_id: int) -> None:
        """Whoever has the session here loses it: its connection is closed."""

    def holder(self, session_id: int) -> Connection | None:
        """Who has the session here."""

    def everybody(self) -> list[Connection]:
        """All connections."""

    def is_watched(self) -> bool:
        """Whether any client here has a watch."""

    def abort_all(self) -> None:
        """Every connection is closed, with nothing more sent."""

    def listen_at(self, host: str, port: int) -> None:
        """Clients without TLS are served there from here on; those that are there stay."""

    def fail(self, error: BaseException) -> None:
        """The state can change no more: the service ends."""


class Replication(SessionGate, Protocol):
    """What the server asks of the state that it serves."""

    @property
    def machine(self) -> Machine:
        """The applied state."""

    @property
    def mode(self) -> str:
        """``Mode`` of ``srvr``: standalone, leader, follower, observer or read-only."""

    @property
    def is_open(self) -> bool:
        """Whether connections are taken, if only to be asked with four-letter words."""

    @property
    def is_serving(self) -> bool:
        """Whether clients' requests are taken."""

    @property
    def is_reading_only(self) -> bool:
        """Whether clients that said they may be served without writes are, and no others."""

    @property
    def is_leading(self) -> bool:
        """Whether it is for this server to end what has lapsed."""

    async def start(self) -> None:
        """Recovers. Raises CoordinatorError."""

    async def stop(self) -> None:
        """Ends; what was answered stays. The connections are closed before. Safe to repeat."""

    def fail(self) -> None:
        """Nothing is proposed or applied any more."""

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        """A handshake: begins a session or finds one again, then tells the service which."""

    def disconnected(self, connection: Connection) -> None:
        """A connection is gone."""

    def propose(
        self,
        session_id: int,
        op: Op,
        identities: tuple[Id, ...],
        request: Write,
        body: bytes,
        connection: Connection | None = None,
    ) -> None:
        """Sends a write on its way. The service is told when it took effect."""

    def expire_sessions(self) -> None:
        """Ends the sessions whose time is over by the clock; a timer calls it, and tests that bring a clock."""

    def deadlines(self) -> list[tuple[int, set[int]]]:
        """Which sessions would end when, by the monotonic clock, as far as this server knows."""

    async def take_snapshot(self) -> tuple[int, Path]:
        """Saves the applied state in a file, and returns its zxid and the file. Raises OSError."""

    async def restore(self, data: bytes) -> int:
        """Puts a snapshot in the place of everything there is, ends every connection, and returns the zxid that the restored
        state has. Raises JuteError or ValueError for what is no snapshot, OSError when it cannot be done; then nothing is
        changed."""

    def data_bytes(self) -> tuple[int, int]:
        """Bytes of snapshots and of logs on disk."""

    def last_snapshot(self) -> tuple[int, int] | None:
        """The newest one's zxid, and its time in seconds of the epoch."""

    def configuration(self) -> Mapping[str, object]:
        """What ``conf`` tells of an ensemble."""

    def ensemble(self) -> Ensemble | None:
        """What this server knows of its ensemble; None by itself."""

    def gauges(self) -> Mapping[str, int]:
        """What ``mntr`` tells of an ensemble."""
