"""What a member is in its ensemble, and whether it serves clients: by what the quorum tells.

Owns the role, the contact to a majority, and when read-only service begins. A server that has been without a majority for
``syncLimit`` ticks closes its clients; with ``readonlymode.enabled`` it serves reads some time after that, if it has a state: what a
start finds in the log and does not know to be agreed on is applied once a majority is there. The deadlines of sessions are kept
while it leads and has contact, from anew each time. Runs on the event loop; a crash begins without contact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ..clock import Timers
from ..keeper import SessionKeeper
from ..replication import Service
from ..state.sessions import Session

READ_ONLY_MS_MIN = 2000
"""Read-only service begins no earlier than this, and a tick, after the other ended (``QuorumPeer``)."""

_logger = logging.getLogger(__name__)


class Contact:
    """``patience_ms``: how long clients are kept without a majority. ``sessions`` are those of the applied state, if ``has_state``
    says that there is one."""

    def __init__(
        self,
        service: Service,
        timers: Timers,
        keeper: SessionKeeper,
        sessions: Callable[[], Iterable[Session]],
        has_state: Callable[[], bool],
        patience_ms: int,
    ) -> None:
        self._service = service
        self._timers = timers
        self._keeper = keeper
        self._sessions = sessions
        self._has_state = has_state
        self._patience_ms = patience_ms
        self.role = "looking"
        self.term = self.leader = 0
        self.has_majority = False
        self.leads_in = 0
        """The term in which this member leads and may end sessions, or 0."""
        self.led_since_ms = 0
        self.is_serving = self.is_reading_only = False
        self._heard_of: dict[int, int] = {}
        self._looking_since_ms = self._lost_at_ms = service.clock.monotonic_ms()
        """Since when there was no leader, and no majority; at first since it began."""
        self._following_since_ms = 0
        self._is_in_step = self._is_empty_told = False
        self._since_wall_ms = 0
        """Since when there is this leader, by the wall clock."""

    def begin(self) -> None:
        """There is no contact yet."""
        settings = self._service.settings
        if settings.read_only_mode:
            wait_ms = max(READ_ONLY_MS_MIN, settings.tick_time_ms)
            self._timers.later("read-only", wait_ms / 1000, self._read_only)

    def end(self) -> None:
        """Nobody is served any more. Safe to repeat."""
        self.is_serving = self.is_reading_only = False
        self._keeper.stop()

    def took_role(self, role: str, term: int, leader: int, has_majority: bool) -> None:
        """The quorum's event."""
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
            self._timers.later("contact", self._patience_ms / 1000, self._close)

    def latency_ms(self, time_ms: int, at_ms: int) -> int | None:
        """From the time of what was proposed under this leader until then, by the clocks of two machines; None of what is older,
        which comes late to whoever was away, and where the clocks differ too much, as in ZooKeeper."""
        return at_ms - time_ms if self._since_wall_ms <= time_ms <= at_ms and self.leader else None

    def _count_election(self, role: str, term: int) -> None:
        """An election is over where somebody leads in a new term; whoever does not vote takes no part in it."""
        metrics, now = self._service.metrics, self._service.clock.monotonic_ms()
        if role == "looking":
            metrics.count("looking_count")
            if self.role != "looking":
                self._looking_since_ms = now
        elif role in ("leader", "follower") and (self.role == "looking" or term != self.term):
            metrics.add("election_time", now - self._looking_since_ms if self.role == "looking" else 0)

    def leading(self, term: int) -> None:
        """The quorum's event: this member leads, and has applied everything of before."""
        if term < self.term:
            return
        self.leads_in = term
        self.led_since_ms = self._service.clock.monotonic_ms()
        self._heard_of.clear()
        if self.has_majority:
            self._keeper.start(self._sessions())

    def heard_of(self, server_id: int) -> None:
        """The leader heard of another member."""
        self._heard_of[server_id] = self._service.clock.monotonic_ms()

    def in_step(self) -> set[int]:
        """The members that the leader heard of lately."""
        now = self._service.clock.monotonic_ms()
        return {number for number, at in self._heard_of.items() if now - at < self._patience_ms}

    def _serve(self) -> None:
        self._timers.cancel("contact")
        self._timers.cancel("read-only")
        if self.is_reading_only:
            self._service.abort_all()
        self.is_reading_only = False
        self.is_serving = True
        if self.leads_in:
            # While it had no contact it heard of nobody: every session has a full timeout anew.
            self._keeper.start(self._sessions())

    def _close(self) -> None:
        """Without a majority for so long that clients had better look for another server."""
        if self.is_serving:
            _logger.warning(
                "no contact to a majority of the ensemble for %d ms: clients are closed until there is; look whether the "
                "other servers run and are reached",
                self._patience_ms,
            )
        self.is_serving = False
        self._service.abort_all()
        self.begin()

    def _read_only(self) -> None:
        if self.is_serving:
            return
        if self._has_state():
            _logger.warning("serving reads only, to clients that said they may be: there is no majority")
            self.is_reading_only = True
            return
        if not self._is_empty_told:
            self._is_empty_told = True
            _logger.warning(
                "no reads are served, either: there was no majority since this server was started, and what of its log was "
                "agreed on is not known without; look whether the other servers run and are reached"
            )
        self.begin()
