"""Reads the transactions of an ensemble of ours, or of a standalone server, from its log while it runs.

The log has commands, so each is applied to a fresh state machine. In ``rust/crates/quorum/src``,
``raft/entry.rs`` has the entries' layout, and ``delivery.rs`` says which commands count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import logcore
from cluster.coordinator.ensemble.agreed import Agreed
from cluster.coordinator.protocol.replies import Created, Done, Event, Failed, MultiDone, Result
from cluster.coordinator.protocol.requests import EPHEMERAL, SEQUENTIAL, Create, Delete, Multi, SetData, Write
from cluster.coordinator.state.machine import Command, Machine, Outcome, decode_command
from tests.coordinator.histories.history import CREATED, DATA_CHANGED, DELETED, OK, Change, Transaction

NO_XID = -1
"""A command in our log does not have the xid of its request."""
_FRONT = struct.Struct(">BBQQ")
_COMMANDS = struct.Struct(">qI")
_COMMAND = struct.Struct(">QQI")
_KIND_COMMANDS = 1
_SEQUENCE_BITS = 40


def read_transactions(directories: list[Path], leader: int) -> list[Transaction]:
    """Takes the members' data directories and the index of the leader's."""
    directory = directories[leader]
    return _of_ensemble(directory) if (directory / "quorum").is_dir() else _of_one(directory)


def _of_one(directory: Path) -> list[Transaction]:
    machine = Machine()
    found = []
    for path in sorted(directory.glob("log.*")):
        with logcore.open(path, readonly=True) as log:
            for record in log.records():
                command = decode_command(record.value or b"")
                assert command.zxid == machine.last_zxid + 1, "the front of the log was deleted"
                found.append(_transaction(command, machine.apply(command)))
    return found


def _of_ensemble(directory: Path) -> list[Transaction]:
    agreed = Agreed()
    last_tickets: dict[int, int] = {}
    found: list[Transaction] = []
    with logcore.open(directory / "quorum" / "log", readonly=True) as log:
        for record in log.records():
            assert record.value is not None
            _version, kind, term, index = _FRONT.unpack_from(record.value)
            assert index == record.offset == agreed.index + 1, "the front of the log was deleted"
            body = record.value[_FRONT.size :]
            time_ms = _COMMANDS.unpack_from(body)[0] if kind == _KIND_COMMANDS else 0
            agreed.begin(index, term, time_ms)
            if kind == _KIND_COMMANDS:
                for member, ticket, command in _commands(body):
                    if _counts(last_tickets, member, ticket):
                        applied = agreed.apply(command)
                        found.append(_transaction(applied.command, applied.outcome))
    return found


def _commands(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    _time_ms, count = _COMMANDS.unpack_from(body)
    at = _COMMANDS.size
    for _ in range(count):
        member, ticket, length = _COMMAND.unpack_from(body, at)
        at += _COMMAND.size
        yield member, ticket, body[at : at + length]
        at += length


def _counts(last_tickets: dict[int, int], member: int, ticket: int) -> bool:
    last = last_tickets.get(member)
    begins = ticket & ((1 << _SEQUENCE_BITS) - 1) == 0
    if last is None:
        counts = begins
    elif ticket >> _SEQUENCE_BITS == last >> _SEQUENCE_BITS:
        counts = ticket == last + 1
    else:
        counts = ticket > last and begins
    if counts:
        last_tickets[member] = ticket
    return counts


def _transaction(command: Command, outcome: Outcome) -> Transaction:
    error = int(outcome.result.code) if isinstance(outcome.result, Failed) else OK
    if outcome.closed_session:
        gone = (change.path for change in outcome.changes if change.event is Event.DELETED)
        changes = [Change(DELETED, path) for path in gone]
    elif isinstance(command.request, Multi) and isinstance(outcome.result, MultiDone):
        each = zip(command.request.operations, outcome.result.results, strict=True)
        changes = [
            change for request, result in each for change in _changes(request, result, command.session_id)
        ]
    else:
        changes = list(_changes(command.request, outcome.result, command.session_id))
    return Transaction(
        command.zxid, command.session_id, NO_XID, tuple(changes), bool(outcome.closed_session), error
    )


def _changes(request: Write, result: Result, session_id: int) -> Iterator[Change]:
    match request, result:
        case Create(), Created():
            owner = session_id if request.flags in (EPHEMERAL, EPHEMERAL | SEQUENTIAL) else 0
            yield Change(CREATED, result.path, request.data or b"", owner)
        case SetData(path=str(path)), Done():
            yield Change(DATA_CHANGED, path, request.data or b"")
        case Delete(path=str(path)), Done():
            yield Change(DELETED, path)
