"""The watch checker: what a session is told of its watches, held against the transactions.

Whatever a session is answered at zxid z, every change up to z that it watched was told it before, once, and
nothing else was (``WatchManager``, ``DataTree.setWatches``). With its connection go its watches on the
server; what a client sets again is told at once what it missed, but for persistent watches, which are told of
nothing that happened meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .history import (
    CHILDREN_CHANGED,
    CREATED,
    DATA_CHANGED,
    DELETED,
    NO_NODE,
    OK,
    AddWatch,
    Change,
    Contact,
    Exists,
    GetChildren,
    GetData,
    History,
    Notification,
    Operation,
    SetWatches,
)
from .order import Order
from .tree import parent_of

Event = tuple[int, str]


def check_watches(history: History, order: Order) -> list[str]:
    """What is wrong; nothing if it is as it must be."""
    return [
        problem
        for session, shown in history.sessions().items()
        for problem in _Session(session, history, order).follow(shown)
    ]


class _Session:
    """One session's watches on its server.

    ``_due`` are the events of the transaction ``_at`` that were not told yet.
    """

    def __init__(self, session: int, history: History, order: Order) -> None:
        self._session, self._history, self._order = session, history, order
        self._transactions = order.tree.changes
        self._next = 0
        self._at = 0
        self._due: Counter[Event] = Counter()
        self._again: Counter[Event] = Counter()
        self._forget()

    def _forget(self) -> None:
        self._data: set[str] = set()
        self._child: set[str] = set()
        self._persistent: set[str] = set()
        self._recursive: set[str] = set()
        self._due.clear()
        self._again.clear()

    def follow(self, shown: list[Operation | Notification | Contact]) -> Iterator[str]:
        for each in shown:
            if isinstance(each, Contact):
                if each.kind == "lost":
                    self._forget()
            elif isinstance(each, Notification):
                yield from self._notified(each)
            elif each.zxid > 0:
                yield from self._advance(each.zxid, each)
                yield from self._answered(each)

    def _notified(self, shown: Notification) -> Iterator[str]:
        event = (shown.kind, shown.path)
        if shown.zxid <= 0:
            self._again[event] += 1
            return
        if self._is_doubtful(event):
            self._used_up(event)
            return
        if shown.zxid > self._at:
            yield from self._advance(shown.zxid - 1, shown)
            self._step_to(shown.zxid)
        if shown.zxid != self._at or not self._due[event]:
            yield f"session 0x{self._session:x} did not have to be told: {shown}"
            return
        self._due[event] -= 1
        self._due += Counter()

    def _advance(self, zxid: int, because: object) -> Iterator[str]:
        """Everything up to ``zxid`` must have been told."""
        while True:
            if self._due:
                events = ", ".join(f"{kind} {path}" for kind, path in self._due.elements())
                yield f"session 0x{self._session:x} was not told of 0x{self._at:x} ({events}) before: {because}"
                self._due.clear()
            if self._next == len(self._transactions) or self._transactions[self._next][0] > zxid:
                self._at = max(self._at, zxid)
                return
            self._step_to(self._transactions[self._next][0])

    def _step_to(self, zxid: int) -> None:
        self._at = zxid
        if self._next < len(self._transactions) and self._transactions[self._next][0] == zxid:
            for change in self._transactions[self._next][1]:
                self._changed(change)
            self._next += 1

    def _changed(self, change: Change) -> None:
        path, parent = change.path, parent_of(change.path)
        shown = path in self._data or path in self._persistent or self._is_recursive(path)
        self._data.discard(path)
        if change.kind == DELETED:
            shown = shown or path in self._child
            self._child.discard(path)
        if shown:
            self._must_tell(change.kind, path)
        if change.kind in (CREATED, DELETED):
            if parent in self._child or parent in self._persistent:
                self._must_tell(CHILDREN_CHANGED, parent)
            self._child.discard(parent)

    def _must_tell(self, kind: int, path: str) -> None:
        if not self._is_doubtful((kind, path)):
            self._due[kind, path] += 1

    def _is_recursive(self, path: str) -> bool:
        return any(path == each or path.startswith(each + "/") for each in self._recursive)

    def _is_doubtful(self, event: Event) -> bool:
        kind, path = event
        if self._order.is_doubtful(path) or not self._history.is_within(path):
            return True
        return kind == CHILDREN_CHANGED and path in self._order.lists

    def _used_up(self, event: Event) -> None:
        kind, path = event
        if kind != CHILDREN_CHANGED:
            self._data.discard(path)
        if kind in (CHILDREN_CHANGED, DELETED):
            self._child.discard(path)

    def _answered(self, operation: Operation) -> Iterator[str]:
        request = operation.request
        match request:
            case Exists(watch=True) if operation.error in (OK, NO_NODE):
                self._data.add(request.path)
            case GetData(watch=True) if operation.error == OK:
                self._data.add(request.path)
            case GetChildren(watch=True) if operation.error == OK:
                self._child.add(request.path)
            case AddWatch() if operation.error == OK:
                (self._recursive if request.recursive else self._persistent).add(request.path)
            case SetWatches() if operation.error == OK:
                yield from self._set_again(request, operation)

    def _set_again(self, request: SetWatches, operation: Operation) -> Iterator[str]:
        due: Counter[Event] = Counter()
        tree, zxid = self._order.tree, operation.zxid
        for path in request.data:
            node = tree.at(path, zxid)
            if node is None:
                due[DELETED, path] += 1
            elif node.mzxid > request.relative_zxid:
                due[DATA_CHANGED, path] += 1
            else:
                self._data.add(path)
        for path in request.exist:
            if tree.at(path, zxid) is not None:
                due[CREATED, path] += 1
            else:
                self._data.add(path)
        for path in request.child:
            node = tree.at(path, zxid)
            if node is None:
                due[DELETED, path] += 1
            elif node.pzxid > request.relative_zxid:
                due[CHILDREN_CHANGED, path] += 1
            else:
                self._child.add(path)
        self._persistent.update(request.persistent)
        self._recursive.update(request.recursive)
        due = Counter({event: count for event, count in due.items() if not self._is_doubtful(event)})
        shown = Counter(
            {event: count for event, count in self._again.items() if not self._is_doubtful(event)}
        )
        self._again.clear()
        for event in (due - shown).elements():
            yield f"session 0x{self._session:x} was not told again of {event} before: {operation}"
        for event in (shown - due).elements():
            yield f"session 0x{self._session:x} did not have to be told again of {event} before: {operation}"
