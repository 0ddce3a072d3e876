"""The classic groups of one partition of __consumer_offsets: timers, views, changes of the protocol, loading.

Pure: requests and the time go in, actions go to the outbox. `new_id` is the only randomness, so scripts and
seeds replay it. Knows only snapshots of groups of the consumer protocol.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.errors import NONE, GroupIdNotFound, NonEmptyGroup, RebalanceInProgress
from cluster.groups.classic.group import GroupState, Member
from cluster.groups.classic.membership import Membership
from cluster.groups.classic.rebalance import Rebalances
from cluster.groups.classic.table import GroupTable
from cluster.groups.committed import GroupOffsets
from cluster.groups.messages import (
    GroupLimits,
    GroupView,
    JoinResult,
    MemberView,
    Overview,
    Snapshot,
    SnapshotMember,
    StoredGroup,
    SyncResult,
)
from cluster.groups.outbox import Outbox
from cluster.groups.timers import TimerKey


class ClassicGroups:
    """The groups."""

    def __init__(
        self, limits: GroupLimits, new_id: Callable[[], str], outbox: Outbox, table: GroupTable
    ) -> None:
        self._limits = limits
        self._outbox = outbox
        self._table = table
        self._rebalances = Rebalances(limits, outbox, table.memory)
        self.members = Membership(limits, new_id, outbox, table, self._rebalances)

    # ---- timers ----

    def next_deadline(self) -> int | None:
        """When `advance` must be called next. It may have nothing to do then."""
        return self._table.timers.next()

    def advance(self, now: int, most: int | None = None) -> None:
        """Handles the timers due at `now`, at most `most` of them."""
        for name, kind, member_id in self._table.timers.over(now, self._deadline, most):
            group = self._table.groups[name]
            if kind == "session":
                self.members.session_due(group, member_id, now)
            elif kind == "pending":
                self.members.drop_pending(group, member_id, now)
            elif kind == "sync":
                self._rebalances.sync_due(group, now)
            else:
                self._rebalances.join_due(group, now)

    def _deadline(self, due: TimerKey) -> int | None:
        name, kind, member_id = due
        return self._table.groups[name].deadline(kind, member_id)

    def postpone(self, by_ms: int) -> None:
        """Moves every deadline, because the coordinator stood still and read no requests."""
        for group in self._table.all():
            group.postpone(by_ms)

    # ---- what is there ----

    def list_groups(self) -> list[Overview]:
        """All groups."""
        return [
            Overview(group.id, group.protocol_type or "", group.state.value) for group in self._table.all()
        ]

    def delayed_operations(self) -> dict[str, int]:
        """How many operations wait, by the names of Kafka's purgatories. Any thread may call it.

        A rebalancing group waits for a join or a sync. Each member, also one that only got its id, waits for
        a heartbeat.
        """
        groups = self._table.all()
        rebalancing = (GroupState.PREPARING, GroupState.COMPLETING)
        return {
            "Rebalance": sum(group.state in rebalancing for group in groups),
            "Heartbeat": sum(len(group.members) + len(group.pending) for group in groups),
        }

    def describe(self, group_id: str) -> GroupView:
        """A group and its members. An unknown group has the state Dead."""
        group = self._table.get(group_id)
        if group is None:
            return GroupView(GroupState.DEAD.value)
        stable = group.state is GroupState.STABLE
        protocol = group.protocol or "" if stable else ""
        members = tuple(
            MemberView(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.members.values()
        )
        return GroupView(group.state.value, group.protocol_type or "", protocol, members)

    def delete(self, group_id: str) -> int:
        """DeleteGroups: removes a group and its offsets. Returns the error code."""
        group = self._table.get(group_id)
        if group is None:
            return GroupIdNotFound.code
        if group.state is not GroupState.EMPTY:
            return NonEmptyGroup.code
        tombstones = dict.fromkeys(group.offsets.committed)
        self._table.remove(group)
        self._outbox.write(group.id, offsets=tombstones, remove_group=True)
        return NONE

    # ---- changes of the protocol ----

    def snapshot(self, group_id: str) -> Snapshot | None:
        """The classic group that was written or has members."""
        group = self._table.get(group_id)
        if group is None or (group.state is GroupState.EMPTY and group.generation == 0):
            return None
        members = tuple(
            SnapshotMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.protocols,
                member.assignment,
            )
            for member in group.members.values()
        )
        return Snapshot(group.id, group.generation, group.protocol_type, group.protocol, members)

    def record(self, group_id: str) -> StoredGroup:
        """The record of a group that exists."""
        return self._table.groups[group_id].record()

    def end(self, group_id: str) -> None:
        """Ends a classic group; its offsets stay. Members that wait join again."""
        group = self._table.get(group_id)
        if group is None:
            return
        for member in group.members.values():
            self._outbox.respond(group.take_join(member), JoinResult(RebalanceInProgress.code, member.id))
            self._outbox.respond(member.sync_token, SyncResult(RebalanceInProgress.code))
        group.reset()
        self._table.remove_unused(group)

    def begin(self, snapshot: Snapshot, now: int) -> None:
        """Begins a classic group, and a rebalance of its members."""
        group = self._table.get(snapshot.group) or self._table.add(snapshot.group)
        for item in snapshot.members:
            member = Member(
                id=item.id,
                instance_id=item.instance,
                client_id=item.client_id,
                client_host=item.client_host,
                rebalance_timeout_ms=item.rebalance_timeout_ms,
                session_timeout_ms=item.session_timeout_ms,
                protocol_type=snapshot.protocol_type or "",
                protocols=item.protocols,
                assignment=item.assignment,
            )
            group.add(member)
            group.renew_session(member, now)
        group.generation, group.protocol_type = snapshot.generation, snapshot.protocol_type
        if snapshot.members:
            group.protocol = snapshot.protocol or group.elect_protocol()
            group.state = GroupState.STABLE
            self._rebalances.begin(group, now)
        else:
            group.state_since_ms = now
        self._table.remove_unused(group)

    # ---- loading ----

    def load(self, stored: StoredGroup | None, group_id: str) -> None:
        """A group's record was read from the log; None removes the group. The last record counts."""
        known = self._table.get(group_id)
        offsets = GroupOffsets() if known is None else known.offsets
        if known is not None:
            self._table.remove(known)
        if stored is None and not offsets:
            return
        group = self._table.add(group_id, offsets)
        if stored is None:
            return
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol = stored.protocol
        group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        group.state_since_ms = None if stored.state_since_ms == -1 else stored.state_since_ms
        for item in stored.members:
            group.add(
                Member(
                    id=item.id,
                    instance_id=item.instance,
                    client_id=item.client_id,
                    client_host=item.client_host,
                    rebalance_timeout_ms=item.rebalance_timeout_ms,
                    session_timeout_ms=item.session_timeout_ms,
                    protocol_type=stored.protocol_type,
                    protocols=((stored.protocol or "", item.subscription),),
                    assignment=item.assignment,
                )
            )
        group.leader = stored.leader

    def loaded(self, now: int) -> None:
        """A partition of the log was read to its end: the sessions of members that were loaded start."""
        for group in self._table.all():
            self._table.remove_unused(group)
            fresh = [member for member in group.members.values() if self._is_loaded(member)]
            for member in fresh:
                group.renew_session(member, now)
            if fresh and len(group.members) > self._limits.members_max:
                self._rebalances.begin(group, now)

    @staticmethod
    def _is_loaded(member: Member) -> bool:
        """The member came from the log, and its session has not started."""
        return member.deadline is None and member.join_token is None and member.sync_token is None

    def unload(self) -> None:
        """Another coordinator has these groups now: gives back their memory."""
        for group in self._table.all():
            self._table.remove(group)
