"""The way of agreed entries into a member's state, and of their outcomes to its clients.

Owns the applied state. Every member applies the same entries in the same order. Each member answers the
commands that it proposed itself, once it has applied them. Runs on the event loop; a snapshot is read in a
thread. A crash loses nothing: the next start installs the newest snapshot and applies the log behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..connection import Connection
from ..durability import collector
from ..errors import Code, JuteError
from ..keeper import SessionKeeper
from ..protocol.replies import Begun, Failed
from ..protocol.requests import Op
from ..replication import Service
from ..state.members import Member
from .agreed import Agreed, Applied, decode_proposed
from .membership import Membership
from .outbox import NO_CLIENT, Outbox, Waiting
from .quorum import Entry, SnapshotSource
from .sessions import MemberSessions
from .snapshot import read

_READ_BYTES = 1 << 20
_MOVED = Failed(Code.SESSION_MOVED)


class Applier:
    """Applies entries. ``agreed`` is the state after the last one."""

    def __init__(self, service: Service, outbox: Outbox[Waiting], keeper: SessionKeeper) -> None:
        self._service = service
        self._outbox = outbox
        self._keeper = keeper
        self.agreed = Agreed()
        self._concerned: dict[Connection, None] = {}

    def connect(self, sessions: MemberSessions, membership: Membership) -> None:
        """Sets the parts that get the changes of sessions and of members."""
        self._sessions = sessions
        self._membership = membership

    def entries(self, entries: Sequence[Entry]) -> None:
        """Applies the next entries, and passes their outcomes on."""
        agreed = self.agreed
        for index, term, time_ms, commands, members in entries:
            agreed.begin(index, term, time_ms)
            for mine, ticket, data in commands:
                waiting = self._outbox.claim(ticket) if mine else NO_CLIENT
                connection, _asked_ms, _request, proposed = waiting
                if connection is not None:
                    connection.catch_up()
                self._pass_on(agreed.apply_proposed(proposed or decode_proposed(data)), waiting)
            if members is not None:
                before = agreed.members
                changed = agreed.apply_members([Member(*each) for each in members])
                if changed is not None:
                    self._pass_on(changed, NO_CLIENT)
                self._membership.has_changed |= agreed.members != before

    def install(self, agreed: Agreed) -> None:
        """Replaces the state by a snapshot's.

        The clients' connections end: which watches would have fired is not known.
        """
        self.agreed = agreed
        self._membership.ended()
        self._membership.has_changed = True
        self._service.abort_all()

    def concern(self, connection: Connection) -> None:
        """The connection may have something to send, or more to read, at the end of this turn."""
        self._concerned[connection] = None

    def take_concerned(self) -> dict[Connection, None]:
        """Returns the connections of :meth:`concern`, once."""
        concerned, self._concerned = self._concerned, {}
        return concerned

    def _pass_on(self, applied: Applied, waiting: Waiting) -> None:
        """Passes a command's outcome to everything that it concerns."""
        command, outcome, attachment, ends_reconfig = applied
        service, connection = self._service, waiting.connection
        if ends_reconfig:
            connection = self._membership.ended()
        if connection is not None:
            self.concern(connection)
        session = outcome.opened_session
        if isinstance(outcome.result, Begun):
            self._membership.begun(connection)
        elif session is not None:
            self._keeper.track(session)
            if command.op is Op.ATTACH:
                service.release(session.id)
            if connection is not None and waiting.request is not None:
                self._sessions.found(connection, session, attachment, waiting)
        elif waiting.request is not None and connection is not None:
            service.refused(connection)
        elif connection is not None and outcome.result == _MOVED:
            connection.close()  # as in ZooKeeper: the client has another connection
        else:
            service.applied(command, outcome, connection)
            if outcome.closed_session:
                self._keeper.forget(outcome.closed_session)


def read_snapshot(source: SnapshotSource) -> Agreed:
    """Returns the state of a snapshot. Blocks. Raises OSError, JuteError, ValueError."""
    data = bytearray()
    while part := source.read(_READ_BYTES):
        data += part
    with collector.spared():
        agreed = read(bytes(data))
        collector.keep(len(agreed.machine.tree))
    if agreed.index != source.index:
        raise JuteError(f"it is of entry {agreed.index}")
    return agreed
