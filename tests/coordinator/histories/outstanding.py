"""Deleted children that an Apache leader still counts (``PrepRequestProcessor``).

The leader prepares each write from the outstanding ones: those prepared before it and not applied yet. An
outstanding closeSession deletes its ephemerals, but does not lower the parents' numbers of children. So:

- A delete of such a parent that is prepared before the closeSession is applied gets NotEmpty.
- So does one after further outstanding changes of the parent, because each is prepared from the one before.

The applied state is right, and a new leader does not count such children. A history does not show which
server led, so a transaction counts as applied once every server has answered with its zxid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from .history import CREATED, DELETED, Change, Delete, History, Operation, Request, parts
from .tree import parent_of

_NEVER = 1 << 62
_EPOCH_BITS = 32


class Outstanding:
    """Follows every transaction in order and knows which nodes may have such children."""

    def __init__(self, history: History) -> None:
        answers: dict[int, list[tuple[int, int]]] = {}
        for each in history.operations:
            if each.completed is not None and each.zxid > 0:
                answers.setdefault(each.server, []).append((each.completed, each.zxid))
        self._answers: list[tuple[list[int], list[int]]] = []
        """For each server, the times of its first answers with each newer zxid, and these zxids."""
        for pairs in answers.values():
            times, zxids = [], []
            for completed, zxid in sorted(pairs):
                if not zxids or zxid > zxids[-1]:
                    times.append(completed)
                    zxids.append(zxid)
            self._answers.append((times, zxids))
        self._last: dict[str, int] = {}
        """For each node that may have such children, the last change that was prepared with them."""

    def refused(self, request: Request, operation: Operation | None, zxid: int) -> Iterator[str]:
        """The nodes for which ``request``, prepared as ``zxid``, may have got NotEmpty."""
        for each in parts(request):
            if isinstance(each, Delete) and self._may_count(each.path, operation, zxid):
                yield each.path

    def applied(
        self, changes: Sequence[Change], operation: Operation | None, zxid: int, closes: bool
    ) -> None:
        """Follows the next transaction. ``closes``: it ended a session."""
        changed: dict[str, None] = {}
        for change in changes:
            if change.kind in (CREATED, DELETED):
                self._last.pop(change.path, None)
                changed[parent_of(change.path)] = None
            else:
                changed[change.path] = None
        for path in changed:
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
        """The time at which every server had answered with this zxid or a newer one."""
        latest = 0
        for times, zxids in self._answers:
            index = bisect_left(zxids, zxid)
            latest = max(latest, times[index] if index < len(times) else _NEVER)
        return latest
