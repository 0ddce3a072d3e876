"""The lock checker.

If these fail, it misses two holders of a lock, or takes what is allowed for a problem.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from .book import A, Book, new_book
from .history import (
    SetData,
)
from .locks import check_locks


def holds(*spans: tuple[int, int, int, int, int]) -> Book:
    """Holds with fence, acquired, until, acquired_zxid and proof; each of another session."""
    made = new_book()
    for number, (fence, acquired, until, acquired_zxid, proof) in enumerate(spans):
        made.hold(number + 1, fence, acquired=acquired, until=until, acquired_zxid=acquired_zxid, proof=proof)
    return made


def written(*fences: int, refused: int = -1) -> Book:
    """Writes in this order, each by the holder of the fence."""
    made = new_book()
    for fence in sorted(set(fences)):
        made.hold(
            fence,
            fence,
            acquired=1000 * fence,
            until=1000 * fence + 1,
            acquired_zxid=0x1000 + fence,
            proof=0x1000 + fence,
        )
    for number, fence in enumerate(fences):
        done = made.write(fence, SetData(A, b"%d" % number), is_done=number != refused)
        if number == refused:
            made.history.operations[-1] = replace(done, error=-112, result=None)
        index = next(at for at, hold in enumerate(made.history.holds) if hold.fence == fence)
        hold = made.history.holds[index]
        made.history.holds[index] = hold._replace(writes=(*hold.writes, done.xid))
    return made


BAD_LOCKS = {
    "both at one zxid": holds((1, 10, 20, 10, 30), (2, 25, 40, 20, 40)),
    "both at the last zxid": holds((1, 10, 20, 10, 20), (2, 25, 40, 20, 40)),
    "one within the other": holds((1, 10, 20, 10, 90), (2, 25, 40, 20, 30)),
    "the third with the first": holds((1, 10, 20, 10, 90), (2, 25, 30, 95, 96), (3, 35, 40, 50, 60)),
    "one fence": holds((1, 10, 20, 10, 11), (1, 30, 40, 20, 21)),
    "fences against the order": holds((2, 10, 20, 10, 11), (1, 30, 40, 20, 21)),
    "both believe": holds((1, 10, 50, 10, 11), (2, 30, 60, 20, 21)),
    "both believe, the first for longer": holds((1, 10, 90, 10, 11), (2, 30, 40, 20, 21)),
    "the third believes with the first": holds((1, 10, 90, 10, 11), (2, 91, 92, 20, 21), (3, 80, 85, 30, 31)),
    "written after the next": written(1, 2, 1),
    "written in between": written(1, 2, 1, 2),
    "written by the first of three": written(1, 2, 3, 3, 1),
    "written late by the second": written(2, 3, 2),
}
GOOD_LOCKS = {
    "no holders": holds(),
    "one after the other": holds((1, 10, 20, 10, 11), (2, 25, 40, 20, 40), (3, 41, 50, 41, 42)),
    "writes in order": written(1, 1, 2, 3, 3),
    "a late write that is refused": written(1, 2, 1, refused=2),
}


@pytest.mark.parametrize("name", BAD_LOCKS)
def test_bad_locks_are_refused(name: str) -> None:
    assert check_locks(BAD_LOCKS[name].history)


@pytest.mark.parametrize("name", GOOD_LOCKS)
def test_good_locks_are_accepted(name: str) -> None:
    assert check_locks(GOOD_LOCKS[name].history) == []


def test_two_believers_are_refused_only_if_strict() -> None:
    assert check_locks(BAD_LOCKS["both believe"].history, strict=False) == []
