"""Each checker on histories that no ZooKeeper gives, which it must refuse, and on ones that it does, which it
must accept.

If these fail, what an ensemble loses under faults is not seen, or what it may do is taken for a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from .book import ROOT, Book
from .checks import problems
from .ephemerals import check_ephemerals
from .history import (
    BAD_VERSION,
    CHILDREN_CHANGED,
    CREATED,
    DATA_CHANGED,
    DELETED,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    AddWatch,
    Check,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    History,
    Multi,
    Operation,
    SetData,
    SetWatches,
    Stat,
    Sync,
    Transaction,
)
from .linearizability import Step, Told, TooLongError, check_linearizability, is_linearizable
from .locks import check_locks
from .order import ordered
from .watches import check_watches
from .zxids import check_zxids

A, B = f"{ROOT}/a", f"{ROOT}/b"
Case = Callable[[], Book]


def zxids_of(history: History) -> list[str]:
    return check_zxids(history, ordered(history))


def watches_of(history: History) -> list[str]:
    return check_watches(history, ordered(history))


def book(with_log: bool = False, data: bytes = b"0") -> Book:
    """With node A."""
    made = Book(with_log)
    made.write(1, Create(A, data))
    return made


# ---- zxids ----


def an_older_zxid_for_a_later_write() -> Book:
    made = book()
    late = made.write(1, SetData(A, b"1"))
    early = made.write(2, SetData(B, b"1"))
    made.history.operations[-2:] = [replace(late, zxid=early.zxid), replace(early, zxid=late.zxid)]
    return made


def one_zxid_for_two_writes() -> Book:
    made = book()
    first = made.write(1, SetData(A, b"1"))
    second = made.write(2, SetData(A, b"2"), invoked=first.invoked)
    made.history.operations[-1] = replace(second, zxid=first.zxid)
    return made


def a_wrong_version_answered() -> Book:
    made = book()
    done = made.write(1, SetData(A, b"1"))
    made.history.operations[-1] = replace(done, result=done.result._replace(version=5))
    return made


def done_with_a_version_that_was_not() -> Book:
    made = book()
    before = made.write(1, SetData(A, b"1"))
    made.write(2, SetData(A, b"2", 7), error=0, result=before.result._replace(version=2, mzxid=made.zxid + 1))
    return made


def refused_though_the_version_was_right() -> Book:
    made = book()
    made.write(1, SetData(A, b"1", 0), is_done=False, error=BAD_VERSION, result=None)
    return made


def made_twice() -> Book:
    made = book()
    first = made.history.operations[-1]
    made.write(
        2,
        Create(A, b"2"),
        error=0,
        result=(A, first.result[1]._replace(czxid=made.zxid + 1, mzxid=made.zxid + 1)),
    )
    return made


def an_acknowledged_write_lost() -> Book:
    made = book()
    made.write(1, SetData(A, b"1"), is_done=False)
    made.read(2, GetData(A))
    return made


def a_write_seen_that_was_refused() -> Book:
    made = book()
    made.write(1, SetData(A, b"1", 3))
    seen = made.read(2, GetData(A))
    made.history.operations[-1] = replace(seen, result=(b"1", seen.result[1]))
    return made


def a_stale_read() -> Book:
    made = book()
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    seen = made.read(2, GetData(A), old)
    made.history.operations[-1] = replace(seen, zxid=made.zxid)
    return made


def a_session_goes_back() -> Book:
    made = book()
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    made.read(2, GetData(A), old)
    return made


def an_own_write_not_seen() -> Book:
    made = book()
    old = made.zxid
    made.write(2, SetData(A, b"1"))
    made.read(2, GetData(A), old)
    return made


def a_sync_that_does_not() -> Book:
    made = book()
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    made.other(2, Sync(ROOT), old)
    made.read(2, GetData(A), old)
    return made


def answers_in_another_order() -> Book:
    made = book()
    first, second = made.read(2, GetData(A)), made.read(2, GetData(A))
    made.history.operations[-2:] = [replace(first, xid=second.xid), replace(second, xid=first.xid)]
    return made


def a_child_that_is_not_listed() -> Book:
    made = book()
    made.write(1, Create(B, b""))
    seen = made.read(2, GetChildren(ROOT))
    made.history.operations[-1] = replace(seen, result=(("a",), seen.result[1]))
    return made


def half_a_multi() -> Book:
    made = book()
    made.write(1, Multi((SetData(A, b"1"), Create(B, b""))))
    made.read(2, Exists(B), error=NO_NODE, result=None)
    return made


def a_multi_done_though_refused() -> Book:
    made = book()
    made.write(1, Multi((SetData(A, b"1"), Check(A, 9))))
    seen = made.read(2, GetData(A))
    made.history.operations[-1] = replace(seen, result=(b"1", seen.result[1]._replace(version=1)))
    return made


def one_number_for_two_nodes() -> Book:
    made = book()
    first = made.write(1, Create(f"{ROOT}/s-", b"", sequential=True))
    second = made.write(2, Create(f"{ROOT}/s-", b"", sequential=True))
    made.history.operations[-1] = replace(second, result=(first.result[0], second.result[1]))
    return made


def two_times_of_one_transaction() -> Book:
    made = book()
    seen = made.read(2, Exists(A))
    made.history.operations[-1] = replace(seen, result=seen.result._replace(mtime=7))
    return made


def an_answer_that_the_log_has_not() -> Book:
    made = book(with_log=True)
    made.write(1, SetData(A, b"1"), is_logged=False)
    return made


def another_zxid_in_the_log() -> Book:
    made = book(with_log=True)
    done = made.write(1, SetData(A, b"1"))
    made.history.operations[-1] = replace(done, zxid=done.zxid + 1)
    return made


def an_unknown_write_logged_as_another() -> Book:
    made = book(with_log=True)
    made.write(1, SetData(A, b"1"), is_answered=False)
    assert made.history.transactions is not None
    last = made.history.transactions[-1]
    made.history.transactions[-1] = last._replace(changes=(last.changes[0]._replace(data=b"2"),))
    return made


def written_after_the_sessions_end() -> Book:
    made = book(with_log=True)
    made.write(1, CloseSession())
    made.write(1, SetData(A, b"1"))
    return made


def an_ephemeral_left_by_its_session() -> Book:
    made = book(with_log=True)
    made.write(2, Create(B, b"", ephemeral=True))
    seen = made.read(1, Exists(B))
    made.write(2, CloseSession())
    made.read(1, Exists(B), error=0, result=seen.result)
    return made


def watched_by_all() -> Book:
    """Session 9 sees everything."""
    made = book()
    made.other(9, AddWatch(ROOT, True))
    return made


def a_change_that_nobody_asked_for() -> Book:
    made = watched_by_all()
    made.zxid += 1
    made.shown(9, CREATED, B)
    made.other(9, Sync(ROOT))
    return made


def an_ephemeral_deleted_by_nobody() -> Book:
    made = watched_by_all()
    made.write(2, Multi((Create(B, b"", True), Create(f"{ROOT}/c", b"", True))))
    made.shown(9, CREATED, B)
    made.shown(9, CREATED, f"{ROOT}/c")
    made.zxid += 1
    made.shown(9, DELETED, B)
    made.other(9, Sync(ROOT))
    return made


def an_unknown_write_not_told_and_seen() -> Book:
    made = watched_by_all()
    made.write(2, SetData(A, b"1"), is_answered=False)
    made.read(3, GetData(A))
    made.other(9, Sync(ROOT))
    return made


BAD_ZXIDS: list[Case] = [
    a_change_that_nobody_asked_for, an_ephemeral_deleted_by_nobody, an_unknown_write_not_told_and_seen,
    an_older_zxid_for_a_later_write, one_zxid_for_two_writes, a_wrong_version_answered, done_with_a_version_that_was_not,
    refused_though_the_version_was_right, made_twice, an_acknowledged_write_lost, a_write_seen_that_was_refused, a_stale_read,
    a_session_goes_back, an_own_write_not_seen, a_sync_that_does_not, answers_in_another_order, a_child_that_is_not_listed, half_a_multi,
    a_multi_done_though_refused, one_number_for_two_nodes, two_times_of_one_transaction, an_answer_that_the_log_has_not,
    another_zxid_in_the_log, an_unknown_write_logged_as_another, written_after_the_sessions_end, an_ephemeral_left_by_its_session,
]  # fmt: skip


def what_a_perfect_ensemble_does() -> Book:
    made = book()
    old = made.zxid
    made.write(1, SetData(A, b"1", 0))
    made.read(2, GetData(A), old)
    made.write(1, SetData(A, b"2", 0))
    made.write(2, Create(A, b"x"))
    made.write(2, Create(f"{ROOT}/s-", b"", True, True))
    made.write(1, Multi((SetData(A, b"3"), Create(B, b""), Delete(B))))
    made.write(1, Multi((SetData(A, b"4"), Delete(B))))
    made.other(3, Sync(ROOT))
    made.read(3, GetChildren(ROOT))
    made.write(2, CloseSession())
    made.read(3, GetChildren(ROOT))
    return made


def unknown_and_done() -> Book:
    made = book()
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.read(2, GetData(A))
    made.write(2, SetData(A, b"2"))
    return made


def unknown_and_never_seen() -> Book:
    made = book()
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.write(2, SetData(A, b"2"))
    made.read(2, GetData(A))
    made.write(2, Create(B, b""))
    return made


def unknown_and_not_done() -> Book:
    made = book()
    made.write(1, SetData(A, b"1"), is_answered=False, is_done=False)
    made.write(1, Create(B, b""), is_answered=False, is_done=False)
    made.read(2, GetData(A))
    made.read(2, GetChildren(ROOT))
    return made


def unknown_and_in_the_log() -> Book:
    made = book(with_log=True)
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.write(1, Delete(A), is_answered=False, is_done=False)
    made.write(2, SetData(A, b"2", 1))
    made.read(2, GetData(A))
    return made


def unknown_and_numbered() -> Book:
    made = book()
    made.write(1, Create(f"{ROOT}/s-", b"", sequential=True), is_answered=False)
    made.read(2, GetData(f"{ROOT}/s-0000000001"))
    made.write(2, Delete(f"{ROOT}/s-0000000001"))
    made.write(2, Create(f"{ROOT}/s-", b"", sequential=True))
    made.read(2, GetChildren(ROOT))
    return made


def unknown_and_numbered_and_read_with_a_watch() -> Book:
    """Session 9 would be told if the root's data changed."""
    made = book()
    made.read(9, GetData(ROOT, True))
    made.write(1, Create(f"{ROOT}/s-", b"", sequential=True), is_answered=False)
    made.read(2, GetData(f"{ROOT}/s-0000000001"))
    made.write(2, Create(f"{ROOT}/s-", b"", sequential=True))
    made.other(9, Sync(ROOT))
    return made


def unknown_and_witnessed() -> Book:
    made = watched_by_all()
    made.write(2, Create(f"{ROOT}/s-", b"", True, True), is_answered=False)
    made.shown(9, CREATED, f"{ROOT}/s-0000000001")
    made.write(2, SetData(A, b"never"), is_answered=False, is_done=False)
    made.write(2, SetData(A, b"done"), is_answered=False)
    made.shown(9, DATA_CHANGED, A)
    made.read(1, GetData(A))
    made.write(2, CloseSession(), is_answered=False)
    made.shown(9, DELETED, f"{ROOT}/s-0000000001")
    made.write(1, SetData(A, b"2", 1))
    made.shown(9, DATA_CHANGED, A)
    made.read(1, GetChildren(ROOT))
    made.other(9, Sync(ROOT))
    return made


def one_of_two_unknown_and_witnessed() -> Book:
    made = watched_by_all()
    made.write(2, Delete(A, 7), is_answered=False)
    made.write(3, Delete(A, 0), is_answered=False)
    made.shown(9, DELETED, A)
    made.write(1, Create(A, b"again"))
    made.shown(9, CREATED, A)
    made.other(9, Sync(ROOT))
    return made


def at_the_same_time() -> Book:
    made = book()
    first = made.write(1, SetData(A, b"1"))
    made.write(2, SetData(A, b"2"), invoked=first.invoked)
    return made


GOOD_ZXIDS: list[Case] = [
    what_a_perfect_ensemble_does,
    unknown_and_done,
    unknown_and_never_seen,
    unknown_and_not_done,
    unknown_and_in_the_log,
    unknown_and_numbered,
    unknown_and_numbered_and_read_with_a_watch,
    unknown_and_witnessed,
    one_of_two_unknown_and_witnessed,
    at_the_same_time,
]


@pytest.mark.parametrize("case", BAD_ZXIDS, ids=lambda case: case.__name__)
def test_zxids_refused(case: Case) -> None:
    assert zxids_of(case().history)


@pytest.mark.parametrize("case", GOOD_ZXIDS, ids=lambda case: case.__name__)
def test_zxids_accepted(case: Case) -> None:
    assert zxids_of(case().history) == []


# ---- what a leader of Apache's counts ----

X, Y = f"{A}/x", f"{A}/y"


def closed(with_log: bool = False) -> tuple[Book, Operation]:
    """Session 2 made a child of A, and is closed."""
    made = book(with_log)
    made.write(2, Create(X, b"", ephemeral=True))
    return made, made.write(2, CloseSession())


def refuse(made: Book, invoked: int | None, request: Delete | Multi | None = None) -> None:
    """Session 1 deletes A, and is told that it has children."""
    error: dict[str, Any] = {"error": NOT_EMPTY, "result": None}
    if isinstance(request, Multi):
        error = {"result": (0, NOT_EMPTY, -2)}
    made.write(1, request or Delete(A), invoked=invoked, is_done=False, **error)


def refused_behind_a_closing() -> Book:
    made, closing = closed()
    refuse(made, closing.invoked)
    return made


def refused_in_a_multi_behind_a_closing() -> Book:
    made, closing = closed()
    refuse(made, closing.invoked, Multi((SetData(A, b"1"), Delete(A), Create(B, b""))))
    return made


def refused_behind_other_changes_behind_a_closing() -> Book:
    made, closing = closed()
    changed = made.write(1, SetData(A, b"1"), invoked=closing.invoked)
    made.write(1, Multi((Create(Y, b""), Delete(Y))), invoked=changed.invoked)
    refuse(made, changed.completed)
    return made


def refused_behind_an_end_that_nobody_asked_for() -> Book:
    made = book(with_log=True)
    made.write(2, Create(X, b"", ephemeral=True))
    made.write(2, CloseSession(), is_answered=False)
    refuse(made, None)
    append_refusal(made)
    return made


def refused_and_nobody_was_told() -> Book:
    made, closing = closed(with_log=True)
    made.write(1, Delete(A), invoked=closing.invoked, is_done=False, is_answered=False)
    append_refusal(made)
    made.read(3, GetData(A))
    return made


def append_refusal(made: Book) -> None:
    last = made.history.operations[-1]
    assert made.history.transactions is not None
    made.history.transactions.append(Transaction(made.zxid, last.session, last.xid, (), False, NOT_EMPTY))


def refused_by_a_server_that_may_be_behind() -> Book:
    made, closing = closed()
    refuse(made, closing.completed)
    made.history.operations[-1] = replace(made.history.operations[-1], server=1)
    return made


def refused_for_no_child() -> Book:
    made = book()
    refuse(made, None)
    return made


def refused_once_the_closing_was_answered() -> Book:
    made, _closing = closed()
    refuse(made, None)
    return made


def refused_for_another_nodes_child() -> Book:
    made = book()
    made.write(1, Create(B, b""))
    made.write(2, Create(f"{B}/x", b"", ephemeral=True))
    closing = made.write(2, CloseSession())
    refuse(made, closing.invoked)
    return made


def refused_for_a_child_that_was_deleted() -> Book:
    made = book()
    made.write(2, Create(X, b""))
    deleted = made.write(2, Delete(X))
    refuse(made, deleted.invoked)
    return made


def refused_by_the_next_leader() -> Book:
    made, closing = closed()
    made.zxid += 1 << 32
    refuse(made, closing.invoked)
    return made


def refused_behind_a_change_that_came_later() -> Book:
    made, _closing = closed()
    changed = made.write(1, SetData(A, b"1"))
    refuse(made, changed.invoked)
    return made


def refused_though_made_anew() -> Book:
    made, closing = closed()
    made.write(1, Delete(A), invoked=closing.invoked)
    made.write(1, Create(A, b""), invoked=closing.invoked)
    refuse(made, closing.invoked)
    return made


def refused_and_done() -> Book:
    made, closing = closed()
    refuse(made, closing.invoked)
    made.read(3, Exists(A), error=NO_NODE, result=None)
    return made


def refused_otherwise() -> Book:
    made, closing = closed()
    made.write(1, Delete(A), invoked=closing.invoked, is_done=False, error=BAD_VERSION, result=None)
    return made


OUTSTANDING: list[Case] = [
    refused_behind_a_closing, refused_in_a_multi_behind_a_closing, refused_behind_other_changes_behind_a_closing,
    refused_behind_an_end_that_nobody_asked_for, refused_and_nobody_was_told, refused_by_a_server_that_may_be_behind,
]  # fmt: skip
NOT_OUTSTANDING: list[Case] = [
    refused_for_no_child, refused_once_the_closing_was_answered, refused_for_another_nodes_child,
    refused_for_a_child_that_was_deleted, refused_by_the_next_leader, refused_behind_a_change_that_came_later,
    refused_though_made_anew, refused_and_done, refused_otherwise,
]  # fmt: skip


@pytest.mark.parametrize("case", OUTSTANDING, ids=lambda case: case.__name__)
def test_what_apaches_leader_still_counts_is_accepted_of_apaches_alone(case: Case) -> None:
    assert problems(case().history, counts_outstanding=True) == []
    assert problems(case().history)


@pytest.mark.parametrize("case", [*NOT_OUTSTANDING, *BAD_ZXIDS], ids=lambda case: case.__name__)
def test_nothing_else_is_accepted_of_apaches(case: Case) -> None:
    history = case().history
    assert check_zxids(history, ordered(history, counts_outstanding=True))


@pytest.mark.parametrize("case", GOOD_ZXIDS, ids=lambda case: case.__name__)
def test_what_is_right_is_accepted_of_apaches(case: Case) -> None:
    history = case().history
    assert check_zxids(history, ordered(history, counts_outstanding=True)) == []


# ---- watches ----


def watched(request: GetData | Exists | GetChildren | AddWatch) -> Book:
    made = book()
    if isinstance(request, AddWatch):
        made.other(2, request)
    else:
        made.read(2, request)
    return made


def a_change_not_told() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    return made


def told_behind_newer_data() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    made.shown(2, DATA_CHANGED, A)
    return made


def told_behind_newer_data_of_another_node() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.write(1, Create(B, b""))
    made.read(2, GetData(B))
    made.shown(2, DATA_CHANGED, A, made.zxid - 1)
    return made


def told_twice() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.shown(2, DATA_CHANGED, A)
    made.shown(2, DATA_CHANGED, A)
    return made


def told_of_a_second_change() -> Book:
    made = watched(GetData(A, True))
    for number in (b"1", b"2"):
        made.write(1, SetData(A, number))
        made.shown(2, DATA_CHANGED, A)
    return made


def told_of_nothing() -> Book:
    made = watched(GetData(A, True))
    made.shown(2, DATA_CHANGED, A)
    return made


def told_another_kind() -> Book:
    made = watched(GetData(A, True))
    made.write(1, Delete(A))
    made.shown(2, DATA_CHANGED, A)
    made.read(2, Exists(A))
    return made


def told_who_did_not_ask() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.shown(3, DATA_CHANGED, A)
    return made


def a_birth_not_told() -> Book:
    made = watched(Exists(B, True))
    made.write(1, Create(B, b""))
    made.read(2, Exists(B))
    return made


def a_new_child_not_told() -> Book:
    made = watched(GetChildren(ROOT, True))
    made.write(1, Create(B, b""))
    made.read(2, GetChildren(ROOT))
    return made


def a_persistent_watch_that_ends() -> Book:
    made = watched(AddWatch(A, False))
    made.write(1, SetData(A, b"1"))
    made.shown(2, DATA_CHANGED, A)
    made.write(1, SetData(A, b"2"))
    made.read(2, GetData(A))
    return made


def a_recursive_watch_that_sees_too_little() -> Book:
    made = watched(AddWatch(ROOT, True))
    made.write(1, Create(f"{A}/x", b""))
    made.read(2, Exists(A))
    return made


def a_recursive_watch_told_of_children() -> Book:
    made = watched(AddWatch(ROOT, True))
    made.write(1, Create(f"{A}/x", b""))
    made.shown(2, CREATED, f"{A}/x")
    made.shown(2, CHILDREN_CHANGED, A)
    return made


def half_a_multi_told() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.write(1, Multi((SetData(A, b"1"), Create(B, b""))))
    made.shown(2, DATA_CHANGED, A)
    made.read(2, GetData(A))
    return made


def told_of_changes_in_another_order() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.write(1, SetData(A, b"1"))
    made.write(1, Create(B, b""))
    made.shown(2, CREATED, B)
    made.shown(2, DATA_CHANGED, A, made.zxid - 1)
    return made


def missed_while_away() -> Book:
    made = watched(GetData(A, True))
    seen = made.zxid
    made.contact(2, "lost")
    made.write(1, SetData(A, b"1"))
    made.contact(2, "connected")
    made.other(2, SetWatches(seen, data=(A,)))
    return made


def told_again_of_what_it_saw() -> Book:
    made = watched(GetData(A, True))
    made.contact(2, "lost")
    made.contact(2, "connected")
    made.shown(2, DATA_CHANGED, A, -1)
    made.other(2, SetWatches(made.zxid, data=(A,)))
    return made


def not_told_once_set_again() -> Book:
    made = watched(GetData(A, True))
    made.contact(2, "lost")
    made.contact(2, "connected")
    made.other(2, SetWatches(made.zxid, data=(A,)))
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    return made


BAD_WATCHES: list[Case] = [
    a_change_not_told, told_behind_newer_data, told_behind_newer_data_of_another_node, told_twice, told_of_a_second_change, told_of_nothing,
    told_another_kind, told_who_did_not_ask, a_birth_not_told, a_new_child_not_told, a_persistent_watch_that_ends,
    a_recursive_watch_that_sees_too_little, a_recursive_watch_told_of_children, half_a_multi_told, told_of_changes_in_another_order,
    missed_while_away, told_again_of_what_it_saw, not_told_once_set_again,
]  # fmt: skip


def told_of_each_kind() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.read(2, GetChildren(ROOT, True))
    made.write(1, SetData(A, b"1"))
    made.shown(2, DATA_CHANGED, A)
    made.write(1, Create(B, b""))
    made.shown(2, CREATED, B)
    made.shown(2, CHILDREN_CHANGED, ROOT)
    made.read(2, GetChildren(B, True))
    made.read(2, GetData(B, True))
    made.write(1, Delete(B))
    made.shown(2, DELETED, B)
    made.read(2, GetChildren(ROOT))
    return made


def told_later_than_it_happened() -> Book:
    made = watched(GetData(A, True))
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A), old)
    made.shown(2, DATA_CHANGED, A)
    made.read(2, GetData(A))
    return made


def told_as_long_as_it_lasts() -> Book:
    made = watched(AddWatch(A, False))
    made.other(2, AddWatch(ROOT, True))
    for number in (b"1", b"2"):
        made.write(1, SetData(A, number))
        made.shown(2, DATA_CHANGED, A)
    made.write(1, Create(f"{A}/x", b""))
    made.shown(2, CREATED, f"{A}/x")
    made.shown(2, CHILDREN_CHANGED, A)
    made.read(2, GetData(A))
    return made


def told_again() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.read(2, GetChildren(ROOT, True))
    seen = made.zxid
    made.contact(2, "lost")
    made.write(1, SetData(A, b"1"))
    made.write(1, Create(B, b""))
    made.contact(2, "connected")
    for kind, path in ((DATA_CHANGED, A), (CREATED, B), (CHILDREN_CHANGED, ROOT)):
        made.shown(2, kind, path, -1)
    made.other(2, SetWatches(seen, (A,), (B,), (ROOT,)))
    made.write(1, SetData(A, b"2"))
    made.read(2, GetData(A))
    return made


def told_of_what_nobody_was_answered() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.shown(2, DATA_CHANGED, A)
    made.read(2, GetData(A))
    return made


GOOD_WATCHES: list[Case] = [
    told_of_each_kind,
    told_later_than_it_happened,
    told_as_long_as_it_lasts,
    told_again,
    told_of_what_nobody_was_answered,
]


@pytest.mark.parametrize("case", BAD_WATCHES, ids=lambda case: case.__name__)
def test_watches_refused(case: Case) -> None:
    assert watches_of(case().history)


@pytest.mark.parametrize("case", GOOD_WATCHES, ids=lambda case: case.__name__)
def test_watches_accepted(case: Case) -> None:
    assert watches_of(case().history) == []


# ---- linearizability ----


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
MADE = step("create", 0, 1, Told(0), b"0")
BAD_ORDERS = {
    "two creates": [MADE, step("create", 2, 3, Told(0), b"1")],
    "two at once": [step("create", 0, 9, Told(0), b"0"), step("create", 1, 8, Told(0), b"1")],
    "a set of nothing": [step("set", 0, 1, Told(1))],
    "one version twice": [MADE, step("set", 2, 9, Told(1), b"1"), step("set", 3, 8, Told(1), b"2")],
    "a version left out": [MADE, step("set", 2, 3, Told(2), b"1")],
    "versions against time": [MADE, step("set", 2, 3, Told(2), b"1"), step("set", 4, 5, Told(1), b"2")],
    "two sets on one version": [MADE, step("set", 2, 9, Told(1), b"1", 0), step("set", 3, 8, Told(1), b"2", 0)],
    "a set on an old version": [MADE, step("set", 2, 3, Told(1), b"1"), step("set", 4, 5, Told(2), b"2", 0)],
    "a delete of nothing": [step("delete", 0, 1, Told(-1))],
    "two deletes": [MADE, step("delete", 2, 9, Told(-1)), step("delete", 3, 8, Told(-1))],
    "refused without reason": [MADE, step("set", 2, 3, BAD_VERSION, b"1", 0)],
    "not there without reason": [MADE, step("set", 2, 3, NO_NODE, b"1")],
    "there without reason": [step("create", 0, 1, NODE_EXISTS)],
    "a lost write": [MADE, step("set", 2, 3, Told(1), b"1"), step("read", 4, 5, (b"0", 0))],
    "a read from the future": [MADE, step("read", 2, 3, (b"1", 1)), step("set", 4, 5, Told(1), b"1")],
    "reads that go back": [
        MADE, step("set", 2, 9, Told(1), b"1"), step("read", 3, 4, (b"1", 1)), step("read", 5, 6, (b"0", 0)),
    ],
    "a refused write read": [MADE, step("set", 2, 3, BAD_VERSION, b"1", 5), step("read", 4, 5, (b"1", 1))],
    "an unknown write done twice": [
        MADE, step("set", 2, EVER, None, b"1"), step("read", 3, 4, (b"1", 1)), step("set", 5, 6, Told(2), b"2"),
        step("read", 7, 8, (b"1", 3)),
    ],
    "an unknown write before it was sent": [MADE, step("read", 2, 3, (b"1", 1)), step("set", 4, EVER, None, b"1")],
    "an ephemeral gone before its session": [
        step("create", 0, 1, Told(0), b"0", owner=7), step("read", 2, 3, NO_NODE), step("end", 4, EVER, owner=7),
    ],
    "another's session ends": [MADE, step("end", 2, EVER, owner=7), step("read", 3, 4, NO_NODE)],
    "a check that should have failed": [MADE, step("set", 2, 3, Told(1), b"1"), step("check", 4, 5, 0, version=0)],
}  # fmt: skip
GOOD_ORDERS = {
    "nothing": [],
    "in order": [MADE, step("set", 2, 3, Told(1), b"1"), step("delete", 4, 5, Told(-1)), step("create", 6, 7, Told(0), b"2")],
    "at once": [MADE, step("set", 2, 9, Told(2), b"1"), step("set", 3, 8, Told(1), b"2"), step("read", 4, 7, (b"2", 1))],
    "one of two on a version": [MADE, step("set", 2, 9, Told(1), b"1", 0), step("set", 3, 8, BAD_VERSION, b"2", 0)],
    "unknown and not done": [MADE, step("set", 2, EVER, None, b"1"), step("read", 3, 4, (b"0", 0))],
    "unknown and done later": [
        MADE, step("set", 2, EVER, None, b"1"), step("read", 3, 4, (b"0", 0)), step("read", 5, 6, (b"1", 1)),
    ],
    "a session's end": [step("create", 0, 1, Told(0), b"0", owner=7), step("end", 2, EVER, owner=7), step("read", 3, 4, NO_NODE)],
    "many unknown": [MADE, *(step("set", 2 + n, EVER, None, b"%d" % n) for n in range(12)), step("set", 90, 91, Told(13), b"z")],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_orders_refused(name: str) -> None:
    assert not is_linearizable(BAD_ORDERS[name])


@pytest.mark.parametrize("name", GOOD_ORDERS)
def test_orders_accepted(name: str) -> None:
    assert is_linearizable(GOOD_ORDERS[name])


@pytest.mark.parametrize(
    "case",
    [
        done_with_a_version_that_was_not, refused_though_the_version_was_right, made_twice, a_wrong_version_answered, a_sync_that_does_not,
    ],
    ids=lambda case: case.__name__,
)  # fmt: skip
def test_histories_refused(case: Case) -> None:
    assert check_linearizability(case().history)


@pytest.mark.parametrize("case", [*GOOD_ZXIDS, *GOOD_WATCHES], ids=lambda case: case.__name__)
def test_histories_accepted(case: Case) -> None:
    assert check_linearizability(case().history) == []


def test_a_search_without_end_is_given_up() -> None:
    steps = [MADE, *(step("set", 2, 100, Told(30 + n), b"%d" % n) for n in range(20))]
    with pytest.raises(TooLongError, match="41 operations at one node"):
        is_linearizable([*steps, *(step("set", 2, EVER, None, b"u%d" % n) for n in range(20))], steps_max=500)


# ---- ephemerals ----


def ephemeral(ends: str) -> Book:
    """B is session 2's, which "closed", "expired", or lives."""
    made = book()
    made.write(2, Create(B, b"", ephemeral=True))
    if ends == "closed":
        made.write(2, CloseSession())
    elif ends == "expired":
        made.contact(2, "lost")
        made.zxid += 1
        made.tree.apply(made.zxid, made.tree.write(CloseSession(), 2, made.zxid).changes)
        made.contact(2, "expired")
    return made


OWNED = Stat(0x103, 0x103, 0, 0, 0, 0, 0, 2, 0, 0, 0x103)


def there_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B), error=0, result=OWNED)
    return made


def read_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.read(3, GetData(B), error=0, result=(b"", OWNED))
    return made


def there_and_nobodys() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B), error=0, result=OWNED._replace(owner=0))
    return made


def made_anew_at_once_and_nobodys() -> Book:
    made = book()
    made.write(2, Multi((Create(B, b""), Delete(B), Create(B, b"", ephemeral=True))))
    made.write(2, CloseSession())
    made.read(3, Exists(B), error=0, result=OWNED._replace(owner=0))
    return made


def there_after_the_expiry() -> Book:
    made = ephemeral("expired")
    made.other(3, Sync(ROOT))
    made.read(3, Exists(B), error=0, result=OWNED)
    return made


def made_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.write(2, Create(f"{ROOT}/late", b"", ephemeral=True))
    return made


def answered_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.zxid += 1
    made.read(2, Exists(A))
    return made


def answered_after_the_expiry() -> Book:
    made = ephemeral("expired")
    made.read(2, Exists(A))
    return made


def gone_from(request: GetData | Exists | GetChildren) -> Case:
    def case() -> Book:
        made = ephemeral("lives")
        result = (
            ((("a",), made.tree.read(GetChildren(ROOT), made.zxid).result[1]))
            if isinstance(request, GetChildren)
            else None
        )
        made.read(3, request, error=0 if result else NO_NODE, result=result)
        made.zxid += 1
        made.read(2, Exists(A))
        return made

    case.__name__ = f"gone_from_{type(request).__name__}"
    return case


def gone_and_made_by_another() -> Book:
    made = ephemeral("lives")
    made.zxid += 1
    made.read(3, Exists(B), error=0, result=OWNED._replace(czxid=made.zxid, owner=3))
    made.read(2, Exists(A))
    return made


def gone_though_the_delete_was_refused() -> Book:
    made = ephemeral("lives")
    made.write(3, Delete(B, 5))
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.read(2, Exists(A))
    return made


def gone_before_it_was_deleted() -> Book:
    made = ephemeral("lives")
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.write(3, Delete(B))
    made.read(2, Exists(A))
    return made


def one_of_a_multi_gone() -> Book:
    made = book()
    made.write(2, Multi((SetData(A, b"1"), Create(B, b"", ephemeral=True))))
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.read(2, Exists(A))
    return made


def gone_though_the_multi_was_refused() -> Book:
    made = ephemeral("lives")
    made.write(3, Multi((Delete(B), Check(A, 9))))
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.read(2, Exists(A))
    return made


BAD_EPHEMERALS: list[Case] = [
    gone_though_the_multi_was_refused, there_after_the_closing, read_after_the_closing, there_after_the_expiry, made_after_the_closing, answered_after_the_closing,
    answered_after_the_expiry, gone_from(Exists(B)), gone_from(GetData(B)), gone_from(GetChildren(ROOT)), gone_and_made_by_another,
    gone_though_the_delete_was_refused, gone_before_it_was_deleted, one_of_a_multi_gone, there_and_nobodys, made_anew_at_once_and_nobodys,
]  # fmt: skip


def there_on_a_server_that_is_behind() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B), made.zxid - 1)
    return made


def behind_after_the_expiry() -> Book:
    made = ephemeral("expired")
    made.read(3, Exists(B), made.zxid - 1)
    made.other(4, Sync(ROOT))
    made.read(4, Exists(B))
    return made


def deleted_by_another() -> Book:
    made = ephemeral("lives")
    made.write(3, Delete(B))
    made.read(3, Exists(B))
    made.read(2, Exists(A))
    return made


def perhaps_deleted() -> Book:
    made = ephemeral("lives")
    made.write(3, Delete(B), is_answered=False)
    made.read(3, Exists(B))
    made.read(2, Exists(A))
    return made


def gone_with_its_session() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B))
    made.read(3, GetChildren(ROOT))
    return made


def made_and_deleted_at_once() -> Book:
    made = book()
    made.write(2, Multi((Create(B, b"", ephemeral=True), Delete(B))))
    made.read(3, Exists(B))
    made.read(2, Exists(A))
    return made


def made_deleted_and_made_for_good_at_once() -> Book:
    made = book()
    made.write(2, Multi((Create(B, b"", ephemeral=True), Delete(B), Create(B, b""))))
    made.write(2, CloseSession())
    made.read(3, Exists(B))
    made.read(3, GetData(B))
    return made


GOOD_EPHEMERALS: list[Case] = [
    made_and_deleted_at_once,
    made_deleted_and_made_for_good_at_once,
    there_on_a_server_that_is_behind,
    behind_after_the_expiry,
    deleted_by_another,
    perhaps_deleted,
    gone_with_its_session,
]


@pytest.mark.parametrize("case", BAD_EPHEMERALS, ids=lambda case: case.__name__)
def test_ephemerals_refused(case: Case) -> None:
    assert check_ephemerals(case().history)


@pytest.mark.parametrize(
    "case", [*GOOD_EPHEMERALS, *GOOD_ZXIDS, *GOOD_WATCHES], ids=lambda case: case.__name__
)
def test_ephemerals_accepted(case: Case) -> None:
    assert check_ephemerals(case().history) == []


# ---- locks ----


def holds(*spans: tuple[int, int, int, int, int]) -> Book:
    """Session and fence, from when to when in time, and up to which zxid; each is acquired at zxid 0x100
    and its fence."""
    made = book()
    for number, (fence, acquired, until, acquired_zxid, proof) in enumerate(spans):
        made.hold(number + 1, fence, acquired=acquired, until=until, acquired_zxid=acquired_zxid, proof=proof)
    return made


def written(*fences: int, refused: int = -1) -> Book:
    """Writes in this order, each by the holder of a fence."""
    made = book()
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
        place = next(at for at, hold in enumerate(made.history.holds) if hold.fence == fence)
        hold = made.history.holds[place]
        made.history.holds[place] = hold._replace(writes=(*hold.writes, done.xid))
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
    "nobody": holds(),
    "one after the other": holds((1, 10, 20, 10, 11), (2, 25, 40, 20, 40), (3, 41, 50, 41, 42)),
    "writes in order": written(1, 1, 2, 3, 3),
    "a late write that is refused": written(1, 2, 1, refused=2),
}


@pytest.mark.parametrize("name", BAD_LOCKS)
def test_locks_refused(name: str) -> None:
    assert check_locks(BAD_LOCKS[name].history)


@pytest.mark.parametrize("name", GOOD_LOCKS)
def test_locks_accepted(name: str) -> None:
    assert check_locks(GOOD_LOCKS[name].history) == []


def test_who_only_believes_is_refused_where_that_is_asked() -> None:
    assert check_locks(BAD_LOCKS["both believe"].history, strict=False) == []
