"""The interface between a member of an ensemble and the consensus of :mod:`logcore`: a log on which all
members agree.

Owns the types of that interface; tests implement it, too. Calls are thread-safe, and return at once unless
they say otherwise. The quorum owns the log's files and the connections to the other members. It does not know
what a command means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from logcore.quorum import FIRST_STATE as FIRST_STATE
from logcore.quorum import QuorumError as QuorumError
from logcore.quorum import QuorumFullError as QuorumFullError
from logcore.quorum import QuorumStoppedError as QuorumStoppedError

Role = Literal["leader", "follower", "observer", "looking"]


class SnapshotSink(Protocol):
    """Takes a snapshot that is being written."""

    def write(self, data: bytes) -> bool:
        """Takes data. Returns False if the disk is slower: the next call should come some milliseconds later.

        After the disk has failed, which the event ``snapshot`` reports, data is dropped. Raises
        QuorumFullError.
        """

    def finish(self) -> None:
        """All data is written. The event ``snapshot`` reports when it is on disk, or why it is not."""

    def abort(self) -> None:
        """Drops the snapshot."""


class SnapshotSource(Protocol):
    """A snapshot of the state after the entry ``index``."""

    index: int
    term: int

    def read(self, max: int) -> bytes:
        """Returns the next bytes, at most so many; none at the end. Blocks."""


MemberTuple = tuple[int, str, int, int, str, bool]
"""The fields of a :class:`cluster.coordinator.state.members.Member`."""
Entry = tuple[int, int, int, Sequence[tuple[bool, int, bytes]], Sequence[MemberTuple] | None]
"""An agreed entry: its index, its term, its time in milliseconds (0 if it has none), its commands, and the
new members if it changes them. A command has: whether this member proposed it since its start, its ticket,
and its bytes."""
Flush = tuple[int, Sequence[tuple[int, int, int, int]]]
"""The milliseconds that a write took, and its entries. An entry has: the number of its commands, and three
times in milliseconds since 1970: its own, that of its arrival in this member's log, and that at which it was
on disk."""
Event = tuple[object, ...]
"""Its kind, then:

===============  =============================================================================================
``entries``      list of :data:`Entry`: every entry once, in order
``install``      :class:`SnapshotSource` that replaces the state; ticket of the first own command not in it
``role``         :data:`Role`; term; the leader's server id or 0; whether there is contact to a majority
``leading``      term: this member leads in it, and every entry of earlier terms was delivered
``renewed``      at the leader: a server id, and the packed ids of the sessions that it heard from
``renewal_ack``  number of a report: the leader got it, and after that a majority acknowledged the leader
``barrier``      number; whether every write that was agreed on before the request is delivered
``snapshot``     index; None if it is on disk, else why it is not
``flushed``      list of :data:`Flush` since the last time; it comes with another event
``warning``      text for the operator
``failed``       text; no event follows
===============  =============================================================================================
"""


class Quorum(Protocol):
    """One member's side of the log.

    All calls except ``take`` and ``stop`` may raise :class:`QuorumStoppedError`.
    """

    @property
    def wake_fd(self) -> int:
        """A descriptor that is readable while :meth:`take` may return events."""

    def start(self) -> None:
        """Starts. Blocks until its ports are bound."""

    def propose(self, commands: Sequence[bytes]) -> int:
        """Proposes commands, each of which takes effect once. Returns the first of their consecutive tickets.

        Raises QuorumFullError, and takes none of them then.
        """

    def take(self, max_bytes: int) -> list[Event]:
        """Returns the next events, in order."""

    def set_wake_interval(self, milliseconds: int) -> None:
        """Sets the least time between two wake-ups for commands of other members.

        At first it is a millisecond.
        """

    def applied(self, index: int) -> None:
        """Every entry up to this one is applied."""

    def read_barrier(self) -> int:
        """Requests a barrier. Returns the number that its event will have."""

    def renew_sessions(self, sessions: bytes) -> int:
        """Reports to the leader which sessions were heard from: big-endian longs.

        Returns the report's number.
        """

    def has_quorum(self, servers: Sequence[MemberTuple]) -> bool:
        """At the leader: whether a majority of the voters among these servers could vote now."""

    def change_members(self, term: int, servers: Sequence[MemberTuple]) -> None:
        """Makes these the members, if this member leads in this term.

        An :data:`Entry` reports when they are.
        """

    def status(self) -> dict[str, object]:
        """Returns role, term, leader, members, and their progress."""

    def snapshot_begin(self, index: int) -> SnapshotSink:
        """Begins a snapshot of the state after this entry, the last applied one."""

    @property
    def awaits_state(self) -> bool:
        """Whether the ensemble is to begin with a state that this member has."""

    def first_state(self) -> SnapshotSink:
        """Takes that state, which counts as the one after the entry :data:`FIRST_STATE`.

        The ensemble begins with it once it is finished, and a majority of the servers is there without data.
        A crash before that leaves nothing of it.
        """

    def stop(self) -> None:
        """Hands leadership over, and stops. Blocks."""
