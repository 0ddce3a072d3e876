"""The session with the coordinator: kazoo's asynchronous calls as awaitables of the event loop.

Owns one kazoo client, whose threads do the network I/O. Callbacks come to the event loop through
call_soon_threadsafe, so nothing here blocks the loop. This is the only module of the broker that imports
kazoo; its exceptions are mapped to `ZooKeeperError` and its subclasses.

A call whose connection is lost raises ConnectionLostError, and may have happened. `repeating` and
`disconnected_at_most` repeat it instead. A lost session takes its ephemeral nodes with it; `on_session` is
called once a new session is there.
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
"""How long `close` waits for the answer; a coordinator that does not give it may be gone for good."""

Watch = Callable[[], None]


class ZooKeeperError(Exception):
    """A call to the coordinator failed."""


class ConnectionLostError(ZooKeeperError):
    """The connection or the session was lost, or no answer came in time. The call may have happened."""


class NoNodeError(ZooKeeperError):
    """There is no such node."""


class NodeExistsError(ZooKeeperError):
    """There is such a node already."""


class BadVersionError(ZooKeeperError):
    """The node has another version."""


class NotEmptyError(ZooKeeperError):
    """The node has children."""


class Stat(NamedTuple):
    """The parts of a znode's state that the broker uses."""

    version: int
    czxid: int
    owner: int
    created_ms: int = 0


class Create(NamedTuple):
    """An operation of a transaction: create a node. The name of a `sequential` one gets the next number
    appended.
    """

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
        self._disconnected_max_seconds: float | None = None
        self._deadline: asyncio.Timeout | None = None

    @classmethod
    async def connect(
        cls, connect: str, session_timeout_ms: Milliseconds, connection_timeout_ms: Milliseconds
    ) -> ZooKeeper:
        """Connects to `connect`: hosts and ports, and optionally a chroot, which is created if it is missing.

        Raises ConnectionError if no server answers in time.
        """
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry

        hosts, slash, chroot = connect.partition("/")
        # Short delays between attempts: the servers may still be starting.
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
                async with zk.disconnected_at_most(connection_timeout_ms):
                    await zk._result(lambda: client.ensure_path_async(f"/{chroot}"))
            except BaseException:
                await zk.close()
                raise
            client.chroot = f"/{chroot}"
        return zk

    async def close(self) -> None:
        """Ends the session, which removes its ephemeral nodes. If no server answers, they stay until it times
        out.
        """
        self._on_session = None
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._end()), _CLOSE_SECONDS)
        except TimeoutError:
            log.warning(
                "the coordinator does not answer; the session %#x is left to its timeout", self.session_id
            )

    def _end(self) -> Future[None]:
        """Stops kazoo in a daemon thread, because stopping can take as long as the session's timeout."""
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

        threading.Thread(target=end, name="coordinator session end", daemon=True).start()
        return ended

    @property
    def session_id(self) -> int:
        """The id of the session, which is the owner of its ephemeral nodes."""
        identifier = self._client.client_id
        return int(identifier[0]) if identifier else 0

    def on_session(self, callback: Callable[[], None]) -> None:
        """Sets the function that the loop calls each time a new session has replaced a lost one."""
        self._on_session = callback

    async def wait_connected(self) -> None:
        """Returns when there is a connection."""
        await self._connected.wait()

    def repeating(self) -> Self:
        """The same session, with calls that are repeated after a lost connection. A write can then find that
        it was done before. A lost session still raises.
        """
        other = copy.copy(self)
        other._repeats = True
        return other

    @asynccontextmanager
    async def disconnected_at_most(self, milliseconds: int) -> AsyncIterator[None]:
        """Inside, calls are repeated after a lost connection, and after a lost session until `on_session` was
        called.

        Raises ConnectionError after `milliseconds` without a connection.
        """
        self._repeats, self._disconnected_max_seconds = True, milliseconds / 1000
        deadline = self._deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._update_deadline()
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

    def _update_deadline(self) -> None:
        """Starts the deadline of `disconnected_at_most` when the connection is lost, and stops it when it is
        back.
        """
        if self._deadline is None or self._disconnected_max_seconds is None or self._deadline.expired():
            return
        if self._connected.is_set():
            self._deadline.reschedule(None)
        elif self._deadline.when() is None:
            self._deadline.reschedule(self._loop.time() + self._disconnected_max_seconds)

    def _listen(self, state: str) -> None:
        # In kazoo's connection thread.
        self._loop.call_soon_threadsafe(self._state_changed, state)

    def _state_changed(self, state: str) -> None:
        if state == "CONNECTED":
            self._connected.set()
            self._update_deadline()
            if self._lost:
                self._lost = False
                log.warning("a new session with the coordinator, %#x", self.session_id)
                if self._on_session is not None:
                    self._on_session()
            return
        self._connected.clear()
        self._update_deadline()
        if state == "LOST":
            self._lost = True
        if self._on_session is not None:
            log.warning(
                "the coordinator's connection is %s",
                "lost with its session" if state == "LOST" else "suspended",
            )

    async def _result(self, call: Callable[[], Any]) -> Any:
        """The result of a call of kazoo. Raises ZooKeeperError."""
        from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError

        while True:
            try:
                return await self._answer(call())
            except ConnectionLoss as error:
                if not self._repeats:
                    raise _mapped(error) from error
            except SessionExpiredError as error:
                if self._deadline is None or self._on_session is not None:
                    raise _mapped(error) from error
            except KazooException as error:
                raise _mapped(error) from error
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
        """Data and state. `watch` is called once, on the loop, when the node changes or is deleted."""
        data, stat = await self._result(lambda: self._client.get_async(path, self._watcher(watch)))
        return data or b"", Stat(stat.version, stat.czxid, stat.ephemeralOwner or 0, stat.ctime)

    async def find(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        """Data and state, or None if there is no such node, which is not watched then."""
        try:
            return await self.get(path, watch)
        except NoNodeError:
            return None

    async def exists(self, path: str, watch: Watch) -> bool:
        """Whether there is such a node. `watch` is called once when it is created, changes or is deleted."""
        return await self._result(lambda: self._client.exists_async(path, self._watcher(watch))) is not None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children, none if it does not exist. `watch` is called once on a change."""
        try:
            names: list[str] = await self._result(
                lambda: self._client.get_children_async(path, self._watcher(watch))
            )
        except NoNodeError:
            return []
        return names

    async def create(self, path: str, data: bytes | None = b"", ephemeral: bool = False) -> None:
        """Creates a node whose parent exists. Raises NodeExistsError. Data None is null, which is not the
        empty data.
        """
        await self._result(lambda: self._client.create_async(path, data, ephemeral=ephemeral))

    async def ensure(self, paths: Iterable[str]) -> None:
        """Creates the missing nodes and their parents with null data, as `KafkaZkClient.createRecursive`
        does.

        Apache's controller would parse empty data of one of them (ProducerIdBlockZNode) as JSON.
        """
        await asyncio.gather(*(self._ensure(path) for path in paths))

    async def _ensure(self, path: str) -> None:
        try:
            await self.create(path, None)
        except NodeExistsError:
            return
        except NoNodeError:
            await self._ensure(path.rpartition("/")[0])
            await self._ensure(path)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Sets the data if the node has that version (-1: any). Returns the new version."""
        stat = await self._result(lambda: self._client.set_async(path, data, version))
        return int(stat.version)

    async def delete(self, path: str) -> None:
        """Deletes a node if it exists."""
        try:
            await self._result(lambda: self._client.delete_async(path))
        except NoNodeError:
            return

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Does all of `operations` or none. Raises the error of the operation that failed."""
        from kazoo.exceptions import RolledBackError, RuntimeInconsistency

        results = await self._result(lambda: self._commit(operations))
        failures = [result for result in results if isinstance(result, Exception)]
        # The operations around the one that failed have these two errors.
        causes = [each for each in failures if not isinstance(each, RolledBackError | RuntimeInconsistency)]
        if failures:
            failure = (causes or failures)[0]
            raise _mapped(failure) from failure

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


def _mapped(error: Exception) -> ZooKeeperError:
    """The error of this module for one of kazoo."""
    from kazoo import exceptions as kazoo

    lost = (kazoo.ConnectionLoss, kazoo.OperationTimeoutError, kazoo.SessionExpiredError)
    kinds: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[ZooKeeperError]], ...] = (
        (lost, ConnectionLostError),
        (kazoo.NoNodeError, NoNodeError),
        (kazoo.NodeExistsError, NodeExistsError),
        (kazoo.BadVersionError, BadVersionError),
        (kazoo.NotEmptyError, NotEmptyError),
    )
    kind = next((own for kinds_of_kazoo, own in kinds if isinstance(error, kinds_of_kazoo)), ZooKeeperError)
    return kind(str(error) or type(error).__name__)
