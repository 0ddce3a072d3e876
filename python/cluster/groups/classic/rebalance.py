"""The phases of a rebalance of a classic group. Pure. Source: kafka.coordinator.group.GroupCoordinator.

Every member must join within the rebalance timeout, or it is removed. The leader sends the assignment with
its sync. The assignment is written before members get it; then the group is stable. Does not know which
requests begin a rebalance, nor other groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from cluster.groups.classic.group import Group, GroupState, Member
from cluster.groups.memory import MemoryUse
from cluster.groups.messages import GroupLimits, JoinedMember, JoinResult, Sync, SyncResult
from cluster.groups.outbox import Outbox
from cluster.state_topics import Token


class Rebalances:
    """The rebalances of a partition's classic groups."""

    def __init__(self, limits: GroupLimits, outbox: Outbox, memory: MemoryUse) -> None:
        self._limits = limits
        self._outbox = outbox
        self._memory = memory

    # ---- the join phase ----

    def begin(self, group: Group, now: int) -> None:
        """Begins the join phase."""
        if group.state is GroupState.COMPLETING:
            self._reset_assignments(group, RebalanceInProgress.code, now)
        group.pending_sync.clear()
        group.sync_deadline = None
        if group.state is GroupState.EMPTY:
            delay = self._limits.initial_delay_ms
            group.initial_delay_ms = delay
            group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay, 0)
            group.time_join(now + delay)
        else:
            group.initial_remaining_ms = None
            group.time_join(now + group.rebalance_timeout_ms())
        group.become(GroupState.PREPARING, now)

    def maybe_end_join(self, group: Group, now: int) -> None:
        """Ends the join phase if every member has joined. It does not shorten the initial delay."""
        if group.initial_remaining_ms is None and group.all_joined():
            self._end_join(group, now)

    def join_due(self, group: Group, now: int) -> None:
        """The time for joins is over. New members extend the initial delay."""
        remaining = group.initial_remaining_ms
        if remaining and group.new_member_added:
            group.new_member_added = False
            delay = min(self._limits.initial_delay_ms, remaining)
            group.initial_remaining_ms = max(remaining - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay
            group.time_join(now + delay)
        else:
            self._end_join(group, now)

    def _end_join(self, group: Group, now: int) -> None:
        group.join_deadline = group.initial_remaining_ms = None
        group.new_member_added = False
        for member in list(group.members.values()):
            if member.join_token is None and member.instance_id is None:
                group.remove(member.id)
        if group.members and not group.elect_leader():
            # Only static members that have not joined: wait until they join or their sessions end.
            group.time_join(now + group.rebalance_timeout_ms())
            return
        group.next_generation(now)
        if group.state is GroupState.EMPTY:
            self._outbox.write(group.id, stored=group.record())
            return
        for member in group.members.values():
            self._outbox.respond(group.take_join(member), joined(group, member))
            group.renew_session(member, now)
            member.is_new = False
            group.pending_sync.add(member.id)
        group.time_sync(now + group.rebalance_timeout_ms())

    # ---- the sync phase ----

    def sync(self, group: Group, token: Token, request: Sync, now: int) -> None:
        """SyncGroup. Answered when the leader's assignment is written, or at once with an error."""
        error = self._check_sync(group, request)
        if error:
            self._outbox.respond(token, SyncResult(error))
        elif group.state is GroupState.COMPLETING:
            self._sync_completing(group, token, request, now)
        else:
            member = group.members[request.member]
            self._synced(group, member.id)
            self._outbox.respond(token, _synced_result(group, member))
            group.renew_session(member, now)

    @staticmethod
    def _check_sync(group: Group, request: Sync) -> int:
        error = group.check_member(request.member, request.instance)
        if error:
            return error
        if request.generation != group.generation:
            return IllegalGeneration.code
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return InconsistentGroupProtocol.code
        if request.protocol is not None and request.protocol != group.protocol:
            return InconsistentGroupProtocol.code
        return RebalanceInProgress.code if group.state is GroupState.PREPARING else NONE

    def _assignment_fits(self, group: Group, request: Sync) -> bool:
        """The leader's assignment fits into the memory limit."""
        sizes = [len(request.assignments.get(name, b"")) for name in group.members]
        before = sum(len(member.assignment) for member in group.members.values())
        return self._memory.fits(sum(sizes), before, max(sizes))

    def _sync_completing(self, group: Group, token: Token, request: Sync, now: int) -> None:
        member = group.members[request.member]
        if group.leader == member.id and not self._assignment_fits(group, request):
            # The other members wait until the leader tries again, or until the sync timeout.
            self._outbox.respond(token, SyncResult(CoordinatorNotAvailable.code))
            return
        self._outbox.respond(member.sync_token, SyncResult(RebalanceInProgress.code))
        member.sync_token = token
        self._synced(group, member.id)
        if group.leader == member.id:
            assignment = {name: request.assignments.get(name, b"") for name in group.members}
            written = partial(self._assignment_written, group, group.generation, assignment)
            self._outbox.write(group.id, written, stored=group.record(assignment))

    @staticmethod
    def _synced(group: Group, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            group.sync_deadline = None

    def _assignment_written(
        self, group: Group, generation: int, assignment: Mapping[str, bytes], error: int, now: int
    ) -> None:
        if group.state is not GroupState.COMPLETING or group.generation != generation:
            # Another rebalance began meanwhile; this assignment is obsolete.
            return
        if error:
            self._reset_assignments(group, error, now)
            self.begin(group, now)
            self.maybe_end_join(group, now)
            return
        group.become(GroupState.STABLE, now)
        for member in group.members.values():
            group.assign(member, assignment.get(member.id, b""))
            self._answer_sync(group, member, NONE, now)

    def _reset_assignments(self, group: Group, error: int, now: int) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            self._answer_sync(group, member, error, now)

    def _answer_sync(self, group: Group, member: Member, error: int, now: int) -> None:
        token, member.sync_token = member.sync_token, None
        if token is None:
            return
        self._outbox.respond(token, SyncResult(error) if error else _synced_result(group, member))
        group.renew_session(member, now)

    def sync_due(self, group: Group, now: int) -> None:
        """Removes the members that joined and did not sync in time."""
        group.sync_deadline = None
        for member_id in list(group.pending_sync):
            member = group.remove(member_id)
            if member is not None:
                self._outbox.respond(member.sync_token, SyncResult(UnknownMemberId.code))
        self.begin(group, now)
        self.maybe_end_join(group, now)


def joined(
    group: Group,
    member: Member,
    members: tuple[JoinedMember, ...] | None = None,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinResult:
    """The response to a member that joined; the leader gets all members."""
    if members is None:
        members = ()
        if group.leader == member.id:
            protocol = group.protocol or ""
            members = tuple(
                JoinedMember(m.id, m.instance_id, m.metadata(protocol)) for m in group.members.values()
            )
    return JoinResult(
        NONE,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "" if leader is None else leader,
        skip_assignment,
        members,
    )


def _synced_result(group: Group, member: Member) -> SyncResult:
    return SyncResult(NONE, group.protocol_type, group.protocol, member.assignment)
