"""Elections that operators ask for, and the automatic balance of leaders.

If one failed, a tool would report what is not so, a leader outside the ISR would be elected unasked, or one
broker would lead everything after the others were restarted.
"""

from __future__ import annotations

import pytest

from cluster.controller.actions import Lead, Publish, UpdateStates
from cluster.controller.elections import RECOVERING, ElectionType
from cluster.controller.state import ControllerState
from cluster.controller.view import UNREADABLE
from cluster.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopicException,
    KafkaProtocolError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from cluster.model import (
    NO_LEADER,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicPartition,
    new_topic_id,
)

ID = new_topic_id()
T0 = TopicPartition("t", 0)
PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def cluster(
    states: dict[int, tuple[int, tuple[int, ...]] | None],
    alive: tuple[int, ...] = (1, 2, 3),
    shutting_down: tuple[int, ...] = (),
) -> ControllerState:
    """Partitions with the replicas 1, 2 and 3, their leaders and ISRs. None: a state that cannot be read."""
    state = ControllerState()
    state.elected(ControllerEpoch(5))
    state.brokers_changed({broker: BrokerInfo(broker, (), epoch=10) for broker in ids(1, 2, 3)})
    assignment = {number: Replicas(ids(1, 2, 3)) for number in states}
    state.topic_loaded(
        "t",
        ID,
        ID,
        assignment,
        {
            number: UNREADABLE
            if known is None
            else PartitionState(BrokerId(known[0]), LeaderEpoch(7), ids(*known[1]), ControllerEpoch(4))
            for number, known in states.items()
        },
        {},
    )
    state.settled("t")
    state.brokers_changed({broker: BrokerInfo(broker, (), epoch=10) for broker in ids(*alive)})
    state.shutting_down |= set(ids(*shutting_down))
    return state


@pytest.mark.parametrize(
    ("kind", "leader", "isr", "alive", "shutting_down", "expected"),
    [
        # The preferred leader is 1.
        (PREFERRED, 2, (2, 1, 3), (1, 2, 3), (), (1, (2, 1, 3))),
        (PREFERRED, 1, (1, 2, 3), (1, 2, 3), (), ElectionNotNeeded),
        (PREFERRED, 2, (2, 3), (1, 2, 3), (), PreferredLeaderNotAvailable),
        (PREFERRED, 2, (2, 1), (2, 3), (), PreferredLeaderNotAvailable),
        (PREFERRED, 2, (2, 1), (1, 2, 3), (1,), PreferredLeaderNotAvailable),
        (UNCLEAN, 2, (2, 1), (1, 2, 3), (), ElectionNotNeeded),
        (UNCLEAN, 2, (2,), (1, 3), (), (1, (1,))),
        (UNCLEAN, 2, (2,), (), (), EligibleLeadersNotAvailable),
        (UNCLEAN, 2, (2,), (3,), (3,), EligibleLeadersNotAvailable),
    ],
)
def test_requested_elections_end_as_in_kafka(
    kind: ElectionType,
    leader: int,
    isr: tuple[int, ...],
    alive: tuple[int, ...],
    shutting_down: tuple[int, ...],
    expected: tuple[int, tuple[int, ...]] | type[KafkaProtocolError],
) -> None:
    state = cluster({0: (leader, isr)}, alive, shutting_down)
    before = state.topics["t"].partitions[0]
    results, actions = state.elections.requested([T0], kind)
    after = state.topics["t"].partitions[0]
    if isinstance(expected, tuple):
        assert results == {T0: None}
        assert (after.leader, after.isr) == (expected[0], ids(*expected[1]))
        assert after.leader_epoch == before.leader_epoch + 1
        topic = state.topics["t"]
        assert actions == [UpdateStates("t", {0: after}), Lead(topic, (0,)), Publish(topic, (0,))]
        assert (after.recovery == RECOVERING) == (kind is UNCLEAN)
    else:
        assert isinstance(results[T0], expected)
        assert (after, actions) == (before, [])


@pytest.mark.parametrize("kind", ElectionType)
def test_partitions_that_are_not_there_are_refused(kind: ElectionType) -> None:
    state = cluster({0: (1, (1,)), 1: None}, alive=(1,))
    unknown, unreadable = TopicPartition("t", 9), TopicPartition("t", 1)
    results, actions = state.elections.requested([unknown, unreadable, TopicPartition("u", 0)], kind)
    unavailable = PreferredLeaderNotAvailable if kind is PREFERRED else EligibleLeadersNotAvailable
    assert [type(error) for error in results.values()] == [
        UnknownTopicOrPartition,
        unavailable,
        UnknownTopicOrPartition,
    ]
    assert actions == []
    state.deletion_requested("t", state.topics["t"])
    results, _ = state.elections.requested([T0], kind)
    assert isinstance(results[T0], InvalidTopicException)


def test_a_leader_outside_the_isr_is_marked_until_it_confirms_the_isr() -> None:
    state = cluster({0: (2, (2,))}, alive=(1, 3))
    assert state.topics["t"].partitions[0].leader == NO_LEADER
    state.elections.requested([T0], UNCLEAN)
    assert state.topics["t"].partitions[0].recovery == RECOVERING


@pytest.mark.parametrize(
    ("leaders", "percentage", "moved"),
    [
        # One of ten is elsewhere: exactly the limit is not above it.
        ([2] + [1] * 9, 10, 0),
        ([2, 3] + [1] * 8, 10, 2),
        ([2] + [1] * 9, 0, 1),
        ([1] * 10, 0, 0),
    ],
)
def test_leaders_move_home_when_too_many_are_elsewhere(
    leaders: list[int], percentage: int, moved: int
) -> None:
    state = cluster({number: (leader, (1, 2, 3)) for number, leader in enumerate(leaders)})
    actions = state.elections.balanced(percentage)
    if moved:
        assert isinstance(actions[0], UpdateStates)
        assert len(actions[0].states) == moved
        assert {known.leader for known in state.topics["t"].partitions.values()} == {1}
    else:
        assert actions == []


def test_balance_leaves_what_the_preferred_broker_cannot_lead() -> None:
    state = cluster({0: (2, (2, 3)), 1: (2, (2, 1)), 2: None})
    state.elections.balanced(0)
    partitions = state.topics["t"].partitions
    assert [partitions[number].leader for number in range(3)] == [2, 1, NO_LEADER]
