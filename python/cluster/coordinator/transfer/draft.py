"""A tree that is being read: nodes from a snapshot, changed by the transactions of a log.

Owns the rules by which Apache ZooKeeper replays its log on a snapshot that was taken while it served
(``DataTree.processTxn``). Some nodes are newer than the snapshot, so a change may already be there.
Transactions are results, not requests: nothing is checked, versions and counts are set, and a missing node is
not an error. So this is not :mod:`cluster.coordinator.state.tree`. Pure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from ..protocol.jute import Acl
from ..protocol.requests import MAX_TTL_MS
from ..state import quota
from ..state.machine import State
from ..state.sessions import Session
from ..state.tree import ROOT, SPECIAL_PATHS, TTL_OWNER, Kind, NodeState, Tree, kind_of, name_of, parent_of
from .common import Damaged, Moved, session_password, some
from .transactions import (
    Change,
    CloseSessionTxn,
    CreateSessionTxn,
    CreateTxn,
    DeleteTxn,
    SetAclTxn,
    SetDataTxn,
    Transaction,
)

_INT_MAX = (1 << 31) - 1
_64_BITS = (1 << 64) - 1
_OUTSIDE_OF_DIGEST = "/zookeeper/"
_DIGESTED = struct.Struct(">qqqqqiiiq")


class DraftNode:
    """A :class:`cluster.coordinator.state.tree.NodeState` that changes, with the names of its children.
    ``acl`` may be a number whose ACL is not known yet."""

    __slots__ = (
        "acl",
        "acl_version",
        "children",
        "creations",
        "ctime",
        "czxid",
        "data",
        "mtime",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(
        self,
        data: bytes | None,
        acl: tuple[Acl, ...] | int,
        czxid: int,
        mzxid: int,
        pzxid: int,
        ctime: int,
        mtime: int,
        version: int,
        creations: int,
        acl_version: int,
        owner: int,
    ) -> None:
        self.data = data
        self.acl = acl
        self.czxid = czxid
        self.mzxid = mzxid
        self.pzxid = pzxid
        self.ctime = ctime
        self.mtime = mtime
        self.version = version
        self.creations = creations
        self.acl_version = acl_version
        self.owner = owner
        self.children: set[str] | None = None

    def numbers(self) -> tuple[int, int, int, int, int, int, int, int, int]:
        """The numbers of a NodeState."""
        return (
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.creations,
            self.acl_version,
            self.owner,
        )

    def digest(self, path: str) -> int:
        """Returns its part of the tree's digest, version 2 (``DigestCalculator``)."""
        if path.startswith(_OUTSIDE_OF_DIGEST):
            return 0
        name = b"" if path == ROOT else path.encode("utf-8", "replace")
        return zlib.crc32(_DIGESTED.pack(*self.numbers()), zlib.crc32(self.data or b"", zlib.crc32(name)))


class Draft:
    """The nodes, and the sessions' timeouts in milliseconds, after ``last_zxid``."""

    def __init__(self, last_zxid: int, sessions: dict[int, int] | None = None) -> None:
        self.last_zxid = last_zxid
        self.nodes: dict[str, DraftNode] = {}
        self.sessions = sessions if sessions is not None else {}
        self._owned: dict[int, set[str]] = {}
        self._digest = 0

    @property
    def digest(self) -> int:
        """The digest of the whole tree, as Apache ZooKeeper adds it to its transactions."""
        return self._digest & _64_BITS

    def add(self, path: str, node: DraftNode) -> None:
        """Adds a node. Raises ValueError if it is there, or its parent is not."""
        if path in self.nodes:
            raise ValueError(f"{path} appears twice")
        if path != ROOT:
            if not path.startswith("/") or path.endswith("/") or parent_of(path) not in self.nodes:
                raise ValueError(f"{path!r} has no parent")
            self._adopt(path)
        self._put(path, node)

    def add_special_nodes(self) -> None:
        """Adds missing nodes that every tree has: versions before 3.5 have no configuration."""
        fresh = Tree()
        for path in SPECIAL_PATHS:
            if path not in self.nodes:
                self.add(path, DraftNode(*fresh.node(path).state))

    # ---- replay ----

    def apply(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            self._change(change, transaction)
        self.last_zxid = max(self.last_zxid, transaction.zxid)

    def _change(self, change: Change, transaction: Transaction) -> None:
        if isinstance(change, CreateTxn):
            self._create(change, transaction.zxid, transaction.time_ms)
        elif isinstance(change, DeleteTxn):
            self._delete(change.path, transaction.zxid)
        elif isinstance(change, SetDataTxn):
            if (node := self.nodes.get(change.path)) is not None:
                self._digest -= node.digest(change.path)
                node.data, node.version = change.data, change.version
                node.mzxid, node.mtime = transaction.zxid, transaction.time_ms
                self._digest += node.digest(change.path)
        elif isinstance(change, SetAclTxn):
            if (node := self.nodes.get(change.path)) is not None:
                self._digest -= node.digest(change.path)
                node.acl, node.acl_version = change.acl, change.version
                self._digest += node.digest(change.path)
        elif isinstance(change, CreateSessionTxn):
            self.sessions[transaction.session_id] = change.timeout_ms
        else:
            self._close_session(transaction.session_id, change, transaction.zxid)

    def _create(self, change: CreateTxn, zxid: int, time_ms: int) -> None:
        path = change.path
        parent_path = parent_of(path)
        parent = self.nodes.get(parent_path)
        if parent is None or path == ROOT:
            return
        if parent.children and name_of(path) in parent.children:
            there = self.nodes[path]
            if isinstance(there.acl, int):
                there.acl = change.acl  # the snapshot's ACLs were written before this one was used
            if not change.mends_parent:
                return
        else:
            numbers = (zxid, zxid, zxid, time_ms, time_ms, 0, 0, 0, change.owner)
            self._adopt(path)
            self._put(path, DraftNode(change.data, change.acl, *numbers))
        creations = parent.creations + 1 if change.parent_creations == -1 else change.parent_creations
        if parent.creations < creations <= _INT_MAX:
            self._digest -= parent.digest(parent_path)
            parent.creations, parent.pzxid = creations, zxid
            self._digest += parent.digest(parent_path)

    def _delete(self, path: str, zxid: int) -> None:
        parent_path = parent_of(path)
        parent = self.nodes.get(parent_path)
        if parent is None or path == ROOT:
            return
        if parent.children:
            parent.children.discard(name_of(path))
        if zxid > parent.pzxid:
            self._digest -= parent.digest(parent_path)
            parent.pzxid = zxid
            self._digest += parent.digest(parent_path)
        self._take_away(path)

    def _close_session(self, session_id: int, change: CloseSessionTxn, zxid: int) -> None:
        self.sessions.pop(session_id, None)
        for path in change.paths:
            self._delete(path, zxid)
        for path in sorted(self._owned.get(session_id, ())):
            self._delete(path, zxid)

    def _adopt(self, path: str) -> None:
        parent = self.nodes[parent_of(path)]
        if parent.children is None:
            parent.children = set()
        parent.children.add(name_of(path))

    def _put(self, path: str, node: DraftNode) -> None:
        self._take_away(path)
        self.nodes[path] = node
        if node.owner:
            self._owned.setdefault(node.owner, set()).add(path)
        self._digest += node.digest(path)

    def _take_away(self, path: str) -> None:
        node = self.nodes.pop(path, None)
        if node is None:
            return
        self._digest -= node.digest(path)
        if node.owner:
            self._owned[node.owner].discard(path)

    # ---- the end ----

    def finish(self, notes: list[str]) -> Moved:
        """Returns the state, completed as ZooKeeper does at its start. Raises Damaged for an unknown ACL.

        Nodes of ended sessions and nodes without parents are left out, and the counters of quotas are set.
        """
        notes = list(notes)
        self._remove_ended_sessions(notes)
        self._remove_orphans(notes)
        unknown = [path for path, node in self.nodes.items() if isinstance(node.acl, int)]
        if unknown:
            raise Damaged(f"ACLs of {len(unknown)} nodes are not in the snapshot: {some(unknown)}")
        self.add_special_nodes()
        self._count_quotas()
        nodes = [
            (path, NodeState(node.data, _known(node.acl), *node.numbers()))
            for path, node in self.nodes.items()
        ]
        sessions = [Session(each, timeout, session_password(each)) for each, timeout in self.sessions.items()]
        last_session_id = max((session.id for session in sessions), default=0)
        return Moved(State(self.last_zxid, last_session_id, sessions, nodes), notes)

    def _remove_ended_sessions(self, notes: list[str]) -> None:
        over = [owner for owner in self._owned if self._is_session(owner) and owner not in self.sessions]
        # The session ids of a server 255 look like TTLs, and a node has only one field for both.
        strange = [each for each in self.sessions if kind_of(each) is not Kind.EPHEMERAL]
        left_out = [path for owner in {*over, *strange} for path in self._owned.get(owner, ())]
        for session_id in strange:
            del self.sessions[session_id]
        for path in left_out:
            self._delete(path, self.last_zxid)
        if left_out:
            notes.append(f"{len(left_out)} ephemeral nodes without a session were left out: {some(left_out)}")

    def _is_session(self, owner: int) -> bool:
        if kind_of(owner) is Kind.TTL:
            return owner in self.sessions or owner - TTL_OWNER > MAX_TTL_MS
        return kind_of(owner) is Kind.EPHEMERAL

    def _remove_orphans(self, notes: list[str]) -> None:
        reached = set(self._below(ROOT))
        lost = [path for path in self.nodes if path not in reached]
        for path in lost:
            self._take_away(path)
        if lost:
            notes.append(f"{len(lost)} nodes below deleted ones were left out: {some(lost)}")

    def _below(self, path: str) -> Iterator[str]:
        """Yields ``path`` and every path below it, parents first."""
        found = [path] if path in self.nodes else []
        while found:
            path = found.pop()
            yield path
            below = "/" if path == ROOT else path + "/"
            found += [below + name for name in self.nodes[path].children or ()]

    def _count_quotas(self) -> None:
        for limited in [found for path in self.nodes if (found := quota.path_of(path)) is not None]:
            counter = self.nodes.get(quota.stats_of(limited))
            if counter is not None:
                sizes = [len(self.nodes[path].data or b"") for path in self._below(limited)]
                counter.data = quota.Track(len(sizes), sum(sizes)).encode()


def _known(acl: tuple[Acl, ...] | int) -> tuple[Acl, ...]:
    assert not isinstance(acl, int), "unknown ACLs are refused before"
    return acl
