"""The interface between the server and what makes its writes durable and agreed on.

Owns the two protocols. A :class:`Replication` keeps the state: it orders writes, makes them durable, applies
them, and ends sessions. A :class:`Service` (:class:`.server.CoordinatorServer`) keeps the clients: the
replication tells it what was applied, in order. There are two replications:
:class:`.durability.local.LocalReplication` of a standalone server, and
:class:`.ensemble.replication.EnsembleReplication` of a member of an ensemble. Every call is made on the event
loop.
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
    """What a member knows of its ensemble.

    ``leader`` is its id and host. ``membership`` is the text in ``conf``, ``state`` that of
    ``getDetailedPeerState``. ``proposals`` are the sizes of a leader's proposals, None at other members.
    """

    server_id: int
    leader: tuple[int, str] | None
    members: tuple[Member, ...]
    observers: int
    membership: str
    state: str
    proposals: Sizes | None

    @property
    def own(self) -> Member | None:
        """This server, if it is listed."""
        return next((member for member in self.members if member.server_id == self.server_id), None)


class Service(Protocol):
    """What a replication asks of its server."""

    settings: Settings
    clock: Clock
    metrics: ServerMetrics

    def applied(self, command: Command, outcome: Outcome, connection: Connection | None) -> None:
        """A command has taken effect: sends its watch events, then answers ``connection``, which sent it."""

    def turn_over(self, connections: Iterable[Connection | None]) -> None:
        """Nothing more is applied in this turn of the loop: handles what these connections sent behind
        their writes, and sends."""

    def established(self, connection: Connection, session: Session) -> None:
        """The session is the connection's."""

    def refused(self, connection: Connection) -> None:
        """Answers that the session which the connection asked for is over, and closes the connection."""

    def from_the_future(self, connection: Connection, zxid: int) -> None:
        """Closes the connection of a client that has seen a newer state than there is."""

    def release(self, session_id: int) -> None:
        """Closes the connection that has the session here, if any."""

    def holder(self, session_id: int) -> Connection | None:
        """Returns the connection that has the session here."""

    def everybody(self) -> list[Connection]:
        """Returns all connections."""

    def is_watched(self) -> bool:
        """Whether any client here has a watch."""

    def abort_all(self) -> None:
        """Closes every connection, without sending queued output."""

    def listen_at(self, host: str, port: int) -> None:
        """Moves the port for clients without TLS. Open connections stay."""

    def fail(self, error: BaseException) -> None:
        """Ends the service, because the state cannot be changed any more."""


class Replication(SessionGate, Protocol):
    """What the server asks of its state."""

    @property
    def machine(self) -> Machine:
        """The applied state."""

    @property
    def mode(self) -> str:
        """``Mode`` of ``srvr``: standalone, leader, follower, observer or read-only."""

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted, at least for four-letter words."""

    @property
    def is_serving(self) -> bool:
        """Whether clients' requests are served."""

    @property
    def is_reading_only(self) -> bool:
        """Whether only reads are served, to clients that accept a read-only server."""

    @property
    def is_leading(self) -> bool:
        """Whether this server deletes expired containers and nodes with a TTL."""

    async def start(self) -> None:
        """Recovers the state. Raises CoordinatorError."""

    async def stop(self) -> None:
        """Stops, after the connections are closed. What was answered stays. Safe to repeat."""

    def fail(self) -> None:
        """Stops to propose and to apply."""

    def connect(self, connection: Connection, request: ConnectRequest, timeout_ms: int) -> None:
        """Creates or finds the session of a handshake, and reports it to the service."""

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone."""

    def propose(
        self,
        session_id: int,
        op: Op,
        identities: tuple[Id, ...],
        request: Write,
        body: bytes,
        connection: Connection | None = None,
    ) -> None:
        """Proposes a write. The service's ``applied`` is called when it has taken effect."""

    def expire_sessions(self) -> None:
        """Ends the sessions whose time is over. Called by a timer, and by tests with a clock of their own."""

    def deadlines(self) -> list[tuple[int, set[int]]]:
        """Returns the deadlines that this server knows, by the monotonic clock, and their sessions."""

    async def take_snapshot(self) -> tuple[int, Path]:
        """Saves the applied state in a file. Returns its zxid and the file. Raises OSError."""

    async def restore(self, data: bytes) -> int:
        """Replaces the whole state by a snapshot, ends every connection, and returns the new zxid.

        Raises JuteError or ValueError if the data is not a snapshot, OSError if it fails; nothing is changed
        then.
        """

    def data_bytes(self) -> tuple[int, int]:
        """Returns the bytes of snapshots and of logs on disk."""

    def last_snapshot(self) -> tuple[int, int] | None:
        """Returns the zxid of the newest snapshot, and its time in seconds since 1970."""

    def configuration(self) -> Mapping[str, object]:
        """Returns what ``conf`` shows of an ensemble."""

    def ensemble(self) -> Ensemble | None:
        """Returns what this server knows of its ensemble; None if it is standalone."""

    def gauges(self) -> Mapping[str, int]:
        """Returns what ``mntr`` shows of an ensemble."""
