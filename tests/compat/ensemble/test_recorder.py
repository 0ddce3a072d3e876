"""The recorder and the checkers, on runs without faults: a recorded history passes, and fails once an error
is put in.

If these fail, the tests of faults report errors that are none, or miss errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.coordinator.histories.checks import problems
from tests.coordinator.histories.history import (
    CREATED,
    DATA_CHANGED,
    NO_NODE,
    Create,
    Exists,
    GetChildren,
    GetData,
    History,
    Notification,
    Operation,
    SetData,
    Sync,
)

from .members import Ensemble
from .runs import check, play

pytestmark = pytest.mark.compat

SEEDS = 3


@pytest.fixture(scope="session")
def recorded(servers: Ensemble) -> History:
    played = play(servers, 1, "nothing", SEEDS)
    check(servers, [played])
    return played.histories[played.seeds[0]]


def changed(history: History, wanted: Callable[[Operation], bool], **otherwise: object) -> History:
    """The history with another answer to the last operation that is ``wanted``."""
    operations = list(history.operations)
    index = max(number for number, each in enumerate(operations) if each.is_known and wanted(each))
    operations[index] = replace(operations[index], **otherwise)  # type: ignore[arg-type]
    return replace(history, operations=operations)


def is_done(kind: type) -> Callable[[Operation], bool]:
    return lambda each: isinstance(each.request, kind) and each.error == 0


def last(history: History, kind: type) -> Operation:
    return [each for each in history.operations if each.is_known and is_done(kind)(each)][-1]


def without_notification(history: History) -> History:
    """Without the first notification of created or changed data."""
    lost = next(
        each for each in history.notifications if each.kind in (CREATED, DATA_CHANGED) and each.zxid > 0
    )
    return replace(history, notifications=[each for each in history.notifications if each is not lost])


def with_late_notification(history: History) -> History:
    """With a notification moved after the last answer of its session."""
    late = next(each for each in history.notifications if each.kind == DATA_CHANGED and each.zxid > 0)
    end = max(each.completed or 0 for each in history.operations if each.session == late.session)
    others: list[Notification] = [each for each in history.notifications if each is not late]
    return replace(history, notifications=[*others, late._replace(at=end + 1)])


def with_lost_write(history: History) -> History:
    """Without the last but one write of the guarded node, although later answers depend on it."""
    lost = [
        each
        for each in history.operations
        if isinstance(each.request, SetData)
        and each.request.path.endswith("/guarded")
        and each.is_known
        and each.error == 0
    ][-2]
    return replace(
        history,
        operations=[each for each in history.operations if each is not lost],
        transactions=history.transactions,
    )


def with_stolen_lock(history: History) -> History:
    first = min(history.holds, key=lambda hold: hold.acquired_zxid)
    thief = first._replace(
        client=99, session=99, fence=first.fence + 1000, acquired_zxid=first.proof, acquired=first.until - 1
    )
    return replace(history, holds=[*history.holds, thief])


WRONG: dict[str, Callable[[History], History]] = {
    "a version": lambda history: changed(
        history,
        is_done(SetData),
        result=(seen := last(history, SetData).result)._replace(version=seen.version + 1),
    ),
    "data": lambda history: changed(
        history, is_done(GetData), result=(b"nobody's", last(history, GetData).result[1])
    ),
    "a name": lambda history: changed(
        history, is_done(GetChildren), result=(("nobody",), last(history, GetChildren).result[1])
    ),
    "an absence": lambda history: changed(history, is_done(Exists), error=NO_NODE, result=None),
    "a create": lambda history: changed(history, is_done(Create), error=NO_NODE, result=None),
    "a zxid": lambda history: changed(history, is_done(GetData), zxid=1),
    "a sync": lambda history: changed(history, is_done(Sync), zxid=1),
    "a lost notification": without_notification,
    "a late notification": with_late_notification,
    "a lost write": with_lost_write,
    "a stolen lock": with_stolen_lock,
}


def test_a_run_without_faults_passes(recorded: History) -> None:
    assert len(recorded.operations) > 200
    assert recorded.notifications
    assert recorded.holds


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_in_the_history_is_found(recorded: History, wrong: str) -> None:
    history = WRONG[wrong](recorded)
    assert problems(replace(history, transactions=None))
    assert recorded.transactions is None or problems(history)
