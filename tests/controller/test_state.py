"""The controller's state machine.

If one failed, a topic would stay without leaders, a deleted one would come back, or the work of two
controllers would mix.
"""

from __future__ import annotations

from cluster.controller.state import (
    UNREADABLE,
    CloseTopic,
    Configure,
    ControllerState,
    CreateStates,
    DeleteLogs,
    DropDeletion,
    OpenPartitions,
    Publish,
    RemoveTopic,
    TakeOffline,
    UpdateState,
    Withdraw,
    WriteTopic,
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

ONE, TWO = BrokerId(1), BrokerId(2)
ID = new_topic_id()


def controller(*live: BrokerId) -> ControllerState:
    state = ControllerState(ONE)
    state.elected(ControllerEpoch(5))
    state.brokers_changed({broker: BrokerInfo(broker, ()) for broker in live})
    return state


def partition(leader: BrokerId, epoch: int, *isr: BrokerId) -> PartitionState:
    return PartitionState(leader, LeaderEpoch(epoch), isr, ControllerEpoch(4), zk_version=3)


def test_a_new_topic_gets_leaders_and_is_opened_before_it_is_published() -> None:
    state = controller(ONE)
    actions = state.topic_loaded("t", ID, ID, {0: Replicas((ONE,)), 1: Replicas((ONE,))}, {}, {"a": "b"})
    first = PartitionState(ONE, LeaderEpoch(0), (ONE,), ControllerEpoch(5))
    assert actions == [
        CreateStates("t", {0: first, 1: first}),
        OpenPartitions(state.topics["t"], (0, 1), frozenset({0, 1})),
        Publish(state.topics["t"]),
    ]


def test_a_known_topic_keeps_its_leader_and_epoch() -> None:
    state = controller(ONE)
    actions = state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, {0: partition(ONE, 7, ONE)}, {})
    assert actions == [OpenPartitions(state.topics["t"], (0,)), Publish(state.topics["t"])]
    assert state.topics["t"].partitions[0].leader_epoch == 7


def test_loading_an_open_topic_again_opens_nothing() -> None:
    state = controller(ONE)
    arguments = ("t", ID, ID, {0: Replicas((ONE,))}, {0: partition(ONE, 7, ONE)})
    state.topic_loaded(*arguments, {})
    state.settled("t")
    assert state.topic_loaded(*arguments, {}) == [Publish(state.topics["t"])]
    state.settled("t")
    changed = state.topic_loaded(*arguments, {"a": "b"})
    assert changed == [Configure(state.topics["t"]), Publish(state.topics["t"])]


# If this failed, work that a lost session interrupted would be taken for done.
def test_actions_of_an_unsettled_topic_are_repeated() -> None:
    state = controller(ONE)
    states = {0: partition(ONE, 7, ONE)}
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, states, {})
    state.settled("t")
    grown = {0: Replicas((ONE,)), 1: Replicas((ONE,))}
    state.topic_loaded("t", ID, ID, grown, dict(states), {})
    both = dict(state.topics["t"].partitions)
    again = state.topic_loaded("t", ID, ID, grown, both, {})
    assert again == [OpenPartitions(state.topics["t"], (0, 1)), Publish(state.topics["t"])]
    state.settled("t")
    assert state.topic_loaded("t", ID, ID, grown, both, {}) == [Publish(state.topics["t"])]


# If this failed, a znode that an operator must repair would be overwritten, or its partition served with an
# old epoch.
def test_a_partition_with_an_unreadable_state_is_left_alone() -> None:
    state = ControllerState(ONE, unclean_election=True)
    state.elected(ControllerEpoch(5))
    state.brokers_changed({ONE: BrokerInfo(ONE, ())})
    assignment = {0: Replicas((ONE,)), 1: Replicas((ONE,))}
    states = {0: UNREADABLE, 1: partition(ONE, 7, ONE)}
    actions = state.topic_loaded("t", ID, ID, assignment, states, {})
    assert actions == [OpenPartitions(state.topics["t"], (1,)), Publish(state.topics["t"])]
    assert state.topics["t"].partitions[0].leader == NO_LEADER
    assert state.brokers_changed({ONE: BrokerInfo(ONE, ())}) == []


def test_only_added_partitions_are_opened() -> None:
    state = controller(ONE)
    states = {0: partition(ONE, 7, ONE)}
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, states, {})
    state.settled("t")
    actions = state.topic_loaded("t", ID, ID, {0: Replicas((ONE,)), 1: Replicas((ONE,))}, dict(states), {})
    assert isinstance(actions[0], CreateStates)
    assert list(actions[0].states) == [1]
    assert OpenPartitions(state.topics["t"], (1,), frozenset({1})) in actions


def test_a_topic_without_an_id_gets_one() -> None:
    state = controller(ONE)
    actions = state.topic_loaded("t", NO_TOPIC_ID, ID, {0: Replicas((ONE,))}, {0: partition(ONE, 0, ONE)}, {})
    assert actions[0] == WriteTopic(state.topics["t"])
    assert state.topics["t"].id == ID


def test_a_dead_leader_is_replaced_from_the_isr_in_a_new_epoch() -> None:
    state = controller(ONE)
    assignment = {0: Replicas((TWO, ONE)), 1: Replicas((TWO, ONE))}
    actions = state.topic_loaded(
        "t", ID, ID, assignment, {0: partition(TWO, 7, TWO, ONE), 1: partition(TWO, 7, TWO)}, {}
    )
    moved = state.topics["t"].partitions
    assert (moved[0].leader, moved[0].leader_epoch, moved[0].isr) == (ONE, 8, (ONE,))
    assert (moved[1].leader, moved[1].leader_epoch, moved[1].isr) == (NO_LEADER, 8, (TWO,))
    assert moved[0].controller_epoch == 5
    updates = [action for action in actions if isinstance(action, UpdateState)]
    assert [(item.partition, item.expected_version) for item in updates] == [
        (TopicPartition("t", 0), 3),
        (TopicPartition("t", 1), 3),
    ]


# If this failed, acks=all would wait for a replica whose broker is dead, or count it.
def test_a_dead_broker_leaves_the_isr_in_a_new_epoch() -> None:
    state = controller(ONE, TWO)
    assignment = {0: Replicas((ONE, TWO)), 1: Replicas((ONE, TWO)), 2: Replicas((ONE, TWO))}
    states = {0: partition(ONE, 7, ONE, TWO), 1: partition(ONE, 7, ONE), 2: partition(ONE, 7, TWO)}
    state.topic_loaded("t", ID, ID, assignment, dict(states), {})
    assert [state.topics["t"].partitions[number] for number in (0, 1)] == [states[0], states[1]]
    actions = state.brokers_changed({ONE: BrokerInfo(ONE, ())})
    alone = PartitionState(ONE, LeaderEpoch(8), (ONE,), ControllerEpoch(5), zk_version=3)
    assert actions == [
        UpdateState(TopicPartition("t", 0), alone, 3),
        UpdateState(TopicPartition("t", 2), alone, 3),
        OpenPartitions(state.topics["t"], (0, 2)),
        Publish(state.topics["t"]),
    ]
    assert state.topics["t"].partitions == {0: alone, 1: states[1], 2: alone}
    assert state.brokers_changed({ONE: BrokerInfo(ONE, ())}) == []


# If this failed, the data plane would count replicas that do not exist.
def test_changed_replicas_of_a_partition_are_published() -> None:
    state = controller(ONE)
    states = {0: partition(ONE, 7, ONE), 1: partition(ONE, 7, ONE)}
    assignment = {0: Replicas((ONE,)), 1: Replicas((ONE,))}
    state.topic_loaded("t", ID, ID, assignment, dict(states), {})
    state.settled("t")
    assignment[1] = Replicas((ONE, TWO))
    actions = state.topic_loaded("t", ID, ID, assignment, dict(states), {})
    assert actions == [OpenPartitions(state.topics["t"], (1,)), Publish(state.topics["t"])]


def test_a_broker_that_comes_back_leads_its_own_partitions() -> None:
    state = controller()
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, {0: partition(ONE, 7, ONE)}, {})
    assert state.topics["t"].partitions[0].leader == NO_LEADER
    actions = state.brokers_changed({ONE: BrokerInfo(ONE, ())})
    assert state.topics["t"].partitions[0].leader_epoch == 9
    assert OpenPartitions(state.topics["t"], (0,)) in actions
    assert state.brokers_changed({ONE: BrokerInfo(ONE, ())}) == []


def test_only_members_of_the_isr_lead_unless_unclean_elections_are_allowed() -> None:
    unclean = ControllerState(ONE, unclean_election=True)
    unclean.elected(ControllerEpoch(5))
    unclean.brokers_changed({ONE: BrokerInfo(ONE, ())})
    unclean.topic_loaded("t", ID, ID, {0: Replicas((TWO, ONE))}, {0: partition(TWO, 7, TWO)}, {})
    assert unclean.topics["t"].partitions[0].isr == (ONE,)


def test_unclean_elections_may_be_allowed_later() -> None:
    state = controller(ONE)
    state.topic_loaded("t", ID, ID, {0: Replicas((TWO, ONE))}, {0: partition(TWO, 7, TWO)}, {})
    assert state.topics["t"].partitions[0].leader == NO_LEADER
    assert state.unclean_election_changed(False) == []
    assert OpenPartitions(state.topics["t"], (0,)) in state.unclean_election_changed(True)
    assert state.topics["t"].partitions[0].isr == (ONE,)


def test_deletion_withdraws_closes_and_removes_in_this_order() -> None:
    state = controller(ONE)
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, {}, {})
    assert state.deletion_requested("t", True) == [Withdraw("t"), DeleteLogs("t"), RemoveTopic("t")]
    assert state.deletion_requested("t", False) == [DropDeletion("t")]
    disabled = ControllerState(ONE, delete_enabled=False)
    assert disabled.deletion_requested("t", True) == [DropDeletion("t")]


def test_settings_that_change() -> None:
    state = controller(ONE)
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, {}, {})
    actions = state.config_changed("t", {"retention.ms": "1"})
    assert actions == [Configure(state.topics["t"]), Publish(state.topics["t"])]
    assert state.config_changed("t", {"retention.ms": "1"}) == []
    assert state.config_changed("unknown", {}) == []


def test_failed_logs_are_taken_offline_and_published() -> None:
    state = controller(ONE)
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,)), 1: Replicas((ONE,))}, {}, {})
    topic = state.topics["t"]
    assert state.logs_failed("t", {1}) == [TakeOffline(topic, frozenset({1})), Publish(topic)]
    # Its logs are still here, but the topic is not.
    assert state.logs_failed("unknown", {0}) == []


def test_a_topic_that_vanished_is_closed_and_keeps_its_logs() -> None:
    state = controller(ONE)
    state.topic_loaded("t", ID, ID, {0: Replicas((ONE,))}, {}, {})
    topic = state.topics["t"]
    assert state.topic_vanished("t") == [Withdraw("t"), CloseTopic(topic)]
    assert state.topic_vanished("t") == []
