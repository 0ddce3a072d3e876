"""What a member shows of itself and its ensemble in four-letter words, commands and metrics.

Reads the member's parts on the event loop. Names are those of ``QuorumZooKeeperServer``,
``LeaderZooKeeperServer`` and ``QuorumPeer``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..clock import Clock
from ..metrics import Sizes
from ..replication import Ensemble
from ..state.members import Member
from .agreed import Agreed
from .barriers import Barriers
from .contact import Contact

ELECTION_ALGORITHM = 3
"""The only one that ZooKeeper still has."""
_STATES = {"leader": "leading", "follower": "following", "observer": "observing"}


class EnsembleView:
    """``agreed`` returns the applied state.

    Limits are in ticks. ``proposals`` are the sizes of what was agreed on while it led.
    """

    def __init__(
        self,
        server_id: int,
        limits: Mapping[str, int],
        contact: Contact,
        barriers: Barriers,
        clock: Clock,
        agreed: Callable[[], Agreed],
        proposals: Sizes,
    ) -> None:
        self._server_id = server_id
        self._limits = limits
        self._contact = contact
        self._barriers = barriers
        self._clock = clock
        self._agreed = agreed
        self._proposals = proposals

    @property
    def _members(self) -> tuple[Member, ...]:
        return self._agreed().members

    @property
    def _own(self) -> Member | None:
        return next((member for member in self._members if member.server_id == self._server_id), None)

    @property
    def mode(self) -> str:
        """``Mode`` of ``srvr``. Without a leader it is the role in the member's line."""
        if self._contact.is_reading_only:
            return "read-only"
        if self._contact.role != "looking":
            return self._contact.role
        own = self._own
        return "observer" if own is not None and own.observer else "follower"

    def configuration(self) -> Mapping[str, object]:
        """Returns what ``conf`` has besides the fields of a standalone server."""
        own = self._own
        if own is None:
            return {}
        return {
            **self._limits,
            "electionAlg": ELECTION_ALGORITHM,
            "electionPort": own.election_port,
            "quorumPort": own.quorum_port,
            "peerType": int(own.observer),
        }

    def gauges(self) -> Mapping[str, int]:
        """Returns the gauges of ``mntr``. A member that has reported lately is in step."""
        members, contact = self._members, self._contact
        found = {"quorum_size": sum(not member.observer for member in members)}
        if contact.leads_in:
            in_step = contact.in_step()
            listed = {member.server_id for member in members}
            observers = {member.server_id for member in members if member.observer}
            found |= {
                "learners": len(in_step),
                "synced_followers": len((in_step & listed) - observers),
                "synced_non_voting_followers": len(in_step - listed),
                "synced_observers": len(in_step & observers),
                "pending_syncs": len(self._barriers),
                "leader_uptime": self._clock.monotonic_ms() - contact.led_since_ms,
                "last_proposal_size": self._proposals.last,
                "max_proposal_size": self._proposals.most,
                "min_proposal_size": self._proposals.least,
            }
        elif contact.role == "observer":
            found["observer_master_id"] = contact.leader
        return found

    def ensemble(self) -> Ensemble:
        """Returns the data of the commands ``leader``, ``voting_view`` and ``zabstate``, and of ``dump``."""
        members, contact = self._members, self._contact
        leader = next((member for member in members if member.server_id == contact.leader), None)
        state = _STATES.get(contact.role)
        return Ensemble(
            self._server_id,
            (leader.server_id, leader.host) if leader is not None else None,
            members,
            self.gauges().get("synced_observers", 0),
            self._agreed().configuration.decode(),
            f"{state} - broadcast" if state and contact.has_majority else "looking",
            self._proposals if contact.leads_in else None,
        )
