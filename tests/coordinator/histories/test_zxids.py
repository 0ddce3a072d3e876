"""The zxid checker.

If these fail, it misses lost writes and stale reads, or takes what is allowed for a problem.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from .book import ROOT, A, B, Book, Case, new_book
from .checks import problems
from .history import (
    BAD_VERSION,
    CREATED,
    DATA_CHANGED,
    DELETED,
    NO_NODE,
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
    Sync,
    Transaction,
)
from .order import ordered
from .zxids import check_zxids


def zxids_of(history: History) -> list[str]:
    return check_zxids(history, ordered(history))


def an_older_zxid_for_a_later_write() -> Book:
    made = new_book()
    late = made.write(1, SetData(A, b"1"))
    early = made.write(2, SetData(B, b"1"))
    made.history.operations[-2:] = [replace(late, zxid=early.zxid), replace(early, zxid=late.zxid)]
    return made


def one_zxid_for_two_writes() -> Book:
    made = new_book()
    first = made.write(1, SetData(A, b"1"))
    second = made.write(2, SetData(A, b"2"), invoked=first.invoked)
    made.history.operations[-1] = replace(second, zxid=first.zxid)
    return made


def a_wrong_version_answered() -> Book:
    made = new_book()
    done = made.write(1, SetData(A, b"1"))
    made.history.operations[-1] = replace(done, result=done.result._replace(version=5))
    return made


def done_with_a_wrong_version() -> Book:
    made = new_book()
    before = made.write(1, SetData(A, b"1"))
    made.write(2, SetData(A, b"2", 7), error=0, result=before.result._replace(version=2, mzxid=made.zxid + 1))
    return made


def refused_with_the_right_version() -> Book:
    made = new_book()
    made.write(1, SetData(A, b"1", 0), is_done=False, error=BAD_VERSION, result=None)
    return made


def made_twice() -> Book:
    made = new_book()
    first = made.history.operations[-1]
    made.write(
        2,
        Create(A, b"2"),
        error=0,
        result=(A, first.result[1]._replace(czxid=made.zxid + 1, mzxid=made.zxid + 1)),
    )
    return made


def an_acknowledged_write_lost() -> Book:
    made = new_book()
    made.write(1, SetData(A, b"1"), is_done=False)
    made.read(2, GetData(A))
    return made


def a_refused_write_is_read() -> Book:
    made = new_book()
    made.write(1, SetData(A, b"1", 3))
    seen = made.read(2, GetData(A))
    made.history.operations[-1] = replace(seen, result=(b"1", seen.result[1]))
    return made


def a_stale_read() -> Book:
    made = new_book()
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    seen = made.read(2, GetData(A), old)
    made.history.operations[-1] = replace(seen, zxid=made.zxid)
    return made


def a_session_reads_an_older_state() -> Book:
    made = new_book()
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    made.read(2, GetData(A), old)
    return made


def an_own_write_not_seen() -> Book:
    made = new_book()
    old = made.zxid
    made.write(2, SetData(A, b"1"))
    made.read(2, GetData(A), old)
    return made


def a_sync_without_effect() -> Book:
    made = new_book()
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    made.other(2, Sync(ROOT), old)
    made.read(2, GetData(A), old)
    return made


def answers_in_another_order() -> Book:
    made = new_book()
    first, second = made.read(2, GetData(A)), made.read(2, GetData(A))
    made.history.operations[-2:] = [replace(first, xid=second.xid), replace(second, xid=first.xid)]
    return made


def a_child_that_is_not_listed() -> Book:
    made = new_book()
    made.write(1, Create(B, b""))
    seen = made.read(2, GetChildren(ROOT))
    made.history.operations[-1] = replace(seen, result=(("a",), seen.result[1]))
    return made


def half_a_multi() -> Book:
    made = new_book()
    made.write(1, Multi((SetData(A, b"1"), Create(B, b""))))
    made.read(2, Exists(B), error=NO_NODE, result=None)
    return made


def a_multi_done_though_refused() -> Book:
    made = new_book()
    made.write(1, Multi((SetData(A, b"1"), Check(A, 9))))
    seen = made.read(2, GetData(A))
    made.history.operations[-1] = replace(seen, result=(b"1", seen.result[1]._replace(version=1)))
    return made


def one_number_for_two_nodes() -> Book:
    made = new_book()
    first = made.write(1, Create(f"{ROOT}/s-", b"", sequential=True))
    second = made.write(2, Create(f"{ROOT}/s-", b"", sequential=True))
    made.history.operations[-1] = replace(second, result=(first.result[0], second.result[1]))
    return made


def two_times_of_one_transaction() -> Book:
    made = new_book()
    seen = made.read(2, Exists(A))
    made.history.operations[-1] = replace(seen, result=seen.result._replace(mtime=7))
    return made


def an_answered_write_not_in_the_log() -> Book:
    made = new_book(with_log=True)
    made.write(1, SetData(A, b"1"), is_logged=False)
    return made


def another_zxid_in_the_log() -> Book:
    made = new_book(with_log=True)
    done = made.write(1, SetData(A, b"1"))
    made.history.operations[-1] = replace(done, zxid=done.zxid + 1)
    return made


def an_unknown_write_logged_as_another() -> Book:
    made = new_book(with_log=True)
    made.write(1, SetData(A, b"1"), is_answered=False)
    assert made.history.transactions is not None
    last = made.history.transactions[-1]
    made.history.transactions[-1] = last._replace(changes=(last.changes[0]._replace(data=b"2"),))
    return made


def written_after_the_sessions_end() -> Book:
    made = new_book(with_log=True)
    made.write(1, CloseSession())
    made.write(1, SetData(A, b"1"))
    return made


def an_ephemeral_left_by_its_session() -> Book:
    made = new_book(with_log=True)
    made.write(2, Create(B, b"", ephemeral=True))
    seen = made.read(1, Exists(B))
    made.write(2, CloseSession())
    made.read(1, Exists(B), error=0, result=seen.result)
    return made


def with_a_witness() -> Book:
    """A history that session 9 watches from the begin."""
    made = new_book()
    made.other(9, AddWatch(ROOT, True))
    return made


def a_change_without_a_request() -> Book:
    made = with_a_witness()
    made.zxid += 1
    made.notify(9, CREATED, B)
    made.other(9, Sync(ROOT))
    return made


def an_ephemeral_deleted_without_a_request() -> Book:
    made = with_a_witness()
    made.write(2, Multi((Create(B, b"", True), Create(f"{ROOT}/c", b"", True))))
    made.notify(9, CREATED, B)
    made.notify(9, CREATED, f"{ROOT}/c")
    made.zxid += 1
    made.notify(9, DELETED, B)
    made.other(9, Sync(ROOT))
    return made


def an_unknown_write_read_without_an_event() -> Book:
    made = with_a_witness()
    made.write(2, SetData(A, b"1"), is_answered=False)
    made.read(3, GetData(A))
    made.other(9, Sync(ROOT))
    return made


BAD_ZXIDS: list[Case] = [
    a_change_without_a_request,
    an_ephemeral_deleted_without_a_request,
    an_unknown_write_read_without_an_event,
    an_older_zxid_for_a_later_write,
    one_zxid_for_two_writes,
    a_wrong_version_answered,
    done_with_a_wrong_version,
    refused_with_the_right_version,
    made_twice,
    an_acknowledged_write_lost,
    a_refused_write_is_read,
    a_stale_read,
    a_session_reads_an_older_state,
    an_own_write_not_seen,
    a_sync_without_effect,
    answers_in_another_order,
    a_child_that_is_not_listed,
    half_a_multi,
    a_multi_done_though_refused,
    one_number_for_two_nodes,
    two_times_of_one_transaction,
    an_answered_write_not_in_the_log,
    another_zxid_in_the_log,
    an_unknown_write_logged_as_another,
    written_after_the_sessions_end,
    an_ephemeral_left_by_its_session,
]


def a_perfect_ensemble() -> Book:
    made = new_book()
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
    made = new_book()
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.read(2, GetData(A))
    made.write(2, SetData(A, b"2"))
    return made


def unknown_and_never_seen() -> Book:
    made = new_book()
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.write(2, SetData(A, b"2"))
    made.read(2, GetData(A))
    made.write(2, Create(B, b""))
    return made


def unknown_and_not_done() -> Book:
    made = new_book()
    made.write(1, SetData(A, b"1"), is_answered=False, is_done=False)
    made.write(1, Create(B, b""), is_answered=False, is_done=False)
    made.read(2, GetData(A))
    made.read(2, GetChildren(ROOT))
    return made


def unknown_and_in_the_log() -> Book:
    made = new_book(with_log=True)
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.write(1, Delete(A), is_answered=False, is_done=False)
    made.write(2, SetData(A, b"2", 1))
    made.read(2, GetData(A))
    return made


def unknown_and_numbered() -> Book:
    made = new_book()
    made.write(1, Create(f"{ROOT}/s-", b"", sequential=True), is_answered=False)
    made.read(2, GetData(f"{ROOT}/s-0000000001"))
    made.write(2, Delete(f"{ROOT}/s-0000000001"))
    made.write(2, Create(f"{ROOT}/s-", b"", sequential=True))
    made.read(2, GetChildren(ROOT))
    return made


def unknown_and_numbered_and_read_with_a_watch() -> Book:
    """Session 9 would get an event if the root's data changed."""
    made = new_book()
    made.read(9, GetData(ROOT, True))
    made.write(1, Create(f"{ROOT}/s-", b"", sequential=True), is_answered=False)
    made.read(2, GetData(f"{ROOT}/s-0000000001"))
    made.write(2, Create(f"{ROOT}/s-", b"", sequential=True))
    made.other(9, Sync(ROOT))
    return made


def unknown_and_witnessed() -> Book:
    made = with_a_witness()
    made.write(2, Create(f"{ROOT}/s-", b"", True, True), is_answered=False)
    made.notify(9, CREATED, f"{ROOT}/s-0000000001")
    made.write(2, SetData(A, b"never"), is_answered=False, is_done=False)
    made.write(2, SetData(A, b"done"), is_answered=False)
    made.notify(9, DATA_CHANGED, A)
    made.read(1, GetData(A))
    made.write(2, CloseSession(), is_answered=False)
    made.notify(9, DELETED, f"{ROOT}/s-0000000001")
    made.write(1, SetData(A, b"2", 1))
    made.notify(9, DATA_CHANGED, A)
    made.read(1, GetChildren(ROOT))
    made.other(9, Sync(ROOT))
    return made


def one_of_two_unknown_and_witnessed() -> Book:
    made = with_a_witness()
    made.write(2, Delete(A, 7), is_answered=False)
    made.write(3, Delete(A, 0), is_answered=False)
    made.notify(9, DELETED, A)
    made.write(1, Create(A, b"again"))
    made.notify(9, CREATED, A)
    made.other(9, Sync(ROOT))
    return made


def at_the_same_time() -> Book:
    made = new_book()
    first = made.write(1, SetData(A, b"1"))
    made.write(2, SetData(A, b"2"), invoked=first.invoked)
    return made


GOOD_ZXIDS: list[Case] = [
    a_perfect_ensemble,
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
def test_bad_zxids_are_refused(case: Case) -> None:
    assert zxids_of(case().history)


@pytest.mark.parametrize("case", GOOD_ZXIDS, ids=lambda case: case.__name__)
def test_good_zxids_are_accepted(case: Case) -> None:
    assert zxids_of(case().history) == []


# ---- children that an Apache leader still counts ----

X, Y = f"{A}/x", f"{A}/y"


def closed(with_log: bool = False) -> tuple[Book, Operation]:
    """Session 2 has made a child of A and is closed."""
    made = new_book(with_log)
    made.write(2, Create(X, b"", ephemeral=True))
    return made, made.write(2, CloseSession())


def refuse(made: Book, invoked: int | None, request: Delete | Multi | None = None) -> None:
    """Session 1 deletes A and gets NotEmpty."""
    error: dict[str, Any] = {"error": NOT_EMPTY, "result": None}
    if isinstance(request, Multi):
        error = {"result": (0, NOT_EMPTY, -2)}
    made.write(1, request or Delete(A), invoked=invoked, is_done=False, **error)


def refused_after_a_closing() -> Book:
    made, closing = closed()
    refuse(made, closing.invoked)
    return made


def refused_in_a_multi_after_a_closing() -> Book:
    made, closing = closed()
    refuse(made, closing.invoked, Multi((SetData(A, b"1"), Delete(A), Create(B, b""))))
    return made


def refused_after_other_changes_after_a_closing() -> Book:
    made, closing = closed()
    changed = made.write(1, SetData(A, b"1"), invoked=closing.invoked)
    made.write(1, Multi((Create(Y, b""), Delete(Y))), invoked=changed.invoked)
    refuse(made, changed.completed)
    return made


def refused_after_an_unanswered_closing() -> Book:
    made = new_book(with_log=True)
    made.write(2, Create(X, b"", ephemeral=True))
    made.write(2, CloseSession(), is_answered=False)
    refuse(made, None)
    append_refusal(made)
    return made


def refused_without_an_answer() -> Book:
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


def refused_without_a_child() -> Book:
    made = new_book()
    refuse(made, None)
    return made


def refused_after_the_closing_was_answered() -> Book:
    made, _closing = closed()
    refuse(made, None)
    return made


def refused_for_another_nodes_child() -> Book:
    made = new_book()
    made.write(1, Create(B, b""))
    made.write(2, Create(f"{B}/x", b"", ephemeral=True))
    closing = made.write(2, CloseSession())
    refuse(made, closing.invoked)
    return made


def refused_for_a_deleted_child() -> Book:
    made = new_book()
    made.write(2, Create(X, b""))
    deleted = made.write(2, Delete(X))
    refuse(made, deleted.invoked)
    return made


def refused_by_the_next_leader() -> Book:
    made, closing = closed()
    made.zxid += 1 << 32
    refuse(made, closing.invoked)
    return made


def refused_after_a_later_change() -> Book:
    made, _closing = closed()
    changed = made.write(1, SetData(A, b"1"))
    refuse(made, changed.invoked)
    return made


def refused_after_the_node_was_made_again() -> Book:
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


def refused_with_another_error() -> Book:
    made, closing = closed()
    made.write(1, Delete(A), invoked=closing.invoked, is_done=False, error=BAD_VERSION, result=None)
    return made


OUTSTANDING: list[Case] = [
    refused_after_a_closing,
    refused_in_a_multi_after_a_closing,
    refused_after_other_changes_after_a_closing,
    refused_after_an_unanswered_closing,
    refused_without_an_answer,
    refused_by_a_server_that_may_be_behind,
]
NOT_OUTSTANDING: list[Case] = [
    refused_without_a_child,
    refused_after_the_closing_was_answered,
    refused_for_another_nodes_child,
    refused_for_a_deleted_child,
    refused_by_the_next_leader,
    refused_after_a_later_change,
    refused_after_the_node_was_made_again,
    refused_and_done,
    refused_with_another_error,
]


@pytest.mark.parametrize("case", OUTSTANDING, ids=lambda case: case.__name__)
def test_outstanding_children_are_accepted_of_apache_only(case: Case) -> None:
    assert problems(case().history, counts_outstanding=True) == []
    assert problems(case().history)


@pytest.mark.parametrize("case", [*NOT_OUTSTANDING, *BAD_ZXIDS], ids=lambda case: case.__name__)
def test_other_problems_are_refused_of_apache_too(case: Case) -> None:
    history = case().history
    assert check_zxids(history, ordered(history, counts_outstanding=True))


@pytest.mark.parametrize("case", GOOD_ZXIDS, ids=lambda case: case.__name__)
def test_good_zxids_are_accepted_of_apache(case: Case) -> None:
    history = case().history
    assert check_zxids(history, ordered(history, counts_outstanding=True)) == []
