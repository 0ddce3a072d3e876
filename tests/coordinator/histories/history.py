"""The data of a recorded history.

It has the requests with their answers, the notifications, the sessions' contacts, the holds of locks, and the
transactions if a server's log was read.

Times are nanoseconds of one clock, no two equal. An operation without ``completed`` is unknown: its
connection broke, and it may have been done, may be done later, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OK = 0
NO_NODE = -101
BAD_VERSION = -103
NO_CHILDREN_FOR_EPHEMERALS = -108
NODE_EXISTS = -110
NOT_EMPTY = -111
SESSION_EXPIRED = -112
SESSION_MOVED = -118
ROLLED_BACK = -2
"""The result of a multi's operations after the failed one; those before it have OK."""

CREATED, DELETED, DATA_CHANGED, CHILDREN_CHANGED = 1, 2, 3, 4
"""The kinds of notifications (``Watcher.Event.EventType``)."""


class Stat(NamedTuple):
    """ZooKeeper's Stat, in the order of the wire."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


# ---- requests ----


class Create(NamedTuple):
    """The answer is the path of the new node, and its Stat."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """The answer is a Stat. Version -1 matches every version."""

    path: str
    data: bytes
    version: int = -1


class Delete(NamedTuple):
    path: str
    version: int = -1


class Check(NamedTuple):
    """Occurs only in a multi."""

    path: str
    version: int


class Multi(NamedTuple):
    """The answer has a result or an error code for each operation."""

    operations: tuple[Create | SetData | Delete | Check, ...]


class GetData(NamedTuple):
    """The answer is the data and the Stat."""

    path: str
    watch: bool = False


class Exists(NamedTuple):
    """The answer is a Stat."""

    path: str
    watch: bool = False


class GetChildren(NamedTuple):
    """The answer is the sorted names and the Stat."""

    path: str
    watch: bool = False


class Sync(NamedTuple):
    path: str


class AddWatch(NamedTuple):
    path: str
    recursive: bool


class SetWatches(NamedTuple):
    """The first request on a new connection: sets the client's watches again."""

    relative_zxid: int
    data: tuple[str, ...] = ()
    exist: tuple[str, ...] = ()
    child: tuple[str, ...] = ()
    persistent: tuple[str, ...] = ()
    recursive: tuple[str, ...] = ()


class CloseSession(NamedTuple):
    pass


Write = Create | SetData | Delete | Multi | CloseSession
Read = GetData | Exists | GetChildren
Request = Write | Read | Sync | AddWatch | SetWatches
WRITES = (Create, SetData, Delete, Multi, CloseSession)
READS = (GetData, Exists, GetChildren)


def parts(request: Request) -> Iterator[Create | SetData | Delete | Check]:
    """The single writes of a write."""
    if isinstance(request, Multi):
        yield from request.operations
    elif isinstance(request, Create | SetData | Delete):
        yield request


# ---- the records ----


@dataclass(frozen=True)
class Operation:
    """A session's request to a server, and the answer. ``xid`` is the request's number in the session."""

    client: int
    session: int
    xid: int
    server: int
    request: Request
    invoked: int
    completed: int | None = None
    zxid: int = 0
    error: int = OK
    result: Any = None

    @property
    def is_known(self) -> bool:
        return self.completed is not None

    @property
    def is_write(self) -> bool:
        return isinstance(self.request, WRITES)

    @property
    def is_done(self) -> bool:
        """Whether it was answered without an error, also for each part of a multi."""
        failed = isinstance(self.result, tuple) and any(
            isinstance(each, int) and each != OK for each in self.result
        )
        return self.is_known and self.error == OK and not failed

    def __str__(self) -> str:
        answer = f"{self.error or 'ok'} at 0x{self.zxid:x} {self.result}" if self.is_known else "unknown"
        sender = f"client {self.client} 0x{self.session:x}/{self.xid} on server {self.server}"
        return f"{sender}: {self.request} -> {answer}"


class Notification(NamedTuple):
    """A watch event.

    ``zxid`` is the transaction's, or -1 for an event that was missed before the connection.
    """

    client: int
    session: int
    at: int
    zxid: int
    kind: int
    path: str


class Contact(NamedTuple):
    """A change of a session's state.

    ``kind`` is "connected" (also again), "lost" (the connection) or "expired" (as a server reported).
    """

    client: int
    session: int
    server: int
    at: int
    kind: str
    timeout_ms: int = 0


class Hold(NamedTuple):
    """A time in which a client held a lock.

    - ``fence``: the sequence number of its node.
    - ``acquired``, ``acquired_zxid``: the time and the zxid of the answer that listed its node first.
    - ``until``: when it began to release the lock, lost its session, or had no answer for two thirds of its
      timeout.
    - ``proof``: the zxid of the session's last answer before ``until``.
    - ``writes``: the xids of the writes that it sent while it held the lock.
    """

    client: int
    session: int
    lock: str
    fence: int
    acquired: int
    acquired_zxid: int
    until: int
    proof: int
    writes: tuple[int, ...]


class Change(NamedTuple):
    """A change of a node: CREATED (``data`` and ``owner``), DATA_CHANGED (``data``) or DELETED."""

    kind: int
    path: str
    data: bytes = b""
    owner: int = 0


class Transaction(NamedTuple):
    """A transaction of a server's log, for request ``xid`` of the session.

    ``closes``: it ended the session. ``error``: the code it was refused with.
    """

    zxid: int
    session: int
    xid: int
    changes: tuple[Change, ...]
    closes: bool = False
    error: int = OK


@dataclass
class History:
    """The history of one run, below node ``root``, which the first operation made.

    ``transactions``: if a log was read, all transactions in order, from the first operation to after the
    last.
    """

    root: str
    operations: list[Operation] = field(default_factory=list)
    notifications: list[Notification] = field(default_factory=list)
    contacts: list[Contact] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    transactions: list[Transaction] | None = None

    def is_within(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def sessions(self) -> dict[int, list[Operation | Notification | Contact]]:
        """By session: everything that its client received, in order."""
        received: list[tuple[int, Operation | Notification | Contact]] = []
        received += [(each.completed, each) for each in self.operations if each.completed is not None]
        received += [(each.at, each) for each in self.notifications]
        received += [(each.at, each) for each in self.contacts]
        found: dict[int, list[Operation | Notification | Contact]] = {}
        for _at, each in sorted(received, key=lambda pair: pair[0]):
            found.setdefault(each.session, []).append(each)
        return found
