"""The watches of one session, as in ZooKeeper's client (ZKWatchManager).

They decide which of the server's events the shell reports, and what is set again on a new connection. Pure;
the session calls it under its lock. Paths are the server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum


class EventType(IntEnum):
    """Watcher.Event.EventType."""

    None_ = -1
    NodeCreated = 1
    NodeDeleted = 2
    NodeDataChanged = 3
    NodeChildrenChanged = 4
    DataWatchRemoved = 5
    ChildWatchRemoved = 6
    PersistentWatchRemoved = 7

    @property
    def text(self) -> str:
        return self.name.rstrip("_")


class Kind(Enum):
    """The kind of a watch. The first three are one-time watches: an event removes them."""

    DATA = "data"
    EXISTS = "exists"
    CHILDREN = "children"
    PERSISTENT = "persistent"
    RECURSIVE = "persistent recursive"


ONCE = {
    EventType.NodeCreated: (Kind.DATA, Kind.EXISTS),
    EventType.NodeDataChanged: (Kind.DATA, Kind.EXISTS),
    EventType.NodeDeleted: (Kind.DATA, Kind.EXISTS, Kind.CHILDREN),
    EventType.NodeChildrenChanged: (Kind.CHILDREN,),
}

REMOVED = {
    Kind.DATA: EventType.DataWatchRemoved,
    Kind.EXISTS: EventType.DataWatchRemoved,
    Kind.CHILDREN: EventType.ChildWatchRemoved,
    Kind.PERSISTENT: EventType.PersistentWatchRemoved,
    Kind.RECURSIVE: EventType.PersistentWatchRemoved,
}


class Watches:
    """Which paths are watched, and how."""

    def __init__(self) -> None:
        self._paths: dict[Kind, set[str]] = {kind: set() for kind in Kind}

    def add(self, kind: Kind, path: str) -> None:
        self._paths[kind].add(path)

    def triggered(self, event: EventType, path: str) -> bool:
        """Whether a watch waits for this event. Removes the one-time watches for it."""
        found = path in self._paths[Kind.PERSISTENT]
        for kind in ONCE[event]:
            if path in self._paths[kind]:
                self._paths[kind].remove(path)
                found = True
        # A recursive watch reports each descendant by itself, and therefore no event about a node's children.
        recursive = self._paths[Kind.RECURSIVE]
        return found or (
            event is not EventType.NodeChildrenChanged and any(each in recursive for each in _upwards(path))
        )

    def watched(self, path: str, kinds: Iterable[Kind]) -> bool:
        return any(path in self._paths[kind] for kind in kinds)

    def remove(self, path: str, kinds: Iterable[Kind]) -> list[EventType]:
        """Removes the watches of these kinds from a path. Returns the types of the events about it, each
        once.
        """
        events: list[EventType] = []
        for kind in kinds:
            if path in self._paths[kind]:
                self._paths[kind].remove(path)
                if REMOVED[kind] not in events:
                    events.append(REMOVED[kind])
        return events

    def batches(self, size: int) -> Iterator[dict[Kind, list[str]]]:
        """All watches, in parts with about `size` bytes of paths each."""
        part: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        used = 0
        for kind, paths in self._paths.items():
            for path in sorted(paths):
                part[kind].append(path)
                used += len(path.encode()) + 4
                if used >= size:
                    yield part
                    part = {each: [] for each in Kind}
                    used = 0
        if used:
            yield part


def _upwards(path: str) -> Iterator[str]:
    while path != "/":
        yield path
        path = path.rpartition("/")[0] or "/"
    yield path
