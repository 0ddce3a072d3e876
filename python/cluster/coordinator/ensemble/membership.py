"""Changes of an ensemble's members, as the member sees them that carries them out (``reconfig``).

Owns the connection whose change is under way here, and the configuration in the server's files
(:mod:`.files`). What a change means for the state is :mod:`.agreed`'s. Runs on the event loop; a crash leaves
the change to the next leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..clock import Timers
from ..connection import Connection
from ..errors import Code
from ..protocol.requests import EndReconfig, Op, Reconfig, encode_end_reconfig, encode_reconfig
from ..replication import Service
from ..state.acl import Rules
from ..state.members import split_client, voters_warning
from .agreed import Agreed, Proposed
from .contact import Contact
from .files import ConfigurationFiles
from .outbox import NO_CLIENT, Waiting
from .quorum import Quorum, QuorumError, QuorumStoppedError

SETTLE_SECONDS = 1.0
"""A new leader gives the other servers this time to report before it refuses a change for want of them."""

_logger = logging.getLogger(__name__)


class Membership:
    """``files`` are those that follow the configuration, if any do. ``agreed`` returns the applied state,
    ``propose`` sends a command on its way."""

    def __init__(
        self,
        service: Service,
        server_id: int,
        contact: Contact,
        timers: Timers,
        files: ConfigurationFiles | None,
        agreed: Callable[[], Agreed],
        propose: Callable[[Proposed, Waiting], None],
    ) -> None:
        self._service = service
        self._server_id = server_id
        self._contact = contact
        self._timers = timers
        self._files = files
        self._agreed = agreed
        self._propose = propose
        self._quorum: Quorum | None = None
        self.requester: Connection | None = None
        """The connection that asked for the change that is under way, if it is one of this server's."""
        self.has_changed = False
        """Whether the files and the operator do not know the present members yet."""

    def open(self, quorum: Quorum) -> None:
        """Begins to change the members of the quorum."""
        self._quorum = quorum

    async def wait_for_files(self) -> None:
        """Returns once no file is being written."""
        if self._files is not None:
            await self._files.wait()

    def leading(self, term: int) -> None:
        """This member leads, and has applied every entry of earlier terms."""
        self.change(waits=True)
        if self._files is not None and not self._agreed().version:
            # As in ZooKeeper, the first configuration has a version. A change that changes nothing gives it
            # one.
            same = Reconfig(None, None, None, -1)
            rules = self._service.settings.rules | Rules.SKIP_ACL
            self._propose(
                Proposed(0, 0, term, Op.RECONFIG, rules, (), same, encode_reconfig(same)), NO_CLIENT
            )

    def begun(self, connection: Connection | None) -> None:
        """A change has begun; ``connection`` asked for it, if it is one of this server's."""
        is_here = connection is not None and self._service.holder(connection.session_id) is connection
        self.requester = connection if is_here else None
        self.change()

    def ended(self) -> Connection | None:
        """The change has ended. Returns the connection that asked for it."""
        requester, self.requester = self.requester, None
        return requester

    def change(self, waits: bool = False) -> None:
        """At the leader: makes the change that is under way, or refuses it.

        With ``waits`` it looks again after a while if too few servers are there: they may not have reported
        yet.
        """
        asked, term, quorum = self._agreed().reconfiguration, self._contact.leads_in, self._quorum
        if asked is None or not term or quorum is None:
            return
        code = Code.NO_AUTH
        try:
            if not quorum.has_quorum(asked.members):
                if waits:
                    self._timers.later("reconfigure", SETTLE_SECONDS, self.change)
                    return
                code = Code.NEW_CONFIG_NO_QUORUM
            elif asked.is_allowed:
                quorum.change_members(term, asked.members)
                return
        except QuorumStoppedError:
            raise
        except (QuorumError, ValueError) as error:
            _logger.warning("the change of the ensemble's members is refused: %s", error)
            code = Code.BAD_ARGUMENTS
        end = EndReconfig(asked.zxid, code)
        self._propose(
            Proposed(0, 0, term, Op.END_RECONFIG, Rules.NONE, (), end, encode_end_reconfig(end)), NO_CLIENT
        )

    def follow(self) -> None:
        """If the members have changed: warns of an unwise number, updates the files, and listens at the
        configured address."""
        # Before there is a majority the applied members may be those of long ago.
        if not self.has_changed or not self._contact.has_majority:
            return
        self.has_changed = False
        agreed = self._agreed()
        voters = sum(not member.observer for member in agreed.members)
        if agreed.version and (warning := voters_warning(voters)) is not None:
            _logger.warning("%s", warning)
        if self._files is not None:
            self._files.follow(agreed.members, agreed.version)
            own = next((each for each in agreed.members if each.server_id == self._server_id), None)
            if own is not None and own.client:
                self._service.listen_at(*split_client(own.client))
