"""Histories for the tests of the checkers, written by hand.

By default each answer is that of a perfect ensemble.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .history import (
    Contact,
    Create,
    History,
    Hold,
    Notification,
    Operation,
    Read,
    Request,
    Transaction,
    Write,
)
from .tree import Tree

ROOT = "/r"
A, B = f"{ROOT}/a", f"{ROOT}/b"


class Book:
    """A history, written in the order of time. A session has the number of its client."""

    def __init__(self, with_log: bool = False) -> None:
        self.history = History(ROOT)
        self.tree = Tree(ROOT)
        self.zxid = 0x100
        self._time = 0
        self._xids: dict[int, int] = {}
        if with_log:
            self.history.transactions = []
        self.write(1, Create(ROOT, b""))

    def time(self) -> int:
        self._time += 10
        return self._time

    def write(
        self,
        session: int,
        request: Write,
        *,
        invoked: int | None = None,
        is_done: bool = True,
        is_answered: bool = True,
        is_logged: bool = True,
        **otherwise: Any,
    ) -> Operation:
        """Adds the next transaction.

        ``is_done``: the tree has it. ``is_answered``: its client got the answer. ``is_logged``: the log has
        it. ``otherwise``: fields of the answer that differ from the perfect one.
        """
        begun = self.time() if invoked is None else invoked
        self.zxid += 1
        answer = self.tree.write(request, session, self.zxid)
        xid = self.next_xid(session)
        if is_done:
            self.tree.apply(self.zxid, answer.changes)
        if is_logged and is_done and self.history.transactions is not None:
            closes = type(request).__name__ == "CloseSession"
            self.history.transactions.append(Transaction(self.zxid, session, xid, answer.changes, closes))
        operation = Operation(session, session, xid, 0, request, begun)
        if is_answered:
            answered = {
                "completed": self.time(),
                "zxid": self.zxid,
                "error": answer.error,
                "result": answer.result,
            }
            operation = replace(operation, **(answered | otherwise))
        self.history.operations.append(operation)
        return operation

    def read(self, session: int, request: Read, zxid: int | None = None, **otherwise: Any) -> Operation:
        """Adds a read, answered from the state of ``zxid``, by default the newest."""
        at = self.zxid if zxid is None else zxid
        answer = self.tree.read(request, at)
        return self.other(
            session, request, at, **({"error": answer.error, "result": answer.result} | otherwise)
        )

    def other(self, session: int, request: Request, zxid: int | None = None, **otherwise: Any) -> Operation:
        operation = Operation(session, session, self.next_xid(session), 0, request, self.time())
        answered = {"completed": self.time(), "zxid": self.zxid if zxid is None else zxid}
        operation = replace(operation, **(answered | otherwise))
        self.history.operations.append(operation)
        return operation

    def next_xid(self, session: int) -> int:
        self._xids[session] = self._xids.get(session, 0) + 1
        return self._xids[session]

    def notify(self, session: int, kind: int, path: str, zxid: int | None = None) -> None:
        at = self.zxid if zxid is None else zxid
        self.history.notifications.append(Notification(session, session, self.time(), at, kind, path))

    def contact(self, session: int, kind: str) -> None:
        self.history.contacts.append(Contact(session, session, 0, self.time(), kind))

    def hold(self, session: int, fence: int, **otherwise: Any) -> Hold:
        """Adds a short hold of a lock, at the newest zxid."""
        hold = Hold(
            session, session, f"{ROOT}/lock", fence, self.time(), self.zxid, self.time(), self.zxid, ()
        )
        hold = hold._replace(**otherwise)
        self.history.holds.append(hold)
        return hold


Case = Callable[[], Book]
"""Makes a history for a checker."""


def new_book(with_log: bool = False, data: bytes = b"0") -> Book:
    """A history that begins with the create of node A."""
    made = Book(with_log)
    made.write(1, Create(A, data))
    return made
