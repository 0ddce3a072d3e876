"""The controller's state machine.

If one failed, a topic would stay without leaders, a deleted one would come back, a broker would serve what
it must not, or the work of two controllers would mix.
"""

from __future__ import annotations

import pytest

from cluster.controller.actions import (
    Action,
    CreateStates,
    DropDeletion,
    Lead,
    Publish,
    PublishBrokers,
    RemoveTopic,
    StopReplicas,
    UpdateStates,
    Withdraw,
    WriteTopic,
)
from cluster.controller.state import ControllerState, NewIsr
from cluster.controller.view import UNREADABLE
from cluster.errors import (
    BrokerNotAvailable,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaStorageError,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicId,
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
    TopicInfo,
    TopicPartition,
    new_topic_id,
)

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ID = new_topic_id()
ALL = (ONE, TWO, THREE)


def brokers(*live: BrokerId, epoch: int = 10) -> dict[BrokerId, BrokerInfo]:
    return {broker: BrokerInfo(broker, (), epoch=epoch) for broker in live}


def controller(*live: BrokerId, unclean_election: bool = False) -> ControllerState:
    state = ControllerState(unclean_election=unclean_election)
    state.elected(ControllerEpoch(5))
    state.brokers_changed(brokers(*live))
    return state


def partition(leader: BrokerId, epoch: int, *isr: BrokerId) -> PartitionState:
    return PartitionState(leader, LeaderEpoch(epoch), isr, ControllerEpoch(4), zk_version=3)


def load(
    state: ControllerState,
    replicas: dict[int, tuple[BrokerId, ...]],
    states: dict[int, PartitionState],
    config: dict[str, str] | None = None,
    name: str = "t",
) -> list[Action]:
    assignment = {number: Replicas(of) for number, of in replicas.items()}
    return state.topic_loaded(name, ID, ID, assignment, states, config or {})


def replicated(*isr: BrokerId) -> ControllerState:
    """Three brokers, and partition 0 of `t`, which the first of `isr` leads in epoch 7."""
    state = controller(*ALL)
    load(state, {0: ALL}, {0: partition(isr[0], 7, *isr)})
    state.settled("t")
    return state


def of(state: ControllerState, number: int = 0) -> PartitionState:
    return state.topics["t"].partitions[number]


# ---- loading ----


def test_a_new_topic_gets_leaders_and_is_led_before_it_is_published() -> None:
    state = controller(ONE)
    actions = load(state, {0: (ONE,), 1: (ONE,)}, {}, {"a": "b"})
    first = PartitionState(ONE, LeaderEpoch(0), (ONE,), ControllerEpoch(5))
    assert actions == [
        CreateStates("t", {0: first, 1: first}),
        Lead(state.topics["t"], (0, 1), frozenset({0, 1})),
        Publish(state.topics["t"], (0, 1)),
    ]


def test_a_known_topic_keeps_its_leader_and_epoch() -> None:
    state = controller(ONE)
    actions = load(state, {0: (ONE,)}, {0: partition(ONE, 7, ONE)})
    assert actions == [Lead(state.topics["t"], (0,)), Publish(state.topics["t"], (0,))]
    assert of(state).leader_epoch == 7


def test_loading_a_sent_topic_again_sends_nothing() -> None:
    state = controller(ONE)
    load(state, {0: (ONE,)}, {0: partition(ONE, 7, ONE)})
    state.settled("t")
    assert load(state, {0: (ONE,)}, {0: partition(ONE, 7, ONE)}) == []


# If this failed, work that a lost session interrupted would be taken for done.
def test_actions_of_an_unsettled_topic_are_repeated() -> None:
    state = controller(ONE)
    states = {0: partition(ONE, 7, ONE)}
    load(state, {0: (ONE,)}, states)
    state.settled("t")
    grown = {0: (ONE,), 1: (ONE,)}
    load(state, grown, dict(states))
    both = dict(state.topics["t"].partitions)
    again = load(state, grown, both)
    assert again == [Lead(state.topics["t"], (0, 1)), Publish(state.topics["t"], (0, 1))]
    state.settled("t")
    assert load(state, grown, both) == []


# If this failed, a znode that an operator must repair would be overwritten, or its partition served with an
# old epoch.
def test_a_partition_with_an_unreadable_state_is_left_alone() -> None:
    state = controller(ONE, unclean_election=True)
    actions = load(state, {0: (ONE,), 1: (ONE,)}, {0: UNREADABLE, 1: partition(ONE, 7, ONE)})
    assert actions == [Lead(state.topics["t"], (1,)), Publish(state.topics["t"], (0, 1))]
    assert of(state).leader == NO_LEADER
    assert not [item for item in state.brokers_changed(brokers(ONE, TWO)) if isinstance(item, UpdateStates)]
    assert state.alter_isr(ONE, 10, [wish((ONE,))])[1] == []


def test_only_added_partitions_are_sent() -> None:
    state = controller(ONE)
    states = {0: partition(ONE, 7, ONE)}
    load(state, {0: (ONE,)}, states)
    state.settled("t")
    actions = load(state, {0: (ONE,), 1: (ONE,)}, dict(states))
    assert isinstance(actions[0], CreateStates)
    assert list(actions[0].states) == [1]
    assert actions[1:] == [Lead(state.topics["t"], (1,), frozenset({1})), Publish(state.topics["t"], (1,))]


def test_a_topic_without_an_id_gets_one() -> None:
    state = controller(ONE)
    actions = state.topic_loaded("t", NO_TOPIC_ID, ID, {0: Replicas((ONE,))}, {0: partition(ONE, 0, ONE)}, {})
    assert actions[0] == WriteTopic(state.topics["t"])
    assert state.topics["t"].id == ID


# If this failed, the data plane would count replicas that do not exist.
def test_changed_replicas_of_a_partition_are_sent() -> None:
    state = controller(ONE)
    states = {0: partition(ONE, 7, ONE), 1: partition(ONE, 7, ONE)}
    load(state, {0: (ONE,), 1: (ONE,)}, dict(states))
    state.settled("t")
    actions = load(state, {0: (ONE,), 1: (ONE, TWO)}, dict(states))
    topic = state.topics["t"]
    assert actions == [UpdateStates("t", {1: of(state, 1)}), Lead(topic, (1,)), Publish(topic, (1,))]
    assert [of(state, number).leader_epoch for number in (0, 1)] == [7, 8]


# ---- brokers that come and go ----


def test_a_dead_leader_is_replaced_from_the_isr_in_a_new_epoch() -> None:
    state = controller(ONE)
    replicas = {0: (TWO, ONE), 1: (TWO, ONE)}
    actions = load(state, replicas, {0: partition(TWO, 7, TWO, ONE), 1: partition(TWO, 7, TWO)})
    moved = state.topics["t"].partitions
    assert (moved[0].leader, moved[0].leader_epoch, moved[0].isr) == (ONE, 8, (ONE,))
    assert (moved[1].leader, moved[1].leader_epoch, moved[1].isr) == (NO_LEADER, 8, (TWO,))
    assert moved[0].controller_epoch == 5
    assert moved[0].zk_version == 3
    assert actions[0] == UpdateStates("t", moved)


# If this failed, acks=all would wait for a replica whose broker is dead, or count it.
def test_a_dead_broker_leaves_the_isr_in_a_new_epoch() -> None:
    state = controller(ONE, TWO)
    replicas = {0: (ONE, TWO), 1: (ONE, TWO), 2: (ONE, TWO)}
    states = {0: partition(ONE, 7, ONE, TWO), 1: partition(ONE, 7, ONE), 2: partition(ONE, 7, TWO)}
    load(state, replicas, dict(states))
    assert (of(state, 0), of(state, 1)) == (states[0], states[1])
    actions = state.brokers_changed(brokers(ONE))
    alone = PartitionState(ONE, LeaderEpoch(8), (ONE,), ControllerEpoch(5), zk_version=3)
    assert actions == [
        UpdateStates("t", {0: alone, 2: alone}),
        Lead(state.topics["t"], (0, 2)),
        Publish(state.topics["t"], (0, 2)),
        PublishBrokers(),
    ]
    assert state.topics["t"].partitions == {0: alone, 1: states[1], 2: alone}
    assert state.brokers_changed(brokers(ONE)) == []


def test_a_broker_that_comes_back_leads_its_own_partitions_and_learns_everything() -> None:
    state = controller(TWO)
    load(state, {0: (ONE,), 1: (TWO,)}, {0: partition(ONE, 7, ONE), 1: partition(TWO, 7, TWO)})
    assert of(state).leader == NO_LEADER
    actions = state.brokers_changed(brokers(ONE, TWO))
    assert (of(state).leader, of(state).leader_epoch) == (ONE, 9)
    topic, came = state.topics["t"], frozenset({ONE})
    assert actions[-3:] == [PublishBrokers(), Lead(topic, (0,), to=came), Publish(topic, (0, 1), came)]
    assert Lead(topic, (0,)) in actions
    assert state.brokers_changed(brokers(ONE, TWO)) == []


# If this failed, a broker that lost its last records in a crash would go on leading with the old epoch.
def test_a_broker_that_registers_again_has_failed_in_between() -> None:
    state = replicated(ONE, TWO)
    again = brokers(ONE, epoch=11) | brokers(TWO, THREE)
    assert state.registered_again(again) == {ONE}
    state.brokers_changed(brokers(TWO, THREE))
    actions = state.brokers_changed(again)
    assert (of(state).leader, of(state).leader_epoch, of(state).isr) == (TWO, 8, (TWO,))
    assert Lead(state.topics["t"], (0,), to=frozenset({ONE})) in actions
    assert state.registered_again(again) == frozenset()


# If this failed, a broker would hear of an epoch that is not written yet, and refuse it once it is.
def test_brokers_that_come_and_go_together_make_one_election() -> None:
    state = controller(ONE)
    load(state, {0: (ONE, TWO)}, {0: partition(ONE, 7, ONE, TWO)})
    state.settled("t")
    assert (of(state).leader_epoch, of(state).isr) == (8, (ONE,))
    load(state, {0: (TWO,)}, {0: partition(NO_LEADER, 3, TWO)}, name="other")
    actions = state.brokers_changed(brokers(TWO))
    written = [number for item in actions if isinstance(item, UpdateStates) for number in item.states.items()]
    assert [(state.leader, state.leader_epoch) for _, state in written] == [(NO_LEADER, 9), (TWO, 4)]


# If this failed, a dead process would keep its leaderships until its session ends.
def test_a_broker_that_refuses_connections_leads_nothing_until_it_answers_again() -> None:
    state = replicated(ONE, TWO, THREE)
    actions = state.connection_refused(ONE)
    assert (of(state).leader, of(state).isr) == (TWO, (TWO, THREE))
    assert actions[-1] == PublishBrokers()
    assert [broker.id for broker in state.alive()] == [TWO, THREE]
    assert state.connection_refused(ONE) == []
    assert state.connection_refused(BrokerId(9)) == []
    assert state.connection_made(ONE) == [PublishBrokers()]
    assert of(state).leader == TWO
    assert [broker.id for broker in state.alive()] == [ONE, TWO, THREE]


def test_only_members_of_the_isr_lead_unless_unclean_elections_are_allowed() -> None:
    state = controller(ONE, unclean_election=True)
    load(state, {0: (TWO, ONE)}, {0: partition(TWO, 7, TWO)})
    assert of(state).isr == (ONE,)
    own = controller(ONE, unclean_election=True)
    load(own, {0: (TWO, ONE)}, {0: partition(TWO, 7, TWO)}, {"unclean.leader.election.enable": "false"})
    assert of(own).leader == NO_LEADER
    assert (state.elections.unclean, own.elections.unclean) == (1, 0)


def test_unclean_elections_may_be_allowed_later() -> None:
    state = controller(ONE)
    load(state, {0: (TWO, ONE)}, {0: partition(TWO, 7, TWO)})
    assert of(state).leader == NO_LEADER
    assert state.unclean_election_changed(False) == []
    assert Lead(state.topics["t"], (0,)) in state.unclean_election_changed(True)
    assert of(state).isr == (ONE,)


def test_a_topics_own_settings_allow_an_unclean_election() -> None:
    state = controller(ONE)
    load(state, {0: (TWO, ONE)}, {0: partition(TWO, 7, TWO)})
    assert state.config_changed("t", {"retention.ms": "1"}) == []
    assert state.config_changed("t", {"unclean.leader.election.enable": "TRUE"}) != []
    assert of(state).leader == ONE
    assert state.config_changed("unknown", {}) == []


# If this failed, a partition whose disk failed would keep a leader that cannot serve it.
def test_a_replica_on_a_failed_disk_leads_nothing() -> None:
    state = replicated(ONE, TWO)
    asked = state.log_dir_failed(ONE)
    assert asked == [Lead(state.topics["t"], (0,), to=frozenset({ONE}))]
    where = TopicPartition("t", 0)
    actions = state.replicas_answered(ONE, {where: KafkaStorageError.code})
    assert (of(state).leader, of(state).isr) == (TWO, (TWO,))
    assert not state.is_online("t", 0, ONE)
    assert actions[-1] == Publish(state.topics["t"], (0,))
    assert state.replicas_answered(ONE, {where: KafkaStorageError.code}) == []
    state.replicas_answered(ONE, {where: 0})
    assert state.is_online("t", 0, ONE)


# ---- controlled shutdown ----


# If this failed, clients of a broker that stops would see errors.
def test_a_broker_that_shuts_down_hands_its_leaderships_over() -> None:
    state = controller(*ALL)
    replicas = {0: ALL, 1: (TWO, ONE), 2: (ONE,), 3: (ONE, TWO)}
    states = {
        0: partition(ONE, 7, ONE, TWO, THREE),
        1: partition(TWO, 7, TWO, ONE),
        2: partition(ONE, 7, ONE),
        3: partition(ONE, 7, ONE),
    }
    load(state, replicas, states)
    remaining, actions = state.shut_down(ONE, 10)
    assert remaining == {TopicPartition("t", 3)}
    assert actions[0] == StopReplicas(state.topics["t"], ONE, (1,), delete=False)
    assert (of(state, 0).leader, of(state, 0).isr) == (TWO, (TWO, THREE))
    assert (of(state, 1).leader, of(state, 1).isr) == (TWO, (TWO,))
    assert (of(state, 2), of(state, 3)) == (states[2], states[3])
    # A new topic does not use it, and a new process does.
    load(state, {0: (ONE, TWO)}, {}, name="new")
    assert state.topics["new"].partitions[0].leader == TWO
    state.brokers_changed(brokers(TWO, THREE))
    assert state.shutting_down == set()


def test_only_a_registered_broker_shuts_down_in_its_own_epoch() -> None:
    state = replicated(ONE, TWO)
    with pytest.raises(StaleBrokerEpoch):
        state.shut_down(ONE, 9)
    with pytest.raises(BrokerNotAvailable):
        state.shut_down(BrokerId(9), -1)
    assert state.shut_down(ONE, -1)[0] == set()


# ---- in-sync replicas ----


def wish(
    isr: tuple[BrokerId, ...], leader_epoch: int = 7, partition_epoch: int = 3, number: int = 0
) -> NewIsr:
    return NewIsr("", ID, number, LeaderEpoch(leader_epoch), isr, partition_epoch)


def test_a_leader_changes_its_isr() -> None:
    state = replicated(ONE, TWO)
    answers, actions = state.alter_isr(ONE, 10, [wish(ALL)])
    expected = PartitionState(ONE, LeaderEpoch(7), ALL, ControllerEpoch(5), zk_version=3)
    assert answers == [expected]
    assert actions == [UpdateStates("t", {0: expected}), Publish(state.topics["t"], (0,))]
    state.states_written("t", {0: 4})
    # Asked again after a lost answer, also with the old version, it is answered and not written again.
    answers, actions = state.alter_isr(ONE, 10, [wish(ALL)])
    assert (answers, actions) == ([of(state)], [])
    assert of(state).zk_version == 4


# If this failed, an ISR would have a replica that lacks records, and it could become the leader.
@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (wish((ONE,), leader_epoch=6), FencedLeaderEpoch),
        (wish((ONE,), leader_epoch=8), NotController),
        (wish((ONE,), partition_epoch=4), NotController),
        (wish((ONE,), partition_epoch=2), InvalidUpdateVersion),
        (wish((ONE,), number=1), UnknownTopicOrPartition),
        (wish((TWO, THREE)), InvalidRequest),
        (wish((ONE, BrokerId(9))), InvalidRequest),
        (NewIsr("", new_topic_id(), 0, LeaderEpoch(7), (ONE,), 3), UnknownTopicId),
        (NewIsr("u", NO_TOPIC_ID, 0, LeaderEpoch(7), (ONE,), 3), UnknownTopicOrPartition),
    ],
)
def test_an_outdated_or_false_isr_is_refused(asked: NewIsr, error: type[Exception]) -> None:
    state = replicated(ONE, TWO)
    before = of(state)
    answers, actions = state.alter_isr(ONE, 10, [asked])
    assert [type(answer) for answer in answers] == [error]
    assert (of(state), actions) == (before, [])


def test_only_the_leader_changes_the_isr_and_only_with_live_replicas() -> None:
    state = replicated(ONE, TWO)
    assert isinstance(state.alter_isr(TWO, 10, [wish((ONE,))])[0][0], FencedLeaderEpoch)
    with pytest.raises(StaleBrokerEpoch):
        state.alter_isr(ONE, 9, [wish((ONE,))])
    state.connection_refused(THREE)
    assert isinstance(state.alter_isr(ONE, 10, [wish(ALL)])[0][0], IneligibleReplica)


# ---- deletion ----


def test_deletion_withdraws_stops_and_removes_in_this_order() -> None:
    state = replicated(ONE, TWO, THREE)
    topic = state.topics["t"]
    actions = state.deletion_requested("t", topic)
    stops = [StopReplicas(topic, broker, (0,), delete=True) for broker in ALL]
    assert actions == [Withdraw(topic, deleted=True), *stops]
    assert state.deletion_requested("t", topic) == []
    assert state.replicas_deleted(ONE, "t", {0: 0}) == []
    assert state.replicas_deleted(TWO, "t", {0: 0}) == []
    assert not state.waits_only_for_dead_brokers("t")
    assert state.replicas_deleted(THREE, "t", {0: 0}) == [RemoveTopic("t")]
    state.topic_removed("t")
    assert state.topics == {}
    assert state.deletion_requested("t", None) == [DropDeletion("t")]


# If this failed, a topic that was deleted while a broker was down would come back with it.
def test_deletion_waits_for_dead_brokers() -> None:
    state = replicated(ONE, TWO)
    state.brokers_changed(brokers(ONE, TWO))
    topic = state.topics["t"]
    state.deletion_requested("t", topic)
    state.replicas_deleted(ONE, "t", {0: 0})
    state.replicas_deleted(TWO, "t", {0: 0})
    assert state.waits_only_for_dead_brokers("t")
    assert load(state, {0: ALL}, {}) == []
    came = state.brokers_changed(brokers(*ALL))
    assert StopReplicas(topic, THREE, (0,), delete=True) in came
    assert not [item for item in came if isinstance(item, Lead | Publish)]
    assert state.replicas_deleted(THREE, "t", {0: 0}) == [RemoveTopic("t")]


# If this failed, the deletion of a topic on a failed disk would be waited for until the client gives up.
def test_deletion_does_not_wait_for_a_failed_disk() -> None:
    state = replicated(ONE)
    topic = state.topics["t"]
    state.deletion_requested("t", topic)
    for broker in (TWO, THREE):
        state.replicas_deleted(broker, "t", {0: 0})
    assert not state.waits_only_for_dead_brokers("t")
    assert state.replicas_deleted(ONE, "t", {0: KafkaStorageError.code}) == []
    assert state.waits_only_for_dead_brokers("t")
    state.brokers_changed(brokers(TWO, THREE))
    came = state.brokers_changed(brokers(ONE, epoch=11) | brokers(TWO, THREE))
    # It may have been away when the topic was hidden from clients.
    assert came[-2:] == [Withdraw(topic, deleted=True), StopReplicas(topic, ONE, (0,), delete=True)]
    assert state.replicas_deleted(ONE, "t", {0: 0}) == [RemoveTopic("t")]


def test_deletion_can_be_forbidden() -> None:
    disabled = ControllerState(delete_enabled=False)
    assert disabled.deletion_requested("t", TopicInfo("t", ID, {})) == [DropDeletion("t")]


def test_a_topic_that_vanished_is_closed_and_keeps_its_logs() -> None:
    state = replicated(ONE, TWO)
    topic = state.topics["t"]
    stops = [StopReplicas(topic, broker, (0,), delete=False) for broker in ALL]
    assert state.topic_vanished("t") == [Withdraw(topic, deleted=False), *stops]
    assert state.topic_vanished("t") == []
