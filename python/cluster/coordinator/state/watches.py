"""Watches: who wants to hear of which path.

Owns the registrations of this server's connections; they live as long as the connection (a client sets them
again when it reconnects). A change of the tree comes in, notifications come out. Pure, one thread. As in
ZooKeeper's ``WatchManager`` there are two registries, and in each a connection watches a path in one or more
modes:

* data: creation, deletion and new data of a path (``exists`` and ``getData``);
* children: a new or lost child of a path, or its deletion (``getChildren``);

* standard: once;
* persistent: again and again, in both registries;
* recursive: again and again, of everything below the path too, in the registry of data.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from ..protocol.jute import Acl
from ..protocol.replies import Event
from .tree import ROOT, Change, ancestors, parent_of

W = TypeVar("W", bound=Hashable)


class Registry(IntEnum):
    """Of what a watch is."""

    DATA = 0
    CHILDREN = 1


class Mode:
    """How often, and of how much, a watch tells: bits of an int, for a change may concern thousands."""

    STANDARD = 1
    PERSISTENT = 2
    RECURSIVE = 4


_ALL = Mode.STANDARD | Mode.PERSISTENT | Mode.RECURSIVE


class WatcherType(IntEnum):
    """Which watches a client means; the numbers of ``Watcher.WatcherType``."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    RECURSIVE = 5


_COVERED = {
    WatcherType.CHILDREN: ((Registry.CHILDREN, Mode.STANDARD),),
    WatcherType.DATA: ((Registry.DATA, Mode.STANDARD),),
    WatcherType.ANY: ((Registry.DATA, _ALL), (Registry.CHILDREN, _ALL)),
    WatcherType.PERSISTENT: ((Registry.DATA, Mode.PERSISTENT), (Registry.CHILDREN, Mode.PERSISTENT)),
    WatcherType.RECURSIVE: ((Registry.DATA, Mode.RECURSIVE),),
}


class Notification(NamedTuple, Generic[W]):
    """What a watcher is told if it may read what it is about: ``acl``, empty for who may anyway."""

    watcher: W
    event: Event
    path: str
    acl: tuple[Acl, ...] = ()


class WatchManager(Generic[W]):
    """All watches of one server; ``W`` is whatever receives notifications."""

    def __init__(self) -> None:
        # Dictionaries serve as sets that keep their order.
        self._registries: tuple[dict[str | None, dict[W, int]], ...] = ({}, {})
        self._by_watcher: dict[W, dict[tuple[Registry, str | None], None]] = {}
        self._recursive = 0

    def __len__(self) -> int:
        """Watched paths of each connection in each registry."""
        return sum(len(held) for held in self._by_watcher.values())

    @property
    def is_empty(self) -> bool:
        """Whether nobody watches."""
        return not self._by_watcher

    def paths(self, registry: Registry) -> Iterator[tuple[str | None, list[W]]]:
        """Every watched path and who watches it."""
        for path, watchers in self._registries[registry].items():
            yield path, list(watchers)

    def add(self, registry: Registry, mode: int, path: str | None, watcher: W) -> None:
        """Adds one watch."""
        watchers = self._registries[registry].setdefault(path, {})
        held = watchers.get(watcher, 0)
        if mode & Mode.RECURSIVE and not held & Mode.RECURSIVE:
            self._recursive += 1
        watchers[watcher] = held | mode
        self._by_watcher.setdefault(watcher, {})[(registry, path)] = None

    def add_persistent(self, path: str | None, watcher: W, recursive: bool) -> None:
        """Adds a watch that stays (addWatch)."""
        if recursive:
            self.add(Registry.DATA, Mode.RECURSIVE, path, watcher)
        else:
            self.add(Registry.DATA, Mode.PERSISTENT, path, watcher)
            self.add(Registry.CHILDREN, Mode.PERSISTENT, path, watcher)

    def has(self, wanted: WatcherType, path: str | None, watcher: W) -> bool:
        """Whether the watcher has a watch that ``wanted`` covers."""
        return any(
            self._registries[registry].get(path, {}).get(watcher, 0) & modes
            for registry, modes in _COVERED[wanted]
        )

    def remove(self, wanted: WatcherType, path: str | None, watcher: W) -> bool:
        """Takes watches back; False when there were none."""
        found = self.has(wanted, path, watcher)
        for registry, modes in _COVERED[wanted]:
            self._take(registry, modes, path, watcher)
        return found

    def remove_watcher(self, watcher: W) -> None:
        """Forgets a connection."""
        for registry, path in list(self._by_watcher.get(watcher, ())):
            self._take(registry, _ALL, path, watcher)

    def fire(self, change: Change) -> list[Notification[W]]:
        """Who is to be told of a change, once each; watches that tell once are used up, also those of who may
        not hear."""
        event, path, acl, parent_acl = change
        told = self._trigger(Registry.DATA, path)
        if event is Event.DELETED:
            told.update(self._trigger(Registry.CHILDREN, path))
        notifications = [Notification(watcher, event, path, acl) for watcher in told]
        if event is not Event.DATA_CHANGED and path != ROOT:
            parent = parent_of(path)
            notifications += [
                Notification(watcher, Event.CHILDREN_CHANGED, parent, parent_acl)
                for watcher in self._trigger(Registry.CHILDREN, parent)
            ]
        return notifications

    def _trigger(self, registry: Registry, path: str) -> dict[W, None]:
        told: dict[W, None] = {}
        if watchers := self._registries[registry].get(path):
            for watcher, modes in list(watchers.items()):
                told[watcher] = None
                if modes & Mode.STANDARD:
                    self._take(registry, Mode.STANDARD, path, watcher)
        if self._recursive and registry is Registry.DATA and path != ROOT:
            for place in ancestors(parent_of(path)):
                for watcher, modes in self._registries[registry].get(place, {}).items():
                    if modes & Mode.RECURSIVE:
                        told[watcher] = None
        return told

    def _take(self, registry: Registry, modes: int, path: str | None, watcher: W) -> None:
        """Takes modes from a watch, and the watch when none is left."""
        watchers = self._registries[registry].get(path, {})
        held = watchers.get(watcher)
        if held is None:
            return
        if held & modes & Mode.RECURSIVE:
            self._recursive -= 1
        kept = held & ~modes
        if kept:
            watchers[watcher] = kept
            return
        del watchers[watcher]
        if not watchers:
            del self._registries[registry][path]
        mine = self._by_watcher[watcher]
        del mine[(registry, path)]
        if not mine:
            del self._by_watcher[watcher]
