"""The watch checker. If these fail, it misses lost events, or takes what is allowed for a problem."""

from __future__ import annotations

import pytest

from .book import ROOT, A, B, Book, Case, new_book
from .history import (
    CHILDREN_CHANGED,
    CREATED,
    DATA_CHANGED,
    DELETED,
    AddWatch,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    History,
    Multi,
    SetData,
    SetWatches,
)
from .order import ordered
from .watches import check_watches


def watches_of(history: History) -> list[str]:
    return check_watches(history, ordered(history))


def watched(request: GetData | Exists | GetChildren | AddWatch) -> Book:
    made = new_book()
    if isinstance(request, AddWatch):
        made.other(2, request)
    else:
        made.read(2, request)
    return made


def a_change_without_an_event() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    return made


def an_event_after_newer_data() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    made.notify(2, DATA_CHANGED, A)
    return made


def an_event_after_newer_data_of_another_node() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.write(1, Create(B, b""))
    made.read(2, GetData(B))
    made.notify(2, DATA_CHANGED, A, made.zxid - 1)
    return made


def an_event_twice() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.notify(2, DATA_CHANGED, A)
    made.notify(2, DATA_CHANGED, A)
    return made


def an_event_for_a_second_change() -> Book:
    made = watched(GetData(A, True))
    for number in (b"1", b"2"):
        made.write(1, SetData(A, number))
        made.notify(2, DATA_CHANGED, A)
    return made


def an_event_without_a_change() -> Book:
    made = watched(GetData(A, True))
    made.notify(2, DATA_CHANGED, A)
    return made


def an_event_of_another_kind() -> Book:
    made = watched(GetData(A, True))
    made.write(1, Delete(A))
    made.notify(2, DATA_CHANGED, A)
    made.read(2, Exists(A))
    return made


def an_event_for_another_session() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"))
    made.notify(3, DATA_CHANGED, A)
    return made


def a_create_without_an_event() -> Book:
    made = watched(Exists(B, True))
    made.write(1, Create(B, b""))
    made.read(2, Exists(B))
    return made


def a_new_child_without_an_event() -> Book:
    made = watched(GetChildren(ROOT, True))
    made.write(1, Create(B, b""))
    made.read(2, GetChildren(ROOT))
    return made


def a_persistent_watch_that_ends() -> Book:
    made = watched(AddWatch(A, False))
    made.write(1, SetData(A, b"1"))
    made.notify(2, DATA_CHANGED, A)
    made.write(1, SetData(A, b"2"))
    made.read(2, GetData(A))
    return made


def a_recursive_watch_that_misses_a_child() -> Book:
    made = watched(AddWatch(ROOT, True))
    made.write(1, Create(f"{A}/x", b""))
    made.read(2, Exists(A))
    return made


def a_recursive_watch_with_an_event_of_children() -> Book:
    made = watched(AddWatch(ROOT, True))
    made.write(1, Create(f"{A}/x", b""))
    made.notify(2, CREATED, f"{A}/x")
    made.notify(2, CHILDREN_CHANGED, A)
    return made


def events_of_half_a_multi() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.write(1, Multi((SetData(A, b"1"), Create(B, b""))))
    made.notify(2, DATA_CHANGED, A)
    made.read(2, GetData(A))
    return made


def events_in_another_order() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.write(1, SetData(A, b"1"))
    made.write(1, Create(B, b""))
    made.notify(2, CREATED, B)
    made.notify(2, DATA_CHANGED, A, made.zxid - 1)
    return made


def a_missed_event_that_is_not_sent() -> Book:
    made = watched(GetData(A, True))
    seen = made.zxid
    made.contact(2, "lost")
    made.write(1, SetData(A, b"1"))
    made.contact(2, "connected")
    made.other(2, SetWatches(seen, data=(A,)))
    return made


def a_missed_event_without_a_change() -> Book:
    made = watched(GetData(A, True))
    made.contact(2, "lost")
    made.contact(2, "connected")
    made.notify(2, DATA_CHANGED, A, -1)
    made.other(2, SetWatches(made.zxid, data=(A,)))
    return made


def a_watch_lost_after_it_was_set_again() -> Book:
    made = watched(GetData(A, True))
    made.contact(2, "lost")
    made.contact(2, "connected")
    made.other(2, SetWatches(made.zxid, data=(A,)))
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A))
    return made


BAD_WATCHES: list[Case] = [
    a_change_without_an_event,
    an_event_after_newer_data,
    an_event_after_newer_data_of_another_node,
    an_event_twice,
    an_event_for_a_second_change,
    an_event_without_a_change,
    an_event_of_another_kind,
    an_event_for_another_session,
    a_create_without_an_event,
    a_new_child_without_an_event,
    a_persistent_watch_that_ends,
    a_recursive_watch_that_misses_a_child,
    a_recursive_watch_with_an_event_of_children,
    events_of_half_a_multi,
    events_in_another_order,
    a_missed_event_that_is_not_sent,
    a_missed_event_without_a_change,
    a_watch_lost_after_it_was_set_again,
]


def events_of_each_kind() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.read(2, GetChildren(ROOT, True))
    made.write(1, SetData(A, b"1"))
    made.notify(2, DATA_CHANGED, A)
    made.write(1, Create(B, b""))
    made.notify(2, CREATED, B)
    made.notify(2, CHILDREN_CHANGED, ROOT)
    made.read(2, GetChildren(B, True))
    made.read(2, GetData(B, True))
    made.write(1, Delete(B))
    made.notify(2, DELETED, B)
    made.read(2, GetChildren(ROOT))
    return made


def a_late_event() -> Book:
    made = watched(GetData(A, True))
    old = made.zxid
    made.write(1, SetData(A, b"1"))
    made.read(2, GetData(A), old)
    made.notify(2, DATA_CHANGED, A)
    made.read(2, GetData(A))
    return made


def events_of_persistent_watches() -> Book:
    made = watched(AddWatch(A, False))
    made.other(2, AddWatch(ROOT, True))
    for number in (b"1", b"2"):
        made.write(1, SetData(A, number))
        made.notify(2, DATA_CHANGED, A)
    made.write(1, Create(f"{A}/x", b""))
    made.notify(2, CREATED, f"{A}/x")
    made.notify(2, CHILDREN_CHANGED, A)
    made.read(2, GetData(A))
    return made


def missed_events() -> Book:
    made = watched(GetData(A, True))
    made.read(2, Exists(B, True))
    made.read(2, GetChildren(ROOT, True))
    seen = made.zxid
    made.contact(2, "lost")
    made.write(1, SetData(A, b"1"))
    made.write(1, Create(B, b""))
    made.contact(2, "connected")
    for kind, path in ((DATA_CHANGED, A), (CREATED, B), (CHILDREN_CHANGED, ROOT)):
        made.notify(2, kind, path, -1)
    made.other(2, SetWatches(seen, (A,), (B,), (ROOT,)))
    made.write(1, SetData(A, b"2"))
    made.read(2, GetData(A))
    return made


def an_event_of_an_unanswered_write() -> Book:
    made = watched(GetData(A, True))
    made.write(1, SetData(A, b"1"), is_answered=False)
    made.notify(2, DATA_CHANGED, A)
    made.read(2, GetData(A))
    return made


GOOD_WATCHES: list[Case] = [
    events_of_each_kind,
    a_late_event,
    events_of_persistent_watches,
    missed_events,
    an_event_of_an_unanswered_write,
]


@pytest.mark.parametrize("case", BAD_WATCHES, ids=lambda case: case.__name__)
def test_bad_watches_are_refused(case: Case) -> None:
    assert watches_of(case().history)


@pytest.mark.parametrize("case", GOOD_WATCHES, ids=lambda case: case.__name__)
def test_good_watches_are_accepted(case: Case) -> None:
    assert watches_of(case().history) == []
