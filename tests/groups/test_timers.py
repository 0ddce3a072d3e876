"""The group machine's timers.

If one failed, members would be removed too soon or never, or timers of removed members would fill the memory
until times that clients choose.
"""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.groups.timers import _STALE_MIN, TimerKey, Timers

DUES: list[TimerKey] = [("g", "session", str(number)) for number in range(4)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from(DUES), st.integers(0, 50)),
            st.tuples(st.just("cancel"), st.sampled_from(DUES), st.just(0)),
            st.tuples(st.just("pass"), st.sampled_from(DUES), st.integers(0, 30)),
        ),
        max_size=60,
    )
)
def test_each_timer_is_due_at_its_last_deadline(steps: list[tuple[str, TimerKey, int]]) -> None:
    timers, deadlines, now = Timers(), dict[TimerKey, int](), 0
    for verb, due, number in steps:
        if verb == "set":
            deadlines[due] = now + number
            timers.schedule(due, deadlines[due])
        elif verb == "cancel":
            deadlines.pop(due, None)
            timers.cancel(due)
        else:
            now += number
            over = sorted(name for name, deadline in deadlines.items() if deadline <= now)
            popped = []
            for found in timers.over(now, deadlines.get):
                popped.append(found)
                del deadlines[found]
            assert sorted(popped) == over
        assert timers._queued.keys() == deadlines.keys()
        assert {timers._numbered[number] for _, number in timers._queued.values()} == set(
            timers._numbered.values()
        )
        following = timers.next()
        assert not deadlines or (following is not None and following <= min(deadlines.values()))


@pytest.mark.parametrize("others", [0, 1000])
def test_a_cancelled_timer_takes_no_memory(others: int) -> None:
    timers = Timers()
    for number in range(others):
        timers.schedule(("g", "session", str(number)), number)
    most = 0
    for number in range(10_000):
        timers.schedule(("g", "pending", str(number)), 1_000_000)
        timers.cancel(("g", "pending", str(number)))
        most = max(most, len(timers._heap))
    assert most <= 2 + others + max(others, _STALE_MIN)
    assert len(timers._queued) == len(timers._numbered) == others


def test_the_remaining_timers_are_due_in_their_order() -> None:
    timers = Timers()
    deadlines: dict[TimerKey, int] = {
        ("g", "session", str(number)): 1_000 - number for number in range(1_000)
    }
    for due, deadline in deadlines.items():
        timers.schedule(due, deadline)
    stay = [due for due in deadlines if deadlines[due] % 10 == 0]
    for due in deadlines.keys() - set(stay):
        timers.cancel(due)
    assert len(timers._heap) <= 2 * len(stay)
    for due in reversed(stay):
        assert timers.next() is not None
        assert not list(timers.over(deadlines[due] - 1, deadlines.get))
        assert list(timers.over(deadlines[due], deadlines.get)) == [due]


def test_an_earlier_deadline_replaces_the_one_before() -> None:
    timers = Timers()
    for deadline in range(10_000, 0, -1):
        timers.schedule(DUES[0], deadline)
    assert len(timers._heap) <= 2 + _STALE_MIN
    assert list(timers.over(1, lambda due: 1)) == DUES[:1]
    assert not list(timers.over(10_000, lambda due: 1))


def test_a_later_deadline_does_not_touch_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers()
    timers.schedule(DUES[0], 1)
    for name in ("heappush", "heappop", "heapify"):
        monkeypatch.delattr(heapq, name)
    for deadline in range(1, 100):
        timers.schedule(DUES[0], deadline)


def test_at_most_the_given_number_of_timers_is_checked() -> None:
    timers, dues = Timers(), [("g", "session", str(number)) for number in range(100)]
    for due in dues:
        timers.schedule(due, 1)
    # Every other deadline has moved, and its timer is queued again.
    deadlines = {due: 1 + 10 * (number % 2) for number, due in enumerate(dues)}
    turns = [list(timers.over(1, deadlines.get, 10)) for _ in range(11)]
    assert [len(turn) for turn in turns] == 10 * [5] + [0]
    assert [due for turn in turns for due in turn] == dues[::2]
    assert timers.next() == 11
