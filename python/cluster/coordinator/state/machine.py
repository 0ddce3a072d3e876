"""The coordinator's state machine: the tree and the session table, changed by one command after another.

Owns the replicated state, which is what a snapshot has. Pure and deterministic: a :class:`Command` carries
its transaction id, its time and its client's identities. So the same commands in the same order give the same
state, in recovery as in service. A refused command leaves only its transaction id. Called on the event loop,
and by recovery before that runs.

A command in the log (jute's types)::

    long zxid, long time (ms), long session id, short rules, short operation, vector<Id> identities,
    then the request's own body
"""

from __future__ import annotations

import logging
import struct
from typing import NamedTuple

from ..errors import Code, ZooKeeperError
from ..protocol.jute import Id, Reader, encode_identities
from ..protocol.replies import Created, Done, Failed, MultiDone, Result
from ..protocol.requests import (
    Check,
    CloseSession,
    Create,
    CreateSession,
    Delete,
    DeleteContainer,
    EndReconfig,
    Multi,
    Op,
    Reconfig,
    Refuse,
    SetAcl,
    SetData,
    Write,
    decode_write,
    op_of,
)
from .acl import Rules, rules_of
from .sessions import Session, SessionTable
from .tree import Change, Context, Effects, NodeState, Tree

_HEAD = struct.Struct(">qqqhh")

_logger = logging.getLogger(__name__)


class Command(NamedTuple):
    """A write for the log.

    ``body`` has the bytes of ``request``. The session of the server's own commands is 0.
    """

    zxid: int
    time_ms: int
    session_id: int
    op: Op
    rules: Rules
    identities: tuple[Id, ...]
    request: Write
    body: bytes

    def encode(self) -> bytes:
        head = _HEAD.pack(self.zxid, self.time_ms, self.session_id, self.rules, self.op)
        return head + encode_identities(self.identities) + self.body


def decode_command(data: bytes) -> Command:
    """Decodes a log record. Raises JuteError.

    In the oldest records an operation had four bytes. The upper two of a negative one are not rules.
    """
    reader = Reader(data)
    zxid, time_ms, session_id, rules, number = _HEAD.unpack(reader.take(_HEAD.size))
    identities = reader.identities()
    body = reader.peek_rest()
    op = op_of(number)
    request = decode_write(op, reader)
    return Command(zxid, time_ms, session_id, op, rules_of(max(rules, 0)), identities, request, body)


class Outcome(NamedTuple):
    """The outcome of a command: its result, the changes for watches, and the session that it ended or
    began."""

    result: Result
    changes: list[Change]
    closed_session: int = 0
    opened_session: Session | None = None


def refusal(error: Exception) -> Outcome:
    """Returns the outcome of a command that raised an error.

    As in ZooKeeper (``PrepRequestProcessor.pRequest``), a defect refuses the command. The command is in the
    log, and would otherwise end every server at each start.
    """
    if isinstance(error, ZooKeeperError):
        return Outcome(Failed(error.code), [])
    if isinstance(error, MemoryError | RecursionError):
        raise error  # another server, or a later start, would apply the command
    _logger.error("a command is refused because of a defect", exc_info=error)
    return Outcome(Failed(Code.MARSHALLING_ERROR), [])


class State(NamedTuple):
    """The content of a snapshot, independent of the machine."""

    last_zxid: int
    last_session_id: int
    sessions: list[Session]
    nodes: list[tuple[str, NodeState]]


class Machine:
    """The tree and the sessions after the command ``last_zxid``."""

    def __init__(self, state: State | None = None) -> None:
        """An empty machine, or one with a snapshot's state. Raises ValueError if the nodes are not a tree."""
        self.tree = Tree() if state is None else Tree.restore(state.nodes)
        self.sessions = (
            SessionTable() if state is None else SessionTable(state.sessions, state.last_session_id)
        )
        self.last_zxid = 0 if state is None else state.last_zxid

    def export(self) -> State:
        return State(self.last_zxid, self.sessions.last_id, self.sessions.all(), self.tree.export())

    def apply(self, command: Command) -> Outcome:
        """Applies the next command. Its zxid is higher than that of every one before."""
        assert command.zxid > self.last_zxid, "transactions are applied in order, once"
        self.last_zxid = command.zxid
        context = Context(
            command.zxid, command.time_ms, command.session_id, command.identities, command.rules
        )
        request = command.request
        if isinstance(request, CreateSession):
            session = Session(command.session_id, request.timeout_ms, request.password)
            self.sessions.open(session)
            return Outcome(Done(Op.CREATE_SESSION), [], opened_session=session)
        if command.session_id != 0 and command.session_id not in self.sessions:
            return Outcome(Failed(Code.SESSION_EXPIRED), [])
        effects = Effects()
        if isinstance(request, CloseSession):
            self.tree.delete_ephemerals(command.session_id, command.zxid, effects)
            self.sessions.close(command.session_id)
            return Outcome(Done(Op.CLOSE_SESSION), effects.changes, closed_session=command.session_id)
        try:
            if isinstance(request, Multi):
                return Outcome(self._multi(request, context, effects), effects.changes)
            return Outcome(self._one(request, context, effects), effects.changes)
        except Exception as error:
            effects.roll_back()
            return refusal(error)

    def _one(
        self,
        request: Create
        | Delete
        | SetData
        | SetAcl
        | Check
        | DeleteContainer
        | Reconfig
        | EndReconfig
        | Refuse,
        context: Context,
        effects: Effects,
    ) -> Created | Done:
        tree = self.tree
        if isinstance(request, Create):
            path = tree.create(request, context, effects)
            return Created(path, tree.node(path).stat() if request.with_stat else None)
        if isinstance(request, Delete):
            tree.delete(request, context, effects)
            return Done(Op.DELETE)
        if isinstance(request, SetData):
            return Done(Op.SET_DATA, tree.set_data(request, context, effects))
        if isinstance(request, SetAcl):
            return Done(Op.SET_ACL, tree.set_acl(request, context, effects))
        if isinstance(request, Check):
            return Done(Op.CHECK, tree.check(request, context))
        if isinstance(request, DeleteContainer):
            tree.delete_container(request, context, effects, context.session_id != 0)
            return Done(Op.DELETE_CONTAINER)
        raise ZooKeeperError(request.code if isinstance(request, Refuse) else Code.UNIMPLEMENTED)

    def _multi(self, request: Multi, context: Context, effects: Effects) -> MultiDone:
        """Does all operations or none. A MarshallingError in one refuses the whole request."""
        if any(operation.path is None for operation in request.operations):
            raise ZooKeeperError(Code.MARSHALLING_ERROR)
        results: list[Created | Done | Failed] = []
        try:
            for operation in request.operations:
                results.append(self._one(operation, context, effects))
        except ZooKeeperError as error:
            effects.roll_back()
            if error.code is Code.MARSHALLING_ERROR:
                raise
            failed_at, count = len(results), len(request.operations)
            results = [Failed(Code.OK)] * failed_at
            results.append(Failed(error.code))
            results += [Failed(Code.RUNTIME_INCONSISTENCY)] * (count - failed_at - 1)
        return MultiDone(results)
