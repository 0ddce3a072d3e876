"""The ephemeral checker: an ephemeral node and its session end together. It uses the clients' answers only.

A closed session has ended at the zxid of the answer to its closing. An expired session has ended when a
server reported it; every read after a later sync must show that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .history import (
    NO_NODE,
    OK,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    History,
    Multi,
    Operation,
    Stat,
    Sync,
    parts,
)
from .tree import parent_of


def check_ephemerals(history: History, sync_is_linearizable: bool = True) -> list[str]:
    """Every problem of the history."""
    return [*_outliving(history, sync_is_linearizable), *_after_the_end(history), *_gone(history)]


def _closings(history: History) -> dict[int, int]:
    return {
        each.session: each.zxid
        for each in history.operations
        if isinstance(each.request, CloseSession) and each.is_known and each.error == OK
    }


def _outliving(history: History, sync_is_linearizable: bool) -> Iterator[str]:
    closed = _closings(history)
    expired = {each.session: each.at for each in history.contacts if each.kind == "expired"}
    created = {path: (session, stat) for session, path, stat, _operation in _created(history)}
    synced: dict[int, int] = {}
    for operation in sorted(history.operations, key=lambda each: each.invoked):
        if not operation.is_known:
            continue
        if isinstance(operation.request, Sync) and operation.error == OK:
            synced[operation.session] = operation.invoked
        for path, owner, czxid in _shown(operation):
            if owner == 0 and path in created and created[path][1].czxid == czxid:
                owner = created[path][0]
            if operation.zxid >= closed.get(owner, 1 << 62):
                closing = f"0x{owner:x}, closed at 0x{closed[owner]:x}"
                yield f"{path} of session {closing}, still exists: {operation}"
            elif sync_is_linearizable and synced.get(operation.session, -1) > expired.get(owner, 1 << 62):
                yield f"{path} of session 0x{owner:x}, expired before the sync, still exists: {operation}"


def _shown(operation: Operation) -> Iterator[tuple[str, int, int]]:
    """The path, owner and czxid of each node in an answer."""
    if operation.error != OK:
        return
    match operation.request:
        case GetData(path=path):
            yield path, operation.result[1].owner, operation.result[1].czxid
        case Exists(path=path):
            yield path, operation.result.owner, operation.result.czxid


def _created(history: History) -> Iterator[tuple[int, str, Stat, Operation]]:
    """The session, path and Stat of each ephemeral whose create was answered.

    An ephemeral that its own multi deletes again is left out: another node at its path has the same czxid.
    """
    for operation in history.operations:
        if not operation.is_known or operation.error != OK:
            continue
        results = operation.result if isinstance(operation.request, Multi) else (operation.result,)
        requests = [*parts(operation.request)]
        for number, (request, result) in enumerate(zip(requests, results or (), strict=False), 1):
            if isinstance(request, Create) and request.ephemeral and isinstance(result, tuple):
                path, stat = result
                if not any(isinstance(later, Delete) and later.path == path for later in requests[number:]):
                    yield operation.session, path, stat, operation


def _after_the_end(history: History) -> Iterator[str]:
    closed = _closings(history)
    expired = {each.session: each.at for each in history.contacts if each.kind == "expired"}
    for operation in history.operations:
        if not operation.is_known or isinstance(operation.request, CloseSession):
            continue
        if operation.error == OK and operation.zxid > closed.get(operation.session, 1 << 62):
            yield f"answered after its session's end at 0x{closed[operation.session]:x}: {operation}"
        if operation.invoked > expired.get(operation.session, 1 << 62):
            yield f"answered after its session had expired: {operation}"


def _gone(history: History) -> Iterator[str]:
    """Nodes that are missing at a zxid at which their session was alive, without a delete."""
    lived: dict[int, int] = defaultdict(int)
    for operation in history.operations:
        if operation.is_known and operation.error == OK and not isinstance(operation.request, CloseSession):
            lived[operation.session] = max(lived[operation.session], operation.zxid)
    deletes: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        for request in parts(operation.request):
            if isinstance(request, Delete):
                deletes[request.path].append(operation)
    missed: dict[str, list[Operation]] = defaultdict(list)
    listed: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        if not operation.is_known:
            continue
        if isinstance(operation.request, GetChildren) and operation.error == OK:
            listed[operation.request.path].append(operation)
        elif isinstance(operation.request, GetData | Exists):
            missed[operation.request.path].append(operation)
    for session, path, stat, made in _created(history):
        for operation in (*missed[path], *listed[parent_of(path)]):
            if not stat.czxid <= operation.zxid <= lived[session] or not _misses(operation, path, stat):
                continue
            assert operation.completed is not None
            if not any(
                each.invoked < operation.completed and _may_delete(each, stat, operation.zxid)
                for each in deletes[path]
            ):
                lived_at = f"0x{lived[session]:x}"
                yield f"missing without a delete ({made}); its session was alive at {lived_at}: {operation}"


def _misses(operation: Operation, path: str, stat: Stat) -> bool:
    match operation.request:
        case GetChildren():
            return path.rpartition("/")[2] not in operation.result[0]
        case GetData() if operation.error == OK:
            return bool(operation.result[1].czxid > stat.czxid)
        case Exists() if operation.error == OK:
            return bool(operation.result.czxid > stat.czxid)
        case _:
            return operation.error == NO_NODE


def _may_delete(operation: Operation, stat: Stat, zxid: int) -> bool:
    return not operation.is_known or (operation.is_done and stat.czxid <= operation.zxid <= zxid)
