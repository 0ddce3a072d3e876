"""What was recorded: requests and answers, notifications, what became of sessions, holds of locks, and
transactions if a server's log was read.

Times are one clock's of the recorder, in nanoseconds, no two alike: what is earlier happened earlier. An
operation without ``completed`` is unknown: its connection broke, and it may have been done, may be done
later, or never.
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
"""What an operation of a multi is told behind the one that failed; one before it is told OK."""

CREATED, DELETED, DATA_CHANGED, CHILDREN_CHANGED = 1, 2, 3, 4
"""Kinds of notifications (``Watcher.Event.EventType``)."""


class Stat(NamedTuple):
    """As on the wire."""

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
    """Its answer is the path that was made, and its Stat."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Its answer is a Stat. Version -1 is any."""

    path: str
    data: bytes
    version: int = -1


class Delete(NamedTuple):
    path: str
    version: int = -1


class Check(NamedTuple):
    """Only in a multi."""

    path: str
    version: int


class Multi(NamedTuple):
    """Its answer is one for each operation: a result, or the number of an error."""

    operations: tuple[Create | SetData | Delete | Check, ...]


class GetData(NamedTuple):
    """Its answer is data and Stat."""

    path: str
    watch: bool = False


class Exists(NamedTuple):
    """Its answer is a Stat."""

    path: str
    watch: bool = False


class GetChildren(NamedTuple):
    """Its answer is names, sorted, and Stat."""

    path: str
    watch: bool = False


class Sync(NamedTuple):
    path: str


class AddWatch(NamedTuple):
    path: str
    recursive: bool


class SetWatches(NamedTuple):
    """What a client sends first on a new connection, for the watches it had."""

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


# ---- what was recorded ----


@dataclass(frozen=True)
class Operation:
    """A request of a session (its id; ``xid`` is its number in there) to server ``server``, and what came
    back."""

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
        """It was answered, and not with an error; nor was one of a multi."""
        failed = isinstance(self.result, tuple) and any(
            isinstance(each, int) and each != OK for each in self.result
        )
        return self.is_known and self.error == OK and not failed

    def __str__(self) -> str:
        answer = f"{self.error or 'ok'} at 0x{self.zxid:x} {self.result}" if self.is_known else "unknown"
        return f"client {self.client} 0x{self.session:x}/{self.xid} on server {self.server}: {self.request} -> {answer}"


class Notification(NamedTuple):
    """``zxid`` of the transaction, or -1 when it is of what happened before the connection."""

    client: int
    session: int
    at: int
    zxid: int
    kind: int
    path: str


class Contact(NamedTuple):
    """What became of a session:

    "connected" (first or again), "lost" (its connection), "expired" (the client was told so).
    """

    client: int
    session: int
    server: int
    at: int
    kind: str
    timeout_ms: int = 0


class Hold(NamedTuple):
    """A lock that a client held. ``acquired``: when and with what zxid it was answered that its node is the
    first; ``until``: when it began to release it, lost its session, or had no answer for two thirds of its
    timeout; ``writes``: xids of writes that it sent in its session while it held the lock; ``proof``: the
    last zxid at which its session answered before ``until``."""

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
    """What a transaction did to a node:

    CREATED (``data`` and ``owner``), DATA_CHANGED (``data``) or DELETED.
    """

    kind: int
    path: str
    data: bytes = b""
    owner: int = 0


class Transaction(NamedTuple):
    """Of a server's log.

    ``xid`` of the session's request; ``closes``: it ended that session; ``error``: it was refused so.
    """

    zxid: int
    session: int
    xid: int
    changes: tuple[Change, ...]
    closes: bool = False
    error: int = OK


@dataclass
class History:
    """Of one run, below node ``root``, which the first operation made. ``transactions``: all of the
    ensemble's from that one to behind the last, in order, if a log could be read."""

    root: str
    operations: list[Operation] = field(default_factory=list)
    notifications: list[Notification] = field(default_factory=list)
    contacts: list[Contact] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    transactions: list[Transaction] | None = None

    def is_within(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def sessions(self) -> dict[int, list[Operation | Notification | Contact]]:
        """What each session's client was told, in the order in which it was."""
        shown: list[tuple[int, Operation | Notification | Contact]] = []
        shown += [(each.completed, each) for each in self.operations if each.completed is not None]
        shown += [(each.at, each) for each in self.notifications]
        shown += [(each.at, each) for each in self.contacts]
        found: dict[int, list[Operation | Notification | Contact]] = {}
        for _at, each in sorted(shown, key=lambda pair: pair[0]):
            found.setdefault(each.session, []).append(each)
        return found
