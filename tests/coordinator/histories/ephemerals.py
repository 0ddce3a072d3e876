"""The ephemeral checker: none outlives its session, none of a session that lives goes; from what clients were told only.

A session has ended at the zxid at which its closing was answered; one that expired has when its client was told, which
every read behind a later sync must show.
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
    """What is wrong; nothing if it is as it must be."""
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
                yield f"{path} of session 0x{owner:x}, closed at 0x{closed[owner]:x}, is still there: {operation}"
            elif sync_is_linearizable and synced.get(operation.session, -1) > expired.get(owner, 1 << 62):
                yield f"{path} of session 0x{owner:x}, which had expired before the sync, is still there: {operation}"


def _shown(operation: Operation) -> Iterator[tuple[str, int, int]]:
    """Path, owner and czxid of nodes that an answer shows."""
    if operation.error != OK:
        return
    match operation.request:
        case GetData(path=path):
            yield path, operation.result[1].owner, operation.result[1].czxid
        case Exists(path=path):
            yield path, operation.result.owner, operation.result.czxid


def _created(history: History) -> Iterator[tuple[int, str, Stat, Operation]]:
    """Session, path and Stat of each ephemeral whose making was answered, but for those that went in the same transaction: what is
    then at their path, and may be of nobody, has the same czxid."""
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
    """A node that is missed at a zxid at which its session is known to have lived, and that nobody deleted."""
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
                yield f"its session lived at 0x{lived[session]:x}, and nobody deleted it ({made}); it is gone: {operation}"


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
