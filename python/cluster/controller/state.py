"""The controller's state machine: the topics, the leaders of their partitions, and the actions after a
change.

Messages in, actions out; no I/O, no clock, no randomness. The driver carries the actions out in order and
reports their results. A topic is unsettled until the driver reports that its actions were carried out
(`settled`); loading an unsettled topic again repeats them. Not persistent: a new controller loads every topic
again. That is safe because each znode write is atomic and every step can be repeated. Source:
kafka.controller (PartitionStateMachine, TopicDeletionManager, KafkaController).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.model import (
    NO_LEADER,
    NO_TOPIC_ID,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicId,
    TopicInfo,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class WriteTopic:
    """Rewrite the topic's znode, to add an id."""

    topic: TopicInfo


@dataclass(frozen=True, slots=True)
class CreateStates:
    """Create the state znodes of partitions that have none, with their parents."""

    topic: str
    states: dict[int, PartitionState]


@dataclass(frozen=True, slots=True)
class UpdateState:
    """Set a partition's state znode if it has the version `expected_version`."""

    partition: TopicPartition
    state: PartitionState
    expected_version: int


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """Open the logs of these partitions on this broker, or update their leader and epoch. `new` ones have no
    log yet.
    """

    topic: TopicInfo
    partitions: tuple[int, ...]
    new: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TakeOffline:
    """The logs of these partitions here failed: they have no leader until the broker starts again."""

    topic: TopicInfo
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Configure:
    """Apply the topic's settings to its open logs."""

    topic: TopicInfo


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the topic to clients."""

    topic: TopicInfo


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Hide the topic from clients."""

    topic: str


@dataclass(frozen=True, slots=True)
class CloseTopic:
    """Stop serving the topic's logs on this broker, and keep them."""

    topic: TopicInfo


@dataclass(frozen=True, slots=True)
class DeleteLogs:
    """Delete the topic's logs on this broker."""

    topic: str


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Delete the topic's znodes: partitions, settings, the topic, the request to delete it."""

    topic: str


@dataclass(frozen=True, slots=True)
class DropDeletion:
    """Delete the request to delete a topic, because the topic does not exist or deletion is disabled."""

    topic: str


Action = (
    WriteTopic
    | CreateStates
    | UpdateState
    | OpenPartitions
    | TakeOffline
    | Configure
    | Publish
    | Withdraw
    | CloseTopic
    | DeleteLogs
    | RemoveTopic
    | DropDeletion
)


UNREADABLE = PartitionState(NO_LEADER, LeaderEpoch(-1), (), ControllerEpoch(-1))
"""The state of a partition whose znode cannot be read. It has no leader, and its znode is not written."""


class ControllerState:
    """The state machine. `local` is this broker; the controller opens and closes its logs itself."""

    def __init__(self, local: BrokerId, delete_enabled: bool = True, unclean_election: bool = False) -> None:
        self.local = local
        self.epoch = ControllerEpoch(0)
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.unsettled: set[str] = set()
        """Topics whose last actions may not be carried out."""
        self._delete_enabled = delete_enabled
        self._unclean_election = unclean_election

    def elected(self, epoch: ControllerEpoch) -> None:
        """This broker became the controller. The driver loads everything again."""
        self.epoch = epoch
        self.topics.clear()
        self.unsettled.clear()
        self.brokers.clear()

    def brokers_changed(self, brokers: Mapping[BrokerId, BrokerInfo]) -> list[Action]:
        """The live brokers changed. Elects leaders for partitions without a live one."""
        self.brokers = dict(brokers)
        actions: list[Action] = []
        for topic in list(self.topics.values()):
            actions += self._elect(topic)
        return actions

    def topic_loaded(
        self,
        name: str,
        topic_id: TopicId,
        fresh_id: TopicId,
        assignment: Mapping[int, Replicas],
        states: Mapping[int, PartitionState],
        config: Mapping[str, str],
    ) -> list[Action]:
        """A topic's znodes were read: at the start, when it is new, or when partitions were added.

        `fresh_id` becomes its id if it has none (a topic made before Kafka 2.8).
        """
        known = self.topics.get(name)
        opened_before = known.partitions if known and name not in self.unsettled else {}
        self.unsettled.add(name)
        topic = TopicInfo(name, topic_id, dict(assignment), dict(states), dict(config))
        actions: list[Action] = []
        if topic_id == NO_TOPIC_ID:
            topic = replace(topic, id=known.id if known else fresh_id)
            actions.append(WriteTopic(topic))
        self.topics[name] = topic
        missing = {number: self._first_state(topic, number) for number in assignment if number not in states}
        if missing:
            topic.partitions.update(missing)
            actions.append(CreateStates(name, missing))
        changed = self._elect(topic, silent=True)
        opened = tuple(sorted(number for number in assignment if self._opens(topic, number)))
        news = tuple(
            number
            for number in opened
            if opened_before.get(number) != topic.partitions[number]
            or (known is not None and known.assignment.get(number) != assignment[number])
        )
        actions += changed
        if news:
            actions.append(OpenPartitions(self.topics[name], news, frozenset(missing).intersection(news)))
        if known is not None and known.config != topic.config:
            actions.append(Configure(self.topics[name]))
        actions.append(Publish(self.topics[name]))
        return actions

    def settled(self, name: str) -> None:
        """The actions of a topic were carried out."""
        self.unsettled.discard(name)

    def states_written(self, topic: str, versions: Mapping[int, int]) -> None:
        """State znodes were written; `versions` are their new versions."""
        known = self.topics.get(topic)
        if known is not None:
            for number, version in versions.items():
                known.partitions[number] = replace(known.partitions[number], zk_version=version)

    def logs_failed(self, name: str, partitions: Iterable[int]) -> list[Action]:
        """Logs of a topic on this broker went offline. The znodes keep the leader, so the next start tries
        again.
        """
        topic = self.topics.get(name)
        return [] if topic is None else [TakeOffline(topic, frozenset(partitions)), Publish(topic)]

    def config_changed(self, name: str, config: Mapping[str, str]) -> list[Action]:
        """A topic's own settings changed."""
        known = self.topics.get(name)
        if known is None or known.config == config:
            return []
        topic = self.topics[name] = replace(known, config=dict(config))
        return [Configure(topic), Publish(topic)]

    def unclean_election_changed(self, enabled: bool) -> list[Action]:
        """`unclean.leader.election.enable` changed. If enabled, partitions without a leader get one."""
        self._unclean_election = enabled
        actions: list[Action] = []
        for topic in list(self.topics.values()) if enabled else ():
            actions += self._elect(topic)
        return actions

    def deletion_requested(self, name: str, exists: bool) -> list[Action]:
        """The deletion of a topic was requested. `exists`: the topic has a znode."""
        if not self._delete_enabled or not exists:
            return [DropDeletion(name)]
        self.topics.pop(name, None)
        return [Withdraw(name), DeleteLogs(name), RemoveTopic(name)]

    def topic_vanished(self, name: str) -> list[Action]:
        """The topic's znode is gone without a request to delete the topic. As in Kafka, its records stay."""
        topic = self.topics.pop(name, None)
        return [] if topic is None else [Withdraw(name), CloseTopic(topic)]

    def _opens(self, topic: TopicInfo, number: int) -> bool:
        return self.local in topic.assignment[number].replicas and topic.partitions[number] != UNREADABLE

    def _first_state(self, topic: TopicInfo, number: int) -> PartitionState:
        live = tuple(broker for broker in topic.assignment[number].replicas if broker in self.brokers)
        leader = live[0] if live else NO_LEADER
        return PartitionState(leader, LeaderEpoch(0), live or topic.assignment[number].replicas, self.epoch)

    def _elect(self, topic: TopicInfo, silent: bool = False) -> list[Action]:
        """Elects leaders for partitions whose leader is not live. Removes dead replicas from the ISR of the
        others.

        With `silent` the caller opens and publishes the partitions.
        """
        actions: list[Action] = []
        moved = []
        for number, state in list(topic.partitions.items()):
            if number not in topic.assignment:
                continue
            if state.leader in self.brokers:
                chosen = self._in_sync(state)
            else:
                chosen = self._choose(topic.assignment[number].replicas, state)
            if chosen is None:
                continue
            topic.partitions[number] = chosen
            actions.append(UpdateState(TopicPartition(topic.name, number), chosen, state.zk_version))
            moved.append(number)
        if moved and not silent:
            opened = tuple(number for number in moved if self._opens(topic, number))
            actions += [OpenPartitions(topic, opened), Publish(topic)] if opened else [Publish(topic)]
        return actions

    def _in_sync(self, state: PartitionState) -> PartitionState | None:
        """The state without dead brokers in the ISR, in a new epoch; None if there are none
        (KafkaController.removeReplicasFromIsr).
        """
        live = tuple(broker for broker in state.isr if broker in self.brokers) or (state.leader,)
        if live == state.isr:
            return None
        epoch = LeaderEpoch(state.leader_epoch + 1)
        return replace(state, leader_epoch=epoch, isr=live, controller_epoch=self.epoch)

    def _choose(self, replicas: tuple[BrokerId, ...], state: PartitionState) -> PartitionState | None:
        """The state after an election; None if nothing changes (OfflinePartitionLeaderElectionStrategy)."""
        if state == UNREADABLE:
            return None
        live = [broker for broker in replicas if broker in self.brokers]
        clean = [broker for broker in live if broker in state.isr]
        epoch = LeaderEpoch(state.leader_epoch + 1)
        if clean:
            isr = tuple(broker for broker in state.isr if broker in self.brokers)
            return replace(state, leader=clean[0], leader_epoch=epoch, isr=isr, controller_epoch=self.epoch)
        if live and self._unclean_election:
            return replace(
                state, leader=live[0], leader_epoch=epoch, isr=(live[0],), controller_epoch=self.epoch
            )
        if state.leader == NO_LEADER:
            return None
        return replace(state, leader=NO_LEADER, leader_epoch=epoch, controller_epoch=self.epoch)
