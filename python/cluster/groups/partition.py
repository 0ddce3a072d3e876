"""The groups of one partition of __consumer_offsets, of both protocols: one pure state machine.

Requests and the time go in, actions come out (`Respond`, `Write`). The driver reports a write with `stored`
and calls `advance` at `next_deadline`. No I/O and no clock; `new_id` is the only randomness, so scripts and
seeds replay it. `load` restores it from the log.

Holds `ClassicGroups`, `Offsets` and `ConsumerGroups`, and says which of them a request is for; their rules
are there. A consumer group's offsets are those of the classic group of its id, which has no members then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cluster.errors import NONE, GroupIdNotFound, InvalidSessionTimeout, NonEmptyGroup
from cluster.groups.classic.machine import ClassicGroups
from cluster.groups.classic.table import GroupTable
from cluster.groups.committed import CommittedOffset
from cluster.groups.consumer.group import ConsumerGroup
from cluster.groups.consumer.machine import ConsumerGroups
from cluster.groups.consumer.messages import (
    ClusterTopics,
    ConsumerGroupView,
    ConsumerLimits,
    Heartbeat,
    NoTopics,
)
from cluster.groups.consumer.records import KEY_VERSIONS, read_change
from cluster.groups.memory import MemoryUse
from cluster.groups.messages import (
    CONSUMER_PROTOCOL,
    Action,
    Commit,
    CommitResult,
    GroupLimits,
    GroupView,
    Join,
    JoinResult,
    LeaveResult,
    Leaving,
    Overview,
    Sync,
)
from cluster.groups.offsets import Offsets
from cluster.groups.outbox import Outbox
from cluster.groups.records import OffsetRecord, read_record
from cluster.model import TopicPartition
from cluster.state_topics import Entry, Marker, Token

CLASSIC = "classic"
CONSUMER = "consumer"
"""The types of groups, as ListGroups shows them."""


class PartitionGroups:
    """The machine of one partition."""

    def __init__(
        self,
        limits: GroupLimits,
        new_id: Callable[[], str],
        consumer_limits: ConsumerLimits | None = None,
        topics: ClusterTopics | None = None,
        memory: MemoryUse | None = None,
    ) -> None:
        """Without `topics` no topic exists for groups of the consumer protocol. `memory`: shared by the
        machines of all partitions.
        """
        self.memory = MemoryUse(limits.members_bytes_max) if memory is None else memory
        self._limits = limits
        self._outbox = Outbox()
        self.table = GroupTable(self.memory)
        self.classic = ClassicGroups(limits, new_id, self._outbox, self.table)
        self.offsets = Offsets(limits, self._outbox, self.table, self._read_by_members)
        self.consumer = ConsumerGroups(
            consumer_limits or ConsumerLimits(),
            topics or NoTopics(),
            self.classic,
            new_id,
            self._outbox,
            self.memory,
        )

    def _with_members(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group of that id if it has members."""
        group = self.consumer.get(group_id)
        return group if group is not None and group.members else None

    def _read_by_members(self, group_id: str) -> frozenset[str] | None:
        """The topics that a consumer group reads; None for another group."""
        group = self.consumer.get(group_id)
        return None if group is None else group.subscribed()

    # ---- the consumer protocol ----

    def consumer_heartbeat(self, token: Token, request: Heartbeat, now: int) -> list[Action]:
        """ConsumerGroupHeartbeat."""
        self.consumer.heartbeat(token, request, now)
        return self._outbox.take()

    def describe_consumer(self, group_id: str) -> ConsumerGroupView:
        """A consumer group and its members. Raises GroupIdNotFound if there is none."""
        group = self.consumer.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        return self.consumer.describe(group)

    # ---- the classic protocol ----

    def join(self, token: Token, request: Join, now: int) -> list[Action]:
        """JoinGroup."""
        group = self.consumer.get(request.group)
        low, high = self._limits.session_timeout_min_ms, self._limits.session_timeout_max_ms
        if not low <= request.session_timeout_ms <= high:
            self._outbox.respond(token, JoinResult(InvalidSessionTimeout.code, request.member))
        elif group is not None and group.members:
            self.consumer.classic.join(token, request, now)
        else:
            if group is not None:
                self.consumer.delete(group)
            self.classic.members.join(token, request, now)
        return self._outbox.take()

    def sync(self, token: Token, request: Sync, now: int) -> list[Action]:
        """SyncGroup."""
        if self._with_members(request.group) is None:
            self.classic.members.sync(token, request, now)
        else:
            self.consumer.classic.sync(token, request, now)
        return self._outbox.take()

    def heartbeat(self, group_id: str, generation: int, member: str, instance: str | None, now: int) -> int:
        """Heartbeat. Returns the error code."""
        if self._with_members(group_id) is None:
            return self.classic.members.heartbeat(group_id, generation, member, instance, now)
        return self.consumer.classic.heartbeat(group_id, generation, member, instance, now)

    def leave(self, group_id: str, leaving: Sequence[Leaving], now: int) -> tuple[LeaveResult, list[Action]]:
        """LeaveGroup, of one member or several. Returns the response and the actions."""
        if self._with_members(group_id) is None:
            result = self.classic.members.leave(group_id, leaving, now)
        else:
            result = self.consumer.classic.leave(group_id, leaving, now)
        return result, self._outbox.take()

    # ---- offsets ----

    def commit(self, token: Token, request: Commit, now: int) -> list[Action]:
        """OffsetCommit and TxnOffsetCommit."""
        group = self.consumer.get(request.group)
        if group is None:
            error = self.classic.members.check_commit(request, now)
        else:
            error = self.consumer.check_commit(group, request)
        if error:
            self._outbox.respond(token, CommitResult(error))
        else:
            self.offsets.commit(token, request)
        return self._outbox.take()

    def check_fetch(self, group_id: str, member: str | None, epoch: int) -> int:
        """The error for an OffsetFetch of this member, or 0."""
        group = self.consumer.get(group_id)
        return NONE if group is None else self.consumer.check_fetch(group, member, epoch)

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group."""
        return self.offsets.committed(group_id)

    def delete_offsets(self, token: Token, group_id: str, items: Iterable[TopicPartition]) -> list[Action]:
        """OffsetDelete."""
        self.offsets.delete(token, group_id, items)
        return self._outbox.take()

    def unstable(self, group_id: str, items: Iterable[TopicPartition]) -> frozenset[int]:
        """The numbers of the partitions whose offset may change soon (`require_stable`)."""
        return self.offsets.unstable(group_id, items)

    def transaction_ended(self, producer_id: int, committed: bool) -> list[Action]:
        """A producer's transaction ended: its offsets count, or are dropped."""
        self.offsets.transaction_ended(producer_id, committed)
        return self._outbox.take()

    def group_ids(self, now: int) -> list[str]:
        """All groups of both protocols."""
        return list(dict.fromkeys([*self.table.groups, *(group.id for group in self.consumer.groups())]))

    def expire_group(self, group_id: str, now: int) -> list[Action]:
        """Removes expired offsets of a group, and the group if it has neither members nor offsets left."""
        self.offsets.expire(group_id, now)
        group = self.consumer.get(group_id)
        if group is not None and not group.members and not self.offsets.has_offsets(group_id):
            self.consumer.delete(group)
        return self._outbox.take()

    def topics_deleted(self, topics: Iterable[str]) -> list[Action]:
        """Removes offsets in deleted topics."""
        self.offsets.topics_deleted(topics)
        return self._outbox.take()

    # ---- all groups ----

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[Overview]:
        """The groups in one of `states` and of one of `types`, in upper or lower case; empty means all."""
        wanted = {state.lower() for state in states}
        kinds = {kind.lower() for kind in types}
        found = [group for group in self.classic.list_groups() if self.consumer.get(group.group) is None]
        found += [
            Overview(group.id, CONSUMER_PROTOCOL, group.state, CONSUMER) for group in self.consumer.groups()
        ]
        return [
            group
            for group in found
            if (not wanted or group.state.lower() in wanted) and (not kinds or group.type in kinds)
        ]

    def describe(self, group_id: str) -> GroupView:
        """A classic group and its members. Any other has the state Dead."""
        return (
            GroupView("Dead") if self.consumer.get(group_id) is not None else self.classic.describe(group_id)
        )

    def delete(self, group_id: str) -> tuple[int, list[Action]]:
        """DeleteGroups: the error code for the group, and the actions."""
        group = self.consumer.get(group_id)
        if group is None:
            return self.classic.delete(group_id), self._outbox.take()
        if group.members:
            return NonEmptyGroup.code, []
        self.consumer.delete(group)
        # The offsets, if there are any.
        self.classic.delete(group_id)
        return NONE, self._outbox.take()

    def delayed_operations(self) -> dict[str, int]:
        """How many operations wait, by the names of Kafka's purgatories. Any thread may call it."""
        waiting = self.classic.delayed_operations()
        waiting["Heartbeat"] += self.consumer.waiting()
        return waiting

    # ---- the runtime ----

    def load(self, entries: Iterable[Entry | Marker]) -> int:
        """Records were read from the log, in order. Returns how many could not be decoded."""
        skipped = 0
        for entry in entries:
            if isinstance(entry, Marker):
                self.offsets.transaction_ended(entry.producer.id, entry.committed)
                continue
            try:
                self._load(entry)
            except ValueError:
                # A damaged record loses one commit; it does not stop the start.
                skipped += 1
        return skipped

    def _load(self, entry: Entry) -> None:
        if entry.key is not None and int.from_bytes(entry.key[:2], "big", signed=True) in KEY_VERSIONS:
            self.consumer.load(*read_change(entry.key, entry.value))
            return
        record = read_record(entry)
        if isinstance(record, OffsetRecord):
            self.offsets.load(record.group, record.item, record.kept, entry.producer)
        else:
            self.classic.load(record.stored, record.group)

    def loaded(self, now: int) -> list[Action]:
        """The log was read to its end: the sessions of members that were loaded start."""
        self.consumer.loaded(now)
        self.classic.loaded(now)
        return self._outbox.take()

    def unload(self) -> None:
        """Another coordinator has these groups now: gives back their memory."""
        self.consumer.unload()
        self.classic.unload()

    def stored(self, write: int, error: int, now: int) -> list[Action]:
        """A Write was carried out; `error` is its error code, or 0."""
        self._outbox.stored(write, error, now)
        return self._outbox.take()

    def next_deadline(self) -> int | None:
        """When `advance` must be called next. It may have nothing to do then."""
        deadlines = (self.classic.next_deadline(), self.consumer.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def advance(self, now: int, most: int | None = None) -> list[Action]:
        """Handles the timers due at `now`, at most `most` of each protocol."""
        self.classic.advance(now, most)
        self.consumer.advance(now, most)
        return self._outbox.take()

    def postpone(self, by_ms: int) -> None:
        """Moves every deadline, because the coordinator stood still and read no requests."""
        self.classic.postpone(by_ms)
        self.consumer.postpone(by_ms)
