"""Watches: who wants to hear of which path.

Owns the registrations of this server's connections; they live as long as the connection (a client sets them
again when it reconnects). A change of the tree comes in, notifications come out. Pure, one thread. Kinds,
as ZooKeeper's:

* data: once, for creation, deletion or new data of a path (``exists`` and ``getData``);
* child: once, for a new or lost child of a path, or its deletion (``getChildren``);
* persistent: both, again and again;
* recursive: creation, deletion and new data of a path and everything below, again and again.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntFlag
from typing import Generic, NamedTuple, TypeVar

from .tree import ROOT, Event, ancestors, parent_of

W = TypeVar("W", bound=Hashable)


class Kind(IntFlag):
    """Kinds of watch; the values of CHILD, DATA and ANY are those of ``Watcher.WatcherType``."""

    CHILD = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    RECURSIVE = 8


class Notification(NamedTuple, Generic[W]):
    watcher: W
    event: Event
    path: str


class WatchManager(Generic[W]):
    """All watches of one server; ``W`` is whatever receives notifications."""

    def __init__(self) -> None:
        # Dictionaries serve as sets that keep their order.
        self._by_path: dict[Kind, dict[str, dict[W, None]]] = {
            kind: {} for kind in (Kind.CHILD, Kind.DATA, Kind.PERSISTENT, Kind.RECURSIVE)
        }
        self._by_watcher: dict[W, dict[tuple[Kind, str], None]] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._by_watcher.values())

    def add(self, kind: Kind, path: str, watcher: W) -> None:
        self._by_path[kind].setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[(kind, path)] = None

    def has(self, wanted: Kind, path: str, watcher: W) -> bool:
        """Whether the watcher has a watch that ``wanted`` (CHILD, DATA or ANY) covers."""
        held = self._by_watcher.get(watcher, {})
        return any((kind, path) in held for kind in _covered(wanted))

    def remove(self, wanted: Kind, path: str, watcher: W) -> bool:
        """Takes watches back; False when there were none."""
        held = self._by_watcher.get(watcher, {})
        found = [kind for kind in _covered(wanted) if (kind, path) in held]
        for kind in found:
            self._drop(kind, path, watcher)
        return bool(found)

    def remove_watcher(self, watcher: W) -> None:
        """Forgets a connection."""
        for kind, path in list(self._by_watcher.get(watcher, ())):
            self._drop(kind, path, watcher)

    def fire(self, event: Event, path: str) -> list[Notification[W]]:
        """Who is to be told of a change, once each per event; one-shot watches are used up."""
        told: dict[W, None] = {}
        kinds = (Kind.DATA, Kind.CHILD) if event is Event.DELETED else (Kind.DATA,)
        for kind in kinds:
            told.update(self._use_up(kind, path))
        told.update(self._by_path[Kind.PERSISTENT].get(path, {}))
        if self._by_path[Kind.RECURSIVE]:
            for place in ancestors(path):
                told.update(self._by_path[Kind.RECURSIVE].get(place, {}))
        notifications = [Notification(watcher, event, path) for watcher in told]
        if event is not Event.DATA_CHANGED and path != ROOT:
            parent = parent_of(path)
            told = dict(self._use_up(Kind.CHILD, parent))
            told.update(self._by_path[Kind.PERSISTENT].get(parent, {}))
            notifications += [Notification(watcher, Event.CHILDREN_CHANGED, parent) for watcher in told]
        return notifications

    def _use_up(self, kind: Kind, path: str) -> dict[W, None]:
        watchers = self._by_path[kind].pop(path, {})
        for watcher in watchers:
            self._release(kind, path, watcher)
        return watchers

    def _drop(self, kind: Kind, path: str, watcher: W) -> None:
        watchers = self._by_path[kind][path]
        del watchers[watcher]
        if not watchers:
            del self._by_path[kind][path]
        self._release(kind, path, watcher)

    def _release(self, kind: Kind, path: str, watcher: W) -> None:
        held = self._by_watcher[watcher]
        del held[(kind, path)]
        if not held:
            del self._by_watcher[watcher]


def _covered(wanted: Kind) -> tuple[Kind, ...]:
    if wanted is Kind.ANY:
        return (Kind.CHILD, Kind.DATA, Kind.PERSISTENT, Kind.RECURSIVE)
    return (wanted,)
