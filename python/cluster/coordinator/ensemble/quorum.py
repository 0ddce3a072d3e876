"""What a member of an ensemble is given by the consensus of :mod:`logcore`: one log that all of them agree on.

Owns the types of that seam: tests bring an ensemble of their own. Its calls are thread-safe and return at once, unless they
say otherwise. The file behind it, and the ways to the other members, are the quorum's; what a command means is not.
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
    """Where a snapshot is written to."""

    def write(self, data: bytes) -> bool:
        """False: it was taken, and the disk is slower than this; come back in some milliseconds. Once the disk has failed, of which
        the event ``snapshot`` tells, what comes is dropped. Raises QuorumFullError."""

    def finish(self) -> None:
        """All is written: the event ``snapshot`` tells when it is on disk, or why it is not."""

    def abort(self) -> None:
        """It comes to nothing."""


class SnapshotSource(Protocol):
    """A snapshot to begin with: of the state after the entry ``index``."""

    index: int
    term: int

    def read(self, max: int) -> bytes:
        """The next bytes, at most so many; none at the end. Blocks."""


MemberTuple = tuple[int, str, int, int, str, bool]
"""A :class:`.members.Member`'s fields."""
Entry = tuple[int, int, int, Sequence[tuple[bool, int, bytes]], Sequence[MemberTuple] | None]
"""Index, term and time in milliseconds (0 when it has none) of an agreed entry. Of each command whether this member proposed it
since it started, its ticket and its bytes. Who the members are from here on, if that changes."""
Flush = tuple[int, Sequence[tuple[int, int, int, int]]]
"""What it took the disk, in milliseconds. Of each entry that was written how many commands it has, and in milliseconds since 1970 its
time, when it came to this member's log, and when it was on disk."""
Event = tuple[object, ...]
"""Its kind, then:

===================  =========================================================================================================
``entries``          list of :data:`Entry`: every one, once, without a hole
``install``          :class:`SnapshotSource` to begin anew with, and the ticket of the first command of this member that is not in it
``role``             :data:`Role`, term, the leader's server id or 0, whether there is contact to a majority
``leading``          term: this member leads in it, and every entry of earlier terms was delivered before
``renewed``          at the leader: a server id, and the packed session ids that it heard from
``renewal_ack``      round: the leader had it, and a majority acknowledged the leader after it came
``barrier``          number, and whether every write that was agreed on before it was asked for was delivered by now
``snapshot``         index, and why it is not on disk or None
``flushed``          list of :data:`Flush`: since the last time; beside another event
``warning``          text for the operator
``failed``           text; nothing follows
===================  =========================================================================================================
"""


class Quorum(Protocol):
    """One member of an ensemble's log. :class:`QuorumStoppedError` may come of everything but ``take`` and ``stop``."""

    @property
    def wake_fd(self) -> int:
        """Readable while :meth:`take` may have something."""

    def start(self) -> None:
        """Begins; blocks for as long as it takes to bind its ports."""

    def propose(self, commands: Sequence[bytes]) -> int:
        """Sends commands on their way; each counts once. Their tickets are consecutive, the first is returned. Raises
        QuorumFullError: none of them is taken."""

    def take(self, max_bytes: int) -> list[Event]:
        """What happened, in order."""

    def set_wake_interval(self, milliseconds: int) -> None:
        """From here on nobody is woken more often than this for what other members propose; every millisecond at first."""

    def applied(self, index: int) -> None:
        """Every entry up to this one is applied."""

    def read_barrier(self) -> int:
        """The number of an event ``barrier`` to come."""

    def renew_sessions(self, sessions: bytes) -> int:
        """Tells the leader which sessions were heard from, packed as big-endian longs; returns the round's number."""

    def has_quorum(self, servers: Sequence[MemberTuple]) -> bool:
        """At the leader: whether a majority of those that would vote could at once."""

    def change_members(self, term: int, servers: Sequence[MemberTuple]) -> None:
        """Has this member, if it leads in this term, make these the members; an :data:`Entry` says when they are."""

    def status(self) -> dict[str, object]:
        """Role, term, leader, members and how far they are."""

    def snapshot_begin(self, index: int) -> SnapshotSink:
        """A snapshot of the state after this entry, the last that was applied."""

    @property
    def awaits_state(self) -> bool:
        """Whether the ensemble is to begin with a state that this member was promised."""

    def first_state(self) -> SnapshotSink:
        """That state, after the entry :data:`FIRST_STATE`; the ensemble begins with it when it is finished and a majority of the
        servers is there that has nothing. A crash before that leaves nothing of it."""

    def stop(self) -> None:
        """Ends, and hands leadership over. Blocks."""
