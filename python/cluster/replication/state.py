"""The state machine of in-sync replicas: reports of the data plane in, changes of the ISR out.

The data plane reports which followers fell behind or caught up. The leader wishes for another ISR, the
controller decides, and only then it counts. While a wish is under way, the high watermark also waits for the
replicas that it adds (KIP-497), so that a record is never acknowledged without a replica that may already be
in the ISR. Messages in, actions out; no I/O, no clock. Not persistent: a new leader gets the ISR from the
controller. Source: kafka.cluster.Partition (PartitionState), DefaultAlterPartitionManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.errors import (
    NONE,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    OperationNotAttempted,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from cluster.model import BrokerId, LeaderEpoch, TopicId, TopicPartition

CAUGHT_UP, FELL_BEHIND, LACKS_SPACE = "caught_up", "fell_behind", "lacks_space"


@dataclass(frozen=True, slots=True)
class Led:
    """A partition that this broker leads."""

    topic_id: TopicId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    """The version of the partition's state at the controller."""
    wished: tuple[BrokerId, ...] | None = None
    """The ISR that the controller was or will be asked for."""
    asked: bool = False
    """The controller was asked, and may have granted the wish. Until it answers, the wish stays as it is."""
    under_way: bool = False
    """A request is under way."""
    given_up: bool = False
    """The controller knows something newer, which it sends to this broker."""


@dataclass(frozen=True, slots=True)
class SetIsr:
    """Give the data plane the ISR, and the replicas that the high watermark waits for besides."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    pending: tuple[BrokerId, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Another in-sync replica must lead: this leader's disk has no space for records."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Report:
    """A follower caught up or fell behind, or the leader lacks space."""

    partition: TopicPartition
    leader_epoch: int
    broker: BrokerId
    kind: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The controller's answer for one partition: an error code, or the ISR that counts now."""

    code: int
    leader_epoch: int = -1
    isr: tuple[BrokerId, ...] = ()
    partition_epoch: int = -1


_ENDED = frozenset(
    {
        UnknownTopicOrPartition.code,
        UnknownTopicId.code,
        FencedLeaderEpoch.code,
        InvalidRequest.code,
        InvalidUpdateVersion.code,
    }
)
"""The controller has, or had, something newer for this partition. It sends that by itself. Until then the
replicas of the wish count, because an earlier request may have been granted.
"""

_REFUSED = frozenset({OperationNotAttempted.code, IneligibleReplica.code})
"""The wish is not granted, and no earlier request was: the version of the ISR is the controller's. The ISR
stays, and a later report may lead to another wish.
"""


class ReplicationState:
    """The partitions that this broker leads."""

    def __init__(self) -> None:
        self.led: dict[TopicPartition, Led] = {}

    def leads(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        leader_epoch: LeaderEpoch,
        isr: tuple[BrokerId, ...],
        partition_epoch: int,
    ) -> None:
        """The controller made this broker the leader, or changed the ISR in a new epoch."""
        self.led[partition] = Led(topic_id, leader_epoch, isr, partition_epoch)

    def follows(self, partition: TopicPartition) -> None:
        """This broker does not lead the partition."""
        self.led.pop(partition, None)

    def reported(self, reports: Iterable[Report]) -> list[SetIsr | GiveUp]:
        """Followers caught up or fell behind. Reports of one partition together make one wish.

        A leader that lacks space gives its partition up, unless it is the only one in sync.
        """
        changed: dict[TopicPartition, None] = {}
        full: list[SetIsr | GiveUp] = []
        for report in reports:
            led = self.led.get(report.partition)
            if led is None or led.leader_epoch != report.leader_epoch or led.given_up:
                continue
            if report.kind == LACKS_SPACE:
                if len(led.isr) > 1:
                    full.append(GiveUp(report.partition))
                continue
            if led.asked:
                continue
            wished = self._with(led, report)
            self.led[report.partition] = replace(led, wished=None if wished == led.isr else wished)
            changed[report.partition] = None
        return [*full, *map(self._set_isr, changed)]

    def _with(self, led: Led, report: Report) -> tuple[BrokerId, ...]:
        wished = led.isr if led.wished is None else led.wished
        if report.kind == FELL_BEHIND:
            return tuple(broker for broker in wished if broker != report.broker)
        return wished if report.broker in wished else (*wished, report.broker)

    def _set_isr(self, partition: TopicPartition) -> SetIsr:
        led = self.led[partition]
        pending = tuple(broker for broker in led.wished or () if broker not in led.isr)
        return SetIsr(partition, led.leader_epoch, led.isr, pending, led.partition_epoch)

    def not_set(self, action: SetIsr) -> None:
        """The data plane refused an ISR: a replica to be added lacks records again. It is not wished for."""
        led = self.led.get(action.partition)
        if led is not None and led.leader_epoch == action.leader_epoch and not led.asked:
            self.led[action.partition] = replace(led, wished=None)

    def wishes(self) -> dict[TopicPartition, Led]:
        """The wishes to ask the controller for. They are under way now."""
        asked = {
            partition: led
            for partition, led in self.led.items()
            if led.wished is not None and not led.under_way and not led.given_up
        }
        for partition, led in asked.items():
            self.led[partition] = replace(led, asked=True, under_way=True)
        return asked

    def unanswered(self, asked: Mapping[TopicPartition, Led]) -> None:
        """The controller did not answer. The same is asked again, because it may have been granted."""
        for partition, led in asked.items():
            if self._is_same(partition, led):
                self.led[partition] = replace(self.led[partition], under_way=False)

    def answered(
        self, asked: Mapping[TopicPartition, Led], answers: Mapping[TopicPartition, Answer]
    ) -> list[SetIsr]:
        """The controller answered. A partition that the answer does not have is asked for again."""
        actions = []
        for partition, led in asked.items():
            if not self._is_same(partition, led):
                continue
            answer = answers.get(partition)
            if answer is None:
                self.led[partition] = replace(self.led[partition], under_way=False)
                continue
            self.led[partition] = self._after(self.led[partition], answer)
            if answer.code == NONE or answer.code in _REFUSED:
                actions.append(self._set_isr(partition))
        return actions

    def still_wished(self, asked: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose wish the answer did not settle."""
        return [
            partition
            for partition in asked
            if (led := self.led.get(partition)) is not None and led.asked and not led.given_up
        ]

    def _after(self, led: Led, answer: Answer) -> Led:
        if answer.code in _REFUSED:
            return replace(led, wished=None, asked=False, under_way=False)
        if answer.code in _ENDED or (answer.code == NONE and answer.leader_epoch != led.leader_epoch):
            return replace(led, given_up=True)
        if answer.code != NONE:
            return replace(led, under_way=False)
        return replace(
            led,
            isr=answer.isr,
            partition_epoch=answer.partition_epoch,
            wished=None,
            asked=False,
            under_way=False,
        )

    def _is_same(self, partition: TopicPartition, asked: Led) -> bool:
        led = self.led.get(partition)
        return led is not None and led.under_way and led.leader_epoch == asked.leader_epoch
