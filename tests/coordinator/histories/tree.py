"""A znode tree that keeps each of its states by transaction id. It is the checkers' own, not the
coordinator's.

The answers and effects of writes are those of ``PrepRequestProcessor`` and ``DataTree``. A node counts its
creations of children; its cversion is twice that count less its children.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from .history import (
    BAD_VERSION,
    CREATED,
    DATA_CHANGED,
    DELETED,
    NO_CHILDREN_FOR_EPHEMERALS,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OK,
    ROLLED_BACK,
    Change,
    Check,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Read,
    SetData,
    Stat,
    Write,
)


class Node(NamedTuple):
    """The state of a node. ``creations`` counts all children that were ever made."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    version: int = 0
    creations: int = 0
    owner: int = 0
    names: frozenset[str] = frozenset()

    def stat(self) -> Stat:
        """The node's Stat, without times."""
        cversion = 2 * self.creations - len(self.names)
        return Stat(
            self.czxid,
            self.mzxid,
            0,
            0,
            self.version,
            cversion,
            0,
            self.owner,
            len(self.data),
            len(self.names),
            self.pzxid,
        )


class Answer(NamedTuple):
    error: int
    result: Any = None
    changes: tuple[Change, ...] = ()


class ImpossibleError(Exception):
    """A transaction that does not fit the state before it."""


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Tree:
    """The nodes at and below ``root``. The root's parent is not modelled."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.changes: list[tuple[int, tuple[Change, ...]]] = []
        self._zxids: dict[str, list[int]] = {}
        self._states: dict[str, list[Node | None]] = {}
        self._now: dict[str, Node] = {}

    def at(self, path: str, zxid: int) -> Node | None:
        """The node in the state after transaction ``zxid``."""
        found = bisect_right(self._zxids.get(path, ()), zxid)
        return self._states[path][found - 1] if found else None

    def now(self, path: str) -> Node | None:
        return self._now.get(path)

    def owned(self, session: int) -> list[str]:
        """The paths of a session's ephemerals."""
        return sorted(path for path, node in self._now.items() if node.owner == session)

    def read(self, request: Read, zxid: int) -> Answer:
        """The answer of a read in the state of ``zxid``, with Stats without times."""
        node = self.at(request.path, zxid)
        if node is None:
            return Answer(NO_NODE)
        match request:
            case GetData():
                return Answer(OK, (node.data, node.stat()))
            case Exists():
                return Answer(OK, node.stat())
            case GetChildren():
                return Answer(OK, (tuple(sorted(node.names)), node.stat()))

    def write(self, request: Write, session: int, zxid: int, full: str = "") -> Answer:
        """The answer and the changes of a write as the next transaction; does not apply it.

        ``full``: a node that counts as one with children in any case.
        """
        if isinstance(request, CloseSession):
            return Answer(OK, None, tuple(Change(DELETED, path) for path in self.owned(session)))
        draft = _Draft(self._now, zxid, self.root, full)
        if not isinstance(request, Multi):
            error, result = draft.do(request, session)
            return Answer(error, result, tuple(draft.changes))
        results: list[Any] = []
        for number, operation in enumerate(request.operations):
            error, result = draft.do(operation, session)
            if error:
                behind = len(request.operations) - number - 1
                return Answer(OK, (*(OK for _ in results), error, *(ROLLED_BACK for _ in range(behind))))
            results.append(result)
        return Answer(OK, tuple(results), tuple(draft.changes))

    def apply(self, zxid: int, changes: Sequence[Change]) -> None:
        """Applies a transaction. Raises ImpossibleError."""
        within = tuple(
            each for each in changes if each.path == self.root or each.path.startswith(self.root + "/")
        )
        if not within:
            return
        draft = _Draft(self._now, zxid, self.root)
        for change in within:
            draft.change(change)
        for path, node in draft.nodes.items():
            if node is None:
                self._now.pop(path, None)
            else:
                self._now[path] = node
            self._zxids.setdefault(path, []).append(zxid)
            self._states.setdefault(path, []).append(node)
        self.changes.append((zxid, within))


class _Draft:
    """The nodes that a transaction has changed so far."""

    def __init__(self, before: dict[str, Node], zxid: int, root: str, full: str = "") -> None:
        self.nodes: dict[str, Node | None] = {}
        self.changes: list[Change] = []
        self._before, self._zxid, self._root, self._full = before, zxid, root, full

    def _get(self, path: str) -> Node | None:
        return self.nodes[path] if path in self.nodes else self._before.get(path)

    def do(self, request: Create | SetData | Delete | Check, session: int) -> tuple[int, Any]:
        match request:
            case Create():
                return self._create(request, session)
            case SetData():
                node = self._get(request.path)
                error = _refusal(node, request.version)
                if error:
                    return error, None
                self.change(Change(DATA_CHANGED, request.path, request.data))
                changed = self._get(request.path)
                assert changed is not None
                return OK, changed.stat()
            case Delete():
                node = self._get(request.path)
                has_children = node is not None and (node.names or request.path == self._full)
                error = _refusal(node, request.version) or (NOT_EMPTY if has_children else OK)
                if not error:
                    self.change(Change(DELETED, request.path))
                return error, None
            case Check():
                return _refusal(self._get(request.path), request.version), None

    def _create(self, request: Create, session: int) -> tuple[int, Any]:
        path = request.path
        if path != self._root:
            parent = self._get(parent_of(path))
            if parent is None:
                return NO_NODE, None
            if request.sequential:
                path = f"{path}{parent.creations:010d}"
            if self._get(path) is not None:
                return NODE_EXISTS, None
            if parent.owner:
                return NO_CHILDREN_FOR_EPHEMERALS, None
        elif self._get(path) is not None:
            return NODE_EXISTS, None
        self.change(Change(CREATED, path, request.data, session if request.ephemeral else 0))
        made = self._get(path)
        assert made is not None
        return OK, (path, made.stat())

    def change(self, change: Change) -> None:
        """Adds a change. Raises ImpossibleError."""
        path, node = change.path, self._get(change.path)
        parent = self._get(parent_of(path)) if path != self._root else None
        name = path.rpartition("/")[2]
        if change.kind == CREATED:
            if node is not None or (parent is None and path != self._root):
                raise ImpossibleError(f"0x{self._zxid:x} creates {path}, which exists or has no parent")
            self.nodes[path] = Node(change.data, self._zxid, self._zxid, self._zxid, owner=change.owner)
            if parent is not None:
                self.nodes[parent_of(path)] = parent._replace(
                    pzxid=self._zxid, creations=parent.creations + 1, names=parent.names | {name}
                )
        elif node is None:
            raise ImpossibleError(f"0x{self._zxid:x} changes or deletes {path}, which does not exist")
        elif change.kind == DATA_CHANGED:
            self.nodes[path] = node._replace(data=change.data, mzxid=self._zxid, version=node.version + 1)
        else:
            if node.names:
                raise ImpossibleError(f"0x{self._zxid:x} deletes {path}, which has children")
            self.nodes[path] = None
            if parent is not None:
                self.nodes[parent_of(path)] = parent._replace(pzxid=self._zxid, names=parent.names - {name})
        self.changes.append(change)


def _refusal(node: Node | None, version: int) -> int:
    if node is None:
        return NO_NODE
    return BAD_VERSION if version not in (-1, node.version) else OK
