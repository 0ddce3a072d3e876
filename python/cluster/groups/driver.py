"""The group coordinator: the machines of the partitions of __consumer_offsets that this broker leads, and the
calls of the broker's handlers.

Owns no state but what all machines share; `cluster.state_topics` loads, calls and writes. Lives on the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidCommitOffsetSize,
    InvalidFetchSize,
    InvalidGroupId,
    KafkaProtocolError,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from cluster.groups.committed import CommittedOffset
from cluster.groups.consumer.messages import (
    ClusterTopics,
    ConsumerGroupView,
    ConsumerLimits,
    Heartbeat,
    HeartbeatResult,
)
from cluster.groups.memory import MemoryUse
from cluster.groups.messages import (
    Action,
    Commit,
    CommitResult,
    GroupLimits,
    GroupView,
    Join,
    JoinResult,
    Leaving,
    Overview,
    Sync,
    SyncResult,
    Write,
)
from cluster.groups.partition import PartitionGroups
from cluster.groups.records import encode_write
from cluster.model import GROUP_METADATA_TOPIC, TopicPartition
from cluster.state_topics import WRITE_ERRORS, Batch, Clock, Coordinators, Producer, StateLog

log = logging.getLogger(__name__)

_COMMIT_ERRORS = {
    UnknownTopicOrPartition.code: CoordinatorNotAvailable.code,
    NotEnoughReplicas.code: CoordinatorNotAvailable.code,
    NotEnoughReplicasAfterAppend.code: CoordinatorNotAvailable.code,
    NotLeaderOrFollower.code: NotCoordinator.code,
    KafkaStorageError.code: NotCoordinator.code,
    MessageTooLarge.code: InvalidCommitOffsetSize.code,
    RecordListTooLarge.code: InvalidCommitOffsetSize.code,
    InvalidFetchSize.code: InvalidCommitOffsetSize.code,
}
_GROUP_ERRORS = {**WRITE_ERRORS, InvalidFetchSize.code: UnknownServerError.code}

_WARN_INTERVAL_MS = 60_000


class _GroupRules:
    """How the runtime of state topics treats groups."""

    topic = GROUP_METADATA_TOPIC
    what = "consumer groups"

    def __init__(
        self,
        limits: GroupLimits,
        consumer_limits: ConsumerLimits | None,
        topics: ClusterTopics | None,
        write_timeout_ms: int,
    ) -> None:
        self.limits = limits
        self._consumer_limits = consumer_limits
        self._topics = topics
        self.memory = MemoryUse(limits.members_bytes_max)
        self._write_timeout_ms = write_timeout_ms

    def machine(self, partition: int, epoch: int) -> PartitionGroups:
        return PartitionGroups(
            self.limits, lambda: str(uuid.uuid4()), self._consumer_limits, self._topics, self.memory
        )

    def batch(self, write: Write) -> Batch:
        return Batch(encode_write(write), write.producer)

    def timeout_ms(self, write: Write) -> int:
        return self._write_timeout_ms

    def subject(self, write: Write) -> str:
        return f"group {write.group}"

    def code(self, write: Write, code: int) -> int:
        if write.records:
            # Groups of the consumer protocol undo writes that are not in the log.
            return code
        return (_GROUP_ERRORS if write.stored is not None else _COMMIT_ERRORS).get(code, code)

    def carry_out(self, partition: int, action: object) -> None:
        raise TypeError(f"groups have no action {action!r}")


class GroupCoordinator:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        limits: GroupLimits,
        state_log: StateLog,
        expiry_interval_ms: int,
        write_timeout_ms: int = 5_000,
        consumer_limits: ConsumerLimits | None = None,
        topics: ClusterTopics | None = None,
    ) -> None:
        """`write_timeout_ms`: how long a record may take to all in-sync replicas. Without `topics` no topic
        exists for groups of the consumer protocol.
        """
        self._rules = _GroupRules(limits, consumer_limits, topics, write_timeout_ms)
        self._clock = Clock()
        self.partitions: Coordinators[PartitionGroups, Write] = Coordinators(
            self._rules, state_log, self._clock
        )
        self._expiry_interval_ms = expiry_interval_ms
        self._expiry: asyncio.Task[None] | None = None
        self._warn_after = 0
        self._refused = 0

    # ---- start and stop ----

    def start(self) -> None:
        """Starts the expiry of offsets."""
        sweep = self.partitions.sweep(
            PartitionGroups.group_ids, PartitionGroups.expire_group, self._expiry_interval_ms
        )
        self._expiry = asyncio.create_task(sweep)

    async def stop(self) -> None:
        """Answers waiting requests with COORDINATOR_NOT_AVAILABLE, so that clients look for the coordinator
        again.
        """
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        await self.partitions.stop()

    # ---- requests ----

    def status(self, group: str, empty_allowed: bool = False) -> int:
        """The error for requests about this group if this broker cannot answer them now, else 0."""
        if not group and not empty_allowed:
            return InvalidGroupId.code
        return self.partitions.status(group)

    @property
    def loading(self) -> bool:
        """A partition is being read."""
        return self.partitions.loading

    def now(self) -> int:
        """The coordinator's time."""
        return self._clock.now()

    async def join(self, request: Join) -> JoinResult:
        """JoinGroup."""
        waiting = self.partitions.ask(
            request.group,
            lambda machine, token, now: self._warned(request.group, machine.join(token, request, now)),
        )
        return cast(JoinResult, await waiting)

    async def sync(self, request: Sync) -> SyncResult:
        """SyncGroup."""
        waiting = self.partitions.ask(
            request.group,
            lambda machine, token, now: self._warned(request.group, machine.sync(token, request, now)),
        )
        return cast(SyncResult, await waiting)

    def _warned(self, group: str, actions: list[Action]) -> list[Action]:
        """Logs once a minute why members are refused."""
        refused, now = self._rules.memory.refused, self.now()
        if refused != self._refused and now >= self._warn_after:
            self._warn_after = now + _WARN_INTERVAL_MS
            log.warning(
                "group %s: a member or an assignment is refused, because all members would take more than %d "
                "bytes (a quarter of queued.max.request.bytes; small ones may take twice that): raise "
                "queued.max.request.bytes, or wait for the session timeouts of members that are gone",
                group,
                self._rules.limits.members_bytes_max,
            )
        self._refused = refused
        return actions

    async def commit(self, request: Commit) -> CommitResult:
        """OffsetCommit."""
        waiting = self.partitions.ask(
            request.group, lambda machine, token, now: machine.commit(token, request, now)
        )
        return cast(CommitResult, await waiting)

    async def delete_offsets(self, group: str, items: Sequence[TopicPartition]) -> CommitResult:
        """OffsetDelete."""
        waiting = self.partitions.ask(
            group, lambda machine, token, now: machine.delete_offsets(token, group, items)
        )
        return cast(CommitResult, await waiting)

    def transaction_ended(self, partition: int, producer: Producer, committed: bool) -> None:
        """The marker of a producer's transaction is in a partition of __consumer_offsets, on every in-sync
        replica.
        """
        self.partitions.do_in(
            partition, None, lambda machine, now: machine.transaction_ended(producer.id, committed)
        )

    def unstable(self, group: str, topic: str, partitions: Iterable[int]) -> frozenset[int]:
        """The partitions whose offset may change soon. Raises as :meth:`Coordinators.machine`."""
        machine = self.partitions.machine(group)
        return machine.unstable(group, (TopicPartition(topic, number) for number in partitions))

    async def consumer_heartbeat(self, request: Heartbeat) -> HeartbeatResult:
        """ConsumerGroupHeartbeat."""
        waiting = self.partitions.ask(
            request.group,
            lambda machine, token, now: self._warned(
                request.group, machine.consumer_heartbeat(token, request, now)
            ),
        )
        return cast(HeartbeatResult, await waiting)

    def heartbeat(self, group: str, generation: int, member: str, instance: str | None) -> int:
        """Heartbeat. Returns the error code."""
        return self._error_of(
            group, lambda machine, now: (machine.heartbeat(group, generation, member, instance, now), ())
        )

    def leave(self, group: str, leaving: Leaving) -> int:
        """LeaveGroup for one member. Returns the error code."""

        def call(machine: PartitionGroups, now: int) -> tuple[int, Iterable[Action]]:
            result, actions = machine.leave(group, [leaving], now)
            return result.members[0], actions

        return self._error_of(group, call)

    def delete(self, group: str) -> int:
        """DeleteGroups for one group. Returns the error code."""
        return self._error_of(group, lambda machine, now: machine.delete(group), empty_allowed=True)

    def _error_of(
        self,
        group: str,
        call: Callable[[PartitionGroups, int], tuple[int, Iterable[Action]]],
        empty_allowed: bool = False,
    ) -> int:
        """Calls the group's machine. Returns its error code, or why this broker cannot call it now."""
        if not group and not empty_allowed:
            return InvalidGroupId.code
        error = NONE

        def done(machine: PartitionGroups, now: int) -> Iterable[Action]:
            nonlocal error
            error, actions = call(machine, now)
            return actions

        try:
            self.partitions.do(group, done)
        except KafkaProtocolError as refused:
            return refused.code
        return error

    def topics_deleted(self, topics: Sequence[str]) -> None:
        """Removes offsets in deleted topics."""
        self.partitions.do_in_all(lambda machine, now: machine.topics_deleted(topics))

    # ---- what is there ----

    def list_groups(self, states: Sequence[str], types: Sequence[str]) -> list[Overview]:
        """The groups of the partitions that are loaded; see :meth:`PartitionGroups.list_groups`."""
        machines = self.partitions.machines
        return [group for machine in machines for group in machine.list_groups(states, types)]

    def describe(self, group: str) -> GroupView:
        """A group and its members. Raises as :meth:`Coordinators.machine`."""
        return self.partitions.machine(group).describe(group)

    def describe_consumer(self, group: str) -> ConsumerGroupView:
        """A group of the consumer protocol. Raises GroupIdNotFound, and as :meth:`Coordinators.machine`."""
        return self.partitions.machine(group).describe_consumer(group)

    def check_fetch(self, group: str, member: str | None, epoch: int) -> int:
        """The error for an OffsetFetch of this member, or 0."""
        try:
            return self.partitions.machine(group).check_fetch(group, member, epoch)
        except KafkaProtocolError as refused:
            return refused.code

    def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group. Raises as :meth:`Coordinators.machine`."""
        return self.partitions.machine(group).committed(group)

    def delayed_operations(self) -> dict[str, int]:
        """How many operations wait, by the names of Kafka's purgatories. Any thread may call it."""
        waiting = {"Rebalance": 0, "Heartbeat": 0}
        for machine in self.partitions.machines:
            for name, count in machine.delayed_operations().items():
                waiting[name] += count
        return waiting
