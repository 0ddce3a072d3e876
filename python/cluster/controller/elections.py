"""Elections of leaders: when brokers fail, when they shut down, on request, and to balance the brokers.

A part of the controller's state machine: it changes the states of partitions in place and returns the
actions. Pure. Source: kafka.controller (Election, PartitionStateMachine, KafkaController).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum

from cluster.controller.actions import Action, Lead, Publish, UpdateStates
from cluster.controller.view import UNREADABLE, View
from cluster.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopicException,
    KafkaProtocolError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from cluster.model import NO_LEADER, BrokerId, LeaderEpoch, PartitionState, TopicInfo, TopicPartition

RECOVERING = 1
"""A leader that was not in the ISR has not confirmed its ISR yet (`LeaderRecoveryState`)."""


class ElectionType(IntEnum):
    """`org.apache.kafka.common.ElectionType`"""

    PREFERRED = 0
    UNCLEAN = 1


ElectionResults = dict[TopicPartition, KafkaProtocolError | None]
"""By partition: None if it has a new leader, or the error."""


class Elections:
    """The elections of a cluster."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.unclean = 0
        """How many partitions got a leader that was not in the ISR, and may have lost records."""

    def first_state(self, topic: TopicInfo, number: int) -> PartitionState:
        """The state of a new partition."""
        replicas = topic.assignment[number].replicas
        live = tuple(broker for broker in replicas if self._view.may_lead(topic.name, number, broker))
        leader = live[0] if live else NO_LEADER
        return PartitionState(leader, LeaderEpoch(0), live or replicas, self._view.epoch)

    # ---- when brokers fail ----

    def everywhere(self) -> list[Action]:
        """Elects leaders for all partitions that need one."""
        view = self._view
        able = {broker for broker in view.registered if view.is_alive(broker)} - view.shutting_down
        damaged = view.topics_on_failed_disks()

        def is_well(state: PartitionState) -> bool:
            return state.leader in able and bool(state.isr) and able.issuperset(state.isr)

        actions: list[Action] = []
        for topic in list(view.topics.values()):
            # Most topics need nothing, which is seen quickly.
            needs_nothing = topic.name not in damaged and all(map(is_well, topic.partitions.values()))
            if not needs_nothing and not view.is_withdrawn(topic.name):
                actions += self.of_topic(topic)
        return actions

    def of_topic(self, topic: TopicInfo) -> list[Action]:
        """Elects leaders for a topic's partitions that need one."""
        return _actions(topic, self.move(topic))

    def move(self, topic: TopicInfo) -> dict[int, PartitionState]:
        """Elects leaders for partitions whose leader may not lead. Removes such replicas from the ISR of the
        others. Returns the changed states.
        """
        moved: dict[int, PartitionState] = {}
        for number, state in list(topic.partitions.items()):
            if number not in topic.assignment or state == UNREADABLE:
                continue
            able = self._able(topic, number, state)
            if state.leader in able:
                chosen = self._in_sync(state, able)
            else:
                chosen = self._choose(topic, number, state, able, self._view.elects_uncleanly(topic))
            if chosen is not None:
                topic.partitions[number] = moved[number] = chosen
        return moved

    def _able(self, topic: TopicInfo, number: int, state: PartitionState) -> set[BrokerId]:
        return {
            broker
            for broker in {*topic.assignment[number].replicas, *state.isr, state.leader}
            if self._view.may_lead(topic.name, number, broker)
        }

    def _in_sync(self, state: PartitionState, able: set[BrokerId]) -> PartitionState | None:
        """The state without dead brokers in the ISR, in a new epoch; None if there are none
        (KafkaController.removeReplicasFromIsr).
        """
        live = tuple(broker for broker in state.isr if broker in able) or (state.leader,)
        return None if live == state.isr else self._next(state, isr=live)

    def _choose(
        self, topic: TopicInfo, number: int, state: PartitionState, able: set[BrokerId], unclean: bool
    ) -> PartitionState | None:
        """The state after an election; None if nothing changes (OfflinePartitionLeaderElectionStrategy).

        A leader that shuts down keeps a partition that nobody else can lead
        (ControlledShutdownPartitionLeaderElectionStrategy).
        """
        live = [broker for broker in topic.assignment[number].replicas if broker in able]
        clean = [broker for broker in live if broker in state.isr]
        if clean:
            isr = tuple(broker for broker in state.isr if broker in able)
            return self._next(state, leader=clean[0], isr=isr)
        if state.leader in self._view.shutting_down and self._view.is_online(
            topic.name, number, state.leader
        ):
            return None
        if live and unclean:
            self.unclean += 1
            return self._next(state, leader=live[0], isr=(live[0],), recovery=RECOVERING)
        return None if state.leader == NO_LEADER else self._next(state, leader=NO_LEADER)

    def _next(
        self,
        state: PartitionState,
        leader: BrokerId | None = None,
        isr: tuple[BrokerId, ...] | None = None,
        recovery: int | None = None,
    ) -> PartitionState:
        """The state in a new leader epoch."""
        return replace(
            state,
            leader=state.leader if leader is None else leader,
            leader_epoch=LeaderEpoch(state.leader_epoch + 1),
            isr=state.isr if isr is None else isr,
            controller_epoch=self._view.epoch,
            recovery=state.recovery if recovery is None else recovery,
        )

    # ---- on request ----

    def requested(
        self, partitions: Iterable[TopicPartition], kind: ElectionType
    ) -> tuple[ElectionResults, list[Action]]:
        """Elects the preferred leaders of partitions, or leaders outside the ISR for those without a leader
        (`KafkaController.processReplicaLeaderElection`).
        """
        results: ElectionResults = {}
        moved: dict[str, dict[int, PartitionState]] = {}
        for partition in partitions:
            chosen = self._requested(partition, kind)
            if isinstance(chosen, KafkaProtocolError):
                results[partition] = chosen
                continue
            results[partition] = None
            self._view.topics[partition.topic].partitions[partition.partition] = chosen
            moved.setdefault(partition.topic, {})[partition.partition] = chosen
        actions: list[Action] = []
        for name, states in moved.items():
            actions += _actions(self._view.topics[name], states)
        return results, actions

    def _requested(
        self, partition: TopicPartition, kind: ElectionType
    ) -> PartitionState | KafkaProtocolError:
        name, number = partition
        topic = self._view.topics.get(name)
        state = None if topic is None else topic.partitions.get(number)
        if topic is None or state is None or number not in topic.assignment:
            return UnknownTopicOrPartition("The partition does not exist.")
        if self._view.is_deleted(name):
            return InvalidTopicException("The topic is being deleted")
        if kind is ElectionType.PREFERRED:
            preferred = topic.assignment[number].replicas[0]
            if state.leader == preferred:
                return ElectionNotNeeded()
            if preferred in state.isr and self._view.may_lead(name, number, preferred):
                return self._next(state, leader=preferred)
            return PreferredLeaderNotAvailable(_failure(partition, "PreferredReplicaPartitionLeaderElection"))
        if self._view.is_alive(state.leader) and state.leader not in self._view.shutting_down:
            return ElectionNotNeeded()
        able = set() if state == UNREADABLE else self._able(topic, number, state)
        chosen = self._choose(topic, number, state, able, unclean=True)
        if chosen is None or chosen.leader == NO_LEADER:
            return EligibleLeadersNotAvailable(_failure(partition, "OfflinePartitionLeaderElection"))
        return chosen

    # ---- balance ----

    def balanced(self, percentage: int) -> list[Action]:
        """Elects the preferred leaders of each broker that does not lead more than `percentage` of the
        partitions it is the preferred leader of (`KafkaController.checkAndTriggerAutoLeaderRebalance`).
        """
        preferring: Counter[BrokerId] = Counter()
        elsewhere: defaultdict[BrokerId, list[TopicPartition]] = defaultdict(list)
        for topic in self._view.topics.values():
            if self._view.is_deleted(topic.name):
                continue
            for number, assigned in topic.assignment.items():
                preferred = assigned.replicas[0]
                preferring[preferred] += 1
                state = topic.partitions.get(number, UNREADABLE)
                if state != UNREADABLE and state.leader != preferred:
                    elsewhere[preferred].append(TopicPartition(topic.name, number))
        wanted = [
            partition
            for broker, partitions in elsewhere.items()
            if len(partitions) * 100 > percentage * preferring[broker]
            for partition in partitions
        ]
        return self.requested(wanted, ElectionType.PREFERRED)[1]


def _actions(topic: TopicInfo, moved: dict[int, PartitionState]) -> list[Action]:
    """Writes changed states and tells the brokers."""
    if not moved:
        return []
    numbers = tuple(moved)
    return [UpdateStates(topic.name, moved), Lead(topic, numbers), Publish(topic, numbers)]


def _failure(partition: TopicPartition, strategy: str) -> str:
    return f"Failed to elect leader for partition {partition} under strategy {strategy}Strategy"
