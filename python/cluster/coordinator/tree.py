"""The znode tree: what is stored where, and the rules for changing it.

Owns nodes, their versions and the paths each session holds ephemerally. Pure: no I/O and no clock,
transaction ids and times come in with :class:`Context`, what happened goes out through :class:`Effects`
(events for watches, closures that take the change back). The same calls on the same tree always give the
same tree, so a log of requests is enough to rebuild it. Called by :mod:`.machine` (changes) and
:mod:`.reads` (the rest), one thread.

Rules and error codes are those of ``DataTree`` and ``PrepRequestProcessor`` of ZooKeeper 3.9, among them:
the number of a sequential node is how many children were ever created under its parent; a visible
``cversion`` counts creations and deletions; versions skip -1, which means "any" in a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from . import acl as access
from .errors import Code, ZooKeeperError
from .jute import Acl, Id, Stat
from .requests import Check, Create, Delete, SetAcl, SetData

ROOT = "/"
SPECIAL_PATHS = (ROOT, "/zookeeper", "/zookeeper/quota", "/zookeeper/config")
"""In every tree from the start, and not to be deleted."""

_INVALID = re.compile(r"//|/\.{1,2}(?:/|\Z)|[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""Empty and relative names, and the characters ZooKeeper forbids."""

EPHEMERAL = 1
SEQUENTIAL = 2


class Event(IntEnum):
    """What a watch can report; the numbers of ``Watcher.Event.EventType``."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Context(NamedTuple):
    """One transaction: its id, its time in milliseconds, its session and the identities of its client."""

    zxid: int
    time_ms: int
    session_id: int
    identities: tuple[Id, ...]


class Effects:
    """What changes did: ``events`` in order, and how to take them back."""

    __slots__ = ("_undo", "events")

    def __init__(self) -> None:
        self.events: list[tuple[Event, str]] = []
        self._undo: list[Callable[[], None]] = []

    def add(self, event: Event | None, path: str, undo: Callable[[], None]) -> None:
        if event is not None:
            self.events.append((event, path))
        self._undo.append(undo)

    def roll_back(self) -> None:
        """Takes back every change, last first; no event remains."""
        while self._undo:
            self._undo.pop()()
        self.events.clear()


class NodeState(NamedTuple):
    """A znode without its children: what a snapshot holds, and what one change replaces as a whole.

    ``creations``: children ever created here. ``owner``: session of an ephemeral node, else 0.
    """

    data: bytes | None
    acl: tuple[Acl, ...]
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    creations: int
    acl_version: int
    owner: int


class Node:
    """A znode: immutable state, and the names of its children."""

    __slots__ = ("children", "state")

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.children: set[str] | None = None

    def stat(self) -> Stat:
        state = self.state
        children = len(self.children) if self.children else 0
        return Stat(
            state.czxid,
            state.mzxid,
            state.ctime,
            state.mtime,
            state.version,
            _int32(state.creations * 2 - children),
            state.acl_version,
            state.owner,
            len(state.data) if state.data is not None else 0,
            children,
            state.pzxid,
        )


class Tree:
    """All znodes of one server."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._ephemerals: dict[int, set[str]] = {}
        for path in SPECIAL_PATHS:
            self._attach(path, Node(NodeState(b"", access.OPEN, 0, 0, 0, 0, 0, 0, 0, 0, 0)))

    # ---- reading ----

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def node(self, path: str) -> Node:
        """The node at ``path``; raises NoNode."""
        node = self._nodes.get(path)
        if node is None:
            raise ZooKeeperError(Code.NO_NODE, path)
        return node

    def ephemerals(self, session_id: int) -> list[str]:
        """Paths held by a session, sorted: every replica deletes them in the same order."""
        return sorted(self._ephemerals.get(session_id, ()))

    def owners(self) -> set[int]:
        """Sessions that hold ephemeral nodes."""
        return set(self._ephemerals)

    def count_descendants(self, path: str) -> int:
        self.node(path)
        if path == ROOT:
            return len(self._nodes) - 1
        prefix = path + "/"
        return sum(1 for other in self._nodes if other.startswith(prefix))

    def export(self) -> list[tuple[str, NodeState]]:
        """Every node, as it is now; later changes do not reach the list. Any order."""
        return [(path, node.state) for path, node in self._nodes.items()]

    @classmethod
    def restore(cls, nodes: Iterable[tuple[str, NodeState]]) -> Tree:
        """The tree of an :meth:`export`. Raises ValueError when a node has no parent or comes twice."""
        tree = cls()
        tree._nodes.clear()
        for path, state in sorted(nodes, key=lambda item: item[0].count("/") if item[0] != ROOT else 0):
            if path in tree._nodes or (path != ROOT and parent_of(path) not in tree._nodes):
                raise ValueError(f"znode {path!r} is there twice or has no parent")
            tree._attach(path, Node(state))
        if any(path not in tree._nodes for path in SPECIAL_PATHS):
            raise ValueError("a znode every tree has is missing")
        return tree

    # ---- changing ----

    def create(self, request: Create, context: Context, effects: Effects) -> str:
        """Creates a node and returns its path. Raises BadArguments, NoNode, NoAuth, InvalidACL, NodeExists,
        NoChildrenForEphemerals."""
        if request.flags not in (0, EPHEMERAL, SEQUENTIAL, EPHEMERAL | SEQUENTIAL):
            raise ZooKeeperError(Code.BAD_ARGUMENTS, request.path)
        path = request.path
        sequential = request.flags & SEQUENTIAL != 0
        # A sequential path may end with a slash: the number becomes the whole name.
        validate_path(path + "0" if sequential else path)
        stored_acl = access.resolve(request.acl, context.identities, path)
        parent = self.node(parent_of(path))
        before = parent.state
        access.check(before.acl, access.CREATE, context.identities, path)
        if sequential:
            path += f"{before.creations:010d}"
        if path in self._nodes:
            raise ZooKeeperError(Code.NODE_EXISTS, path)
        if before.owner != 0:
            raise ZooKeeperError(Code.NO_CHILDREN_FOR_EPHEMERALS, path)
        zxid, now = context.zxid, context.time_ms
        owner = context.session_id if request.flags & EPHEMERAL else 0
        state = NodeState(request.data, stored_acl, zxid, zxid, zxid, now, now, 0, 0, 0, owner)
        self._attach(path, Node(state))
        parent.state = before._replace(creations=_int32(before.creations + 1), pzxid=zxid)

        def undo() -> None:
            self._detach(path)
            parent.state = before

        effects.add(Event.CREATED, path, undo)
        return path

    def delete(self, request: Delete, context: Context, effects: Effects) -> None:
        """Deletes a node. Raises BadArguments, NoNode, NoAuth, BadVersion, NotEmpty."""
        path = request.path
        if "/" not in path or "\0" in path or path in SPECIAL_PATHS:
            raise ZooKeeperError(Code.BAD_ARGUMENTS, path)
        parent = self.node(parent_of(path))
        access.check(parent.state.acl, access.DELETE, context.identities, path)
        node = self.node(path)
        _next_version(node.state.version, request.version, path)
        if node.children:
            raise ZooKeeperError(Code.NOT_EMPTY, path)
        self._delete(path, context.zxid, effects)

    def set_data(self, request: SetData, context: Context, effects: Effects) -> Stat:
        """Replaces a node's data. Raises BadArguments, NoNode, NoAuth, BadVersion."""
        path = request.path
        validate_path(path)
        node = self.node(path)
        before = node.state
        access.check(before.acl, access.WRITE, context.identities, path)
        version = _next_version(before.version, request.version, path)
        node.state = before._replace(
            data=request.data, version=version, mzxid=context.zxid, mtime=context.time_ms
        )
        effects.add(Event.DATA_CHANGED, path, lambda: setattr(node, "state", before))
        return node.stat()

    def set_acl(self, request: SetAcl, context: Context, effects: Effects) -> Stat:
        """Replaces a node's ACL. Raises BadArguments, InvalidACL, NoNode, NoAuth, BadVersion."""
        path = request.path
        validate_path(path)
        stored_acl = access.resolve(request.acl, context.identities, path)
        node = self.node(path)
        before = node.state
        access.check(before.acl, access.ADMIN, context.identities, path)
        version = _next_version(before.acl_version, request.version, path)
        node.state = before._replace(acl=stored_acl, acl_version=version)
        effects.add(None, path, lambda: setattr(node, "state", before))
        return node.stat()

    def check(self, request: Check, context: Context) -> Stat:
        """Raises BadArguments, NoNode, NoAuth, or BadVersion unless the node has the version."""
        validate_path(request.path)
        node = self.node(request.path)
        access.check(node.state.acl, access.READ, context.identities, request.path)
        _next_version(node.state.version, request.version, request.path)
        return node.stat()

    def delete_ephemerals(self, session_id: int, zxid: int, effects: Effects) -> None:
        """Deletes every node of a session that ended. They have no children, so nothing can stand in the
        way."""
        for path in self.ephemerals(session_id):
            self._delete(path, zxid, effects)

    def _delete(self, path: str, zxid: int, effects: Effects) -> None:
        node, parent = self._nodes[path], self._nodes[parent_of(path)]
        before = parent.state
        self._detach(path)
        parent.state = before._replace(pzxid=zxid)

        def undo() -> None:
            self._attach(path, node)  # the same object: earlier closures of this transaction hold it
            parent.state = before

        effects.add(Event.DELETED, path, undo)

    def _attach(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        if node.state.owner:
            self._ephemerals.setdefault(node.state.owner, set()).add(path)
        if path != ROOT:
            parent = self._nodes[parent_of(path)]
            if parent.children is None:
                parent.children = set()
            parent.children.add(name_of(path))

    def _detach(self, path: str) -> None:
        node = self._nodes.pop(path)
        siblings = self._nodes[parent_of(path)].children
        if siblings is not None:
            siblings.discard(name_of(path))
        if node.state.owner:
            held = self._ephemerals[node.state.owner]
            held.discard(path)
            if not held:
                del self._ephemerals[node.state.owner]


def parent_of(path: str) -> str:
    """``/a`` for ``/a/b``, ``/`` for ``/a``."""
    return path[: path.rindex("/")] or ROOT


def ancestors(path: str) -> Iterator[str]:
    """``path`` itself, then every node above it up to the root."""
    yield path
    while path != ROOT:
        path = parent_of(path)
        yield path


def name_of(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def validate_path(path: str) -> None:
    """Raises BadArguments unless ``path`` is absolute and whole: the rules of ``PathUtils.validatePath``."""
    if path != ROOT and (not path.startswith("/") or path.endswith("/") or _INVALID.search(path)):
        raise ZooKeeperError(Code.BAD_ARGUMENTS, path)


def _next_version(current: int, expected: int, path: str) -> int:
    if expected not in (-1, current):
        raise ZooKeeperError(Code.BAD_VERSION, path)
    following = _int32(current + 1)
    return 0 if following == -1 else following


def _int32(value: int) -> int:
    """``value`` wrapped as Java's int wraps."""
    return (value + 0x8000_0000) % 0x1_0000_0000 - 0x8000_0000
