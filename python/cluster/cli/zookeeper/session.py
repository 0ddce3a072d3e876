"""One session with ZooKeeper, on kazoo: requests, and the watches, states and events of ZooKeeper's client.

The shell's thread calls every method and waits for each answer. kazoo's connection thread reads replies,
records watches and calls `on_event`. It records a watch before it reads the next event, so no event is
missed. Requests that kazoo does not have are `Request` objects; formats: zookeeper.jute of ZooKeeper 3.9.
Nothing is on disk. When the process ends, the session stays on the server until its timeout, as zkCli's does.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import (
    Auth,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren2,
    GetData,
    Reconfig,
    SetACL,
    SetData,
    Sync,
    Transaction,
    int_struct,
    long_struct,
    read_string,
    stat_struct,
    write_buffer,
)
from kazoo.protocol.states import KeeperState, ZnodeStat

from cluster.cli.zookeeper.client import Client, Request
from cluster.cli.zookeeper.errors import (
    CONNECTION_LOSS,
    MARSHALLING_ERROR,
    NO_NODE,
    NO_WATCHER,
    SESSION_EXPIRED,
    SYSTEM_ERROR,
    ServerError,
    ShellError,
    check_path,
)
from cluster.cli.zookeeper.printing import Event
from cluster.cli.zookeeper.watches import EventType, Kind, Watches

SET_WATCHES_BYTES = 128 << 10
"""The bytes of paths in one request that sets watches again, as in ZooKeeper's client."""
DELETES_AT_ONCE = 10
"""The outstanding transactions of deleteall, as in ZKUtil."""

CONFIG_PATH = "/zookeeper/config"

# ZooDefs.OpCode: the operations that kazoo has no class for.
REMOVE_WATCHES = 18
CREATE_CONTAINER = 19
CREATE_TTL = 21
SET_WATCHES = 101
GET_EPHEMERALS = 103
GET_ALL_CHILDREN_NUMBER = 104
SET_WATCHES2 = 105
ADD_WATCH = 106
WHO_AM_I = 107

# CreateMode's flags.
EPHEMERAL = 1
SEQUENTIAL = 2
CONTAINER = 4
TTL = 5
SEQUENTIAL_TTL = 6

# Watcher.WatcherType, and the kinds of watches of each type.
WATCHER_TYPES: dict[int, tuple[Kind, ...]] = {
    1: (Kind.CHILDREN,),
    2: (Kind.DATA, Kind.EXISTS),
    3: (Kind.CHILDREN, Kind.DATA, Kind.EXISTS, Kind.PERSISTENT, Kind.RECURSIVE),
    4: (Kind.PERSISTENT,),
    5: (Kind.RECURSIVE,),
}

# Watcher.Event.KeeperState by the server's number.
_STATES = {
    -112: "Expired",
    0: "Disconnected",
    3: "SyncConnected",
    4: "AuthFailed",
    5: "ConnectedReadOnly",
    6: "SaslAuthenticated",
    7: "Closed",
}

# For each state of kazoo: ZooKeeper.States, and the state in the event about it. The last three are final.
_CHANGES = {
    KeeperState.CONNECTED: ("CONNECTED", "SyncConnected"),
    KeeperState.CONNECTED_RO: ("CONNECTEDREADONLY", "ConnectedReadOnly"),
    KeeperState.CONNECTING: ("CONNECTING", "Disconnected"),
    KeeperState.EXPIRED_SESSION: ("CLOSED", "Expired"),
    KeeperState.AUTH_FAILED: ("AUTH_FAILED", "AuthFailed"),
    KeeperState.CLOSED: ("CLOSED", "Closed"),
}
_FINAL = ("CLOSED", "AUTH_FAILED")


class Acl(NamedTuple):
    """An entry of an access control list; `permissions` is ZooDefs.Perms."""

    permissions: int
    scheme: str
    id: str


class Session:
    """A session with the servers of a connect string (`host:port,host:port/chroot`). It connects and
    reconnects by itself.

    `on_event` is called with each event in kazoo's connection thread. `tls` are KazooClient's arguments.
    Raises ShellError for a bad connect string. Operations raise ServerError, and ShellError for a path that
    no node can have.
    """

    def __init__(
        self,
        connect: str,
        timeout_ms: int,
        on_event: Callable[[Event], None],
        read_only: bool = False,
        tls: dict[str, Any] | None = None,
    ) -> None:
        listed, slash, chroot = connect.partition("/")
        hosts = ",".join(host for each in listed.split(",") if (host := each.strip()))  # `StringUtils.split`
        self._chroot = slash + chroot if chroot else ""
        if self._chroot:
            check_path(self._chroot)
        self._on_event = on_event
        self._lock = threading.Lock()
        self._watches = Watches()
        self._state = "CONNECTING"
        self._connected = threading.Event()
        try:
            self._client = Client(hosts, timeout_ms, read_only, tls or {})
        except ValueError as error:
            raise ShellError(
                f"{connect!r} is not a connect string: {error};"
                " it has the form host:port[,host:port ...][/chroot]"
            ) from None
        self._client.on_state = self._state_changed
        self._client.on_event = self._event
        self._client.set_watches = self._watches_again
        self._client.begin()

    # ---- its state ----

    @property
    def state(self) -> str:
        """ZooKeeper.States: CONNECTING, CONNECTED, CONNECTEDREADONLY, CLOSED or AUTH_FAILED."""
        return self._state

    @property
    def alive(self) -> bool:
        return self._state not in _FINAL

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    def wait_connected(self, timeout: float) -> bool:
        """Whether there is a connection within `timeout` seconds."""
        return self._connected.wait(timeout)

    def close(self) -> None:
        """Ends the session, which deletes its ephemeral nodes. Does nothing if it has ended."""
        self._client.end()

    def _state_changed(self, state: str) -> None:
        # In kazoo's connection thread.
        name, event_state = _CHANGES[state]
        with self._lock:
            if self._state in _FINAL or self._state == name:
                return
            self._state = name
        if name.startswith("CONNECTED"):
            self._connected.set()
        else:
            self._connected.clear()
        self._on_event(Event(event_state))

    # ---- watches ----

    def _event(self, event: EventType, state: int, path: str, zxid: int) -> None:
        # In kazoo's connection thread.
        with self._lock:
            wanted = self._watches.triggered(event, path)
        if wanted:
            self._on_event(Event(_STATES.get(state, str(state)), event.text, self._stripped(path), zxid))

    def _watches_again(self, zxid: int) -> list[Request]:
        """Requests that set the watches on a new connection. The server then sends the events since
        `zxid`.
        """
        with self._lock:
            parts = list(self._watches.batches(SET_WATCHES_BYTES))
        return [_set_watches(zxid, part) for part in parts]

    def _registering(self, path: str, kind: Kind, missing: Kind | None = None) -> Callable[[int], int]:
        """A callback for a reply that records a watch; its kind is `missing` when there is no such node."""

        def on_reply(error: int) -> int:
            with self._lock:
                if error == 0:
                    self._watches.add(kind, path)
                elif error == NO_NODE and missing is not None:
                    self._watches.add(missing, path)
            return error

        return on_reply

    def add_watch(self, path: str, recursive: bool) -> None:
        full = self._checked(path)
        body = _string(full) + int_struct.pack(1 if recursive else 0)
        kind = Kind.RECURSIVE if recursive else Kind.PERSISTENT
        self._do(Request(ADD_WATCH, body, _nothing, self._registering(full, kind)), path)

    def remove_watches(self, path: str, watcher_type: int, local: bool) -> None:
        """Removes all watches of a type from a path. With `local`, also when the server cannot be reached."""
        full = self._checked(path)
        kinds = WATCHER_TYPES[watcher_type]

        def on_reply(error: int) -> int:
            with self._lock:
                if not self._watches.watched(full, kinds):
                    return NO_WATCHER
                if error != 0 and not local:
                    return error
                removed = self._watches.remove(full, kinds)
            gone = error in (CONNECTION_LOSS, SESSION_EXPIRED)
            for each in removed:
                self._on_event(Event("Disconnected" if gone else "SyncConnected", each.text, path))
            return 0

        try:
            self._do(
                Request(REMOVE_WATCHES, _string(full) + int_struct.pack(watcher_type), _nothing, on_reply),
                path,
            )
        except ServerError as error:
            # Without a connection, `on_reply` was not called.
            if error.code not in (CONNECTION_LOSS, SESSION_EXPIRED):
                raise
            settled = on_reply(error.code)
            if settled != 0:
                raise ServerError(settled, path) from None

    # ---- nodes ----

    def create(
        self, path: str, data: bytes | None, acl: Sequence[Acl], flags: int = 0, ttl_ms: int | None = None
    ) -> str:
        """Creates a node and returns its path. A sequential node's path ends in a number."""
        full = self._checked(path, sequential=flags in (SEQUENTIAL, EPHEMERAL | SEQUENTIAL, SEQUENTIAL_TTL))
        body = _string(full) + write_buffer(data) + _acls(acl) + int_struct.pack(flags)
        operation = Create.type
        if flags == CONTAINER:
            operation = CREATE_CONTAINER
        elif ttl_ms is not None:
            operation = CREATE_TTL
            body += long_struct.pack(ttl_ms)
        created: str = self._do(Request(operation, body, Create.deserialize), path)
        return created[len(self._chroot) :]

    def delete(self, path: str, version: int = -1) -> None:
        check_path(path)
        # The servers refuse to delete the root. With a chroot, the chroot's node must not be deleted instead.
        full = path if path == "/" else self._full(path)
        self._do(_kazoo(Delete(full, version)), path)

    def delete_tree(self, path: str, batch: int) -> bool:
        """Deletes a node and all nodes below it, in transactions of `batch` nodes (one by one if it is not
        positive). Returns whether all were deleted.
        """
        nodes = self._tree(path)
        if batch <= 0:
            for node in nodes:
                self.delete(node)
            return True
        pending: deque[Any] = deque()
        done = True
        for start in range(0, len(nodes), batch):
            if len(pending) == DELETES_AT_ONCE:
                done = self._all_done(pending.popleft())
            if not done:
                break
            operations = [Delete(self._full(node), -1) for node in nodes[start : start + batch]]
            pending.append(self._client.send(_kazoo(Transaction(operations))))
        # Every transaction is waited for, also after a failed one.
        return all([done, *map(self._all_done, pending)])

    def _all_done(self, pending: Any) -> bool:
        try:
            results = self._result(pending, None)
        except ServerError:
            return False
        # In a failed transaction, the operations before the failed one have an exception with code 0.
        return not any(isinstance(each, Exception) and getattr(each, "code", 0) != 0 for each in results)

    def _tree(self, path: str) -> list[str]:
        """A node and all nodes below it, children before their parents."""
        found = [path]
        for node in found:
            names, _stat = self.children(node)
            found += [f"{node.rstrip('/')}/{name}" for name in names]
        return found[::-1]

    def walk(self, path: str, watch: bool = False) -> Iterator[str]:
        """Yields a node, its children, and then the nodes below each child (ZKUtil.visitSubTreeDFS). `watch`
        sets watches on all of them.
        """
        self.get(path, watch)
        yield path
        # Iterators over the paths to descend into, the deepest last.
        descents = [iter([path])]
        while descents:
            node = next(descents[-1], None)
            if node is None:
                descents.pop()
                continue
            try:
                names, _stat = self.children(node, watch)
            except ServerError as error:
                # It was deleted after its parent was read.
                if error.code != NO_NODE:
                    raise
                continue
            paths = [f"{node.rstrip('/')}/{name}" for name in sorted(names)]
            yield from paths
            descents.append(iter(paths))

    def exists(self, path: str, watch: bool = False) -> ZnodeStat | None:
        full = self._checked(path)
        on_reply = self._registering(full, Kind.DATA, Kind.EXISTS) if watch else None
        return self._do(_kazoo(Exists(full, watch), on_reply), path)

    def get(self, path: str, watch: bool = False) -> tuple[bytes | None, ZnodeStat]:
        return self._get(self._checked(path), path, watch)

    def config(self, watch: bool = False) -> tuple[bytes | None, ZnodeStat]:
        """The node of the ensemble's configuration, which is not below a chroot."""
        return self._get(CONFIG_PATH, CONFIG_PATH, watch)

    def _get(self, full: str, path: str, watch: bool) -> tuple[bytes | None, ZnodeStat]:
        on_reply = self._registering(full, Kind.DATA) if watch else None
        found: tuple[bytes | None, ZnodeStat] = self._do(_kazoo(GetData(full, watch), on_reply), path)
        return found

    def children(self, path: str, watch: bool = False) -> tuple[list[str], ZnodeStat]:
        full = self._checked(path)
        on_reply = self._registering(full, Kind.CHILDREN) if watch else None
        body = GetChildren2(full, watch).serialize()
        request = Request(GetChildren2.type, bytes(body), _names_and_stat, on_reply)
        found: tuple[list[str], ZnodeStat] = self._do(request, path)
        return found

    def set(self, path: str, data: bytes, version: int = -1) -> ZnodeStat:
        return self._do(_kazoo(SetData(self._checked(path), data, version)), path)

    def acl(self, path: str) -> tuple[list[Acl], ZnodeStat]:
        request = Request(GetACL.type, _string(self._checked(path)), _acls_and_stat)
        found: tuple[list[Acl], ZnodeStat] = self._do(request, path)
        return found

    def set_acl(self, path: str, acl: Sequence[Acl], version: int = -1) -> ZnodeStat:
        body = _string(self._checked(path)) + _acls(acl) + int_struct.pack(version)
        return self._do(Request(SetACL.type, body, SetACL.deserialize), path)

    def all_children_number(self, path: str) -> int:
        number: int = self._do(Request(GET_ALL_CHILDREN_NUMBER, _string(self._checked(path)), _int), path)
        return number

    def ephemerals(self, prefix: str) -> list[str]:
        """The ephemeral nodes of this session whose paths begin with `prefix`."""
        paths: list[str] = self._do(Request(GET_EPHEMERALS, _string(self._checked(prefix)), _strings), prefix)
        return paths

    # ---- the session and the ensemble ----

    def add_auth(self, scheme: str, auth: str | None) -> None:
        """Sends an identity, now and on each new connection. Does not wait: a refused identity ends the
        session.
        """
        self._client.auth_data.add((scheme, auth))
        body = int_struct.pack(0) + _string(scheme) + write_buffer(None if auth is None else auth.encode())
        self._client.send(Request(Auth.type, body, _nothing))

    def who_am_i(self) -> list[tuple[str, str]]:
        """The schemes and users that this client is authenticated as."""
        identities: list[tuple[str, str]] = self._do(Request(WHO_AM_I, b"", _identities), None)
        return identities

    def sync(self, path: str, timeout: float) -> int:
        """Returns the error code, 0 if the server has caught up with its leader. TimeoutError after
        `timeout` seconds.
        """
        pending = self._client.send(_kazoo(Sync(self._checked(path))))
        try:
            self._result(pending, path, timeout)
        except ServerError as error:
            return error.code
        return 0

    def reconfigure(
        self, joining: str | None, leaving: str | None, members: str | None, version: int
    ) -> tuple[bytes | None, ZnodeStat]:
        """Changes the ensemble's configuration and returns the new one. `version` is the old one's; -1
        stands for any.
        """
        changed: tuple[bytes | None, ZnodeStat] = self._do(
            _kazoo(Reconfig(joining, leaving, members, version)), None
        )
        return changed

    # ---- sending ----

    def _checked(self, path: str, sequential: bool = False) -> str:
        check_path(path, sequential)
        return self._full(path)

    def _full(self, path: str) -> str:
        """The path on the server, below the chroot."""
        return self._chroot + path if path != "/" or not self._chroot else self._chroot

    def _stripped(self, path: str) -> str:
        """The path below the chroot, from the server's path."""
        if not self._chroot or (path != self._chroot and not path.startswith(self._chroot + "/")):
            return path
        return path[len(self._chroot) :] or "/"

    def _do(self, request: Request, path: str | None) -> Any:
        return self._result(self._client.send(request), path)

    def _result(self, pending: Any, path: str | None, timeout: float | None = None) -> Any:
        try:
            return pending.get(timeout=timeout)
        except KazooException as error:
            raise ServerError(getattr(error, "code", SYSTEM_ERROR), path) from None
        except KazooTimeoutError:
            raise TimeoutError from None
        except (struct.error, ValueError, TypeError):
            raise ServerError(MARSHALLING_ERROR, path) from None


# ---- bodies ----


def _kazoo(request: Any, on_reply: Callable[[int], int] | None = None) -> Request:
    """A request of kazoo's. It is serialized here, so that an error is not raised in the connection's
    thread.
    """
    return Request(request.type, bytes(request.serialize()), request.deserialize, on_reply)


def _string(text: str) -> bytes:
    encoded: bytes = write_buffer(text.encode("utf-8"))
    return encoded


def _acls(entries: Sequence[Acl]) -> bytes:
    body = int_struct.pack(len(entries))
    for entry in entries:
        body += int_struct.pack(entry.permissions) + _string(entry.scheme) + _string(entry.id)
    return bytes(body)


def _set_watches(zxid: int, paths: dict[Kind, list[str]]) -> Request:
    body = long_struct.pack(zxid)
    kinds = [Kind.DATA, Kind.EXISTS, Kind.CHILDREN]
    operation = SET_WATCHES
    if paths[Kind.PERSISTENT] or paths[Kind.RECURSIVE]:
        # Servers before 3.6 do not know these kinds.
        kinds += [Kind.PERSISTENT, Kind.RECURSIVE]
        operation = SET_WATCHES2
    for kind in kinds:
        body += int_struct.pack(len(paths[kind])) + b"".join(map(_string, paths[kind]))
    return Request(operation, bytes(body), _nothing)


def _nothing(_buffer: bytes, _offset: int) -> None:
    return None


def _int(buffer: bytes, offset: int) -> int:
    (number,) = int_struct.unpack_from(buffer, offset)
    return int(number)


def _list(buffer: bytes, offset: int, read: Callable[[bytes, int], tuple[Any, int]]) -> tuple[list[Any], int]:
    """A vector whose elements `read` reads, and the position after it. A null vector is empty."""
    count = _int(buffer, offset)
    offset += int_struct.size
    found: list[Any] = []
    for _ in range(count):
        each, offset = read(buffer, offset)
        found.append(each)
    return found, offset


def _text(buffer: bytes, offset: int) -> tuple[str, int]:
    text, offset = read_string(buffer, offset)
    return text or "", offset


def _pair(buffer: bytes, offset: int) -> tuple[tuple[str, str], int]:
    first, offset = _text(buffer, offset)
    second, offset = _text(buffer, offset)
    return (first, second), offset


def _acl(buffer: bytes, offset: int) -> tuple[Acl, int]:
    (scheme, identity), end = _pair(buffer, offset + int_struct.size)
    return Acl(_int(buffer, offset), scheme, identity), end


def _strings(buffer: bytes, offset: int) -> list[str]:
    return _list(buffer, offset, _text)[0]


def _identities(buffer: bytes, offset: int) -> list[tuple[str, str]]:
    return _list(buffer, offset, _pair)[0]


def _names_and_stat(buffer: bytes, offset: int) -> tuple[list[str], ZnodeStat]:
    names, end = _list(buffer, offset, _text)
    return names, ZnodeStat._make(stat_struct.unpack_from(buffer, end))


def _acls_and_stat(buffer: bytes, offset: int) -> tuple[list[Acl], ZnodeStat]:
    entries, end = _list(buffer, offset, _acl)
    return entries, ZnodeStat._make(stat_struct.unpack_from(buffer, end))
