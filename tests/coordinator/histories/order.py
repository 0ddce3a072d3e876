"""The ensemble's transactions, in order: read from its log, or put together from what its clients were told.

A client that watched everything from before the first unknown write to behind the last is as good as a log:
what it was not told of was not done. Without either, an unknown write has a place if something shows it: its
data (which no other write has) in somebody's answer, or a notification or Stat that no other write explains.
Where it has none, nobody can say whether it was done: the node that it may have touched is ``doubtful``, and
so are the ``lists`` of children it would be in. Exact checks leave them out, those of :mod:`.linearizability`
do not.
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
    """The states that the transactions make, what was wrong about that, and the nodes and lists of children
    (by their parent) nothing can be said of. ``prefixes``: of sequential nodes that may have been made,
    nobody was told under which number; ``ends``: of sessions, the zxid that ended them; ``outstanding``: what
    its leaders may have counted, if they are Apache's."""

    tree: Tree
    problems: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    prefixes: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)
    outstanding: Outstanding | None = None

    def is_doubtful(self, path: str) -> bool:
        """Whether nothing can be said of this node."""
        return path in self.doubtful or path[:-10] in self.prefixes


def ordered(history: History, counts_outstanding: bool = False) -> Order:
    """Replays every transaction; each known write's answer must be the replay's. ``counts_outstanding``: or
    what :mod:`.outstanding` says that Apache's may answer."""
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
        order.problems.append(f"the log has not what was answered: {operation}")


def _from_witness(history: History, order: Order, changes: dict[int, Counter[tuple[int, str]]]) -> None:
    """Every change is known, with its zxid; each is an answered write's, an unknown one's, or the end of a
    session."""
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
        shown = changes[zxid]
        session = _ended(order, shown)
        could = [each for each in unknown if _gives(each, shown)]
        # One of them may be of a version that the node does not have.
        could = [each for each in could if _does(order, each, zxid) == shown] or could
        read = [writer for writer, at in readers if at == zxid and writer in could]
        if session and lived[session] < zxid:
            _close(order, session, zxid)
        elif could:
            if not read and len({_written(each) for each in could}) > 1:
                for each in could:
                    _doubt(order, each)
            operation = (read or could)[0]
            unknown.remove(operation)
            _replay(order, operation, zxid)
        else:
            order.problems.append(f"nobody asked for what 0x{zxid:x} did: {sorted(shown.elements())}")


def _does(order: Order, operation: Operation, zxid: int) -> Counter[tuple[int, str]]:
    request = operation.request
    assert isinstance(request, Create | SetData | Delete | Multi | CloseSession)
    changes = order.tree.write(request, operation.session, zxid).changes
    return Counter((change.kind, change.path) for change in changes)


def _ended(order: Order, shown: Counter[tuple[int, str]]) -> int:
    """The session whose end this may be: all of its nodes went, and no other's. 0 if it is none's."""
    paths = {path for _kind, path in shown}
    owners = {node.owner if node is not None else 0 for node in map(order.tree.now, paths)}
    if any(kind != DELETED for kind, _path in shown) or len(owners) != 1 or 0 in owners:
        return 0
    (session,) = owners
    return session if set(order.tree.owned(session)) == paths else 0


def witnessed(history: History) -> dict[int, Counter[tuple[int, str]]] | None:
    """What every transaction changed below the root, if a session watched all of it: it set a recursive watch
    before any write was sent whose fate is unknown, and was answered a sync behind the end of them all,
    without a break."""
    unknown = [each.invoked for each in history.operations if each.is_write and not each.is_known]
    writes = [
        each for each in history.operations if each.is_write and not isinstance(each.request, CloseSession)
    ]
    last = max(each.completed or each.invoked for each in writes)
    for watch in history.operations:
        # A read of the root with a watch is as a tuple the same.
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
        for shown in history.notifications:
            if shown.session == watch.session and shown.zxid > 0:
                found.setdefault(shown.zxid, Counter())[shown.kind, shown.path] += 1
        return found
    return None


def _gives(operation: Operation, shown: Counter[tuple[int, str]]) -> bool:
    """Whether an unknown write, done, changes this."""
    left = Counter(shown)
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
    """Unknown writes whose data somebody read, and the zxid that wrote it."""
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
    places = {(each.session, each.xid): each.zxid for each in writes if each.is_known}
    places |= _shown(order, history, [each for each in writes if not each.is_known], set(places.values()))
    for operation in writes:
        if (operation.session, operation.xid) not in places:
            _doubt(order, operation)
    _doubt_ends(history, order)
    known = [each for each in writes if (each.session, each.xid) in places]
    for operation in sorted(known, key=lambda each: places[each.session, each.xid]):
        _replay(order, operation, places[operation.session, operation.xid])


def _doubt_ends(history: History, order: Order) -> None:
    """Ephemerals of sessions that ended, nobody was told when."""
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
    for path, is_listed in _touched(operation):
        order.doubtful.add(path)
        if is_listed:
            order.lists.add(parent_of(path))


def _touched(operation: Operation) -> Iterator[tuple[str, bool]]:
    """Nodes, and whether their parents' lists may be other ones."""
    for each, result in zip(parts(operation.request), _results(operation), strict=False):
        made = result[0] if isinstance(each, Create) and isinstance(result, tuple) else each.path
        yield made, isinstance(each, Create | Delete)


def _results(operation: Operation) -> tuple[object, ...]:
    """Of each of a write's parts."""
    if not isinstance(operation.request, Multi):
        return (operation.result,)
    return operation.result or tuple(None for _ in operation.request.operations)


def _shown(
    order: Order, history: History, unknown: list[Operation], taken: set[int]
) -> dict[tuple[int, int], int]:
    """Where unknown writes are, as far as anything shows it."""
    places: dict[tuple[int, int], int] = {}
    for writer, zxid in _by_data(history, unknown):
        places[writer.session, writer.xid] = zxid
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
        if zxid in taken or zxid in places.values():
            continue
        could = [
            each
            for each in unknown
            if (each.session, each.xid) not in places and (kind, path) in set(_effects(each))
        ]
        if len(could) == 1:
            places[could[0].session, could[0].xid] = zxid
        elif not could:
            order.doubtful.add(path)
            order.lists.update((path, parent_of(path)))
    return places


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
    """What it changed, which is done. ``logged``: what the log has of it."""
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
        if not _is_said(order, operation, answer):
            order.problems.append(f"it should answer {answer.error or 'ok'} {answer.result}: {operation}")
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
    """What the write is to be answered; where that may be one thing or another, what it was."""
    answer = order.tree.write(request, operation.session, zxid)
    if order.outstanding is None:
        return answer
    for path in order.outstanding.refused(request, operation, zxid):
        refused = order.tree.write(request, operation.session, zxid, path)
        if operation.is_known:
            was_refused = _is_said(order, operation, refused) and not _is_said(order, operation, answer)
        else:
            was_refused = logged == refused.changes != answer.changes
        if was_refused:
            return refused
    return answer


def _is_said(order: Order, operation: Operation, answer: Answer) -> bool:
    output = comparable(operation.result, operation.request, order)
    return (operation.error, output) == (answer.error, comparable(answer.result, operation.request, order))


def _named(order: Order, operation: Operation) -> Create | SetData | Delete | Multi | CloseSession:
    """The write with the names that it was answered in place of those that a doubtful list would give."""
    request = operation.request
    if isinstance(request, Multi):
        results = _results(operation)
        return Multi(
            tuple(
                _part(order, each, result) for each, result in zip(request.operations, results, strict=False)
            )
        )
    assert isinstance(request, Create | SetData | Delete | CloseSession)
    return request if isinstance(request, CloseSession) else _part(order, request, operation.result)  # type: ignore[return-value]


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
    for each, (path, _is_listed) in zip(parts(operation.request), _touched(operation), strict=False):
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
    """A result without times, and without what a doubtful list of children tells."""
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
