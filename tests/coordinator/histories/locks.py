"""The lock checker: no two clients hold a lock while both sessions live.

- A client's hold begins with the zxid of the answer that listed its node first. It ends with the zxid of its
  session's last answer before the release. Two holds of one lock must not overlap.
- The writes of the holders, in the order of zxids, have fences (the numbers of their nodes) that never fall.
  So a write under a lost lock is never done.
- ``strict``: no two clients believe at the same time that they hold the lock. A client stops to believe it
  two thirds of its timeout after its last answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from .history import OK, History, Hold


def check_locks(history: History, strict: bool = True) -> list[str]:
    """Every problem of the history."""
    locks: dict[str, list[Hold]] = defaultdict(list)
    for hold in history.holds:
        locks[hold.lock].append(hold)
    return [problem for holds in locks.values() for problem in _check(history, holds, strict)]


def _check(history: History, holds: list[Hold], strict: bool) -> Iterator[str]:
    last: Hold | None = None
    for hold in sorted(holds, key=lambda each: (each.acquired_zxid, each.fence)):
        if last is not None and hold.acquired_zxid <= last.proof:
            yield f"both held the lock at 0x{hold.acquired_zxid:x}: {last} and {hold}"
        if last is None or hold.proof > last.proof:
            last = hold
    by_fence = sorted(holds, key=lambda each: each.fence)
    for one, other in pairwise(by_fence):
        if one.fence == other.fence:
            yield f"two clients held the lock with one fence: {one} and {other}"
        if one.acquired_zxid >= other.acquired_zxid:
            yield f"the larger fence held the lock earlier: {one} and {other}"
    if strict:
        before: Hold | None = None
        for hold in sorted(holds, key=lambda each: each.acquired):
            if before is not None and hold.acquired < before.until:
                yield f"both believed that they held the lock: {before} and {hold}"
            if before is None or hold.until > before.until:
                before = hold
    yield from _fenced(history, holds)


def _fenced(history: History, holds: list[Hold]) -> Iterator[str]:
    by_request = {(hold.session, xid): hold for hold in holds for xid in hold.writes}
    done = [
        (operation.zxid, by_request[operation.session, operation.xid], operation)
        for operation in history.operations
        if operation.is_known and operation.error == OK and (operation.session, operation.xid) in by_request
    ]
    highest: Hold | None = None
    for _zxid, hold, operation in sorted(done, key=lambda each: each[0]):
        if highest is not None and hold.fence < highest.fence:
            yield f"written under a lost lock, which {highest} had taken over: {operation}"
        if highest is None or hold.fence > highest.fence:
            highest = hold
