"""The state that the members of an ensemble agree on: the machine, and what each command needs to be applied
to it.

Owns zxids, times, session ids and attachment numbers. They are assigned when the entries of the log are
applied, so every member assigns the same ones. Pure and deterministic. Called on the event loop; a crash
loses nothing that the log has.

* A zxid is ``epoch << 32 | counter``. The epoch grows with the term, and when the counter is used up. Each
  command takes a zxid, even a refused one, and so does a change of the members. The first entry of a term
  takes none.
* A command's time is its entry's, but never before the last one's. So the times of znodes never go back,
  whatever clocks do.
* An attachment number tells which connection of a session is the newest: it grows with each reconnect. A
  write with an older number is refused (SESSION_MOVED), on whichever server it comes.
* A command of the leader's own takes effect only in the leader's term, and only for the attachment that it
  names.
* A change of the members (``reconfig``) begins with its command, if its texts are valid. There is one at a
  time. It ends with the entry that makes the members those that it asked for, or with the leader's refusal.

A command as it is proposed (jute's types)::

    short version, 2    short rules    short operation    long session id    long attachment
    long term: 0, or the term of the leader whose own command it is
    vector<Id> identities, then the request's own body

For CREATE_SESSION the session id is the id of the server on which it is created. ATTACH (-12) moves a session
to a connection; its body is that of CREATE_SESSION. END_RECONFIG (-13) is a leader's refusal; its body is
``long zxid, int error``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import Code, JuteError, ZooKeeperError
from ..protocol.jute import Id, Reader, encode_identities
from ..protocol.replies import Begun, Done, Failed, Reconfigured
from ..protocol.requests import CreateSession, EndReconfig, Op, Reconfig, SetData, Write, decode_write, op_of
from ..state.acl import WRITE, Rules, Subject, rules_of
from ..state.machine import Command, Machine, Outcome, refusal
from ..state.members import Member, configuration_text, members_text
from ..state.sessions import Session, first_session_id
from ..state.tree import CONFIG
from .reconfiguration import reconfigured

VERSION = 2
_VERSION = struct.pack(">h", VERSION)
_HEAD = struct.Struct(">hhqqq")
_COUNTER_MAX = 0xFFFF_FFFF
_EPOCH_MAX = (1 << 31) - 1
_UNPROVEN = Outcome(Failed(Code.SESSION_EXPIRED), [])
_MOVED = Outcome(Failed(Code.SESSION_MOVED), [])

# A member of an enum takes ten times as long to look up, and each command needs some of them.
_CREATE_SESSION, _ATTACH = Op.CREATE_SESSION, Op.ATTACH


class Proposed(NamedTuple):
    """A command that has no zxid yet. ``attachment`` is its connection's number. ``term`` is 0, or that of
    the leader whose own command it is."""

    session_id: int
    attachment: int
    term: int
    op: Op
    rules: Rules
    identities: tuple[Id, ...]
    request: Write
    body: bytes

    def encode(self) -> bytes:
        head = _HEAD.pack(self.rules, self.op, self.session_id, self.attachment, self.term)
        return _VERSION + head + encode_identities(self.identities) + self.body


def decode_proposed(data: bytes) -> Proposed:
    """Decodes a command. Raises JuteError, also for another version."""
    reader = Reader(data)
    version = reader.i16()
    if version != VERSION:
        raise JuteError(
            f"a command's version is {version}, this program knows {VERSION}; run the same on all members"
        )
    rules, number, session_id, attachment, term = _HEAD.unpack(reader.take(_HEAD.size))
    identities = reader.identities()
    body = reader.peek_rest()
    op = op_of(number)
    request = decode_write(_CREATE_SESSION if op is _ATTACH else op, reader)
    return Proposed(session_id, attachment, term, op, rules_of(rules), identities, request, body)


class Applied(NamedTuple):
    """A command with its zxid, and its outcome. ``attachment`` is the new number of a created or attached
    session. ``ends_reconfig``: it is the answer to the client that asked for a change of the members."""

    command: Command
    outcome: Outcome
    attachment: int = 0
    ends_reconfig: bool = False


class Reconfiguration(NamedTuple):
    """A change of the members that has begun with the command ``zxid``.

    ``is_allowed``: its client has the permission.
    """

    zxid: int
    members: tuple[Member, ...]
    is_allowed: bool


class Agreed:
    """The state after the entry ``index``.

    ``last_ids`` has the last session id of each server, by the id's first byte.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        self.index = -1
        self.term = self.epoch = self.counter = 0
        self.time_ms = 0
        self.attachments: dict[int, int] = {}
        self.last_ids: dict[int, int] = {}
        self.members: tuple[Member, ...] = ()
        self.version = 0
        self.reconfiguration: Reconfiguration | None = None

    @property
    def configuration(self) -> bytes:
        """The data of ``/zookeeper/config``."""
        return configuration_text(members_text(self.members), self.version) if self.members else b""

    def begin_with_state(self, index: int, time_ms: int, members: Sequence[Member]) -> None:
        """Makes the machine's state that after the entry ``index`` of a new ensemble.

        The members' configuration, with version 0, is one transaction more. The attachment number of each
        session is 1.
        """
        machine = self.machine
        self.index, self.time_ms, self.members = index, time_ms, tuple(sorted(members))
        self.epoch, self.counter = machine.last_zxid >> 32, machine.last_zxid & _COUNTER_MAX
        self.attachments = {session.id: 1 for session in machine.sessions.all()}
        for given in (machine.sessions.last_id, *self.attachments):
            self.last_ids[given >> 56] = max(given, self.last_ids.get(given >> 56, given))
        machine.last_zxid = self._next_zxid()
        machine.tree.put_configuration(self.configuration, 0, machine.last_zxid, time_ms)

    def begin(self, index: int, term: int, time_ms: int) -> None:
        """Begins the next entry. ``time_ms`` is 0 if it has none."""
        assert index == self.index + 1, f"entry {index} comes after {self.index}"
        assert term >= self.term, f"entry {index} is of term {term}, the one before of {self.term}"
        self.index = index
        self.time_ms = max(self.time_ms, time_ms)
        if term > self.term:
            self.term = term
            self._begin_epoch(max(term, self.epoch + 1))

    def apply(self, data: bytes) -> Applied:
        """Applies the next command of the entry.

        Raises JuteError if another member runs a different version.
        """
        return self.apply_proposed(decode_proposed(data))

    def apply_proposed(self, proposed: Proposed) -> Applied:
        """As :meth:`apply`, for a decoded command."""
        session_id, attachment, term, op, rules, identities, request, body = proposed
        zxid = self._next_zxid()
        if op is _CREATE_SESSION:
            session_id = self._new_session_id(session_id)
        command = Command(zxid, self.time_ms, session_id, op, rules, identities, request, body)
        machine, attachments = self.machine, self.attachments
        if op is _ATTACH and isinstance(request, CreateSession):
            machine.last_zxid = zxid
            return self._attach(command, request)
        if op is _CREATE_SESSION:
            attachments[session_id] = 1
            return Applied(command, machine.apply(command), 1)
        current = attachments.get(session_id)
        is_void = session_id != 0 and current is not None and attachment != current
        if is_void or term not in (0, self.term):
            machine.last_zxid = zxid
            return Applied(command, _MOVED)
        if isinstance(request, EndReconfig):
            machine.last_zxid = zxid
            return self._end_reconfig(command, request)
        if isinstance(request, Reconfig) and (session_id == 0 or session_id in machine.sessions):
            machine.last_zxid = zxid
            return self._begin_reconfig(command, request)
        outcome = machine.apply(command)
        if outcome.closed_session:
            del attachments[outcome.closed_session]
        return Applied(command, outcome)

    def apply_members(self, members: Sequence[Member]) -> Applied | None:
        """Sets the members from this entry on.

        Returns None if they are the same, or the first ones, which have no zxid.
        """
        machine, asked = self.machine, self.reconfiguration
        members = tuple(sorted(members))
        if members_text(members) == members_text(self.members):
            return None
        is_first = not self.members
        self.members = members
        if is_first:
            machine.tree.put_configuration(self.configuration, 0, 0, self.time_ms)
            return None
        zxid = self._next_zxid()
        machine.last_zxid = zxid
        is_asked = asked is not None and members_text(asked.members) == members_text(members)
        self.version = zxid
        request = SetData(CONFIG, self.configuration, -1)
        command = Command(zxid, self.time_ms, 0, Op.RECONFIG, Rules.NONE, (), request, b"")
        applied = self._reconfigured(command)
        if is_asked:
            self.reconfiguration = None
        return applied._replace(ends_reconfig=is_asked)

    def _begin_reconfig(self, command: Command, request: Reconfig) -> Applied:
        """Checks in ZooKeeper's order. The leader makes the checks that only it can."""
        try:
            if self.reconfiguration is not None:
                raise ZooKeeperError(Code.RECONFIG_IN_PROGRESS)
            if request.version not in (-1, self.version):
                raise ZooKeeperError(Code.BAD_VERSION)
            members = reconfigured(self.members, request, command.rules)
        except Exception as error:
            return Applied(command, refusal(error))
        acl = self.machine.tree.node(CONFIG).state.acl
        is_allowed = Subject(command.identities, command.rules).may(WRITE, acl)
        if members_text(members) != members_text(self.members):
            self.reconfiguration = Reconfiguration(command.zxid, members, is_allowed)
            return Applied(command, Outcome(Begun(), []))
        if not is_allowed:
            return Applied(command, Outcome(Failed(Code.NO_AUTH), []))
        self.version = command.zxid
        return self._reconfigured(command)

    def _end_reconfig(self, command: Command, request: EndReconfig) -> Applied:
        """Refuses the change, if it has not ended before."""
        asked = self.reconfiguration
        if asked is None or asked.zxid != request.zxid:
            return Applied(command, _MOVED)
        self.reconfiguration = None
        return Applied(command, Outcome(Failed(request.code), []), ends_reconfig=True)

    def _reconfigured(self, command: Command) -> Applied:
        """Writes the configuration of this version into the tree."""
        data, tree = self.configuration, self.machine.tree
        change = tree.put_configuration(data, -1, command.zxid, self.time_ms)
        return Applied(command, Outcome(Reconfigured(data, tree.node(CONFIG).stat()), [change]))

    def _attach(self, command: Command, request: CreateSession) -> Applied:
        sessions = self.machine.sessions
        if not sessions.proves(command.session_id, request.password):
            return Applied(command, _UNPROVEN)
        session = Session(command.session_id, request.timeout_ms, request.password)
        sessions.open(session)
        attachment = self.attachments[session.id] = self.attachments[session.id] + 1
        return Applied(command, Outcome(Done(Op.ATTACH), [], opened_session=session), attachment)

    def _new_session_id(self, server_id: int) -> int:
        first = first_session_id(self.time_ms, server_id)
        found = max(first, self.last_ids.get(first >> 56, 0)) + 1
        self.last_ids[first >> 56] = found
        return found

    def _next_zxid(self) -> int:
        if self.counter == _COUNTER_MAX:
            self._begin_epoch(self.epoch + 1)
        self.counter += 1
        return self.epoch << 32 | self.counter

    def _begin_epoch(self, epoch: int) -> None:
        assert epoch <= _EPOCH_MAX, "there are no more zxids"
        self.epoch, self.counter = epoch, 0
        self.machine.last_zxid = epoch << 32
