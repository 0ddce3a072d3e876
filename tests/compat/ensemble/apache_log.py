"""Reads the transactions that an Apache ensemble agreed on from its members' log files, while the members
run.

A transaction is agreed on if a majority has logged it, or if the leader has. A killed member's log may hold a
proposal that no other member accepted; it stays there until the member is back.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.coordinator.protocol.jute import Reader
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.transfer.logs import Logged, read_log
from cluster.coordinator.transfer.transactions import CloseSessionTxn, CreateTxn, DeleteTxn, SetDataTxn
from tests.coordinator.histories.history import CREATED, DATA_CHANGED, DELETED, OK, Change, Transaction

_RECORD_HEAD = 12
_ERROR_BYTES = 4


def read_transactions(directories: list[Path], leader: int) -> list[Transaction]:
    """Takes the members' data directories and the index of the leader's."""
    logs = [_of_member(directory) for directory in directories]
    counts = Counter(zxid for log in logs for zxid in log)
    agreed: dict[int, Transaction] = {}
    for log in logs:
        for zxid, transaction in log.items():
            if counts[zxid] > len(logs) // 2 or zxid in logs[leader]:
                assert agreed.setdefault(zxid, transaction) == transaction, (
                    f"members disagree about 0x{zxid:x}: {agreed[zxid]} and {transaction}"
                )
    return [agreed[zxid] for zxid in sorted(agreed)]


def _of_member(directory: Path) -> dict[int, Transaction]:
    found: dict[int, Transaction] = {}
    with TemporaryDirectory() as copies:
        for path in sorted((directory / "version-2").glob("log.*")):
            # The server may truncate, delete or extend the log meanwhile, so a copy is read.
            with suppress(FileNotFoundError):
                payloads = path.read_bytes()
                copy = Path(copies) / path.name
                copy.write_bytes(payloads)
                for logged in read_log(copy, True, [], lambda *_: None):
                    transaction = _transaction(Reader(payloads, logged.position + _RECORD_HEAD), logged)
                    found[transaction.zxid] = transaction
    return found


def _transaction(record: Reader, logged: Logged) -> Transaction:
    session, xid, zxid, _time, kind = record.i64(), record.i32(), record.i64(), record.i64(), record.i32()
    changes = tuple(_changes(logged.transaction.changes, session))
    return Transaction(zxid, session, xid, changes, kind == Op.CLOSE_SESSION, _error(kind, record))


def _error(kind: int, body: Reader) -> int:
    """The error code of a refused transaction; of a multi, the code of the first part that failed.

    Only a failed part has an error's four bytes as its data. A leader may write a multi that it has already
    applied: its earlier parts then have the type of an error, and still their own data.
    """
    if kind == Op.ERROR:
        return body.i32()
    for _ in range(body.i32() if kind == Op.MULTI else 0):
        part, data = body.i32(), body.buffer() or b""
        if part == Op.ERROR and len(data) == _ERROR_BYTES:
            return Reader(data).i32()
    return OK


def _changes(changes: tuple[object, ...], session: int) -> list[Change]:
    found: list[Change] = []
    for change in changes:
        match change:
            case CreateTxn(path=path, data=data, owner=owner):
                found.append(Change(CREATED, path, data or b"", session if owner == session else 0))
            case SetDataTxn(path=path, data=data):
                found.append(Change(DATA_CHANGED, path, data or b""))
            case DeleteTxn(path=path):
                found.append(Change(DELETED, path))
            case CloseSessionTxn(paths=paths):
                found += [Change(DELETED, path) for path in paths]
    return found
