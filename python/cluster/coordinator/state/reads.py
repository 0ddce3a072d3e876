"""Requests that change nothing: they are answered from the applied state, and may set a watch.

Owns what each read returns, and which watch it sets. Called on the event loop once every earlier request of
the client is answered, so a client never reads a state older than its own writes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from ..errors import AnswerTooLargeError, Code, ZooKeeperError
from ..protocol.jute import Writer
from ..protocol.replies import Event, end_of_multi, multi_error, multi_ok
from ..protocol.requests import (
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
    WhoAmI,
)
from . import acl as access
from .acl import Subject
from .machine import Machine
from .tree import Node, Tree
from .watches import Mode, Notification, Registry, WatcherType, WatchManager

W = TypeVar("W", bound=Hashable)

MULTI_BYTES_MAX = 16 << 20
"""The most bytes of the answer to a multiRead. The request may name a large node many times."""


class Client(NamedTuple, Generic[W]):
    """The client that reads: its connection, which gets the notifications, its session, and its identities
    at the request."""

    watcher: W
    session_id: int
    subject: Subject


class Answer(NamedTuple, Generic[W]):
    """The body of the reply, and the notifications that have to be sent before it."""

    body: bytes
    missed: list[Notification[W]]
    code: Code = Code.OK


def answer(request: Read, client: Client[W], machine: Machine, watches: WatchManager[W]) -> Answer[W]:
    """Answers one read.

    Raises ZooKeeperError, and AnswerTooLargeError for a multiRead of more than :data:`MULTI_BYTES_MAX`.
    """
    if isinstance(request, SetWatches):
        return _set_watches(request, client, machine.tree, watches)
    if isinstance(request, MultiRead):
        return _multi_read(request, client, machine.tree)
    writer = Writer()
    if isinstance(request, Exists):
        _exists(request, client, machine.tree, watches, writer)
    elif isinstance(request, GetData):
        _get_data(request, client, machine.tree, writer)
        if request.watch:
            watches.add(Registry.DATA, Mode.STANDARD, request.path, client.watcher)
    elif isinstance(request, GetChildren):
        _get_children(request, client, machine.tree, writer)
        if request.watch:
            watches.add(Registry.CHILDREN, Mode.STANDARD, request.path, client.watcher)
    elif isinstance(request, GetAcl):
        _get_acl(request, client, machine.tree, writer)
    elif isinstance(request, AddWatch):
        watches.add_persistent(request.path, client.watcher, request.recursive)
        writer.i32(Code.OK)  # ErrorResponse
    elif isinstance(request, FindWatches):
        find = watches.remove if request.remove else watches.has
        if not find(WatcherType(request.kind), request.path, client.watcher):
            raise ZooKeeperError(Code.NO_WATCHER, request.path)
    elif isinstance(request, GetEphemerals):
        prefix = request.prefix or ""
        paths = machine.tree.ephemerals(client.session_id)
        if prefix.strip() not in ("", "/"):
            paths = [path for path in paths if path.startswith(prefix)]
        writer.strings(paths)
    elif isinstance(request, CountDescendants):
        _readable(request.path, client, machine.tree)
        writer.i32(machine.tree.count_descendants(_not_null(request.path)))
    elif isinstance(request, Sync):
        # Every earlier write is applied by now, because the request waited for them.
        writer.string(request.path)
    elif isinstance(request, WhoAmI):
        # ClientInfo{ustring authScheme, ustring user} has the layout of Id.
        writer.ids([access.shown(identity) for identity in client.subject.identities])
    else:
        assert isinstance(request, Ping)
    return Answer(writer.finish(), [])


def _not_null(path: str | None) -> str:
    """Returns a path. Raises MarshallingError for null."""
    if path is None:
        raise ZooKeeperError(Code.MARSHALLING_ERROR)
    return path


def _readable(path: str | None, client: Client[W], tree: Tree) -> Node:
    node = tree.node(_not_null(path))
    client.subject.check(access.READ, node.state.acl, path)
    return node


def _exists(request: Exists, client: Client[W], tree: Tree, watches: WatchManager[W], writer: Writer) -> None:
    path = _not_null(request.path)
    if "\0" in path:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, path)
    if tree.find(path) is not None:
        _readable(path, client, tree)
    if request.watch:  # on a missing node, too: it fires at the creation
        watches.add(Registry.DATA, Mode.STANDARD, path, client.watcher)
    writer.stat(tree.node(path).stat())


def _get_data(request: GetData, client: Client[W], tree: Tree, writer: Writer) -> None:
    node = _readable(request.path, client, tree)
    writer.buffer(node.state.data).stat(node.stat())


def _get_children(request: GetChildren, client: Client[W], tree: Tree, writer: Writer) -> None:
    node = _readable(request.path, client, tree)
    writer.strings(sorted(node.children or ()))
    if request.with_stat:
        writer.stat(node.stat())


def _get_acl(request: GetAcl, client: Client[W], tree: Tree, writer: Writer) -> None:
    node = tree.node(_not_null(request.path))
    acl = node.state.acl
    client.subject.check(access.READ | access.ADMIN, acl, request.path)
    visible = list(acl) if client.subject.may(access.ADMIN, acl) else access.without_digests(acl)
    writer.acls(visible).stat(node.stat())


def _multi_read(request: MultiRead, client: Client[W], tree: Tree) -> Answer[W]:
    """Answers each read separately. As in ZooKeeper, watches are not set, and a null path or a write refuses
    the whole request, whose answer still has the earlier reads."""
    writer = Writer()
    client = client._replace(subject=client.subject.remembering())
    code = Code.MARSHALLING_ERROR if request.is_refused else Code.OK
    for operation in request.operations:
        part = Writer()
        try:
            if isinstance(operation, GetData):
                _get_data(operation, client, tree, part)
                op = Op.GET_DATA
            else:
                _get_children(operation, client, tree, part)
                op = Op.GET_CHILDREN
        except ZooKeeperError as error:
            if error.code is Code.MARSHALLING_ERROR:
                code = error.code
                break
            multi_error(writer, error.code)
        else:
            multi_ok(writer, op)
            writer.out += part.out
            if len(writer.out) > MULTI_BYTES_MAX:
                raise AnswerTooLargeError(
                    f"the answer to its multiRead is larger than {MULTI_BYTES_MAX} bytes"
                )
    end_of_multi(writer)
    return Answer(writer.finish(), [], code)


def _set_watches(request: SetWatches, client: Client[W], tree: Tree, watches: WatchManager[W]) -> Answer[W]:
    """Sets the watches of a client that has reconnected again.

    The events that it missed since ``relative_zxid`` are sent at once, if it may read the nodes (ZooKeeper
    3.9 does not check that). A null list refuses the request at that point.
    """
    missed: list[Notification[W]] = []
    subject = client.subject.remembering()

    def notify(event: Event, path: str, node: Node | None) -> None:
        if node is None or subject.may(access.READ, node.state.acl):
            missed.append(Notification(client.watcher, event, path))

    def each(paths: list[str | None] | None) -> Iterator[tuple[str, Node | None]]:
        if paths is None:
            raise ZooKeeperError(Code.MARSHALLING_ERROR)
        for path in map(_not_null, paths):
            yield path, tree.find(path)

    def watch_again(registry: Registry, path: str, node: Node | None, changed: Event, last_zxid: int) -> None:
        if node is None:
            notify(Event.DELETED, path, node)
        elif last_zxid > request.relative_zxid:
            notify(changed, path, node)
        else:
            watches.add(registry, Mode.STANDARD, path, client.watcher)

    try:
        for path, node in each(request.data):
            last_zxid = node.state.mzxid if node is not None else 0
            watch_again(Registry.DATA, path, node, Event.DATA_CHANGED, last_zxid)
        for path, node in each(request.exist):
            if node is not None:
                notify(Event.CREATED, path, node)
            else:
                watches.add(Registry.DATA, Mode.STANDARD, path, client.watcher)
        for path, node in each(request.child):
            last_zxid = node.state.pzxid if node is not None else 0
            watch_again(Registry.CHILDREN, path, node, Event.CHILDREN_CHANGED, last_zxid)
        for paths, recursive in ((request.persistent, False), (request.recursive, True)):
            if paths is None:
                raise ZooKeeperError(Code.MARSHALLING_ERROR)
            for kept in paths:
                watches.add_persistent(kept, client.watcher, recursive)
    except ZooKeeperError as error:
        return Answer(b"", missed, error.code)
    return Answer(b"", missed)
