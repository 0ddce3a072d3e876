"""A model of the coordinator: znodes with versions, sessions with ephemeral nodes, watches, transactions.

`Coordinator` is the server: it applies one request at a time. `Session` is a client with the methods of
`cluster.controller.ZooKeeper`, over a simulated connection that is cut and made again as kazoo's is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from cluster.controller.zookeeper import (
    BadVersionError,
    Check,
    ConnectionLostError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SetData,
    Stat,
    Watch,
)

from .network import Process

SESSION_SECONDS = 3.0
"""`zookeeper.session.timeout.ms`"""


@dataclass
class Znode:
    data: bytes
    czxid: int
    owner: int = 0
    version: int = 0
    children: set[str] = field(default_factory=set)
    sequence: int = 0


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Coordinator:
    """The server's side."""

    def __init__(self, written: Callable[[str, bytes | None, int], None]) -> None:
        """`written` is called after each change of a node, with its new data (None: deleted) and version."""
        self.nodes: dict[str, Znode] = {"/": Znode(b"", 0)}
        self.sessions: dict[int, set[str]] = {}
        """By session: its ephemeral nodes."""
        self._watches: dict[tuple[str, bool], dict[int, list[Watch]]] = {}
        """By path and whether its children are watched; by session."""
        self._zxid = 0
        self._last_session = 0
        self._written = written
        self.notify: Callable[[int, Watch], None] = lambda _session, _watch: None

    def open(self) -> int:
        self._last_session += 1
        self.sessions[self._last_session] = set()
        return self._last_session

    def end(self, session: int) -> None:
        """The session timed out or was closed."""
        for path in sorted(self.sessions.pop(session, ())):
            self._do([Delete(path)], session)
        self.forget_watches(session)

    def forget_watches(self, session: int) -> None:
        for watches in self._watches.values():
            watches.pop(session, None)

    def children(self, session: int, path: str, watch: Watch | None) -> list[str]:
        if path not in self.nodes:
            raise NoNodeError(path)
        self._watch(session, path, True, watch)
        return sorted(self.nodes[path].children)

    def get(self, session: int, path: str, watch: Watch | None) -> tuple[bytes, Stat]:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        self._watch(session, path, False, watch)
        return node.data, Stat(node.version, node.czxid, node.owner)

    def exists(self, session: int, path: str, watch: Watch) -> bool:
        self._watch(session, path, False, watch)
        return path in self.nodes

    def _watch(self, session: int, path: str, of_children: bool, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.setdefault((path, of_children), {}).setdefault(session, []).append(watch)

    def transaction(self, session: int, operations: Sequence[Operation]) -> list[Any]:
        """All operations or none. A later one sees what the earlier ones changed."""
        return self._do(operations, session)

    def _do(self, operations: Sequence[Operation], session: int) -> list[Any]:
        undo: list[Callable[[], None]] = []
        fired: list[tuple[str, bool]] = []
        changes: list[tuple[str, bytes | None, int]] = []
        results: list[Any] = []
        self._zxid += 1
        try:
            for operation in operations:
                results.append(self._one(operation, session, undo, fired, changes))
        except Exception:
            for step in reversed(undo):
                step()
            raise
        for change in changes:
            self._written(*change)
        for key in fired:
            for watcher, watches in self._watches.pop(key, {}).items():
                for watch in watches:
                    self.notify(watcher, watch)
        return results

    def _one(
        self,
        operation: Operation,
        session: int,
        undo: list[Callable[[], None]],
        fired: list[tuple[str, bool]],
        changes: list[tuple[str, bytes | None, int]],
    ) -> Any:
        nodes, path = self.nodes, operation.path
        if isinstance(operation, Create):
            parent = nodes.get(_parent(path))
            if parent is None:
                raise NoNodeError(path)
            if operation.sequential:
                path = f"{path}{parent.sequence:010d}"
                parent.sequence += 1
            if path in nodes:
                raise NodeExistsError(path)
            owner = session if operation.ephemeral else 0
            nodes[path] = Znode(operation.data or b"", self._zxid, owner)
            parent.children.add(path.rpartition("/")[2])
            if owner:
                self.sessions[session].add(path)
            undo.append(lambda: self._drop(path))
            fired += [(path, False), (_parent(path), True)]
            changes.append((path, nodes[path].data, 0))
            return path
        node = nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        if not isinstance(operation, Delete) and operation.version not in (-1, node.version):
            raise BadVersionError(path)
        if isinstance(operation, Check):
            return None
        if isinstance(operation, SetData):
            before = node.data

            def restore() -> None:
                node.data, node.version = before, node.version - 1

            node.data, node.version = operation.data, node.version + 1
            undo.append(restore)
            fired.append((path, False))
            changes.append((path, node.data, node.version))
            return node.version
        if operation.version not in (-1, node.version):
            raise BadVersionError(path)
        if node.children:
            raise NotEmptyError(path)
        self._drop(path)
        undo.append(lambda: self._put_back(path, node))
        fired += [(path, False), (path, True), (_parent(path), True)]
        changes.append((path, None, -1))
        return None

    def _drop(self, path: str) -> None:
        node = self.nodes.pop(path)
        self.nodes[_parent(path)].children.discard(path.rpartition("/")[2])
        if node.owner in self.sessions:
            self.sessions[node.owner].discard(path)

    def _put_back(self, path: str, node: Znode) -> None:
        self.nodes[path] = node
        self.nodes[_parent(path)].children.add(path.rpartition("/")[2])
        if node.owner in self.sessions:
            self.sessions[node.owner].add(path)


class Wire(Protocol):
    """The network between one client and the coordinator."""

    def to_coordinator(self, session: Session, arrive: Callable[[], None]) -> None: ...
    def to_client(self, session: Session, arrive: Callable[[], None]) -> None: ...


@dataclass
class _Call:
    apply: Callable[[int], Any]
    answer: asyncio.Future[Any]


class Session:
    """The client's side. Has the methods of `cluster.controller.ZooKeeper`."""

    def __init__(self, coordinator: Coordinator, wire: Wire, process: Process) -> None:
        self._server = coordinator
        self._wire = wire
        self.process = process
        self.sent_at = self.received_at = 0.0
        """When the last message arrives, either way: both ways keep their order."""
        self.session_id = 0
        self.connection = 0
        """Counts connections: what belongs to an earlier one is dropped."""
        self.connected = asyncio.Event()
        self._in_flight: dict[int, _Call] = {}
        self._queued: list[_Call] = []
        self._calls = 0
        self._on_session: Callable[[], None] | None = None
        self._watches: list[Watch] = []

    # ---- the connection, moved by the simulation ----

    def made(self) -> None:
        """A connection was made. A session that ended meanwhile is replaced."""
        self.connection += 1
        ended = self.session_id != 0 and self.session_id not in self._server.sessions
        if self.session_id == 0 or ended:
            self.session_id = self._server.open()
        lost, self._queued = (self._queued, []) if ended else ([], self._queued)
        for call in lost:
            if not call.answer.done():
                call.answer.set_exception(ConnectionLostError("the session ended"))
        self.connected.set()
        if ended and self._on_session is not None:
            self.process.context.copy().run(self._on_session)
        queued, self._queued = self._queued, []
        for call in queued:
            self._send(call)

    def lost(self) -> None:
        """The connection was lost: calls fail, and every watch is called, as kazoo does."""
        if not self.connected.is_set():
            return
        self.connection += 1
        self.connected.clear()
        self._server.forget_watches(self.session_id)
        calls, self._in_flight = self._in_flight, {}
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(_Interrupted("the connection was lost"))
        for watch in list(self._watches):
            self.process.context.copy().run(watch)

    def _send(self, call: _Call) -> None:
        self._calls += 1
        number, connection = self._calls, self.connection
        self._in_flight[number] = call

        def arrive() -> None:
            if connection != self.connection or self.session_id not in self._server.sessions:
                return
            try:
                result, failure = call.apply(self.session_id), None
            except Exception as error:
                result, failure = None, error
            self._wire.to_client(self, lambda: answered(result, failure))

        def answered(result: Any, failure: Exception | None) -> None:
            if connection != self.connection:
                return
            self._in_flight.pop(number, None)
            if call.answer.done():
                return
            if failure is None:
                call.answer.set_result(result)
            else:
                call.answer.set_exception(failure)

        self._wire.to_coordinator(self, arrive)

    async def _call(self, apply: Callable[[int], Any]) -> Any:
        while True:
            call = _Call(apply, asyncio.get_running_loop().create_future())
            if self.connected.is_set():
                self._send(call)
            else:
                self._queued.append(call)
            try:
                return await call.answer
            except _Interrupted:
                await self.wait_connected()

    def _client_watch(self, watch: Watch | None) -> Watch | None:
        if watch is None:
            return None
        called = watch

        def once() -> None:
            if once in self._watches:
                self._watches.remove(once)
                called()

        self._watches.append(once)
        return once

    # ---- `ZooKeeper` ----

    def repeating(self) -> Self:
        return self

    def on_session(self, callback: Callable[[], None]) -> None:
        self._on_session = callback

    async def wait_connected(self) -> None:
        await self.connected.wait()

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        return await self._call(lambda session: self._server.get(session, path, self._client_watch(watch)))

    async def find(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        try:
            return await self.get(path, watch)
        except NoNodeError:
            return None

    async def exists(self, path: str, watch: Watch) -> bool:
        return bool(
            await self._call(lambda session: self._server.exists(session, path, self._client_watch(watch)))
        )

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        try:
            return await self._call(
                lambda session: self._server.children(session, path, self._client_watch(watch))
            )
        except NoNodeError:
            return []

    async def create(self, path: str, data: bytes | None = b"", ephemeral: bool = False) -> None:
        await self.transaction([Create(path, data or b"", ephemeral)])

    async def ensure(self, paths: Iterable[str]) -> None:
        for path in paths:
            await self._ensure(path)

    async def _ensure(self, path: str) -> None:
        try:
            await self.create(path)
        except NodeExistsError:
            return
        except NoNodeError:
            await self._ensure(_parent(path))
            await self._ensure(path)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        return (await self.transaction([SetData(path, data, version)]))[0]

    async def delete(self, path: str) -> None:
        try:
            await self.transaction([Delete(path)])
        except NoNodeError:
            return

    async def transaction(self, operations: Sequence[Operation]) -> Any:
        return await self._call(lambda session: self._server.transaction(session, operations))


class _Interrupted(Exception):
    """The connection was lost; the call may have happened. It is repeated."""
