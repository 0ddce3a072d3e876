"""The coordinator's client for the event loop: kazoo's asynchronous calls as awaitables.

Owns one kazoo client, whose threads do the network; every callback comes to the loop through
call_soon_threadsafe, so nothing here blocks the loop and nothing of ours runs in kazoo's threads. Calls raise
kazoo's exceptions. On a lost connection a call raises ConnectionLoss and may or may not have happened, or is
repeated for those who can tell (`repeating`, `away_at_most`); on a lost session the ephemeral nodes are gone,
and `on_session` is called once a new session is there.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from cluster.model import Milliseconds

if TYPE_CHECKING:
    from kazoo.client import KazooClient

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
"""For the answer to a session's end: who does not give it may be away for good."""

Watch = Callable[[], None]


class Stat(NamedTuple):
    """What is needed of a znode's state."""

    version: int
    czxid: int
    owner: int
    created_ms: int = 0


class Create(NamedTuple):
    """An operation of a transaction: create a node; a `sequential` one has the next number added to its name."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


class Delete(NamedTuple):
    """An operation of a transaction: delete a node if it has this version (-1: any)."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """An operation of a transaction: fail unless the node has this version."""

    path: str
    version: int


class SetData(NamedTuple):
    """An operation of a transaction: set a node's data if it has this version (-1: any)."""

    path: str
    data: bytes
    version: int = -1


Operation = Create | Delete | Check | SetData


class ZooKeeper:
    """A session with the coordinator."""

    def __init__(self, client: KazooClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._lost = False
        self._connected = asyncio.Event()
        self._on_session: Callable[[], None] | None = None
        self._repeats = False
        self._away_seconds: float | None = None
        self._deadline: asyncio.Timeout | None = None

    @classmethod
    async def connect(
        cls, connect: str, session_timeout_ms: Milliseconds, connection_timeout_ms: Milliseconds
    ) -> ZooKeeper:
        """Connects to `connect` (hosts and ports, and optionally a chroot, which is made when it is missing).

        Raises ConnectionError when no server answers in time.
        """
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry

        hosts, slash, chroot = connect.partition("/")
        # Attempts to connect follow one another quickly: the servers may still be starting.
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0)
        client = KazooClient(hosts=hosts, timeout=session_timeout_ms / 1000, connection_retry=retry)
        zk = cls(client, asyncio.get_running_loop())
        client.add_listener(zk._listen)
        client.start_async()
        try:
            async with asyncio.timeout(connection_timeout_ms / 1000):
                await zk.wait_connected()
        except BaseException as error:
            zk._end()
            if not isinstance(error, TimeoutError):
                raise
            raise ConnectionError(
                f"no coordinator answers at {hosts} within {connection_timeout_ms} ms; "
                "is it running, and is zookeeper.connect right?"
            ) from None
        if slash and chroot:
            try:
                async with zk.away_at_most(connection_timeout_ms):
                    await zk._result(lambda: client.ensure_path_async(f"/{chroot}"))
            except BaseException:
                await zk.close()
                raise
            client.chroot = f"/{chroot}"
        return zk

    async def close(self) -> None:
        """Ends the session, which removes its ephemeral nodes; they stay until it times out when no server answers."""
        self._on_session = None
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._end()), _CLOSE_SECONDS)
        except TimeoutError:
            log.warning(
                "the coordinator does not answer; the session %#x is left to its timeout", self.session_id
            )

    def _end(self) -> Future[None]:
        """Has kazoo stop, in a thread that holds up no end of the process: what kazoo is at may take a session's timeout."""
        self._client.remove_listener(self._listen)
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()

        def end() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        threading.Thread(target=end, name="coordinator's end", daemon=True).start()
        return ended

    @property
    def session_id(self) -> int:
        """The id of the session, as the owner of its ephemeral nodes shows it."""
        identifier = self._client.client_id
        return int(identifier[0]) if identifier else 0

    def on_session(self, callback: Callable[[], None]) -> None:
        """Has `callback` called on the loop each time a lost session was replaced by a new one."""
        self._on_session = callback

    async def wait_connected(self) -> None:
        """Returns when there is a connection."""
        await self._connected.wait()

    def repeating(self) -> Self:
        """The same session; a call whose connection is lost is made again when there is one, so that a write may find itself
        done. Sessions that end are told as ever.
        """
        other = copy.copy(self)
        other._repeats = True
        return other

    @asynccontextmanager
    async def away_at_most(self, milliseconds: int) -> AsyncIterator[None]:
        """Inside, a call whose connection is lost is made again when there is one, and so is one whose session is lost while
        nobody has asked to be told (`on_session`). Raises ConnectionError once there has been none for so long.
        """
        self._repeats, self._away_seconds = True, milliseconds / 1000
        deadline = self._deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._limit_absence()
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            raise ConnectionError(
                f"the connection to the coordinator was lost, and none could be made for {milliseconds} ms; "
                "is the coordinator running, and is zookeeper.connect right?"
            ) from None
        finally:
            self._repeats, self._deadline = False, None

    def _limit_absence(self) -> None:
        """Begins to count how long there is no connection, or ends it."""
        if self._deadline is None or self._away_seconds is None or self._deadline.expired():
            return
        if self._connected.is_set():
            self._deadline.reschedule(None)
        elif self._deadline.when() is None:
            self._deadline.reschedule(self._loop.time() + self._away_seconds)

    def _listen(self, state: str) -> None:
        # In kazoo's connection thread.
        self._loop.call_soon_threadsafe(self._state_changed, state)

    def _state_changed(self, state: str) -> None:
        if state == "CONNECTED":
            self._connected.set()
            self._limit_absence()
            if self._lost:
                self._lost = False
                log.warning("a new session with the coordinator, %#x", self.session_id)
                if self._on_session is not None:
                    self._on_session()
            return
        self._connected.clear()
        self._limit_absence()
        if state == "LOST":
            self._lost = True
        if self._on_session is not None:
            log.warning(
                "the coordinator's connection is %s",
                "lost with its session" if state == "LOST" else "suspended",
            )

    async def _result(self, ask: Callable[[], Any]) -> Any:
        """What kazoo's call gives."""
        from kazoo.exceptions import ConnectionLoss, SessionExpiredError

        while True:
            try:
                return await self._answer(ask())
            except ConnectionLoss:
                if not self._repeats:
                    raise
            except SessionExpiredError:
                if self._deadline is None or self._on_session is not None:
                    raise
            await self.wait_connected()

    async def _answer(self, pending: Any) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle() -> None:
            if future.cancelled():
                return
            if pending.exception is not None:
                future.set_exception(pending.exception)
            else:
                future.set_result(pending.value)

        pending.rawlink(lambda _: self._loop.call_soon_threadsafe(settle))
        return await future

    def _watcher(self, watch: Watch | None) -> Callable[[Any], None] | None:
        if watch is None:
            return None
        called = watch

        def on_event(event: object) -> None:
            # In kazoo's thread.
            self._loop.call_soon_threadsafe(called)

        return on_event

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and state; `watch` is called once, on the loop, when the node changes or goes."""
        data, stat = await self._result(lambda: self._client.get_async(path, self._watcher(watch)))
        return data or b"", Stat(stat.version, stat.czxid, stat.ephemeralOwner or 0, stat.ctime)

    async def find(self, path: str) -> tuple[bytes, Stat] | None:
        """Data and state, or None when there is no such node."""
        from kazoo.exceptions import NoNodeError

        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names below a node, none when it does not exist; `watch` is called once when they change."""
        from kazoo.exceptions import NoNodeError

        try:
            names: list[str] = await self._result(
                lambda: self._client.get_children_async(path, self._watcher(watch))
            )
        except NoNodeError:
            return []
        return names

    async def create(self, path: str, data: bytes | None = b"", ephemeral: bool = False) -> None:
        """Creates a node whose parent exists; NodeExistsError when it is there. Without data it is null, which is not empty."""
        await self._result(lambda: self._client.create_async(path, data, ephemeral=ephemeral))

    async def create_sequential(self, prefix: str, data: bytes) -> None:
        """Creates a node whose name is `prefix` and the next number."""
        await self._result(lambda: self._client.create_async(prefix, data, sequence=True))

    async def ensure(self, paths: Iterable[str]) -> None:
        """Creates the nodes that are missing, with their parents and without data, as `KafkaZkClient.createRecursive` does: in
        empty data of one (ProducerIdBlockZNode) Apache's controller would look for JSON."""
        await asyncio.gather(*(self._ensure(path) for path in paths))

    async def _ensure(self, path: str) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        try:
            await self.create(path, None)
        except NodeExistsError:
            return
        except NoNodeError:
            await self._ensure(path.rpartition("/")[0])
            await self._ensure(path)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Sets the data if the node has that version (-1: any); the new version."""
        stat = await self._result(lambda: self._client.set_async(path, data, version))
        return int(stat.version)

    async def delete(self, path: str) -> None:
        """Deletes a node, if it is there."""
        from kazoo.exceptions import NoNodeError

        try:
            await self._result(lambda: self._client.delete_async(path))
        except NoNodeError:
            return

    async def delete_tree(self, path: str) -> None:
        """Deletes a node and all below it, children first."""
        await asyncio.gather(*(self.delete_tree(f"{path}/{name}") for name in await self.children(path)))
        await self.delete(path)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Does all of `operations` or none; raises the exception of the one that failed."""
        from kazoo.exceptions import RolledBackError, RuntimeInconsistency

        results = await self._result(lambda: self._commit(operations))
        failures = [result for result in results if isinstance(result, Exception)]
        for failure in failures:
            if not isinstance(failure, RolledBackError | RuntimeInconsistency):
                raise failure
        if failures:
            raise failures[0]

    def _commit(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
        return transaction.commit_async()
