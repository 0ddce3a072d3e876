"""The znode tree, and the rules for changing it.

Owns the nodes and their versions, the paths of each session's ephemeral nodes, the containers and nodes with
a TTL, and the counters of quotas. Pure: transaction ids and times come with :class:`Context`, and
:class:`Effects` gets the changes for watches, and the closures that undo them. The same calls on the same
tree give the same tree, so a log of requests is enough to rebuild it. Called by :mod:`.machine` and
:mod:`.reads`, on one thread.

Rules, error codes and the order of checks are those of ``DataTree`` and ``PrepRequestProcessor`` of ZooKeeper
3.9. The number of a sequential node is the number of children ever created under its parent. A visible
``cversion`` counts creations and deletions. Versions skip -1, which means "any" in a request, as in ZooKeeper
after 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from ..errors import Code, ZooKeeperError
from ..protocol.jute import Acl, Id, Stat
from ..protocol.replies import Event
from ..protocol.requests import (
    CONTAINER,
    EPHEMERAL,
    MAX_TTL_MS,
    SEQUENTIAL,
    TTL,
    TTL_SEQUENTIAL,
    Check,
    Create,
    Delete,
    DeleteContainer,
    Op,
    SetAcl,
    SetData,
)
from . import acl as access
from . import quota
from .acl import Rules, Subject

ROOT = "/"
CONFIG = "/zookeeper/config"
SPECIAL_PATHS = (ROOT, "/zookeeper", quota.ROOT_OF_QUOTAS, CONFIG)
"""Every tree has these nodes from the start. They cannot be deleted."""

CONTAINER_OWNER = -(1 << 63)
"""The stored owner of a container (``EphemeralType.CONTAINER``)."""
TTL_OWNER = -(1 << 56)
"""The stored owner of a node with a TTL has this in its upper bytes, and the TTL below."""

_INT_MAX = (1 << 31) - 1
_SEQUENTIAL = frozenset({SEQUENTIAL, EPHEMERAL | SEQUENTIAL, TTL_SEQUENTIAL})
_LIMITS_OF_NOTHING = f"{quota.ROOT_OF_QUOTAS}/{quota.LIMITS}"
# Empty and relative names, and the characters that ZooKeeper forbids. Java has two surrogates for a character
# outside the basic plane.
_INVALID = re.compile(r"//|/\.{1,2}(?:/|\Z)|[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class Kind(IntEnum):
    """The kinds of nodes: what deletes them."""

    PERSISTENT = 0
    EPHEMERAL = 1
    CONTAINER = 2
    TTL = 3


def kind_of(owner: int) -> Kind:
    """Returns the kind of a node with this owner."""
    if owner == 0:
        return Kind.PERSISTENT
    if owner == CONTAINER_OWNER:
        return Kind.CONTAINER
    # No session has a negative id: a server's id has at most 7 bits in it.
    return Kind.TTL if TTL_OWNER <= owner < 0 else Kind.EPHEMERAL


_DATA_CHANGED = Event.DATA_CHANGED


class Change(NamedTuple):
    """A change of a node, and the ACLs that decide which clients get its events: the node's and the
    parent's."""

    event: Event
    path: str
    acl: tuple[Acl, ...]
    parent_acl: tuple[Acl, ...] = ()


class Context:
    """A transaction: its id, its time in milliseconds, its session, its client's identities, and the
    rules."""

    __slots__ = ("rules", "session_id", "subject", "time_ms", "zxid")

    def __init__(
        self,
        zxid: int,
        time_ms: int,
        session_id: int,
        identities: tuple[Id, ...],
        rules: Rules = Rules.NONE,
    ) -> None:
        self.zxid = zxid
        self.time_ms = time_ms
        self.session_id = session_id
        self.rules = rules
        self.subject = Subject(identities, rules, True)


class Effects:
    """The changes of a transaction in order, and how to undo them."""

    __slots__ = ("_undo", "changes")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._undo: list[Callable[[], None]] = []

    def add(self, change: Change | None, undo: Callable[[], None]) -> None:
        if change is not None:
            self.changes.append(change)
        self._undo.append(undo)

    def roll_back(self) -> None:
        """Undoes every change, the last one first."""
        while self._undo:
            self._undo.pop()()
        self.changes.clear()


class NodeState(NamedTuple):
    """A znode without its children. A snapshot has it, and a change replaces it.

    ``creations`` is the number of children ever created. ``owner`` is the session of an ephemeral node, the
    value that :func:`kind_of` knows for a container or a node with a TTL, else 0.
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

    @property
    def size(self) -> int:
        """The bytes of its data."""
        return len(self.data) if self.data is not None else 0

    # As `_replace`, in a third of the time. Each transaction needs one of these.

    def with_data(self, data: bytes | None, version: int, mzxid: int, mtime: int) -> NodeState:
        _data, acl, czxid, _mzxid, pzxid, ctime, _mtime, _version, creations, acl_version, owner = self
        return NodeState(data, acl, czxid, mzxid, pzxid, ctime, mtime, version, creations, acl_version, owner)

    def with_children(self, creations: int, pzxid: int) -> NodeState:
        """For a created or deleted child."""
        data, acl, czxid, mzxid, _pzxid, ctime, mtime, version, _creations, acl_version, owner = self
        return NodeState(data, acl, czxid, mzxid, pzxid, ctime, mtime, version, creations, acl_version, owner)


class Node:
    """A znode: an immutable state, and the names of its children."""

    __slots__ = ("children", "state")

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.children: set[str] | None = None

    def stat(self) -> Stat:
        data, _acl, czxid, mzxid, pzxid, ctime, mtime, version, creations, acl_version, owner = self.state
        size = len(data) if data is not None else 0
        children = len(self.children) if self.children else 0
        changes = creations * 2 - children
        if not -_INT_MAX <= changes <= _INT_MAX:
            changes = _int32(changes)
        if owner and kind_of(owner) is not Kind.EPHEMERAL:
            owner = 0
        return Stat(czxid, mzxid, ctime, mtime, version, changes, acl_version, owner, size, children, pzxid)


class Tree:
    """All znodes of one server."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._ephemerals: dict[int, set[str]] = {}
        self._containers: set[str] = set()
        self._with_ttl: set[str] = set()
        self._quotas: set[str] = set()
        self._acls = access.SharedAcls()
        self._size = 0
        self._walks: list[dict[str, NodeState]] = []
        for path in SPECIAL_PATHS:
            acl, acl_version = (access.READ_ONLY, -1) if path == CONFIG else (access.OPEN, 0)
            parent = None if path == ROOT else self._nodes[parent_of(path)]
            self._attach(path, Node(NodeState(b"", acl, 0, 0, 0, 0, 0, 0, 0, acl_version, 0)), parent)

    # ---- reading ----

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, path: str) -> Node | None:
        """Returns the node at ``path``. The root's second name is the empty path."""
        return self._nodes.get(path or ROOT)

    def node(self, path: str) -> Node:
        """Returns the node at ``path``. Raises NoNode."""
        node = self.find(path)
        if node is None:
            raise ZooKeeperError(Code.NO_NODE, path)
        return node

    def _valid_node(self, path: str | None) -> Node:
        """Returns the node at ``path``. Raises BadArguments if the path is not valid, NoNode."""
        node = self._nodes.get(path) if path is not None else None
        if node is None:  # the path of an existing node is valid
            validate_path(path or "")
            raise ZooKeeperError(Code.NO_NODE, path)
        return node

    def ephemerals(self, session_id: int) -> list[str]:
        """Returns the paths of a session's nodes, sorted, so that every replica deletes them in the same
        order."""
        return sorted(self._ephemerals.get(session_id, ()))

    def owners(self) -> set[int]:
        """Returns the sessions with ephemeral nodes."""
        return set(self._ephemerals)

    def ephemeral_count(self) -> int:
        return sum(len(paths) for paths in self._ephemerals.values())

    def count_descendants(self, path: str) -> int:
        self.node(path)
        if path == ROOT:
            return len(self._nodes) - 1
        if path == "":
            return len(self._nodes)
        prefix = path + "/"
        return sum(1 for other in self._nodes if other.startswith(prefix))

    def acl_count(self) -> int:
        """Returns the number of different ACLs, without :data:`.acl.OPEN`."""
        return len(self._acls)

    def data_size(self) -> int:
        """Returns ZooKeeper's approximate data size: the characters of all paths, and the bytes of all
        data."""
        return self._size

    def quotas(self) -> Iterator[tuple[str, quota.Track, quota.Track]]:
        """Yields each path with a quota, its limits, and their use. Unreadable ones are left out."""
        for path in self._quotas:
            stats = self._nodes.get(quota.stats_of(path))
            try:
                limits = quota.decode_track(self._nodes[quota.limits_of(path)].state.data)
                used = quota.decode_track(stats.state.data) if stats is not None else quota.Track()
            except ValueError:
                continue
            yield path, limits, used

    def expired(self, now_ms: int, never_used_ms: int) -> list[str]:
        """Returns the containers and nodes with a TTL that have expired (``ContainerManager``).

        They have no children. A container has had one, or never had one for ``never_used_ms``, unless that is
        0. A node with a TTL was not changed for this time.
        """
        found = []
        for path in self._containers:
            node = self._nodes[path]
            unused = node.state.creations == 0
            old = never_used_ms > 0 and now_ms - node.state.mtime > never_used_ms
            if not node.children and (not unused or old):
                found.append(path)
        for path in self._with_ttl:
            node = self._nodes[path]
            if not node.children and now_ms - node.state.mtime > node.state.owner - TTL_OWNER:
                found.append(path)
        return sorted(found)

    def export(self) -> list[tuple[str, NodeState]]:
        """Returns every node as it is now, in any order."""
        return [(path, node.state) for path, node in self._nodes.items()]

    def walk(self) -> Generator[tuple[str, NodeState], None, None]:
        """Yields every node as it is at this call, in any order, while the tree changes. Replaced states stay
        in memory for the iterator until it is at its end or closed."""
        before: dict[str, NodeState] = {}
        self._walks.append(before)
        walk = self._walk(list(self._nodes), before)
        next(walk)  # a generator that was never started would not run its `finally`
        return walk

    def _walk(
        self, paths: list[str], before: dict[str, NodeState]
    ) -> Generator[tuple[str, NodeState], None, None]:
        try:
            yield ROOT, self._nodes[ROOT].state  # taken by `walk`
            for path in paths:
                yield path, before.pop(path) if path in before else self._nodes[path].state
        finally:
            self._walks = [each for each in self._walks if each is not before]

    def _changes(self, path: str, state: NodeState) -> None:
        """A state is about to be replaced: keeps it for the walks that have not yielded it yet."""
        for before in self._walks:
            before.setdefault(path, state)

    @classmethod
    def restore(cls, nodes: Iterable[tuple[str, NodeState]]) -> Tree:
        """Returns the tree of an :meth:`export`.

        Raises ValueError if a node has no parent or appears twice.
        """
        tree = cls()
        found: dict[str, Node] = {}
        tree._nodes, tree._acls, tree._size = found, access.SharedAcls(), 0
        plain = 0
        for path, state in nodes:
            if path in found:
                raise ValueError(f"znode {path!r} appears twice")
            found[path] = Node(state)
            if state.owner or state.acl is not access.OPEN or path.startswith(quota.BELOW_ROOT):
                tree._count_node(path, state)
            else:  # most nodes, of which there may be millions
                plain += len(path) + state.size
        tree._size += plain
        for path in found:
            if path != ROOT:
                above, slash, name = path.rpartition("/")
                parent = found.get(above or ROOT) if slash else None
                if parent is None:
                    raise ValueError(f"znode {path!r} has no parent")
                if parent.children is None:
                    parent.children = set()
                parent.children.add(name)
        if any(path not in tree._nodes for path in SPECIAL_PATHS):
            raise ValueError("a znode that every tree has is missing")
        return tree

    # ---- changing ----

    def create(self, request: Create, context: Context, effects: Effects) -> str:
        """Creates a node, and returns its path.

        Raises, in this order: BadArguments, Unimplemented (TTLs are off), MarshallingError (no path),
        InvalidACL, NoNode, NoAuth, NodeExists, NoChildrenForEphemerals, QuotaExceeded.
        """
        owner = _owner(request, context)
        path = _path(request.path)
        if "/" not in path or "\0" in path:
            raise ZooKeeperError(Code.BAD_ARGUMENTS, path)
        stored_acl = self._acls.same(access.resolve(request.acl, context.subject, path))
        above = parent_of(path)
        parent = self.node(above)
        before = parent.state
        context.subject.check(access.CREATE, before.acl, path)
        if request.flags in _SEQUENTIAL:
            path += f"{before.creations:010d}"
        validate_path(path)
        if path in self._nodes:
            raise ZooKeeperError(Code.NODE_EXISTS, path)
        if before.owner and kind_of(before.owner) is Kind.EPHEMERAL:
            raise ZooKeeperError(Code.NO_CHILDREN_FOR_EPHEMERALS, path)
        if path == _LIMITS_OF_NOTHING:
            raise ZooKeeperError(Code.BAD_ARGUMENTS, path)
        zxid, now = context.zxid, context.time_ms
        state = NodeState(request.data, stored_acl, zxid, zxid, zxid, now, now, 0, 0, 0, owner)
        if self._quotas:
            self._check_quota(path, 1, state.size, context)
        self._attach(path, Node(state), parent)
        if self._walks:
            self._changes(above, before)
        if before.creations < _INT_MAX:  # in ZooKeeper pzxid changes only with this number
            parent.state = before.with_children(before.creations + 1, zxid)

        def undo() -> None:
            self._detach(path)
            parent.state = before

        effects.add(Change(Event.CREATED, path, stored_acl, before.acl), undo)
        self._begin_counting(path, effects)
        if self._quotas:
            self._count(path, 1, state.size, effects)
        return path

    def delete(self, request: Delete, context: Context, effects: Effects) -> None:
        """Deletes a node.

        Raises MarshallingError (no path), BadArguments, NoNode, NoAuth, BadVersion, NotEmpty.
        """
        path = _deletable(request.path)
        parent = self.node(parent_of(path))
        context.subject.check(access.DELETE, parent.state.acl, path)
        node = self.node(path)
        _next_version(node.state.version, request.version, path)
        if node.children:
            raise ZooKeeperError(Code.NOT_EMPTY, path)
        self._delete(path, context.zxid, effects)

    def delete_container(
        self, request: DeleteContainer, context: Context, effects: Effects, by_client: bool
    ) -> None:
        """Deletes a container or a node with a TTL, for the server or a client.

        Raises MarshallingError (no path), BadArguments, NoNode, NoAuth (for a client), NotEmpty, and
        BadVersion for an ephemeral node or, unlike ZooKeeper, a persistent one.
        """
        path = _deletable(request.path)
        node = self.node(path)
        if by_client:
            context.subject.check(access.DELETE, self.node(parent_of(path)).state.acl, path)
        if node.children:
            raise ZooKeeperError(Code.NOT_EMPTY, path)
        if kind_of(node.state.owner) in (Kind.EPHEMERAL, Kind.PERSISTENT):
            raise ZooKeeperError(Code.BAD_VERSION, path)
        self._delete(path, context.zxid, effects)

    def set_data(self, request: SetData, context: Context, effects: Effects) -> Stat:
        """Replaces a node's data. Raises BadArguments, NoNode, NoAuth, QuotaExceeded, BadVersion."""
        path, data, expected = request
        node = self._valid_node(path)
        path = path or ""
        before = node.state
        context.subject.check(access.WRITE, before.acl, path)
        added = (len(data) if data is not None else 0) - before.size
        if self._quotas:
            self._check_quota(path, 0, added, context)
        version = _next_version(before.version, expected, path)
        self._become(path, node, before.with_data(data, version, context.zxid, context.time_ms))
        effects.add(Change(_DATA_CHANGED, path, before.acl), lambda: self._become(path, node, before))
        if self._quotas:
            self._count(path, 0, added, effects)
        return node.stat()

    def set_acl(self, request: SetAcl, context: Context, effects: Effects) -> Stat:
        """Replaces a node's ACL. Raises BadArguments, InvalidACL, NoNode, NoAuth, BadVersion."""
        path = request.path or ""
        validate_path(path)
        stored_acl = self._acls.same(access.resolve(request.acl, context.subject, path))
        node = self.node(path)
        before = node.state
        context.subject.check(access.ADMIN, before.acl, path)
        version = _next_version(before.acl_version, request.version, path)
        self._become(path, node, before._replace(acl=stored_acl, acl_version=version))
        effects.add(None, lambda: self._become(path, node, before))
        return node.stat()

    def check(self, request: Check, context: Context) -> Stat:
        """Raises BadArguments, NoNode, NoAuth, or BadVersion if the node has another version."""
        node = self._valid_node(request.path)
        path = request.path or ""
        context.subject.check(access.READ, node.state.acl, path)
        _next_version(node.state.version, request.version, path)
        return node.stat()

    def put_configuration(self, data: bytes, version: int, zxid: int, time_ms: int) -> Change:
        """Writes the ensemble's configuration into its node. The node's ACL restricts only clients."""
        node = self._nodes[CONFIG]
        before = node.state
        self._become(CONFIG, node, before._replace(data=data, version=version, mzxid=zxid, mtime=time_ms))
        return Change(Event.DATA_CHANGED, CONFIG, before.acl)

    def delete_ephemerals(self, session_id: int, zxid: int, effects: Effects) -> None:
        """Deletes every node of a session that has ended. They cannot have children."""
        for path in self.ephemerals(session_id):
            self._delete(path, zxid, effects)

    def _delete(self, path: str, zxid: int, effects: Effects) -> None:
        node, parent = self._nodes[path], self._nodes[parent_of(path)]
        before = parent.state
        self._detach(path)
        if self._walks:
            self._changes(parent_of(path), before)
        parent.state = before.with_children(before.creations, zxid)

        def undo() -> None:
            self._attach(
                path, node, parent
            )  # the same object, to which earlier closures of this transaction refer
            parent.state = before

        effects.add(Change(Event.DELETED, path, node.state.acl, before.acl), undo)
        if self._quotas:
            self._count(path, -1, -node.state.size, effects)

    def _attach(self, path: str, node: Node, parent: Node | None) -> None:
        """Adds a node. Only the root has no parent."""
        self._nodes[path] = node
        self._count_node(path, node.state)
        if parent is not None:
            if parent.children is None:
                parent.children = set()
            parent.children.add(name_of(path))

    def _count_node(self, path: str, state: NodeState) -> None:
        """Counts a node that is added."""
        self._size += len(path) + state.size
        self._acls.add(state.acl)
        if state.owner:
            self._registered(state.owner).add(path)
        if (limited := quota.path_of(path)) is not None:
            self._quotas.add(limited)

    def _detach(self, path: str) -> None:
        state = self._nodes.pop(path).state
        self._changes(path, state)
        self._size -= len(path) + state.size
        self._acls.release(state.acl)
        owner = state.owner
        siblings = self._nodes[parent_of(path)].children
        if siblings is not None:
            siblings.discard(name_of(path))
        if owner:
            nodes = self._registered(owner)
            nodes.discard(path)
            if not nodes and owner in self._ephemerals:
                del self._ephemerals[owner]
        if (limited := quota.path_of(path)) is not None:
            self._quotas.discard(limited)

    def _become(self, path: str, node: Node, state: NodeState) -> None:
        """Replaces a node's data or ACL."""
        before = node.state
        if self._walks:
            self._changes(path, before)
        self._size += state.size - before.size
        if state.acl is not before.acl:
            self._acls.add(state.acl)
            self._acls.release(before.acl)
        node.state = state

    def _registered(self, owner: int) -> set[str]:
        """Returns the set that has the nodes of this owner."""
        kind = kind_of(owner)
        if kind is Kind.EPHEMERAL:
            return self._ephemerals.setdefault(owner, set())
        return self._containers if kind is Kind.CONTAINER else self._with_ttl

    # ---- quotas ----

    def _limited(self, path: str) -> str | None:
        """Returns the deepest path with a quota at or above ``path``."""
        return next((above for above in ancestors(path) if above in self._quotas), None)

    def _check_quota(self, path: str, added_nodes: int, added_size: int, context: Context) -> None:
        """Raises QuotaExceeded, or MarshallingError for unreadable limits or counters.

        Without a counter no limit is exceeded.
        """
        if (limited := self._limited(path)) is None or not context.rules & Rules.ENFORCE_QUOTA:
            return
        stats = self._nodes.get(quota.stats_of(limited))
        try:
            limits = quota.decode_track(self._nodes[quota.limits_of(limited)].state.data)
            if stats is None or not quota.limits_any(limits, added_nodes, added_size):
                return
            used = quota.decode_track(stats.state.data)
        except ValueError:
            raise ZooKeeperError(Code.MARSHALLING_ERROR, path) from None
        if quota.exceeded(limits, used, added_nodes, added_size):
            raise ZooKeeperError(Code.QUOTA_EXCEEDED, path)

    def _begin_counting(self, path: str, effects: Effects) -> None:
        """Sets a new counter to the present numbers."""
        if not path.startswith(quota.BELOW_ROOT) or name_of(path) != quota.STATS:
            return
        counted = path[len(quota.ROOT_OF_QUOTAS) : -len(quota.STATS) - 1]
        count = size = 0
        for _path, node in self._below(counted):
            count += 1
            size += node.state.size
        self._put_counter(path, quota.Track(count, size), effects)

    def _below(self, path: str) -> Iterator[tuple[str, Node]]:
        """Yields the node at ``path``, if there is one, and all below it, in any order."""
        left = [path] if path in self._nodes else []
        while left:
            path = left.pop()
            node = self._nodes[path]
            yield path, node
            left += [f"{path}/{name}" for name in node.children or ()]

    def _count(self, path: str, added_nodes: int, added_size: int, effects: Effects) -> None:
        """Counts a change in its quota. An unreadable counter stays as it is."""
        if (limited := self._limited(path)) is None:
            return
        counter = quota.stats_of(limited)
        stats = self._nodes.get(counter)
        if stats is None:
            return
        try:
            used = quota.decode_track(stats.state.data)
        except ValueError:
            return
        self._put_counter(counter, used.plus(added_nodes, added_size), effects)

    def _put_counter(self, path: str, counted: quota.Track, effects: Effects) -> None:
        """Sets a counter, without a new version, time or event."""
        node = self._nodes[path]
        before = node.state
        self._become(path, node, before._replace(data=counted.encode()))
        effects.add(None, lambda: self._become(path, node, before))


def parent_of(path: str) -> str:
    """``/a`` for ``/a/b``, ``/`` for ``/a``."""
    return path[: path.rindex("/")] or ROOT


def ancestors(path: str) -> Iterator[str]:
    """Yields ``path``, then every path above it up to the root."""
    yield path
    while path != ROOT:
        path = parent_of(path)
        yield path


def name_of(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def validate_path(path: str) -> None:
    """Raises BadArguments if ``path`` is not valid (``PathUtils.validatePath``)."""
    if path != ROOT and (not path.startswith("/") or path.endswith("/") or _INVALID.search(path)):
        raise ZooKeeperError(Code.BAD_ARGUMENTS, path)


def _path(path: str | None) -> str:
    if path is None:
        raise ZooKeeperError(Code.MARSHALLING_ERROR)
    return path


def _deletable(path: str | None) -> str:
    path = _path(path)
    if "/" not in path or "\0" in path or path in SPECIAL_PATHS:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, path)
    return path


def _owner(request: Create, context: Context) -> int:
    """Returns the stored owner of a new node. Raises BadArguments, Unimplemented."""
    flags = request.flags
    if not 0 <= flags <= TTL_SEQUENTIAL:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, request.path)
    if flags in (TTL, TTL_SEQUENTIAL):
        if not context.rules & Rules.EXTENDED_TYPES:
            raise ZooKeeperError(Code.UNIMPLEMENTED, request.path)
        if request.op is not Op.CREATE_TTL or not 0 < request.ttl_ms <= MAX_TTL_MS:
            raise ZooKeeperError(Code.BAD_ARGUMENTS, request.path)
        return TTL_OWNER | request.ttl_ms
    if request.op is Op.CREATE_TTL:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, request.path)
    if request.op is Op.CREATE_CONTAINER:
        return CONTAINER_OWNER
    return context.session_id if flags != CONTAINER and flags & EPHEMERAL else 0


def _next_version(current: int, expected: int, path: str) -> int:
    if expected not in (-1, current):
        raise ZooKeeperError(Code.BAD_VERSION, path)
    if current == -2:
        return 0
    return current + 1 if current < _INT_MAX else _int32(current + 1)


def _int32(value: int) -> int:
    """Wraps a value as Java's int."""
    return (value + 0x8000_0000) % 0x1_0000_0000 - 0x8000_0000
