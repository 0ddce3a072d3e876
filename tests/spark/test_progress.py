"""How far a stream has come, and what a micro-batch reads, without a Spark session.

Broken if they failed: a stream would skip or repeat records, or a query's checkpoint would not move over.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_logcore._plan import Bounds, Key, OffsetRange
from pyspark_logcore._progress import (
    Offsets,
    count_new,
    from_json,
    offsets_within,
    ranges,
    share,
    to_json,
)

A, B, C = ("a", 0), ("a", 10), ("b", 2)


# Broken if it failed: Spark's Kafka source could not take over a checkpoint, or this source one of its.
def test_offsets_have_the_form_of_sparks_kafka_source() -> None:
    offsets = {C: 3, B: 2, A: 1}
    assert to_json(offsets) == {"a": {"0": 1, "10": 2}, "b": {"2": 3}}
    assert list(to_json({("a", 10): 0, ("a", 9): 0})["a"]) == ["9", "10"]
    assert from_json(to_json(offsets)) == offsets


# Broken if it failed: the micro-batches would be others than those of Spark's Kafka source.
@pytest.mark.parametrize(
    ("start", "latest", "most", "until"),
    [
        ({A: 0, B: 0}, {A: 100, B: 300}, 100, {A: 25, B: 75}),
        ({A: 0, B: 0}, {A: 1, B: 1000}, 10, {A: 1, B: 9}),  # a share below 1 is rounded up
        ({A: 0, B: 0}, {A: 50, B: 50}, 3, {A: 1, B: 1}),  # 1.5 is rounded down
        ({A: 7, B: 5}, {A: 7, B: 9}, 100, {A: 7, B: 9}),
        ({A: 7}, {A: 3}, 100, {A: 3}),
        ({}, {}, 5, {}),
    ],
)
def test_a_trigger_is_shared_among_partitions(
    start: Offsets, latest: Offsets, most: int, until: Offsets
) -> None:
    assert share(start, latest, most) == until


# Broken if it failed: micro-batches would have far more or fewer bytes than a stream may take.
@pytest.mark.parametrize(("most_bytes", "offsets"), [(10_000, 20), (1_650, 20), (825, 10), (165, 2), (1, 1)])
def test_bytes_are_counted_in_average_records(most_bytes: int, offsets: int) -> None:
    # Records of 150 bytes, and of 15.
    bounds, sizes = {A: Bounds(10, 30), B: Bounds(0, 100)}, {A: 3_000, B: 1_500}
    assert offsets_within({A: 20, B: 90}, {A: 30, B: 100}, bounds, sizes, most_bytes) == offsets


# Broken if it failed: a stream would never reach the end, skip records, or take far more than was allowed.
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
        st.tuples(st.integers(0, 1000), st.integers(0, 500)),
    ),
    st.integers(1, 200),
)
def test_micro_batches_reach_the_end(sizes: dict[Key, tuple[int, int]], most: int) -> None:
    start = {key: first for key, (first, _) in sizes.items()}
    latest = {key: first + size for key, (first, size) in sizes.items()}
    for _ in range(10_000):
        if start == latest:
            break
        until = share(start, latest, most)
        assert all(start[key] <= until[key] <= latest[key] for key in latest)
        # Each partition may be rounded up to one.
        assert 0 < count_new(start, until) <= most + len(latest)
        start = until
    assert start == latest


def lost_of(
    start: Offsets, end: Offsets, bounds: dict[Key, tuple[int, int]]
) -> tuple[list[OffsetRange], str]:
    said: list[str] = []
    found = ranges(start, end, {key: Bounds(*one, 4) for key, one in bounds.items()}, said.append)
    return found, "; ".join(said)


# Broken if it failed: records would be missed without a word, or a loss would stop a stream that has none.
@pytest.mark.parametrize(
    ("start", "end", "bounds", "expected", "said"),
    [
        ({A: 1}, {A: 5}, {A: (0, 9)}, [(A, 1, 5)], ""),
        ({A: 5}, {A: 5}, {A: (0, 9)}, [], ""),
        ({A: 1}, {A: 5, B: 3}, {A: (0, 9), B: (0, 3)}, [(A, 1, 5), (B, 0, 3)], ""),
        ({A: 1}, {A: 5}, {A: (3, 9)}, [(A, 3, 5)], "offsets [1, 3) of a-0 were deleted"),
        ({A: 1}, {A: 5}, {A: (9, 9)}, [], "offsets [1, 5) of a-0 were deleted"),
        ({A: 5}, {A: 5}, {A: (9, 12)}, [], ""),
        ({A: 1, B: 0}, {A: 5}, {A: (0, 9)}, [(A, 1, 5)], "a-10 was deleted"),
        ({A: 1}, {A: 5}, {}, [], "a-0 was deleted"),
        ({A: 8}, {A: 2}, {A: (0, 2)}, [], "it was made anew"),
        ({}, {A: 5}, {A: (2, 9)}, [(A, 2, 5)], "a-0 is new, but its first offset is 2"),
    ],
)
def test_what_is_lost_is_said(
    start: Offsets,
    end: Offsets,
    bounds: dict[Key, tuple[int, int]],
    expected: list[tuple[Key, int, int]],
    said: str,
) -> None:
    found, words = lost_of(start, end, bounds)
    assert [((one.topic, one.partition), one.start, one.end) for one in found] == expected
    assert all(one.leader_epoch == 4 for one in found)
    assert said in words
    assert bool(said) == bool(words)
