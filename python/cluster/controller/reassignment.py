"""Reassignment of partitions to other replicas (KIP-455).

A part of the controller's state machine: it changes the replicas and states of partitions in place and
returns the actions. A partition under way has its old and its new replicas together; the topic's znode says
which are added and which removed. Once all targets are in the ISR, the rest is removed and its logs deleted.
Each step can be repeated, so a new controller goes on with what it reads. Pure. Source:
KafkaController.onPartitionReassignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.controller.actions import (
    Action,
    DropReassignments,
    Lead,
    Publish,
    StopReplicas,
    UpdateStates,
    WriteTopic,
)
from cluster.controller.view import UNREADABLE, View
from cluster.errors import (
    InvalidReplicaAssignment,
    KafkaProtocolError,
    NoReassignmentInProgress,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from cluster.model import (
    NO_LEADER,
    BrokerId,
    LeaderEpoch,
    PartitionState,
    Replicas,
    TopicInfo,
    TopicPartition,
)

Wanted = Mapping[TopicPartition, Sequence[BrokerId] | None]
"""By partition: its new replicas, or None to cancel its reassignment."""

ReassignmentResults = dict[TopicPartition, KafkaProtocolError | None]
"""By partition: None if the reassignment was accepted, or the error."""

_NO_REPLICAS = Replicas(())


@dataclass(frozen=True, slots=True)
class _Step:
    """The next step of a partition's reassignment."""

    topic: TopicInfo
    number: int
    wanted: Replicas

    @property
    def state(self) -> PartitionState:
        return self.topic.partitions[self.number]

    @property
    def is_last(self) -> bool:
        """Every target is in the ISR."""
        return not self.wanted.is_reassigned or set(self.wanted.target) <= set(self.state.isr)

    @property
    def after(self) -> Replicas:
        return Replicas(self.wanted.target) if self.is_last else self.wanted

    @property
    def dropped(self) -> list[BrokerId]:
        """The replicas that the step removes."""
        return [
            broker
            for broker in self.topic.assignment[self.number].replicas
            if broker not in self.after.replicas
        ]

    @property
    def is_noop(self) -> bool:
        return self.after == self.topic.assignment[self.number]


class Reassignments:
    """The reassignments of a cluster."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._under_way: dict[str, set[int]] = {}
        """By topic: partitions that are reassigned."""
        self._caught_up: dict[str, set[int]] = {}
        """By topic: partitions whose targets are all in the ISR. The last step is due."""
        self._in_znode: set[TopicPartition] = set()
        """Partitions that the znode /admin/reassign_partitions asks for."""

    def clear(self) -> None:
        """Another controller may have worked: everything is read again."""
        for known in (self._under_way, self._caught_up, self._in_znode):
            known.clear()

    @property
    def is_due(self) -> bool:
        """`complete` has something to do."""
        return bool(self._caught_up)

    def is_under_way(self, topic: str) -> bool:
        """A partition of the topic is reassigned."""
        return topic in self._under_way

    def under_way(self) -> list[TopicPartition]:
        """The partitions that are reassigned."""
        return [
            TopicPartition(name, number)
            for name, numbers in self._under_way.items()
            for number in sorted(numbers)
        ]

    def listed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Replicas]:
        """The replicas of those of `partitions` that are reassigned."""
        found = {partition: self._assigned(partition) for partition in partitions}
        return {partition: assigned for partition, assigned in found.items() if assigned.is_reassigned}

    def _assigned(self, partition: TopicPartition) -> Replicas:
        topic = self._view.topics.get(partition.topic)
        return _NO_REPLICAS if topic is None else topic.assignment.get(partition.partition, _NO_REPLICAS)

    # ---- requests ----

    def alter(self, wanted: Wanted) -> tuple[ReassignmentResults, list[Action]]:
        """Begins, replaces or cancels reassignments (AlterPartitionReassignments). They take precedence over
        those of the znode.
        """
        results, steps = self._checked(wanted, must_live=True)
        supplanted = [partition for partition, error in results.items() if error is None]
        drop = self._drop(supplanted)
        return results, [*drop, *self._take(steps)]

    def asked_by_znode(
        self, wanted: Mapping[TopicPartition, Sequence[BrokerId]]
    ) -> tuple[ReassignmentResults, list[Action]]:
        """The znode /admin/reassign_partitions asks for these reassignments. As in Kafka, a new replica's
        broker need not be alive.
        """
        self._in_znode = set(wanted)
        results, steps = self._checked(wanted, must_live=False)
        actions = self._take(steps)
        ended = [
            partition
            for partition, error in results.items()
            if error is not None or not self._assigned(partition).is_reassigned
        ]
        return results, [*actions, *self._drop(ended)]

    def _drop(self, partitions: Iterable[TopicPartition]) -> list[Action]:
        """Removes partitions from the znode."""
        dropped: dict[TopicPartition, tuple[BrokerId, ...] | None] = {
            partition: None for partition in partitions if partition in self._in_znode
        }
        self._in_znode -= dropped.keys()
        return [DropReassignments(dropped)] if dropped else []

    def _checked(self, wanted: Wanted, must_live: bool) -> tuple[ReassignmentResults, list[_Step]]:
        """The error of each request, and the first steps of those that are accepted."""
        results: ReassignmentResults = {}
        steps: list[_Step] = []
        for partition, target in wanted.items():
            step = self._step(partition, target, must_live)
            if isinstance(step, KafkaProtocolError):
                results[partition] = step
                continue
            results[partition] = None
            if not step.is_noop:
                steps.append(step)
        return results, steps

    def _step(
        self, partition: TopicPartition, target: Sequence[BrokerId] | None, must_live: bool
    ) -> _Step | KafkaProtocolError:
        """The first step of a request, or why it is refused."""
        assigned = self._assigned(partition)
        refusal = None if target is None else self._invalid(assigned, target, must_live)
        if refusal is not None:
            return InvalidReplicaAssignment(refusal)
        if target is None and not assigned.is_reassigned:
            return NoReassignmentInProgress()
        topic = self._view.topics.get(partition.topic)
        if topic is None or not assigned.replicas or self._view.is_deleted(partition.topic):
            return UnknownTopicOrPartition("The partition does not exist.")
        if topic.partitions.get(partition.partition, UNREADABLE) == UNREADABLE:
            return UnknownServerError(f"The znode of the state of {partition} cannot be read.")
        wanted = assigned.reassigned_to(assigned.origin if target is None else target)
        step = _Step(topic, partition.partition, wanted)
        if step.state.isr and set(step.state.isr) <= set(step.dropped):
            return InvalidReplicaAssignment(
                f"The only in-sync replicas of {partition} are {list(step.state.isr)}, which this would "
                "delete; wait until another replica is in sync."
            )
        return step

    def _invalid(self, assigned: Replicas, target: Sequence[BrokerId], must_live: bool) -> str | None:
        """Why these replicas are refused (KafkaController.validateReplicas)."""
        if not target:
            return "Empty replica list specified in partition reassignment."
        if len(set(target)) < len(target):
            return f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
        if any(broker < 0 for broker in target):
            return f"Invalid broker id in replica list: {list(target)}"
        live = {broker for broker in self._view.registered if self._view.is_alive(broker)}
        live -= self._view.shutting_down
        adding = assigned.reassigned_to(target).adding
        if must_live and not live.issuperset(adding):
            return (
                "Replica assignment has brokers that are not alive. Replica list: "
                f"{list(adding)}, live broker list: {sorted(live)}"
            )
        return None

    # ---- steps ----

    def _take(self, steps: Sequence[_Step]) -> list[Action]:
        first = [step for step in steps if not step.is_last]
        last = [step for step in steps if step.is_last]
        return [*self._expand(first), *self._finish(last)]

    def _expand(self, steps: Sequence[_Step]) -> list[Action]:
        """Adds the new replicas. The topic's znode is written first, so that a new controller goes on."""
        actions: list[Action] = []
        for topic, of_topic in _by_topic(steps):
            taken = self._carry_out(topic, of_topic)
            self._under_way.setdefault(topic.name, set()).update(step.number for step in of_topic)
            actions += [_written(topic), *taken]
        return actions

    def _finish(self, steps: Sequence[_Step]) -> list[Action]:
        """Removes the old replicas. The topic's znode is written last: until then it says what to do."""
        actions: list[Action] = []
        dropped: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
        for topic, of_topic in _by_topic(steps):
            actions += self._carry_out(topic, of_topic)
            numbers = {step.number for step in of_topic}
            _remove(self._under_way, topic.name, numbers)
            for number in numbers:
                partition = TopicPartition(topic.name, number)
                if partition in self._in_znode:
                    self._in_znode.discard(partition)
                    dropped[partition] = topic.assignment[number].replicas
            actions.append(_written(topic))
        return [*actions, DropReassignments(dropped)] if dropped else actions

    def _carry_out(self, topic: TopicInfo, steps: Sequence[_Step]) -> list[Action]:
        """Carries out steps of one topic, whose znode the caller writes."""
        moved: dict[int, PartitionState] = {}
        stops: dict[BrokerId, list[int]] = {}
        for step in steps:
            number, after = step.number, step.after
            for broker in step.dropped:
                stops.setdefault(broker, []).append(number)
            moved[number] = self._state_after(step)
            topic.assignment[number] = after
            topic.partitions[number] = moved[number]
        _remove(self._caught_up, topic.name, set(moved))
        numbers = tuple(moved)
        return [
            UpdateStates(topic.name, moved),
            Lead(topic, numbers),
            *(
                StopReplicas(topic, broker, tuple(stopped), delete=True, lives_on=True)
                for broker, stopped in sorted(stops.items())
            ),
            Publish(topic, numbers),
        ]

    def _state_after(self, step: _Step) -> PartitionState:
        """A new leader epoch, without the dropped replicas. If the leader is one of them, or cannot lead the
        targets, the first replica that can leads.
        """
        state, after, dropped = step.state, step.after, step.dropped
        name, number = step.topic.name, step.number
        isr = tuple(broker for broker in state.isr if broker not in dropped)
        leader = state.leader
        if leader not in after.replicas or (step.is_last and not self._view.may_lead(name, number, leader)):
            able = (b for b in after.replicas if b in isr and self._view.may_lead(name, number, b))
            leader = next(able, leader if leader in after.replicas else NO_LEADER)
        return replace(self._in_next_epoch(state), leader=leader, isr=isr)

    def _in_next_epoch(self, state: PartitionState) -> PartitionState:
        epoch = LeaderEpoch(state.leader_epoch + 1)
        return replace(state, leader_epoch=epoch, controller_epoch=self._view.epoch)

    # ---- progress ----

    def loaded(self, topic: TopicInfo, is_unknown: bool) -> dict[int, PartitionState]:
        """A topic was read. Returns the states, in a new epoch, of partitions whose reassignment goes on. If
        the topic `is_unknown`, brokers may not have been told of the replicas.
        """
        self.forget(topic.name)
        states: dict[int, PartitionState] = {}
        for number, assigned in topic.assignment.items():
            if not assigned.is_reassigned:
                continue
            self._under_way.setdefault(topic.name, set()).add(number)
            state = topic.partitions.get(number, UNREADABLE)
            if state == UNREADABLE:
                continue
            if not self.isr_changed(topic, number) and is_unknown:
                states[number] = self._in_next_epoch(state)
        return states

    def isr_changed(self, topic: TopicInfo, number: int) -> bool:
        """The ISR of a partition changed. Returns whether its reassignment can be completed."""
        if number not in self._under_way.get(topic.name, ()):
            return False
        is_last = _Step(topic, number, topic.assignment[number]).is_last
        if is_last:
            self._caught_up.setdefault(topic.name, set()).add(number)
        return is_last

    def complete(self) -> list[Action]:
        """Completes the reassignments whose targets are in the ISR."""
        due, self._caught_up = self._caught_up, {}
        steps = [
            _Step(topic, number, topic.assignment[number])
            for name, numbers in due.items()
            if (topic := self._view.topics.get(name)) is not None
            for number in sorted(numbers)
        ]
        # A replica may have left the ISR since.
        return self._finish([step for step in steps if step.wanted.is_reassigned and step.is_last])

    def forget(self, topic: str) -> None:
        """The topic is gone, or is read again."""
        self._under_way.pop(topic, None)
        self._caught_up.pop(topic, None)


def _by_topic(steps: Sequence[_Step]) -> Iterator[tuple[TopicInfo, list[_Step]]]:
    of: dict[str, list[_Step]] = {}
    for step in steps:
        of.setdefault(step.topic.name, []).append(step)
    return ((of_topic[0].topic, of_topic) for of_topic in of.values())


def _written(topic: TopicInfo) -> WriteTopic:
    """The write of the topic's replicas as they are now; later steps change them in place."""
    return WriteTopic(replace(topic, assignment=dict(topic.assignment)))


def _remove(of: dict[str, set[int]], topic: str, numbers: set[int]) -> None:
    """Removes partitions from a map of topics."""
    left = of.get(topic, set()) - numbers
    if left:
        of[topic] = left
    else:
        of.pop(topic, None)
