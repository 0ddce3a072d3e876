"""The zxid checker. It is exact, and linear in the history's length.

1. A write that was answered before another was sent has the smaller zxid. No two writes have the same.
2. All writes, replayed in this order, give their answers (:mod:`.order`).
3. A read has the answer of the state of its header's zxid.
4. A session's zxids never fall, and its requests are answered in order. So a session sees its own writes.
5. The answer to a sync has a zxid at least as new as every answer before it was sent
(``sync_is_linearizable``).
6. A transaction has the same time in every Stat.
"""

from __future__ import annotations

from collections.abc import Iterator

from .history import OK, READS, CloseSession, Contact, History, Operation, Stat, Sync
from .order import Order, comparable


def check_zxids(history: History, order: Order, sync_is_linearizable: bool = True) -> list[str]:
    """Every problem of the history."""
    return [
        *order.problems,
        *_real_time(history, sync_is_linearizable),
        *_reads(history, order),
        *_within_sessions(history),
        *_times(history),
    ]


def _real_time(history: History, sync_is_linearizable: bool) -> Iterator[str]:
    known = [each for each in history.operations if each.completed is not None]
    moments: list[tuple[int, bool, Operation]] = [(each.invoked, False, each) for each in known]
    moments += [(each.completed or 0, True, each) for each in known]
    newest_write, newest = 0, 0
    before: dict[int, tuple[int, int]] = {}
    seen: dict[int, Operation] = {}
    for _at, is_answer, operation in sorted(moments, key=lambda moment: moment[0]):
        if not is_answer:
            before[id(operation)] = newest_write, newest
            continue
        write_before, any_before = before[id(operation)]
        if operation.is_write:
            if operation.zxid <= write_before:
                yield f"a write with zxid 0x{write_before:x} was answered before this was sent: {operation}"
            if operation.zxid in seen:
                yield f"two writes have one zxid: {operation} and {seen[operation.zxid]}"
            seen[operation.zxid] = operation
            newest_write = max(newest_write, operation.zxid)
        elif sync_is_linearizable and isinstance(operation.request, Sync) and operation.zxid < any_before:
            yield f"0x{any_before:x} was answered before this was sent: {operation}"
        newest = max(newest, operation.zxid)


def _reads(history: History, order: Order) -> Iterator[str]:
    for operation in history.operations:
        request = operation.request
        if not operation.is_known or not isinstance(request, READS) or order.is_doubtful(request.path):
            continue
        if not history.is_within(request.path):
            continue
        answer = order.tree.read(request, operation.zxid)
        result = comparable(operation.result, request, order)
        if (operation.error, result) != (answer.error, comparable(answer.result, request, order)):
            yield f"the state of its zxid has {answer.error or 'ok'} {answer.result}: {operation}"


def _within_sessions(history: History) -> Iterator[str]:
    for session, received in history.sessions().items():
        newest, last_xid = 0, 0
        for each in received:
            if isinstance(each, Contact):
                continue
            if 0 < each.zxid < newest:
                yield f"session 0x{session:x} had zxid 0x{newest:x} before: {each}"
            newest = max(newest, each.zxid)
            if isinstance(each, Operation):
                if each.xid < last_xid:
                    yield f"session 0x{session:x} had the answer to the later xid {last_xid} before: {each}"
                last_xid = max(last_xid, each.xid)


def _times(history: History) -> Iterator[str]:
    times: dict[int, int] = {}
    for operation in history.operations:
        if not operation.is_known or operation.error != OK or isinstance(operation.request, CloseSession):
            continue
        for stat in _stats(operation.result):
            for zxid, time in ((stat.czxid, stat.ctime), (stat.mzxid, stat.mtime)):
                if times.setdefault(zxid, time) != time:
                    yield f"transaction 0x{zxid:x} has time {times[zxid]} in another answer: {operation}"


def _stats(result: object) -> Iterator[Stat]:
    if isinstance(result, Stat):
        yield result
    elif isinstance(result, tuple):
        for each in result:
            yield from _stats(each)
