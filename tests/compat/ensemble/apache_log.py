"""The transactions that an ensemble of Apache's agreed on, read from its members' log files while they run.

A transaction is agreed on if two of three members have logged it, or the leader has: what one that was killed had proposed, and nobody
else took, is in its log until it comes back.
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
    """``directories``: of the members' data; ``leader``: which of them leads."""
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
            # A log may be shortened or go while it is read, and it grows.
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
    """Why it was refused: of a multi the first of its parts that was, for those behind it are told nothing of their own. Those before
    it may be called errors, too, and have their own data still: a leader may write what it has applied meanwhile."""
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
