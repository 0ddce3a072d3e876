"""The watch checker: compares each session's events with the transactions.

- Before an answer with zxid z, a session gets one event for every watched change up to z, and no others
  (``WatchManager``, ``DataTree.setWatches``).
- When a connection ends, the server drops its watches. A watch that the client sets again fires at once if it
  missed a change. A persistent watch does not.
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
    """Every problem of the history."""
    return [
        problem
        for session, received in history.sessions().items()
        for problem in _Session(session, history, order).follow(received)
    ]


class _Session:
    """One session's watches on its server.

    ``_due`` has the events of transaction ``_at`` that are not sent yet.
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

    def follow(self, received: list[Operation | Notification | Contact]) -> Iterator[str]:
        for each in received:
            if isinstance(each, Contact):
                if each.kind == "lost":
                    self._forget()
            elif isinstance(each, Notification):
                yield from self._notified(each)
            elif each.zxid > 0:
                yield from self._advance(each.zxid, each)
                yield from self._answered(each)

    def _notified(self, notification: Notification) -> Iterator[str]:
        event = (notification.kind, notification.path)
        if notification.zxid <= 0:
            self._again[event] += 1
            return
        if self._is_doubtful(event):
            self._used_up(event)
            return
        if notification.zxid > self._at:
            yield from self._advance(notification.zxid - 1, notification)
            self._step_to(notification.zxid)
        if notification.zxid != self._at or not self._due[event]:
            yield f"session 0x{self._session:x} got an event without a change: {notification}"
            return
        self._due[event] -= 1
        self._due += Counter()

    def _advance(self, zxid: int, because: object) -> Iterator[str]:
        """Checks that every event up to ``zxid`` was sent."""
        while True:
            if self._due:
                events = ", ".join(f"{kind} {path}" for kind, path in self._due.elements())
                missing = f"session 0x{self._session:x} did not get the events of 0x{self._at:x} ({events})"
                yield f"{missing} before: {because}"
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
        is_watched = path in self._data or path in self._persistent or self._is_recursive(path)
        self._data.discard(path)
        if change.kind == DELETED:
            is_watched = is_watched or path in self._child
            self._child.discard(path)
        if is_watched:
            self._expect(change.kind, path)
        if change.kind in (CREATED, DELETED):
            if parent in self._child or parent in self._persistent:
                self._expect(CHILDREN_CHANGED, parent)
            self._child.discard(parent)

    def _expect(self, kind: int, path: str) -> None:
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
        sent = Counter({event: count for event, count in self._again.items() if not self._is_doubtful(event)})
        self._again.clear()
        for event in (due - sent).elements():
            yield f"session 0x{self._session:x} did not get the missed event {event} before: {operation}"
        for event in (sent - due).elements():
            yield f"session 0x{self._session:x} got the event {event}, not missed, before: {operation}"
