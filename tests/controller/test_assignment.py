"""The assignment of replicas. If one failed, leaders or replicas would pile up on one broker or one rack."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.assignment import assign_replicas, validate_assignment
from cluster.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
)
from cluster.model import BrokerId, BrokerInfo


def brokers(count: int, racks: list[str] | None = None) -> list[BrokerInfo]:
    return [BrokerInfo(BrokerId(i), (), racks[i] if racks else None) for i in range(count)]


def test_the_table_in_kafkas_own_comment() -> None:
    found = assign_replicas(brokers(5), 10, 3, start=0, shift=0)
    assert found == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_racks_alternate() -> None:
    racks = ["rack1", "rack3", "rack3", "rack2", "rack2", "rack1"]
    found = assign_replicas(brokers(6, racks), 7, 3, start=0, shift=0)
    assert found[0] == (0, 3, 1)
    assert found[1] == (3, 1, 5)
    assert found[2] == (1, 5, 4)
    assert found[6] == (0, 4, 2)
    for replicas in found.values():
        assert len({racks[broker] for broker in replicas}) == 3


def test_impossible_assignments_are_refused() -> None:
    with pytest.raises(InvalidPartitions):
        assign_replicas(brokers(1), 0, 1, 0, 0)
    with pytest.raises(InvalidReplicationFactor):
        assign_replicas(brokers(1), 1, 0, 0, 0)
    with pytest.raises(InvalidReplicationFactor, match="2 larger than available brokers: 1"):
        assign_replicas(brokers(1), 1, 2, 0, 0)
    with pytest.raises(InvalidRequest):
        assign_replicas([*brokers(1), BrokerInfo(BrokerId(7), (), "r")], 1, 1, 0, 0)


@given(
    st.integers(1, 8), st.integers(1, 40), st.integers(0, 7), st.integers(0, 7), st.integers(0, 5), st.data()
)
def test_every_assignment_is_valid_and_even(
    count: int, partitions: int, start: int, shift: int, first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, count))
    racks = data.draw(st.none() | st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    found = assign_replicas(brokers(count, racks), partitions, factor, start % count, shift % count, first)
    validate_assignment(found, first)
    assert all(len(replicas) == factor for replicas in found.values())
    leaders = Counter(replicas[0] for replicas in found.values())
    assert max(leaders.values()) - min(leaders.get(BrokerId(i), 0) for i in range(count)) <= 1


@pytest.mark.parametrize(
    "assignment", [{1: [0]}, {0: []}, {0: [1, 1]}, {0: [-1]}, {0: [0], 1: [0, 1]}, {0: [0], 2: [0]}]
)
def test_bad_assignments_are_refused(assignment: dict[int, list[int]]) -> None:
    with pytest.raises(InvalidReplicaAssignment):
        validate_assignment(assignment)
