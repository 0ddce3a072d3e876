"""Requests that change nothing: answered from the applied state, watches set on the way.

Owns what each read returns and which watch it leaves. No I/O. Called by :mod:`.server` on the event loop,
when every earlier request of the same client has been answered, so a client never reads state older than
its own writes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from . import acl as access
from .errors import Code, ZooKeeperError
from .jute import Id, Writer
from .machine import Machine
from .replies import end_of_multi, multi_error, multi_ok
from .requests import (
    AddWatch,
    CountDescendants,
    Exists,
    FindWatches,
    GetAcl,
    GetChildren,
    GetData,
    GetEphemerals,
    MultiRead,
    Op,
    Ping,
    Read,
    SetWatches,
    Sync,
    Unknown,
    WhoAmI,
)
from .tree import Event, Node, Tree, validate_path
from .watches import Kind, Notification, WatchManager

W = TypeVar("W", bound=Hashable)


class Client(NamedTuple, Generic[W]):
    """Who reads: its connection (which receives notifications), session and identities."""

    watcher: W
    session_id: int
    identities: tuple[Id, ...]


class Answer(NamedTuple, Generic[W]):
    """Body of the reply, and notifications that have to arrive before it."""

    body: bytes
    notifications: list[Notification[W]]


def answer(request: Read, client: Client[W], machine: Machine, watches: WatchManager[W]) -> Answer[W]:
    """Answers one read. Raises ZooKeeperError."""
    if isinstance(request, SetWatches):
        return Answer(b"", _set_watches(request, client, machine.tree, watches))
    writer = Writer()
    if isinstance(request, Exists):
        _exists(request, client, machine.tree, watches, writer)
    elif isinstance(request, GetData):
        _get_data(request, client, machine.tree, watches, writer)
    elif isinstance(request, GetChildren):
        _get_children(request, client, machine.tree, watches, writer)
    elif isinstance(request, GetAcl):
        _get_acl(request, client, machine.tree, writer)
    elif isinstance(request, MultiRead):
        _multi_read(request, client, machine.tree, watches, writer)
    elif isinstance(request, AddWatch):
        validate_path(request.path)
        watches.add(Kind.RECURSIVE if request.recursive else Kind.PERSISTENT, request.path, client.watcher)
        writer.i32(Code.OK)  # ErrorResponse
    elif isinstance(request, FindWatches):
        find = watches.remove if request.remove else watches.has
        if not find(Kind(request.kind), request.path, client.watcher):
            raise ZooKeeperError(Code.NO_WATCHER, request.path)
    elif isinstance(request, GetEphemerals):
        held = machine.tree.ephemerals(client.session_id)
        writer.strings([path for path in held if path.startswith(request.prefix.strip())])
    elif isinstance(request, CountDescendants):
        _readable(request.path, client, machine.tree)
        writer.i32(machine.tree.count_descendants(request.path))
    elif isinstance(request, Sync):
        # Every write received before this request has been applied by now: the request waited for them.
        writer.string(request.path)
    elif isinstance(request, WhoAmI):
        # ClientInfo{ustring authScheme, ustring user}: laid out as Id is, less the password's hash.
        writer.ids(
            [
                Id(scheme, name.partition(":")[0] if scheme == "digest" else name)
                for scheme, name in client.identities
            ]
        )
    elif isinstance(request, Unknown):
        raise ZooKeeperError(Code.UNIMPLEMENTED)
    else:
        assert isinstance(request, Ping), "authentication is the connection's"
    return Answer(writer.finish(), [])


def _readable(path: str, client: Client[W], tree: Tree) -> Node:
    node = tree.node(path)
    access.check(node.state.acl, access.READ, client.identities, path)
    return node


def _exists(request: Exists, client: Client[W], tree: Tree, watches: WatchManager[W], writer: Writer) -> None:
    if "\0" in request.path:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, request.path)
    if tree.find(request.path) is not None:
        _readable(request.path, client, tree)
    if request.watch:  # also on a node that is not there: it waits for the creation
        watches.add(Kind.DATA, request.path, client.watcher)
    writer.stat(tree.node(request.path).stat())


def _get_data(
    request: GetData, client: Client[W], tree: Tree, watches: WatchManager[W], writer: Writer
) -> None:
    node = _readable(request.path, client, tree)
    if request.watch:
        watches.add(Kind.DATA, request.path, client.watcher)
    writer.buffer(node.state.data).stat(node.stat())


def _get_children(
    request: GetChildren, client: Client[W], tree: Tree, watches: WatchManager[W], writer: Writer
) -> None:
    node = _readable(request.path, client, tree)
    if request.watch:
        watches.add(Kind.CHILD, request.path, client.watcher)
    writer.strings(sorted(node.children or ()))
    if request.with_stat:
        writer.stat(node.stat())


def _get_acl(request: GetAcl, client: Client[W], tree: Tree, writer: Writer) -> None:
    node = tree.node(request.path)
    acl = node.state.acl
    access.check(acl, access.READ | access.ADMIN, client.identities, request.path)
    visible = (
        list(acl) if access.allowed(acl, access.ADMIN, client.identities) else access.without_digests(acl)
    )
    writer.acls(visible).stat(node.stat())


def _multi_read(
    request: MultiRead, client: Client[W], tree: Tree, watches: WatchManager[W], writer: Writer
) -> None:
    for operation in request.operations:
        part = Writer()
        try:
            if isinstance(operation, GetData):
                _get_data(operation, client, tree, watches, part)
                op = Op.GET_DATA
            else:
                _get_children(operation, client, tree, watches, part)
                op = Op.GET_CHILDREN
        except ZooKeeperError as error:
            multi_error(writer, error.code)
        else:
            multi_ok(writer, op)
            writer.out += part.out
    end_of_multi(writer)


def _set_watches(
    request: SetWatches, client: Client[W], tree: Tree, watches: WatchManager[W]
) -> list[Notification[W]]:
    """Watches of a client that reconnected: what it missed since ``relative_zxid`` is told at once."""
    missed: list[Notification[W]] = []

    def tell(event: Event, path: str) -> None:
        missed.append(Notification(client.watcher, event, path))

    for path in request.data:
        node = tree.find(path)
        if node is None:
            tell(Event.DELETED, path)
        elif node.state.mzxid > request.relative_zxid:
            tell(Event.DATA_CHANGED, path)
        else:
            watches.add(Kind.DATA, path, client.watcher)
    for path in request.exist:
        if tree.find(path) is not None:
            tell(Event.CREATED, path)
        else:
            watches.add(Kind.DATA, path, client.watcher)
    for path in request.child:
        node = tree.find(path)
        if node is None:
            tell(Event.DELETED, path)
        elif node.state.pzxid > request.relative_zxid:
            tell(Event.CHILDREN_CHANGED, path)
        else:
            watches.add(Kind.CHILD, path, client.watcher)
    for path in request.persistent:
        watches.add(Kind.PERSISTENT, path, client.watcher)
    for path in request.recursive:
        watches.add(Kind.RECURSIVE, path, client.watcher)
    return missed
