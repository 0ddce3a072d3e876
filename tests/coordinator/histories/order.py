"""The ensemble's transactions in order, read from its log or put together from the clients' records.

- A client that watched everything, from before the first unknown write to after the last, is as good as a
  log: an unknown write without an event was not done.
- Without such a client, an unknown write gets a zxid if a record shows it: its data, which no other write
  has, in an answer, or a notification or Stat that no other write explains.
- Otherwise it is unknown whether the write was done. Its node is ``doubtful``, and so are the ``lists`` of
  children that it would be in. The exact checks leave these out; :mod:`.linearizability` does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .history import (
    CREATED,
    DATA_CHANGED,
    DELETED,
    OK,
    READS,
    SESSION_EXPIRED,
    SESSION_MOVED,
    AddWatch,
    Change,
    Check,
    CloseSession,
    Create,
    Delete,
    GetChildren,
    GetData,
    History,
    Multi,
    Operation,
    Request,
    SetData,
    Stat,
    Sync,
    parts,
)
from .outstanding import Outstanding
from .tree import Answer, ImpossibleError, Tree, parent_of


@dataclass
class Order:
    """The states that the transactions make, and the problems found on the way."""

    tree: Tree
    problems: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    """Nodes whose state is unknown."""
    prefixes: set[str] = field(default_factory=set)
    """Prefixes of sequential nodes that may exist under an unknown number."""
    lists: set[str] = field(default_factory=set)
    """Parents whose lists of children are unknown."""
    ends: dict[int, int] = field(default_factory=dict)
    """By session: the zxid of its end."""
    outstanding: Outstanding | None = None
    """The children that Apache's leaders may have counted; None for ours."""

    def is_doubtful(self, path: str) -> bool:
        """Whether the node's state is unknown."""
        return path in self.doubtful or path[:-10] in self.prefixes


def ordered(history: History, counts_outstanding: bool = False) -> Order:
    """Replays every transaction. Each known write's answer must be that of the replay.

    ``counts_outstanding``: a refusal that :mod:`.outstanding` allows is accepted too.
    """
    order = Order(Tree(history.root), outstanding=Outstanding(history) if counts_outstanding else None)
    changes = witnessed(history)
    if history.transactions is not None:
        _from_log(history, order)
    elif changes is not None:
        _from_witness(history, order, changes)
    else:
        _from_answers(history, order)
    return order


def _from_log(history: History, order: Order) -> None:
    assert history.transactions is not None
    operations = {(each.session, each.xid): each for each in history.operations if each.is_write}
    missing = {key: each for key, each in operations.items() if each.is_known and each.error == OK}
    last = 0
    for transaction in history.transactions:
        if transaction.zxid <= last:
            order.problems.append(f"the log has 0x{transaction.zxid:x} after 0x{last:x}")
        last = transaction.zxid
        key = (transaction.session, transaction.xid)
        operation = operations.get(key)
        if transaction.closes:
            missing.pop(key, None)
            gone = {each.path for each in transaction.changes if history.is_within(each.path)}
            if gone != set(order.tree.owned(transaction.session)):
                order.problems.append(
                    f"0x{transaction.zxid:x} ends session 0x{transaction.session:x} with {gone}"
                )
            _close(order, transaction.session, transaction.zxid)
        elif operation is None or (
            not operation.is_known and transaction.error in (SESSION_EXPIRED, SESSION_MOVED)
        ):
            _apply(order, transaction.zxid, transaction.changes, operation)
        else:
            missing.pop(key, None)
            if operation.is_known and operation.zxid != transaction.zxid:
                order.problems.append(f"the log has as 0x{transaction.zxid:x}: {operation}")
            changes = _replay(order, operation, transaction.zxid, transaction.changes)
            if changes != transaction.changes:
                order.problems.append(
                    f"the log has as 0x{transaction.zxid:x} {transaction.changes}: {operation}"
                )
    for operation in missing.values():
        order.problems.append(f"an answered write is not in the log: {operation}")


def _from_witness(history: History, order: Order, changes: dict[int, Counter[tuple[int, str]]]) -> None:
    """Every change and its zxid are known.

    Each is of an answered write, an unknown write or a session's end.
    """
    known = {each.zxid: each for each in history.operations if each.is_write and each.is_known}
    unknown = [each for each in history.operations if each.is_write and not each.is_known]
    readers = _by_data(history, unknown)
    lived: Counter[int] = Counter()
    for each in history.operations:
        if each.is_known and each.error == OK and not isinstance(each.request, CloseSession):
            lived[each.session] = max(lived[each.session], each.zxid)
    for zxid in sorted(known.keys() | changes.keys()):
        if zxid in known:
            _replay(order, known[zxid], zxid)
            continue
        events = changes[zxid]
        session = _ended(order, events)
        candidates = [each for each in unknown if _gives(each, events)]
        # A candidate may ask for a version that the node does not have.
        candidates = [each for each in candidates if _does(order, each, zxid) == events] or candidates
        read = [writer for writer, at in readers if at == zxid and writer in candidates]
        if session and lived[session] < zxid:
            _close(order, session, zxid)
        elif candidates:
            if not read and len({_written(each) for each in candidates}) > 1:
                for each in candidates:
                    _doubt(order, each)
            operation = (read or candidates)[0]
            unknown.remove(operation)
            _replay(order, operation, zxid)
        else:
            order.problems.append(f"no request explains 0x{zxid:x}: {sorted(events.elements())}")


def _does(order: Order, operation: Operation, zxid: int) -> Counter[tuple[int, str]]:
    request = operation.request
    assert isinstance(request, Create | SetData | Delete | Multi | CloseSession)
    changes = order.tree.write(request, operation.session, zxid).changes
    return Counter((change.kind, change.path) for change in changes)


def _ended(order: Order, events: Counter[tuple[int, str]]) -> int:
    """The session whose end explains the events: exactly its nodes were deleted. 0 if there is none."""
    paths = {path for _kind, path in events}
    owners = {node.owner if node is not None else 0 for node in map(order.tree.now, paths)}
    if any(kind != DELETED for kind, _path in events) or len(owners) != 1 or 0 in owners:
        return 0
    (session,) = owners
    return session if set(order.tree.owned(session)) == paths else 0


def witnessed(history: History) -> dict[int, Counter[tuple[int, str]]] | None:
    """By zxid: the changes of every transaction below the root, if a session watched all of them; else None.

    Such a session set a recursive watch before any unknown write was sent. On the same connection it had the
    answer to a sync after the last write.
    """
    unknown = [each.invoked for each in history.operations if each.is_write and not each.is_known]
    writes = [
        each for each in history.operations if each.is_write and not isinstance(each.request, CloseSession)
    ]
    last = max(each.completed or each.invoked for each in writes)
    for watch in history.operations:
        # Compare the type too: the tuple of a read of the root with a watch is equal.
        if not isinstance(watch.request, AddWatch) or watch.request != AddWatch(history.root, True):
            continue
        if watch.completed is None or watch.error != OK:
            continue
        if unknown and min(unknown) < watch.completed:
            continue
        synced = max(
            (
                each.completed
                for each in history.operations
                if each.completed is not None
                and each.session == watch.session
                and isinstance(each.request, Sync)
            ),
            default=0,
        )
        lost = [each.at for each in history.contacts if each.session == watch.session and each.kind == "lost"]
        if synced < last or (lost and min(lost) < synced):
            continue
        found: dict[int, Counter[tuple[int, str]]] = {}
        for event in history.notifications:
            if event.session == watch.session and event.zxid > 0:
                found.setdefault(event.zxid, Counter())[event.kind, event.path] += 1
        return found
    return None


def _gives(operation: Operation, events: Counter[tuple[int, str]]) -> bool:
    """Whether an unknown write would give exactly these events."""
    left = Counter(events)
    for each in parts(operation.request):
        if isinstance(each, Create):
            names = [
                path
                for kind, path in left
                if kind == CREATED and (path[:-10] == each.path if each.sequential else path == each.path)
            ]
            if not names:
                return False
            left -= Counter([(CREATED, names[0])])
        elif isinstance(each, SetData | Delete):
            event = (DATA_CHANGED if isinstance(each, SetData) else DELETED, each.path)
            if not left[event]:
                return False
            left -= Counter([event])
    return not left


def _written(operation: Operation) -> tuple[object, ...]:
    return tuple(
        (each.data, each.path) for each in parts(operation.request) if isinstance(each, Create | SetData)
    )


def _by_data(history: History, unknown: list[Operation]) -> list[tuple[Operation, int]]:
    """The unknown writes whose data was read, each with the zxid that wrote it."""
    writers = {
        (each.path, each.data): operation
        for operation in unknown
        for each in parts(operation.request)
        if isinstance(each, Create | SetData) and not (isinstance(each, Create) and each.sequential)
    }
    return [
        (writers[operation.request.path, operation.result[0]], operation.result[1].mzxid)
        for operation in history.operations
        if isinstance(operation.request, GetData)
        and operation.is_known
        and operation.error == OK
        and (operation.request.path, operation.result[0]) in writers
    ]


def _from_answers(history: History, order: Order) -> None:
    writes = [each for each in history.operations if each.is_write]
    zxids = {(each.session, each.xid): each.zxid for each in writes if each.is_known}
    zxids |= _shown(order, history, [each for each in writes if not each.is_known], set(zxids.values()))
    for operation in writes:
        if (operation.session, operation.xid) not in zxids:
            _doubt(order, operation)
    _doubt_ends(history, order)
    known = [each for each in writes if (each.session, each.xid) in zxids]
    for operation in sorted(known, key=lambda each: zxids[each.session, each.xid]):
        _replay(order, operation, zxids[operation.session, operation.xid])


def _doubt_ends(history: History, order: Order) -> None:
    """Marks the ephemerals of sessions that ended at an unknown zxid."""
    closed = {
        each.session
        for each in history.operations
        if isinstance(each.request, CloseSession) and each.is_known
    }
    ended = {each.session for each in history.contacts if each.kind in ("expired", "lost")} - closed
    for operation in history.operations:
        if operation.session in ended and any(
            isinstance(each, Create) and each.ephemeral for each in parts(operation.request)
        ):
            _doubt(order, operation)


def _doubt(order: Order, operation: Operation) -> None:
    for each in parts(operation.request):
        if isinstance(each, Create) and each.sequential and not operation.is_known:
            order.prefixes.add(each.path)
    for path, is_listed in _changed_nodes(operation):
        order.doubtful.add(path)
        if is_listed:
            order.lists.add(parent_of(path))


def _changed_nodes(operation: Operation) -> Iterator[tuple[str, bool]]:
    """The nodes that a write may change, and whether the parent's list of children may change too."""
    for each, result in zip(parts(operation.request), _results(operation), strict=False):
        made = result[0] if isinstance(each, Create) and isinstance(result, tuple) else each.path
        yield made, isinstance(each, Create | Delete)


def _results(operation: Operation) -> tuple[object, ...]:
    """The result of each part of a write."""
    if not isinstance(operation.request, Multi):
        return (operation.result,)
    return operation.result or tuple(None for _ in operation.request.operations)


def _shown(
    order: Order, history: History, unknown: list[Operation], taken: set[int]
) -> dict[tuple[int, int], int]:
    """The zxids of the unknown writes that a record shows."""
    zxids: dict[tuple[int, int], int] = {}
    for writer, zxid in _by_data(history, unknown):
        zxids[writer.session, writer.xid] = zxid
    evidence: set[tuple[int, int, str]] = set()
    for operation in history.operations:
        if not operation.is_known or operation.error != OK or not isinstance(operation.request, READS):
            continue
        stat = operation.result if isinstance(operation.result, Stat) else operation.result[1]
        path = operation.request.path
        evidence.add((stat.czxid, CREATED, path))
        if stat.mzxid != stat.czxid:
            evidence.add((stat.mzxid, DATA_CHANGED, path))
    evidence |= {(each.zxid, each.kind, each.path) for each in history.notifications if each.zxid > 0}
    for zxid, kind, path in sorted(evidence):
        if zxid in taken or zxid in zxids.values():
            continue
        candidates = [
            each
            for each in unknown
            if (each.session, each.xid) not in zxids and (kind, path) in set(_effects(each))
        ]
        if len(candidates) == 1:
            zxids[candidates[0].session, candidates[0].xid] = zxid
        elif not candidates:
            order.doubtful.add(path)
            order.lists.update((path, parent_of(path)))
    return zxids


def _effects(operation: Operation) -> Iterator[tuple[int, str]]:
    for each in parts(operation.request):
        if isinstance(each, Create) and not each.sequential:
            yield CREATED, each.path
        elif isinstance(each, SetData):
            yield DATA_CHANGED, each.path
        elif isinstance(each, Delete):
            yield DELETED, each.path


def _replay(
    order: Order, operation: Operation, zxid: int, logged: tuple[Change, ...] | None = None
) -> tuple[Change, ...]:
    """Applies a write and returns its changes. ``logged``: its changes in the log."""
    request = _named(order, operation)
    if isinstance(request, CloseSession):
        _close(order, operation.session, zxid)
        return ()
    if operation.session in order.ends and operation.is_known and operation.error == OK:
        order.problems.append(
            f"done after its session ended at 0x{order.ends[operation.session]:x}: {operation}"
        )
    answer = _answered(order, operation, request, zxid, logged)
    if operation.is_known and not _is_doubtful(order, operation):
        if not _matches(order, operation, answer):
            order.problems.append(f"the answer must be {answer.error or 'ok'} {answer.result}: {operation}")
    elif operation.is_known and not answer.changes:
        _doubt(order, operation)
    changes = () if operation.is_known and operation.error != OK else answer.changes
    _apply(order, zxid, changes, operation)
    return changes


def _answered(
    order: Order,
    operation: Operation,
    request: Create | SetData | Delete | Multi,
    zxid: int,
    logged: tuple[Change, ...] | None,
) -> Answer:
    """The write's answer by the replay. If Apache may refuse the write, and did, the refusal."""
    answer = order.tree.write(request, operation.session, zxid)
    if order.outstanding is None:
        return answer
    for path in order.outstanding.refused(request, operation, zxid):
        refused = order.tree.write(request, operation.session, zxid, path)
        if operation.is_known:
            was_refused = _matches(order, operation, refused) and not _matches(order, operation, answer)
        else:
            was_refused = logged == refused.changes != answer.changes
        if was_refused:
            return refused
    return answer


def _matches(order: Order, operation: Operation, answer: Answer) -> bool:
    result = comparable(operation.result, operation.request, order)
    return (operation.error, result) == (answer.error, comparable(answer.result, operation.request, order))


def _named(order: Order, operation: Operation) -> Create | SetData | Delete | Multi | CloseSession:
    """The write, with the sequential names of its answer where the parent's list is unknown."""
    request = operation.request
    if isinstance(request, Multi):
        results = _results(operation)
        return Multi(
            tuple(
                _part(order, each, result) for each, result in zip(request.operations, results, strict=False)
            )
        )
    assert isinstance(request, Create | SetData | Delete | CloseSession)
    if isinstance(request, CloseSession):
        return request
    return _part(order, request, operation.result)  # type: ignore[return-value]


def _part(
    order: Order, request: Create | SetData | Delete | Check, result: object
) -> Create | SetData | Delete | Check:
    if (
        isinstance(request, Create)
        and request.sequential
        and isinstance(result, tuple)
        and parent_of(request.path) in order.lists
    ):
        return request._replace(path=result[0], sequential=False)
    return request


def _is_doubtful(order: Order, operation: Operation) -> bool:
    for each, (path, _is_listed) in zip(parts(operation.request), _changed_nodes(operation), strict=False):
        if order.is_doubtful(path) or (isinstance(each, Delete) and path in order.lists):
            return True
        if isinstance(each, Create) and order.is_doubtful(parent_of(path)):
            return True
    return False


def _close(order: Order, session: int, zxid: int) -> None:
    order.ends.setdefault(session, zxid)
    answer = order.tree.write(CloseSession(), session, zxid)
    _apply(order, zxid, answer.changes, None, closes=True)


def _apply(
    order: Order, zxid: int, changes: tuple[Change, ...], operation: Operation | None, closes: bool = False
) -> None:
    try:
        order.tree.apply(zxid, changes)
        if order.outstanding is not None:
            order.outstanding.applied(changes, operation, zxid, closes)
    except ImpossibleError as error:
        if not any(
            order.is_doubtful(each.path) or order.is_doubtful(parent_of(each.path)) for each in changes
        ):
            order.problems.append(str(error))


def comparable(result: object, request: Request | Check, order: Order) -> object:
    """A result without times, and without everything that depends on an unknown list of children."""
    if isinstance(result, Stat):
        result = result._replace(ctime=0, mtime=0)
        path = getattr(request, "path", None)
        return result._replace(cversion=0, children=0, pzxid=0) if path in order.lists else result
    if isinstance(request, Multi) and isinstance(result, tuple):
        return tuple(
            comparable(each, part, order) for each, part in zip(result, request.operations, strict=False)
        )
    if isinstance(request, GetChildren) and isinstance(result, tuple):
        names, stat = result
        return (() if request.path in order.lists else names), comparable(stat, request, order)
    if isinstance(result, tuple):
        return tuple(comparable(each, request, order) if isinstance(each, Stat) else each for each in result)
    return result
