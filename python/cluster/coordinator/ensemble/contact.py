"""A member's role in its ensemble, and whether it serves clients.

Owns the role, the contact to a majority, and the begin of read-only service; the quorum reports both. Without
a majority for ``syncLimit`` ticks a member closes its clients. With ``readonlymode.enabled`` it serves reads
some time later, if it has a state. After a start it has none before there was a majority, because it does not
know which entries of its log were agreed on. The deadlines of sessions are kept while the member leads and
has contact; each time they begin with a full timeout. Runs on the event loop; a crash begins without contact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ..clock import Timers
from ..keeper import SessionKeeper
from ..replication import Service
from ..state.sessions import Session

READ_ONLY_MS_MIN = 2000
"""Read-only service begins at the earliest this long after the normal service ended, and one tick
(``QuorumPeer``)."""

_logger = logging.getLogger(__name__)


class Contact:
    """``disconnect_after_ms`` is the time for which clients stay connected without a majority.

    ``sessions`` returns those of the applied state, and ``has_state`` whether there is one.
    """

    def __init__(
        self,
        service: Service,
        timers: Timers,
        keeper: SessionKeeper,
        sessions: Callable[[], Iterable[Session]],
        has_state: Callable[[], bool],
        disconnect_after_ms: int,
    ) -> None:
        self._service = service
        self._timers = timers
        self._keeper = keeper
        self._sessions = sessions
        self._has_state = has_state
        self._disconnect_after_ms = disconnect_after_ms
        self.role = "looking"
        self.term = self.leader = 0
        self.has_majority = False
        self.leads_in = 0
        """The term in which this member leads and may end sessions, or 0."""
        self.led_since_ms = 0
        self.is_serving = self.is_reading_only = False
        self._heard_of: dict[int, int] = {}
        self._looking_since_ms = self._lost_at_ms = service.clock.monotonic_ms()
        """The times since when there is no leader, and no majority; at first those of the start."""
        self._following_since_ms = 0
        self._is_in_step = self._has_warned = False
        self._since_wall_ms = 0
        """The time since when there is this leader, by the wall clock."""

    def begin(self) -> None:
        """Begins without contact."""
        settings = self._service.settings
        if settings.read_only_mode:
            wait_ms = max(READ_ONLY_MS_MIN, settings.tick_time_ms)
            self._timers.later("read-only", wait_ms / 1000, self._read_only)

    def end(self) -> None:
        """Ends the service. Safe to repeat."""
        self.is_serving = self.is_reading_only = False
        self._keeper.stop()

    def took_role(self, role: str, term: int, leader: int, has_majority: bool) -> None:
        """The quorum's event ``role``."""
        if (role, term, leader) != (self.role, self.term, self.leader):
            _logger.info("%s in term %d, the leader is server %d", role, term, leader)
            self._count_election(role, term)
            self._following_since_ms = self._service.clock.monotonic_ms()
            self._is_in_step = False
            self._since_wall_ms = self._service.clock.wall_ms()
        self.role, self.term, self.leader = role, term, leader
        if role != "leader" or term != self.leads_in:
            self.leads_in = 0
            self._keeper.stop()
        if has_majority and not self._is_in_step:
            self._is_in_step = True
            if role in ("follower", "observer"):
                taken_ms = self._service.clock.monotonic_ms() - self._following_since_ms
                self._service.metrics.add(f"{role}_sync_time", taken_ms)
        if has_majority == self.has_majority:
            return
        self.has_majority = has_majority
        now = self._service.clock.monotonic_ms()
        if has_majority:
            self._service.metrics.add("unavailable_time", now - self._lost_at_ms)
            if role == "leader":
                self._service.metrics.add("leader_unavailable_time", now - self._lost_at_ms)
            self._serve()
        else:
            self._lost_at_ms = now
            self._keeper.stop()
            self._timers.later("contact", self._disconnect_after_ms / 1000, self._close)

    def latency_ms(self, time_ms: int, at_ms: int) -> int | None:
        """Returns the time since a command was proposed, by the clocks of two machines.

        None for a command of an earlier leader, which a member that was away gets late, and if the clocks
        differ too much, as in ZooKeeper.
        """
        return at_ms - time_ms if self._since_wall_ms <= time_ms <= at_ms and self.leader else None

    def _count_election(self, role: str, term: int) -> None:
        """An election is over once there is a leader in a new term. Observers take no part in it."""
        metrics, now = self._service.metrics, self._service.clock.monotonic_ms()
        if role == "looking":
            metrics.count("looking_count")
            if self.role != "looking":
                self._looking_since_ms = now
        elif role in ("leader", "follower") and (self.role == "looking" or term != self.term):
            metrics.add("election_time", now - self._looking_since_ms if self.role == "looking" else 0)

    def leading(self, term: int) -> None:
        """The quorum's event ``leading``: this member leads, and has applied every entry of earlier terms."""
        if term < self.term:
            return
        self.leads_in = term
        self.led_since_ms = self._service.clock.monotonic_ms()
        self._heard_of.clear()
        if self.has_majority:
            self._keeper.start(self._sessions())

    def heard_of(self, server_id: int) -> None:
        """At the leader: another member has reported."""
        self._heard_of[server_id] = self._service.clock.monotonic_ms()

    def in_step(self) -> set[int]:
        """Returns the members that have reported lately."""
        now = self._service.clock.monotonic_ms()
        return {number for number, at in self._heard_of.items() if now - at < self._disconnect_after_ms}

    def _serve(self) -> None:
        self._timers.cancel("contact")
        self._timers.cancel("read-only")
        if self.is_reading_only:
            self._service.abort_all()
        self.is_reading_only = False
        self.is_serving = True
        if self.leads_in:
            # Without contact it got no reports, so every session has a full timeout.
            self._keeper.start(self._sessions())

    def _close(self) -> None:
        """There was no majority for so long that clients should look for another server."""
        if self.is_serving:
            _logger.warning(
                "no contact to a majority of the ensemble for %d ms: clients are disconnected until there "
                "is; check that the other servers run and can be reached",
                self._disconnect_after_ms,
            )
        self.is_serving = False
        self._service.abort_all()
        self.begin()

    def _read_only(self) -> None:
        if self.is_serving:
            return
        if self._has_state():
            _logger.warning(
                "serving only reads, to clients that accept a read-only server: there is no majority"
            )
            self.is_reading_only = True
            return
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "no reads are served, either: without a majority since its start this server does not know "
                "which entries of its log were agreed on; check that the other servers run and can be "
                "reached"
            )
        self.begin()
