"""Watches: which connections get the events of which paths.

Owns the watches of this server's connections. They live as long as the connection; a client sets them again
when it reconnects. A change of the tree comes in, notifications come out. Pure, one thread. As in ZooKeeper's
``WatchManager`` there are two registries, and in each a connection watches a path in one or more modes:

* data: the creation, deletion and new data of a path (``exists`` and ``getData``);
* children: a new or deleted child of a path, or its deletion (``getChildren``);

* standard: once;
* persistent: again and again, in both registries;
* recursive: again and again, and for every path below, in the registry of data.
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
    """The two kinds of watches."""

    DATA = 0
    CHILDREN = 1


class Mode:
    """The modes of a watch. They are bits of an int, because one change may concern thousands of watches."""

    STANDARD = 1
    PERSISTENT = 2
    RECURSIVE = 4


_ALL = Mode.STANDARD | Mode.PERSISTENT | Mode.RECURSIVE


class WatcherType(IntEnum):
    """The watches that a request names, with the numbers of ``Watcher.WatcherType``."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    RECURSIVE = 5


_WATCHES_OF = {
    WatcherType.CHILDREN: ((Registry.CHILDREN, Mode.STANDARD),),
    WatcherType.DATA: ((Registry.DATA, Mode.STANDARD),),
    WatcherType.ANY: ((Registry.DATA, _ALL), (Registry.CHILDREN, _ALL)),
    WatcherType.PERSISTENT: ((Registry.DATA, Mode.PERSISTENT), (Registry.CHILDREN, Mode.PERSISTENT)),
    WatcherType.RECURSIVE: ((Registry.DATA, Mode.RECURSIVE),),
}


class Notification(NamedTuple, Generic[W]):
    """An event for a watcher that may read the node with this ``acl``. An empty one needs no check."""

    watcher: W
    event: Event
    path: str
    acl: tuple[Acl, ...] = ()


class WatchManager(Generic[W]):
    """All watches of one server. ``W`` is what gets notifications: a connection."""

    def __init__(self) -> None:
        # Dictionaries are sets that keep their order.
        self._registries: tuple[dict[str | None, dict[W, int]], ...] = ({}, {})
        self._by_watcher: dict[W, dict[tuple[Registry, str | None], None]] = {}
        self._recursive = 0

    def __len__(self) -> int:
        """The number of paths that connections watch, in both registries."""
        return sum(len(present) for present in self._by_watcher.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is no watch."""
        return not self._by_watcher

    def paths(self, registry: Registry) -> Iterator[tuple[str | None, list[W]]]:
        """Yields every watched path, and its watchers."""
        for path, watchers in self._registries[registry].items():
            yield path, list(watchers)

    def add(self, registry: Registry, mode: int, path: str | None, watcher: W) -> None:
        """Adds one watch."""
        watchers = self._registries[registry].setdefault(path, {})
        present = watchers.get(watcher, 0)
        if mode & Mode.RECURSIVE and not present & Mode.RECURSIVE:
            self._recursive += 1
        watchers[watcher] = present | mode
        self._by_watcher.setdefault(watcher, {})[(registry, path)] = None

    def add_persistent(self, path: str | None, watcher: W, recursive: bool) -> None:
        """Adds a persistent or recursive watch (addWatch)."""
        if recursive:
            self.add(Registry.DATA, Mode.RECURSIVE, path, watcher)
        else:
            self.add(Registry.DATA, Mode.PERSISTENT, path, watcher)
            self.add(Registry.CHILDREN, Mode.PERSISTENT, path, watcher)

    def has(self, wanted: WatcherType, path: str | None, watcher: W) -> bool:
        """Whether the watcher has a watch of the type ``wanted``."""
        return any(
            self._registries[registry].get(path, {}).get(watcher, 0) & modes
            for registry, modes in _WATCHES_OF[wanted]
        )

    def remove(self, wanted: WatcherType, path: str | None, watcher: W) -> bool:
        """Removes watches. Returns False if there was none."""
        found = self.has(wanted, path, watcher)
        for registry, modes in _WATCHES_OF[wanted]:
            self._take(registry, modes, path, watcher)
        return found

    def remove_watcher(self, watcher: W) -> None:
        """Removes all watches of a connection."""
        for registry, path in list(self._by_watcher.get(watcher, ())):
            self._take(registry, _ALL, path, watcher)

    def fire(self, change: Change) -> list[Notification[W]]:
        """Returns the notifications of a change, one for each watcher. Removes standard watches, even of
        watchers that may not read the node."""
        event, path, acl, parent_acl = change
        watchers = self._trigger(Registry.DATA, path)
        if event is Event.DELETED:
            watchers.update(self._trigger(Registry.CHILDREN, path))
        notifications = [Notification(watcher, event, path, acl) for watcher in watchers]
        if event is not Event.DATA_CHANGED and path != ROOT:
            parent = parent_of(path)
            notifications += [
                Notification(watcher, Event.CHILDREN_CHANGED, parent, parent_acl)
                for watcher in self._trigger(Registry.CHILDREN, parent)
            ]
        return notifications

    def _trigger(self, registry: Registry, path: str) -> dict[W, None]:
        fired: dict[W, None] = {}
        if watchers := self._registries[registry].get(path):
            for watcher, modes in list(watchers.items()):
                fired[watcher] = None
                if modes & Mode.STANDARD:
                    self._take(registry, Mode.STANDARD, path, watcher)
        if self._recursive and registry is Registry.DATA and path != ROOT:
            for above in ancestors(parent_of(path)):
                for watcher, modes in self._registries[registry].get(above, {}).items():
                    if modes & Mode.RECURSIVE:
                        fired[watcher] = None
        return fired

    def _take(self, registry: Registry, modes: int, path: str | None, watcher: W) -> None:
        """Removes modes from a watch, and the watch if none is left."""
        watchers = self._registries[registry].get(path, {})
        present = watchers.get(watcher)
        if present is None:
            return
        if present & modes & Mode.RECURSIVE:
            self._recursive -= 1
        kept = present & ~modes
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
