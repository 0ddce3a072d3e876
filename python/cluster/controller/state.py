"""The controller's state machine: the cluster's topics, the leaders of their partitions, and the actions
after a change.

Messages in, actions out; no I/O, no clock, no randomness. The driver carries the actions out in order and
reports their results. A topic is unsettled until the driver reports that its actions were carried out
(`settled`); loading an unsettled topic again repeats them. Not persistent: a new controller loads every topic
again. That is safe because each znode write is atomic and every step can be repeated. Source:
kafka.controller (PartitionStateMachine, ReplicaStateMachine, TopicDeletionManager, KafkaController).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

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
from cluster.controller.elections import Elections
from cluster.controller.reassignment import Reassignments
from cluster.controller.view import UNREADABLE
from cluster.errors import (
    NONE,
    BrokerNotAvailable,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaProtocolError,
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
    TopicId,
    TopicInfo,
    TopicPartition,
)

UNCLEAN_ELECTION = "unclean.leader.election.enable"


@dataclass(slots=True)
class Deletion:
    """A topic that is being deleted."""

    topic: TopicInfo
    replicas: dict[BrokerId, set[int]] = field(default_factory=dict)
    """By broker: the partitions whose logs it has not deleted yet."""
    failed: set[BrokerId] = field(default_factory=set)
    """Brokers that could not delete a log. They are asked again when they start."""


@dataclass(frozen=True, slots=True)
class NewIsr:
    """A leader's wish for another ISR of a partition (AlterPartition). The topic is named by id or name."""

    topic: str
    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    recovery: int = 0


class ControllerState:
    """The state machine of the whole cluster."""

    def __init__(self, delete_enabled: bool = True, unclean_election: bool = False) -> None:
        self.epoch = ControllerEpoch(0)
        self.registered: dict[BrokerId, BrokerInfo] = {}
        """The brokers that have a registration."""
        self.unreachable: set[BrokerId] = set()
        """Registered brokers whose address refuses connections. Their process is gone, their session is not
        yet.
        """
        self.shutting_down: set[BrokerId] = set()
        """Brokers that asked for a controlled shutdown. They lead nothing any more."""
        self.topics: dict[str, TopicInfo] = {}
        self.names: dict[TopicId, str] = {}
        self.deletions: dict[str, Deletion] = {}
        self.waiting_deletions: set[str] = set()
        """Topics whose deletion begins once none of their partitions is reassigned."""
        self.unsettled: set[str] = set()
        """Topics whose last actions may not be carried out."""
        self.elections = Elections(self)
        self.reassignments = Reassignments(self)
        self._offline: dict[BrokerId, set[TopicPartition]] = {}
        """By broker: the replicas whose log directory failed."""
        self._delete_enabled = delete_enabled
        self._unclean_election = unclean_election

    def elected(self, epoch: ControllerEpoch) -> None:
        """This broker became the controller. The driver loads everything again, the brokers first."""
        self.epoch = epoch
        for known in (self.topics, self.names, self.deletions, self.registered, self._offline):
            known.clear()
        for marked in (self.unsettled, self.unreachable, self.shutting_down, self.waiting_deletions):
            marked.clear()
        self.reassignments.clear()

    # ---- brokers ----

    def is_alive(self, broker: BrokerId) -> bool:
        """The broker is registered and reachable."""
        return broker in self.registered and broker not in self.unreachable

    def alive(self) -> list[BrokerInfo]:
        """The brokers that clients may ask."""
        return [info for broker, info in self.registered.items() if broker not in self.unreachable]

    def is_online(self, topic: str, number: int, broker: BrokerId) -> bool:
        """The broker is alive, and its log directory of the partition has not failed."""
        failed = self._offline.get(broker)
        return self.is_alive(broker) and (failed is None or TopicPartition(topic, number) not in failed)

    def registered_again(self, registered: Mapping[BrokerId, BrokerInfo]) -> frozenset[BrokerId]:
        """The brokers that failed and came back. They are reported as gone before they are reported again."""
        before = self.registered
        return frozenset(
            broker
            for broker, info in registered.items()
            if broker in before and before[broker].epoch != info.epoch
        )

    def brokers_changed(self, registered: Mapping[BrokerId, BrokerInfo]) -> list[Action]:
        """The registrations changed."""
        before = self.registered
        if before == registered:
            return []
        came = frozenset(registered.keys() - before.keys())
        gone = before.keys() - registered.keys()
        for broker in gone:
            self._offline.pop(broker, None)
        self.unreachable -= gone
        self.shutting_down -= gone
        self.registered = dict(registered)
        # One election: a partition's next state is decided only once the last one is written.
        actions = self.elections.everywhere() if gone or came else []
        actions.append(PublishBrokers())
        if came:
            actions += self._welcome(came)
        return actions

    def _welcome(self, came: frozenset[BrokerId]) -> list[Action]:
        """Everything that brokers must know which have just started."""
        actions: list[Action] = []
        for topic in list(self.topics.values()):
            if topic.name in self.deletions:
                continue
            hosted = tuple(number for number in topic.assignment if self._hosts(topic, number, came))
            if hosted:
                actions.append(Lead(topic, hosted, to=came))
            actions.append(Publish(topic, tuple(topic.assignment), came))
        for deletion in self.deletions.values():
            deletion.failed -= came
            actions += [Withdraw(deletion.topic, deleted=True), *self._stop(deletion, came)]
        return actions

    def _hosts(self, topic: TopicInfo, number: int, brokers: frozenset[BrokerId]) -> bool:
        readable = topic.partitions.get(number) != UNREADABLE
        return readable and not brokers.isdisjoint(topic.assignment[number].replicas)

    def connection_refused(self, broker: BrokerId) -> list[Action]:
        """A registered broker's address refuses connections. It leads nothing until it answers again.

        Epochs fence it if it is alive after all, so this is safe.
        """
        if broker not in self.registered or broker in self.unreachable:
            return []
        self.unreachable.add(broker)
        return [*self.elections.everywhere(), PublishBrokers()]

    def connection_made(self, broker: BrokerId) -> list[Action]:
        """A broker whose address refused connections answers again, with the same registration."""
        if broker not in self.unreachable:
            return []
        self.unreachable.discard(broker)
        return [PublishBrokers(), *self.elections.everywhere()]

    def shut_down(self, broker: BrokerId, epoch: int) -> tuple[set[TopicPartition], list[Action]]:
        """A broker asks for a controlled shutdown. Returns the partitions that it still leads although others
        have replicas of them (`KafkaController.doControlledShutdown`).

        Raises StaleBrokerEpoch, or BrokerNotAvailable if it is not registered.
        """
        info = self.registered.get(broker)
        if info is None:
            raise BrokerNotAvailable(f"Broker {broker} is not registered.")
        if -1 < epoch < info.epoch:
            raise StaleBrokerEpoch(f"Broker {broker} has registered again since epoch {epoch}.")
        self.shutting_down.add(broker)
        actions: list[Action] = []
        remaining: set[TopicPartition] = set()
        for topic in list(self.topics.values()):
            if topic.name in self.deletions:
                continue
            followed = tuple(
                number
                for number, state in topic.partitions.items()
                if self._is_replicated_on(topic, number, broker) and state.leader not in (broker, NO_LEADER)
            )
            if followed:
                actions.append(StopReplicas(topic, broker, followed, delete=False))
            actions += self.elections.of_topic(topic)
            remaining |= {
                TopicPartition(topic.name, number)
                for number, state in topic.partitions.items()
                if self._is_replicated_on(topic, number, broker) and state.leader == broker
            }
        return remaining, actions

    def _is_replicated_on(self, topic: TopicInfo, number: int, broker: BrokerId) -> bool:
        assigned = topic.assignment.get(number)
        return assigned is not None and len(assigned.replicas) > 1 and broker in assigned.replicas

    def replicas_answered(self, broker: BrokerId, errors: Mapping[TopicPartition, int]) -> list[Action]:
        """A broker's answer to LeaderAndIsr. Replicas on a failed log directory are offline."""
        known = self._offline.setdefault(broker, set())
        failed = {partition for partition, code in errors.items() if code == KafkaStorageError.code}
        healed = known & {partition for partition, code in errors.items() if code == NONE}
        changed = (failed - known) | healed
        self._offline[broker] = (known | failed) - healed
        actions: list[Action] = []
        for name in sorted({partition.topic for partition in changed}):
            topic = self.topics.get(name)
            if topic is not None and name not in self.deletions:
                numbers = tuple(sorted(item.partition for item in changed if item.topic == name))
                actions += self.elections.of_topic(topic)
                actions.append(Publish(topic, tuple(n for n in numbers if n in topic.assignment)))
        return actions

    def log_dir_failed(self, broker: BrokerId) -> list[Action]:
        """A broker reports a failed log directory. Its answer to LeaderAndIsr says which replicas it held."""
        of_broker = frozenset({broker})
        actions: list[Action] = []
        for topic in self.topics.values():
            if topic.name not in self.deletions:
                hosted = tuple(n for n in topic.assignment if self._hosts(topic, n, of_broker))
                actions += [Lead(topic, hosted, to=of_broker)] if hosted else []
        return actions

    # ---- topics ----

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
        if name in self.deletions:
            return []
        known = self.topics.get(name)
        sent_before = known.partitions if known and name not in self.unsettled else {}
        self.unsettled.add(name)
        topic = TopicInfo(name, topic_id, dict(assignment), dict(states), dict(config))
        actions: list[Action] = []
        if topic_id == NO_TOPIC_ID:
            topic = replace(topic, id=known.id if known else fresh_id)
            actions.append(WriteTopic(topic))
        self._keep(topic)
        written = self.reassignments.loaded(topic, is_unknown=not sent_before)
        for number in self._reassigned(known, topic):
            # A broker takes other replicas only in a new epoch.
            state = topic.partitions[number]
            epoch = LeaderEpoch(state.leader_epoch + 1)
            written[number] = replace(state, leader_epoch=epoch, controller_epoch=self.epoch)
        topic.partitions.update(written)
        missing = {
            number: self.elections.first_state(topic, number) for number in assignment if number not in states
        }
        if missing:
            topic.partitions.update(missing)
            actions.append(CreateStates(name, missing))
        written |= self.elections.move(topic)
        if written:
            actions.append(UpdateStates(name, written))
        changed = tuple(
            number for number in sorted(assignment) if sent_before.get(number) != topic.partitions[number]
        )
        readable = tuple(number for number in changed if topic.partitions[number] != UNREADABLE)
        if readable:
            actions.append(Lead(topic, readable, frozenset(missing).intersection(readable)))
        if changed:
            actions.append(Publish(topic, changed))
        return actions

    def _reassigned(self, known: TopicInfo | None, topic: TopicInfo) -> list[int]:
        """The partitions whose replicas were changed in the topic's znode."""
        if known is None:
            return []
        return [
            number
            for number, assigned in known.assignment.items()
            if topic.assignment.get(number, assigned) != assigned
            and topic.partitions.get(number, UNREADABLE) != UNREADABLE
        ]

    def _keep(self, topic: TopicInfo) -> None:
        known = self.topics.get(topic.name)
        if known is not None:
            self.names.pop(known.id, None)
        self.topics[topic.name] = topic
        if topic.id != NO_TOPIC_ID:
            self.names[topic.id] = topic.name

    def _forget(self, name: str) -> TopicInfo | None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.names.pop(topic.id, None)
        self.unsettled.discard(name)
        self.waiting_deletions.discard(name)
        self.reassignments.forget(name)
        return topic

    def settled(self, name: str) -> None:
        """The actions of a topic were carried out."""
        self.unsettled.discard(name)

    def states_written(self, topic: str, versions: Mapping[int, int]) -> None:
        """State znodes were written; `versions` are their new versions."""
        known = self.topics.get(topic)
        if known is not None:
            for number, version in versions.items():
                known.partitions[number] = replace(known.partitions[number], zk_version=version)

    def config_changed(self, name: str, config: Mapping[str, str]) -> list[Action]:
        """A topic's own settings changed. If they allow unclean elections, partitions get leaders."""
        known = self.topics.get(name)
        if known is None or known.config == config:
            return []
        allowed_before = self.elects_uncleanly(known)
        topic = replace(known, config=dict(config))
        self._keep(topic)
        is_newly_allowed = self.elects_uncleanly(topic) and not allowed_before
        return self.elections.of_topic(topic) if is_newly_allowed and name not in self.deletions else []

    def unclean_election_changed(self, enabled: bool) -> list[Action]:
        """`unclean.leader.election.enable` changed. If enabled, partitions without a leader get one."""
        self._unclean_election = enabled
        return self.elections.everywhere() if enabled else []

    # ---- deletions ----

    def deletion_requested(self, name: str, topic: TopicInfo | None) -> list[Action]:
        """The deletion of a topic was requested. `topic` is None if it has no znode."""
        if name in self.deletions:
            return []
        if not self._delete_enabled or topic is None:
            return [DropDeletion(name)]
        if self.reassignments.is_under_way(name):
            self.waiting_deletions.add(name)
            return []
        self.waiting_deletions.discard(name)
        known = self.topics.get(name)
        if known is None:
            self._keep(topic)
        else:
            topic = known
        deletion = self.deletions[name] = Deletion(topic)
        for number, assigned in topic.assignment.items():
            for broker in assigned.replicas:
                deletion.replicas.setdefault(broker, set()).add(number)
        stops = self._stop(deletion, frozenset(self.registered))
        return [Withdraw(topic, deleted=True), *stops, *self._removal(deletion)]

    def _stop(self, deletion: Deletion, brokers: frozenset[BrokerId]) -> list[Action]:
        return [
            StopReplicas(deletion.topic, broker, tuple(sorted(numbers)), delete=True)
            for broker, numbers in sorted(deletion.replicas.items())
            if broker in brokers
        ]

    def replicas_deleted(self, broker: BrokerId, name: str, codes: Mapping[int, int]) -> list[Action]:
        """A broker deleted its logs of a topic that is being deleted, or could not; with the error codes."""
        deletion = self.deletions.get(name)
        if deletion is None or broker not in deletion.replicas:
            return []
        deletion.replicas[broker].difference_update(number for number, code in codes.items() if code == NONE)
        if any(code != NONE for code in codes.values()):
            deletion.failed.add(broker)
        if not deletion.replicas[broker]:
            del deletion.replicas[broker]
        return self._removal(deletion)

    def _removal(self, deletion: Deletion) -> list[Action]:
        return [] if deletion.replicas else [RemoveTopic(deletion.topic.name)]

    def topic_removed(self, name: str) -> None:
        """The znodes of a deleted topic are gone."""
        self.deletions.pop(name, None)
        self._forget(name)
        for failed in self._offline.values():
            failed -= {item for item in failed if item.topic == name}

    def waits_only_for_dead_brokers(self, name: str) -> bool:
        """Every log of the topic is deleted, except on brokers that are not alive, or whose disk failed."""
        if name in self.waiting_deletions:
            return False
        deletion = self.deletions.get(name)
        return deletion is None or not any(map(self.is_alive, deletion.replicas.keys() - deletion.failed))

    def topic_vanished(self, name: str) -> list[Action]:
        """The topic's znode is gone without a request to delete the topic. As in Kafka, its records stay."""
        if name in self.deletions:
            return []
        topic = self._forget(name)
        return [] if topic is None else self.abandoned(topic)

    def abandoned(self, topic: TopicInfo) -> list[Action]:
        """Brokers stop serving a topic that the coordinator does not have, and keep its logs."""
        held: dict[BrokerId, list[int]] = {}
        for number, assigned in topic.assignment.items():
            for broker in assigned.replicas:
                held.setdefault(broker, []).append(number)
        stops = [
            StopReplicas(topic, broker, tuple(numbers), delete=False)
            for broker, numbers in sorted(held.items())
            if broker in self.registered
        ]
        return [Withdraw(topic, deleted=False), *stops]

    # ---- reassignments ----

    def complete_reassignments(self) -> list[Action]:
        """Completes reassignments whose targets are in the ISR, and begins deletions that waited for them."""
        actions = self.reassignments.complete()
        for name in sorted(self.waiting_deletions):
            actions += self.deletion_requested(name, self.topics[name])
        return actions

    # ---- in-sync replicas ----

    def alter_isr(
        self, broker: BrokerId, epoch: int, wishes: Iterable[NewIsr]
    ) -> tuple[list[PartitionState | KafkaProtocolError], list[Action]]:
        """A leader wishes for other ISRs (AlterPartition, KIP-497). Returns the state or the error of each
        wish, in order; the states hold once the actions were carried out
        (`KafkaController.processAlterPartition`).

        Raises StaleBrokerEpoch.
        """
        info = self.registered.get(broker)
        if info is None or info.epoch != epoch:
            raise StaleBrokerEpoch(f"Broker {broker} is not registered with epoch {epoch}.")
        answers: list[PartitionState | KafkaProtocolError] = []
        written: dict[str, dict[int, PartitionState]] = {}
        for wish in wishes:
            answer = self._alter(broker, wish)
            answers.append(answer)
            if isinstance(answer, PartitionState):
                name = self.names.get(wish.topic_id, wish.topic)
                if self.topics[name].partitions[wish.partition] != answer:
                    self.topics[name].partitions[wish.partition] = answer
                    self.reassignments.isr_changed(self.topics[name], wish.partition)
                    written.setdefault(name, {})[wish.partition] = answer
        actions: list[Action] = []
        for name, states in written.items():
            actions += [UpdateStates(name, states), Publish(self.topics[name], tuple(states))]
        return answers, actions

    def _alter(self, broker: BrokerId, wish: NewIsr) -> PartitionState | KafkaProtocolError:
        name = self.names.get(wish.topic_id) if wish.topic_id != NO_TOPIC_ID else wish.topic
        if name is None:
            return UnknownTopicId()
        topic = self.topics.get(name)
        state = None if topic is None or name in self.deletions else topic.partitions.get(wish.partition)
        if topic is None or state is None or state == UNREADABLE:
            return UnknownTopicOrPartition()
        if wish.partition_epoch > state.zk_version or wish.leader_epoch > state.leader_epoch:
            # The leader knows more than this controller, which another one has probably replaced.
            return NotController()
        if wish.leader_epoch < state.leader_epoch or state.leader != broker:
            return FencedLeaderEpoch()
        if set(wish.isr) == set(state.isr) and wish.recovery == state.recovery:
            return state
        if wish.partition_epoch < state.zk_version:
            return InvalidUpdateVersion()
        is_recovering = wish.recovery != 0
        if is_recovering and (len(wish.isr) > 1 or state.recovery == 0):
            return InvalidRequest("Only the leader is in the ISR while it recovers from an unclean election.")
        if broker not in wish.isr or not set(wish.isr) <= set(topic.assignment[wish.partition].replicas):
            return InvalidRequest("The ISR must hold the leader, and only replicas of the partition.")
        dead = [item for item in wish.isr if not self.may_lead(name, wish.partition, item)]
        if dead:
            return IneligibleReplica(f"These brokers cannot be in the ISR now: {dead}.")
        return replace(state, isr=wish.isr, recovery=wish.recovery, controller_epoch=self.epoch)

    # ---- what elections and reassignments ask (`View`) ----

    def topics_on_failed_disks(self) -> set[str]:
        """The topics with replicas in failed log directories."""
        return {partition.topic for failed in self._offline.values() for partition in failed}

    def may_lead(self, topic: str, number: int, broker: BrokerId) -> bool:
        """The broker's replica is online, and the broker does not shut down."""
        return broker not in self.shutting_down and self.is_online(topic, number, broker)

    def is_withdrawn(self, topic: str) -> bool:
        """The topic is not served any more, because it is being deleted."""
        return topic in self.deletions

    def is_deleted(self, topic: str) -> bool:
        """The deletion of the topic was requested."""
        return topic in self.deletions or topic in self.waiting_deletions

    def elects_uncleanly(self, topic: TopicInfo) -> bool:
        """A replica outside the ISR may lead the topic's partitions."""
        own = topic.config.get(UNCLEAN_ELECTION)
        return self._unclean_election if own is None else own.strip().lower() == "true"
