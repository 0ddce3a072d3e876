"""The linearizability checker.

If these fail, it misses lost writes and stale reads, or takes what is allowed for a problem.
"""

from __future__ import annotations

import pytest

from .book import Case
from .history import (
    BAD_VERSION,
    NO_NODE,
    NODE_EXISTS,
)
from .linearizability import Step, TooLongError, Version, check_linearizability, is_linearizable
from .test_watches import GOOD_WATCHES
from .test_zxids import (
    GOOD_ZXIDS,
    a_sync_without_effect,
    a_wrong_version_answered,
    done_with_a_wrong_version,
    made_twice,
    refused_with_the_right_version,
)


def step(
    kind: str,
    invoked: int,
    completed: int,
    answer: object = None,
    data: bytes = b"",
    version: int = -1,
    owner: int = 0,
) -> Step:
    return Step(kind, invoked, completed, data, version, owner, answer)


EVER = 1 << 62
MADE = step("create", 0, 1, Version(0), b"0")
BAD_ORDERS = {
    "two creates": [MADE, step("create", 2, 3, Version(0), b"1")],
    "two at once": [step("create", 0, 9, Version(0), b"0"), step("create", 1, 8, Version(0), b"1")],
    "a set of nothing": [step("set", 0, 1, Version(1))],
    "one version twice": [MADE, step("set", 2, 9, Version(1), b"1"), step("set", 3, 8, Version(1), b"2")],
    "a version left out": [MADE, step("set", 2, 3, Version(2), b"1")],
    "versions against time": [MADE, step("set", 2, 3, Version(2), b"1"), step("set", 4, 5, Version(1), b"2")],
    "two sets on one version": [
        MADE,
        step("set", 2, 9, Version(1), b"1", 0),
        step("set", 3, 8, Version(1), b"2", 0),
    ],
    "a set on an old version": [
        MADE,
        step("set", 2, 3, Version(1), b"1"),
        step("set", 4, 5, Version(2), b"2", 0),
    ],
    "a delete of nothing": [step("delete", 0, 1, Version(-1))],
    "two deletes": [MADE, step("delete", 2, 9, Version(-1)), step("delete", 3, 8, Version(-1))],
    "refused without reason": [MADE, step("set", 2, 3, BAD_VERSION, b"1", 0)],
    "missing without reason": [MADE, step("set", 2, 3, NO_NODE, b"1")],
    "exists without reason": [step("create", 0, 1, NODE_EXISTS)],
    "a lost write": [MADE, step("set", 2, 3, Version(1), b"1"), step("read", 4, 5, (b"0", 0))],
    "a read from the future": [MADE, step("read", 2, 3, (b"1", 1)), step("set", 4, 5, Version(1), b"1")],
    "reads that go back": [
        MADE,
        step("set", 2, 9, Version(1), b"1"),
        step("read", 3, 4, (b"1", 1)),
        step("read", 5, 6, (b"0", 0)),
    ],
    "a refused write read": [MADE, step("set", 2, 3, BAD_VERSION, b"1", 5), step("read", 4, 5, (b"1", 1))],
    "an unknown write done twice": [
        MADE,
        step("set", 2, EVER, None, b"1"),
        step("read", 3, 4, (b"1", 1)),
        step("set", 5, 6, Version(2), b"2"),
        step("read", 7, 8, (b"1", 3)),
    ],
    "an unknown write before it was sent": [
        MADE,
        step("read", 2, 3, (b"1", 1)),
        step("set", 4, EVER, None, b"1"),
    ],
    "an ephemeral deleted before its session": [
        step("create", 0, 1, Version(0), b"0", owner=7),
        step("read", 2, 3, NO_NODE),
        step("end", 4, EVER, owner=7),
    ],
    "another's session ends": [MADE, step("end", 2, EVER, owner=7), step("read", 3, 4, NO_NODE)],
    "a check that should have failed": [
        MADE,
        step("set", 2, 3, Version(1), b"1"),
        step("check", 4, 5, 0, version=0),
    ],
}
GOOD_ORDERS = {
    "no operations": [],
    "in order": [
        MADE,
        step("set", 2, 3, Version(1), b"1"),
        step("delete", 4, 5, Version(-1)),
        step("create", 6, 7, Version(0), b"2"),
    ],
    "at once": [
        MADE,
        step("set", 2, 9, Version(2), b"1"),
        step("set", 3, 8, Version(1), b"2"),
        step("read", 4, 7, (b"2", 1)),
    ],
    "one of two on a version": [
        MADE,
        step("set", 2, 9, Version(1), b"1", 0),
        step("set", 3, 8, BAD_VERSION, b"2", 0),
    ],
    "unknown and not done": [MADE, step("set", 2, EVER, None, b"1"), step("read", 3, 4, (b"0", 0))],
    "unknown and done later": [
        MADE,
        step("set", 2, EVER, None, b"1"),
        step("read", 3, 4, (b"0", 0)),
        step("read", 5, 6, (b"1", 1)),
    ],
    "a session's end": [
        step("create", 0, 1, Version(0), b"0", owner=7),
        step("end", 2, EVER, owner=7),
        step("read", 3, 4, NO_NODE),
    ],
    "many unknown": [
        MADE,
        *(step("set", 2 + n, EVER, None, b"%d" % n) for n in range(12)),
        step("set", 90, 91, Version(13), b"z"),
    ],
}


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_bad_orders_are_refused(name: str) -> None:
    assert not is_linearizable(BAD_ORDERS[name])


@pytest.mark.parametrize("name", GOOD_ORDERS)
def test_good_orders_are_accepted(name: str) -> None:
    assert is_linearizable(GOOD_ORDERS[name])


@pytest.mark.parametrize(
    "case",
    [
        done_with_a_wrong_version,
        refused_with_the_right_version,
        made_twice,
        a_wrong_version_answered,
        a_sync_without_effect,
    ],
    ids=lambda case: case.__name__,
)
def test_bad_histories_are_not_linearizable(case: Case) -> None:
    assert check_linearizability(case().history)


@pytest.mark.parametrize("case", [*GOOD_ZXIDS, *GOOD_WATCHES], ids=lambda case: case.__name__)
def test_good_histories_are_linearizable(case: Case) -> None:
    assert check_linearizability(case().history) == []


def test_a_long_search_is_given_up() -> None:
    steps = [MADE, *(step("set", 2, 100, Version(30 + n), b"%d" % n) for n in range(20))]
    with pytest.raises(TooLongError, match="41 operations at one node"):
        is_linearizable([*steps, *(step("set", 2, EVER, None, b"u%d" % n) for n in range(20))], steps_max=500)
