"""Children that a leader of Apache's still counts although they are gone (``PrepRequestProcessor``).

It prepares each write by what is outstanding: prepared before, in the log's order, and not applied yet. A
closeSession deletes its ephemerals there and lowers no parent's number of children. So a delete of the parent
that is prepared before the closeSession is applied is refused with NotEmpty, though behind it the parent has
no children; and one behind further outstanding changes of the parent is, for each of them is prepared from
the one before. What is applied is right: nothing else tells of it.

Nothing of it outlives its leader. Which server that is no history tells: applied is what every server has
answered with.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from .history import CREATED, DELETED, Change, Delete, History, Operation, Request, parts
from .tree import parent_of

_NEVER = 1 << 62
_EPOCH_BITS = 32


class Outstanding:
    """Told of every transaction in order, it knows which nodes may have such children."""

    def __init__(self, history: History) -> None:
        answers: dict[int, list[tuple[int, int]]] = {}
        for each in history.operations:
            if each.completed is not None and each.zxid > 0:
                answers.setdefault(each.server, []).append((each.completed, each.zxid))
        self._answers: list[tuple[list[int], list[int]]] = []
        """Of each server: when it first answered with a zxid, and that, both ascending."""
        for shown in answers.values():
            times, zxids = [], []
            for completed, zxid in sorted(shown):
                if not zxids or zxid > zxids[-1]:
                    times.append(completed)
                    zxids.append(zxid)
            self._answers.append((times, zxids))
        self._last: dict[str, int] = {}
        """Of nodes that may have such children: the last change that was prepared with them."""

    def refused(self, request: Request, operation: Operation | None, zxid: int) -> Iterator[str]:
        """The nodes for which ``request``, prepared as ``zxid``, may have been refused with NotEmpty."""
        for each in parts(request):
            if isinstance(each, Delete) and self._may_count(each.path, operation, zxid):
                yield each.path

    def applied(
        self, changes: Sequence[Change], operation: Operation | None, zxid: int, closes: bool
    ) -> None:
        """The next transaction; ``closes``: it ended a session."""
        touched: dict[str, None] = {}
        for change in changes:
            if change.kind in (CREATED, DELETED):
                self._last.pop(change.path, None)
                touched[parent_of(change.path)] = None
            else:
                touched[change.path] = None
        for path in touched:
            if closes or self._may_count(path, operation, zxid):
                self._last[path] = zxid
            else:
                self._last.pop(path, None)

    def _may_count(self, path: str, operation: Operation | None, zxid: int) -> bool:
        last = self._last.get(path)
        if last is None or last >> _EPOCH_BITS != zxid >> _EPOCH_BITS:
            return False
        return operation is None or operation.invoked < self._applied_at(last)

    def _applied_at(self, zxid: int) -> int:
        """When every server had answered with it, or something newer."""
        latest = 0
        for times, zxids in self._answers:
            place = bisect_left(zxids, zxid)
            latest = max(latest, times[place] if place < len(times) else _NEVER)
        return latest
