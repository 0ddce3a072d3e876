"""Reassignments of partitions in the controller's state machine, step by step as in Kafka's controller.

If one failed, a reassignment would lose records, never end, leave logs behind, or be lost with its
controller.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.controller.actions import (
    Action,
    DropReassignments,
    Lead,
    Publish,
    StopReplicas,
    UpdateStates,
    Withdraw,
    WriteTopic,
)
from cluster.controller.elections import ElectionType
from cluster.controller.requests import EPOCH_DURING_DELETE, STOP_REPLICA, Pending
from cluster.controller.state import ControllerState, NewIsr
from cluster.controller.view import UNREADABLE
from cluster.errors import (
    InvalidReplicaAssignment,
    InvalidTopicException,
    KafkaProtocolError,
    NoReassignmentInProgress,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from cluster.model import (
    NO_LEADER,
    NO_TOPIC_ID,
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
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EPOCH = 10
"""The epoch of each broker's registration."""
ALL = (1, 2, 3, 4, 5, 6)


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def replicas(
    all_of: tuple[int, ...], adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()
) -> Replicas:
    return Replicas(ids(*all_of), ids(*adding), ids(*removing))


def partition(isr: tuple[int, ...], epoch: int = 7, leader: int | None = None) -> PartitionState:
    return PartitionState(
        BrokerId(isr[0] if leader is None else leader), LeaderEpoch(epoch), ids(*isr), ControllerEpoch(4), 3
    )


def brokers(*alive: int) -> dict[BrokerId, BrokerInfo]:
    return {broker: BrokerInfo(broker, (), epoch=EPOCH) for broker in ids(*alive)}


def cluster(
    assignment: dict[int, Replicas],
    states: dict[int, PartitionState],
    alive: tuple[int, ...] = ALL,
) -> ControllerState:
    state = ControllerState()
    state.elected(ControllerEpoch(5))
    state.brokers_changed(brokers(*alive))
    state.topic_loaded("t", ID, ID, assignment, states, {})
    state.settled("t")
    return state


def one(
    of: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] | None = None,
    alive: tuple[int, ...] = tuple(range(1, 7)),
) -> ControllerState:
    return cluster({0: replicas(of)}, {0: partition(isr or of)}, alive)


def alter(
    state: ControllerState, *target: int, cancel: bool = False, of: TopicPartition = T0
) -> tuple[KafkaProtocolError | None, list[Action]]:
    results, actions = state.reassignments.alter({of: None if cancel else ids(*target)})
    return results[of], actions


def joined(state: ControllerState, *isr: int) -> list[Action]:
    """The leader reports an ISR. Returns what completes."""
    now = of(state)
    wish = NewIsr("t", NO_TOPIC_ID, 0, now.leader_epoch, ids(*isr), now.zk_version)
    [answer], actions = state.alter_isr(now.leader, EPOCH, [wish])
    assert isinstance(answer, PartitionState), answer
    assert isinstance(actions[0], UpdateStates)
    return state.complete_reassignments() if state.reassignments.is_due else []


def set_isr(state: ControllerState, leader: int, *isr: int) -> None:
    """Sets leader and ISR, however that came about."""
    state.topics["t"].partitions[0] = replace(of(state), leader=BrokerId(leader), isr=ids(*isr))
    state.reassignments.isr_changed(state.topics["t"], 0)


def of(state: ControllerState, number: int = 0) -> PartitionState:
    return state.topics["t"].partitions[number]


def assigned(state: ControllerState, number: int = 0) -> Replicas:
    return state.topics["t"].assignment[number]


def stops(actions: list[Action]) -> dict[int, tuple[int, ...]]:
    """By broker: the partitions whose logs it deletes."""
    found = [action for action in actions if isinstance(action, StopReplicas)]
    assert all(action.delete and action.lives_on for action in found)
    return {action.broker: action.partitions for action in found}


def kinds(actions: list[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


# Kafka's own example: {1,2,3} becomes {4,5,6} (the comment on KafkaController.onPartitionReassignment).
def test_replicas_are_added_first_and_the_old_ones_removed_once_the_new_are_in_sync() -> None:
    state = one()
    refused, actions = alter(state, 4, 5, 6)
    assert refused is None
    both = replicas((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert assigned(state) == both
    assert (of(state).leader, of(state).leader_epoch, of(state).isr) == (1, 8, ids(1, 2, 3))
    # The znode first: from now on a new controller goes on.
    assert kinds(actions) == [WriteTopic, UpdateStates, Lead, Publish]
    assert state.reassignments.listed(state.reassignments.under_way()) == {T0: both}

    assert joined(state, 1, 2, 3, 4, 5) == []
    actions = joined(state, 1, 2, 3, 4, 5, 6)
    assert assigned(state) == replicas((4, 5, 6))
    assert (of(state).leader, of(state).leader_epoch, of(state).isr) == (4, 9, ids(4, 5, 6))
    # The znode last: until then it says what is left to do.
    assert kinds(actions) == [UpdateStates, Lead, *[StopReplicas] * 3, Publish, WriteTopic]
    assert stops(actions) == {1: (0,), 2: (0,), 3: (0,)}
    assert state.reassignments.under_way() == []
    assert not state.reassignments.is_due


@pytest.mark.parametrize(
    ("before", "target", "leader"),
    [
        ((1, 2, 3), (2, 3), 2),
        ((1, 2, 3), (1, 2), 1),
        # Only the order changes: the preferred leader is another one, and an election is not asked for.
        ((1, 2, 3), (3, 1, 2), 1),
    ],
)
def test_without_new_replicas_a_reassignment_is_complete_at_once(
    before: tuple[int, ...], target: tuple[int, ...], leader: int
) -> None:
    state = one(before)
    refused, actions = alter(state, *target)
    assert refused is None
    assert assigned(state) == replicas(target)
    assert (of(state).leader, of(state).leader_epoch) == (leader, 8)
    assert set(of(state).isr) == set(target)
    assert stops(actions) == dict.fromkeys(set(before) - set(target), (0,))
    assert state.reassignments.under_way() == []


def test_the_leader_stays_if_it_is_a_target() -> None:
    state = one((1, 2))
    alter(state, 3, 1)
    joined(state, 1, 2, 3)
    assert (of(state).leader, of(state).isr) == (1, ids(1, 3))
    assert assigned(state) == replicas((3, 1))


def test_a_target_that_shuts_down_does_not_become_leader() -> None:
    state = one((1, 2))
    alter(state, 3, 4)
    set_isr(state, 1, 1, 2, 3, 4)
    state.shutting_down.add(BrokerId(3))
    state.complete_reassignments()
    assert (assigned(state), of(state).leader) == (replicas((3, 4)), 4)


def test_repeating_a_request_changes_nothing() -> None:
    state = one((1, 2))
    alter(state, 3, 2)
    before = of(state)
    assert alter(state, 3, 2) == (None, [])
    assert of(state) == before
    assert alter(one((1, 2)), 1, 2) == (None, [])


# ---- cancelled and replaced ----


def test_a_cancelled_reassignment_deletes_what_it_added() -> None:
    state = one()
    alter(state, 4, 5, 3)
    joined(state, 1, 2, 3, 4)
    refused, actions = alter(state, cancel=True)
    assert refused is None
    # The order of those that were targets is not restored, as in Kafka.
    assert assigned(state) == replicas((3, 1, 2))
    assert (of(state).leader, of(state).isr) == (1, ids(1, 2, 3))
    assert stops(actions) == {4: (0,), 5: (0,)}
    assert state.reassignments.under_way() == []


def test_cancelling_moves_the_leader_off_an_added_replica() -> None:
    state = one((1, 2))
    alter(state, 3, 4)
    set_isr(state, 3, 1, 2, 3)
    alter(state, cancel=True)
    assert (of(state).leader, of(state).isr) == (1, ids(1, 2))


def test_another_reassignment_replaces_the_first() -> None:
    state = one((1, 2))
    alter(state, 3, 4)
    refused, actions = alter(state, 4, 5)
    assert refused is None
    assert assigned(state) == replicas((4, 5, 1, 2), (4, 5), (1, 2))
    assert stops(actions) == {3: (0,)}
    assert kinds(actions)[0] is WriteTopic
    joined(state, 1, 2, 4, 5)
    assert assigned(state) == replicas((4, 5))


# If this failed, the only copy of acknowledged records would be deleted, as Kafka's controller does.
def test_the_only_in_sync_replicas_are_not_deleted() -> None:
    state = one((1, 2))
    alter(state, 3, 4)
    set_isr(state, 3, 3)
    before = assigned(state)
    refused, actions = alter(state, cancel=True)
    assert isinstance(refused, InvalidReplicaAssignment)
    assert "only in-sync replicas" in str(refused)
    assert actions == []
    assert assigned(state) == before


# ---- refused ----


@pytest.mark.parametrize(
    ("number", "target", "error", "message"),
    [
        (0, (), InvalidReplicaAssignment, "Empty replica list"),
        (0, (1, 1), InvalidReplicaAssignment, "Duplicate replica ids"),
        (0, (1, -2), InvalidReplicaAssignment, "Invalid broker id"),
        (0, (1, 9), InvalidReplicaAssignment, "brokers that are not alive"),
        (0, (1, 4), InvalidReplicaAssignment, "brokers that are not alive"),
        (0, None, NoReassignmentInProgress, ""),
        (7, None, NoReassignmentInProgress, ""),
        (7, (1, 2), UnknownTopicOrPartition, "The partition does not exist."),
        (1, (1, 2), UnknownServerError, "cannot be read"),
    ],
)
def test_requests_are_refused_with_kafkas_errors(
    number: int, target: tuple[int, ...] | None, error: type[KafkaProtocolError], message: str
) -> None:
    both = {0: replicas((1, 2)), 1: replicas((1, 2))}
    state = cluster(both, {0: partition((1, 2)), 1: UNREADABLE}, alive=(1, 2, 3))
    asked = TopicPartition("t", number)
    results, actions = state.reassignments.alter({asked: None if target is None else ids(*target)})
    assert isinstance(results[asked], error)
    assert message in str(results[asked])
    assert actions == []


def test_a_dead_broker_may_stay_a_replica_but_not_become_one() -> None:
    state = one((1, 2), alive=(1, 3))
    assert alter(state, 2, 3)[0] is None
    assert isinstance(alter(one((1, 2), alive=(1, 3)), 1, 4)[0], InvalidReplicaAssignment)


def test_one_request_refuses_some_partitions_and_moves_others_of_the_topic_together() -> None:
    both = {0: replicas((1, 2)), 1: replicas((1, 2)), 2: replicas((1, 2))}
    state = cluster(both, {number: partition((1, 2)) for number in both})
    results, actions = state.reassignments.alter(
        {T0: ids(3, 4), T1: ids(5, 6), TopicPartition("t", 2): ids(1), TopicPartition("u", 0): ids(1)}
    )
    assert [error is None for error in results.values()] == [True, True, True, False]
    written = [action.topic.assignment for action in actions if isinstance(action, WriteTopic)]
    # What is complete at once is written after its replicas were told, the rest before.
    assert [item[2] for item in written] == [replicas((1, 2)), replicas((1,))]
    assert all(item[0] == replicas((3, 4, 1, 2), (3, 4), (1, 2)) for item in written)
    updates = [set(action.states) for action in actions if isinstance(action, UpdateStates)]
    assert updates == [{0, 1}, {2}]


# ---- a new controller, and brokers that come and go ----


UNDER_WAY = replicas((3, 4, 1, 2), (3, 4), (1, 2))


def test_a_new_controller_goes_on_with_what_it_reads() -> None:
    state = ControllerState()
    state.elected(ControllerEpoch(6))
    state.brokers_changed(brokers(1, 2, 3, 4))
    actions = state.topic_loaded("t", ID, ID, {0: UNDER_WAY}, {0: partition((1, 2))}, {})
    # A new epoch, because the last controller may not have told the leader of the new replicas.
    assert of(state).leader_epoch == 8
    topic = state.topics["t"]
    assert actions == [UpdateStates("t", {0: of(state)}), Lead(topic, (0,)), Publish(topic, (0,))]
    assert state.reassignments.listed([T0, T1]) == {T0: UNDER_WAY}
    state.settled("t")
    assert state.topic_loaded("t", ID, ID, {0: UNDER_WAY}, {0: of(state)}, {}) == []
    assert stops(joined(state, 1, 2, 3, 4)) == {1: (0,), 2: (0,)}


# If this failed, a controller that dies before the last write would leave the old replicas for good.
def test_a_new_controller_completes_what_was_about_to_be_complete() -> None:
    state = cluster({0: UNDER_WAY}, {0: partition((1, 3, 4))})
    assert state.reassignments.is_due
    actions = state.complete_reassignments()
    assert assigned(state) == replicas((3, 4))
    assert (of(state).leader, of(state).isr) == (3, ids(3, 4))
    assert stops(actions) == {1: (0,), 2: (0,)}
    assert kinds(actions)[-1] is WriteTopic


def test_a_reassignment_waits_for_a_dead_target_and_goes_on_when_it_comes_back() -> None:
    state = one((1, 2))
    alter(state, 3, 2)
    state.brokers_changed(brokers(1, 2))
    assert of(state).leader == 1
    actions = state.brokers_changed(brokers(1, 2) | {BrokerId(3): BrokerInfo(BrokerId(3), (), epoch=20)})
    assert Lead(state.topics["t"], (0,), to=frozenset(ids(3))) in actions
    joined(state, 1, 2, 3)
    assert assigned(state) == replicas((3, 2))


def test_a_target_that_fell_out_of_the_isr_is_waited_for_again() -> None:
    state = one((1, 2))
    alter(state, 3, 2)
    now = of(state)
    state.alter_isr(now.leader, EPOCH, [NewIsr("t", NO_TOPIC_ID, 0, now.leader_epoch, ids(1, 2, 3), 3)])
    state.brokers_changed(brokers(1, 2, 4))
    assert state.complete_reassignments() == []
    assert assigned(state).is_reassigned


def test_a_leader_that_dies_in_a_reassignment_is_replaced_by_any_replica_in_sync() -> None:
    state = one((1, 2))
    alter(state, 3, 4)
    joined(state, 1, 2, 3)
    state.brokers_changed(brokers(2, 3, 4))
    assert (of(state).leader, of(state).isr) == (3, ids(2, 3))
    joined(state, 2, 3, 4)
    assert assigned(state) == replicas((3, 4))


def test_a_partition_without_live_replicas_is_completed_without_a_leader() -> None:
    state = cluster({0: replicas((1, 2))}, {0: partition((2,), leader=NO_LEADER)}, alive=(1, 3))
    assert alter(state, 2)[0] is None
    assert (assigned(state), of(state).leader, of(state).isr) == (replicas((2,)), NO_LEADER, ids(2))


# ---- deletion ----


def test_a_deletion_waits_for_the_reassignment_and_refuses_another() -> None:
    state = one((1, 2))
    alter(state, 3, 4)
    assert state.deletion_requested("t", state.topics["t"]) == []
    assert not state.waits_only_for_dead_brokers("t")
    assert isinstance(alter(state, cancel=True)[0], UnknownTopicOrPartition)
    assert isinstance(alter(state, 5)[0], UnknownTopicOrPartition)
    results, _ = state.elections.requested([T0], ElectionType.PREFERRED)
    assert isinstance(results[T0], InvalidTopicException)
    actions = joined(state, 1, 2, 3, 4)
    assert any(isinstance(action, Withdraw) for action in actions)
    deleted = [action for action in actions if isinstance(action, StopReplicas) and not action.lives_on]
    assert [action.broker for action in deleted] == [3, 4]
    assert state.deletions.keys() == {"t"}
    assert state.waiting_deletions == set()


# ---- the znode /admin/reassign_partitions ----


def test_the_znode_asks_and_loses_what_is_complete() -> None:
    state = cluster({0: replicas((1, 2)), 1: replicas((1, 2))}, {n: partition((1, 2)) for n in (0, 1)})
    gone = TopicPartition("gone", 0)
    results, actions = state.reassignments.asked_by_znode(
        {T0: ids(3, 2), T1: ids(2, 1), gone: ids(1), TopicPartition("t", 7): ids()}
    )
    assert [type(error) for error in results.values()] == [
        type(None),
        type(None),
        UnknownTopicOrPartition,
        InvalidReplicaAssignment,
    ]
    dropped = [set(action.partitions) for action in actions if isinstance(action, DropReassignments)]
    assert sorted(map(sorted, dropped)) == [[gone, TopicPartition("t", 7)], [T1]]
    # The change of the znode is read, and asks for nothing new.
    assert state.reassignments.asked_by_znode({T0: ids(3, 2)}) == ({T0: None}, [])
    assert joined(state, 1, 2, 3)[-1] == DropReassignments({T0: ids(3, 2)})


def test_the_znode_may_ask_for_a_broker_that_is_dead() -> None:
    state = one((1, 2), alive=(1, 2))
    results, _ = state.reassignments.asked_by_znode({T0: ids(3, 2)})
    assert results == {T0: None}
    assert assigned(state) == replicas((3, 2, 1), (3,), (1,))


def test_a_request_of_a_client_supplants_that_of_the_znode() -> None:
    state = one((1, 2))
    state.reassignments.asked_by_znode({T0: ids(3, 2)})
    _, actions = alter(state, 4, 2)
    assert actions[0] == DropReassignments({T0: None})
    assert not [item for item in joined(state, 1, 2, 4) if isinstance(item, DropReassignments)]


# ---- requests ----


# If this failed, a stop that waits for a slow broker would delete the log of a replica that was added again.
def test_a_stop_after_a_reassignment_names_the_leader_epoch_it_was_decided_in() -> None:
    state = one((1, 2))
    _, actions = alter(state, 1)
    [stop] = [action for action in actions if isinstance(action, StopReplicas)]
    for lives_on, epoch in ((stop.lives_on, 8), (False, EPOCH_DURING_DELETE)):
        pending = Pending()
        pending.stop(state.topics["t"], 0, stop.delete, lives_on)
        request = pending.take()
        assert request is not None
        assert request.api_key == STOP_REPLICA
        entry = request.topics["t"].partitions[0]
        assert (entry["leader_epoch"], entry["delete_partition"]) == (epoch, True)
