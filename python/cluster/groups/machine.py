"""The group machine: all decisions of a group coordinator, as one pure state machine.

Requests and the time go in, actions come out (`Respond`, `Write`). The driver reports a write with `stored`
and calls `advance` at `next_deadline`. No I/O and no clock; `new_id` is the only randomness, so scripts and
seeds replay it. After a crash `load_group` and `load_offset` restore it from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster.errors import NONE, GroupIdNotFound, NonEmptyGroup, NotCoordinator
from cluster.groups._membership import Membership
from cluster.groups._offsets import Offsets
from cluster.groups.group import CommittedOffset, GroupState, Member
from cluster.groups.messages import (
    Action,
    GroupView,
    JoinResult,
    MemberView,
    Overview,
    StoredGroup,
    SyncResult,
)
from cluster.model import TopicPartition


class GroupMachine(Membership, Offsets):
    """All groups of a coordinator."""

    def advance(self, now: int, most: int | None = None) -> list[Action]:
        """Handles the timers due at `now`, at most `most` of them."""
        for due in self.timers.over(now, self._deadline, most):
            name, kind, member_id = due
            group = self.groups[name]
            if kind == "session":
                self._session_due(group, member_id, now)
            elif kind == "pending":
                self._drop_pending(group, member_id, now)
            elif kind == "sync":
                self._sync_due(group, now)
            else:
                self._join_due(group, now)
        return self._take()

    def postpone(self, by_ms: int) -> None:
        """Moves every deadline, because the coordinator stood still and read no requests."""
        for group in self.groups.values():
            group.postpone(by_ms)

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[Overview]:
        """The groups in one of `states`, in upper or lower case; empty means all. Every group is of the type
        classic.
        """
        wanted = {state.lower() for state in states}
        kinds = {kind.lower() for kind in types}
        if kinds and "classic" not in kinds:
            return []
        return [
            Overview(group.id, group.protocol_type or "", group.state.value)
            for group in self.groups.values()
            if not wanted or group.state.value.lower() in wanted
        ]

    def delayed_operations(self) -> dict[str, int]:
        """How many operations wait, by the names of Kafka's purgatories. Any thread may call it.

        A rebalancing group waits for a join or a sync. Each member, also one that only got its id, waits for
        a heartbeat.
        """
        groups = list(self.groups.values())
        rebalancing = (GroupState.PREPARING, GroupState.COMPLETING)
        return {
            "Rebalance": sum(group.state in rebalancing for group in groups),
            "Heartbeat": sum(len(group.members) + len(group.pending) for group in groups),
        }

    def describe(self, group_id: str) -> GroupView:
        """A group and its members. An unknown group has the state Dead."""
        group = self.groups.get(group_id)
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

    def delete(self, group_id: str, now: int) -> tuple[int, list[Action]]:
        """DeleteGroups: the error code for the group, and the actions."""
        group = self.groups.get(group_id)
        if group is None:
            return GroupIdNotFound.code, []
        if group.state is not GroupState.EMPTY:
            return NonEmptyGroup.code, []
        tombstones = dict.fromkeys(group.offsets)
        self._remove_group(group)
        self._write(group, lambda error, now: None, None, tombstones, remove_group=True)
        return NONE, self._take()

    # ---- loading ----

    def load_group(self, stored: StoredGroup | None, group_id: str) -> None:
        """A group's record was read from the log; None removes the group. The last record counts."""
        known = self.groups.get(group_id)
        offsets = known.offsets if known is not None else {}
        if known is not None:
            self._remove_group(known)
        if stored is None and not offsets:
            return
        group = self._add_group(group_id, offsets)
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

    def load_offset(self, group_id: str, item: TopicPartition, kept: CommittedOffset | None) -> None:
        """An offset's record was read from the log; None removes the offset. The last record counts."""
        group = self.groups.get(group_id)
        if kept is None:
            if group is not None:
                group.forget([item])
                self._remove_unused(group)
        elif group is not None:
            group.keep({item: kept})
        else:
            self._add_group(group_id, {item: kept})

    def loaded(self, now: int) -> list[Action]:
        """A partition of the log was read to its end: the sessions of members that were loaded start."""
        for group in list(self.groups.values()):
            self._remove_unused(group)
            fresh = [member for member in group.members.values() if self._is_loaded(member)]
            for member in fresh:
                self._renew_session(group, member, now)
            if fresh and len(group.members) > self.limits.members_max:
                self._prepare_rebalance(group, now)
        return self._take()

    @staticmethod
    def _is_loaded(member: Member) -> bool:
        """The member came from the log, and its session has not started."""
        return member.deadline is None and member.join_token is None and member.sync_token is None

    def unload(self, is_gone: Callable[[str], bool]) -> list[Action]:
        """Another coordinator has these groups now. Requests that wait get NOT_COORDINATOR; nothing is
        written.
        """
        for group in [group for group in self.groups.values() if is_gone(group.id)]:
            for member in list(group.members.values()):
                self._respond(group.take_join(member), JoinResult(NotCoordinator.code))
                self._respond(member.sync_token, SyncResult(NotCoordinator.code))
                member.sync_token = None
            self._remove_group(group)
        return self._take()
