"""Joining, syncing, heartbeats and leaving: the membership of a group and its rebalances.

A change of members starts a rebalance. Every member must join again within the rebalance timeout, or it is
removed. The leader sends the assignment with its sync. The assignment is written before members get it; then
the group is stable. Pure: requests and the time in, actions out. Source:
kafka.coordinator.group.GroupCoordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from cluster.groups._core import Core
from cluster.groups.group import (
    Group,
    GroupState,
    Member,
    Token,
    group_bytes,
    ids_bytes,
    protocols_bytes,
)
from cluster.groups.messages import (
    Action,
    Join,
    JoinedMember,
    JoinResult,
    LeaveResult,
    Leaving,
    StoredGroup,
    StoredMember,
    Sync,
    SyncResult,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A new member does not send heartbeats yet. Without this timeout one that is gone would stay for ever."""

_SMALL_BYTES = 16 * 1024
"""The subscription and the assignment of a consumer that reads hundreds of topics are smaller."""


class Membership(Core):
    """The part of the machine for members and rebalances."""

    # ---- join ----

    def join(self, token: Token, request: Join, now: int) -> list[Action]:
        """JoinGroup. Answered when the join phase ends, or at once with an error."""
        self._join(token, request, now)
        group = self.groups.get(request.group)
        if group is not None:
            if group.state is GroupState.PREPARING:
                self._maybe_end_join(group, now)
            self._remove_unused(group)
        return self._take()

    def _join(self, token: Token, request: Join, now: int) -> None:
        limits = self.limits
        if not limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms:
            self._respond(token, JoinResult(InvalidSessionTimeout.code, request.member))
            return
        if not self._join_fits(request):
            self._respond(token, JoinResult(CoordinatorNotAvailable.code, request.member))
            return
        group = self.groups.get(request.group)
        if group is None:
            if request.member:
                self._respond(token, JoinResult(UnknownMemberId.code, request.member))
                return
            group = self._add_group(request.group)
        if not self._below_size_limit(group, request.member):
            group.remove(request.member)
            self._respond(token, JoinResult(GroupMaxSizeReached.code))
        elif not group.supports(request.protocol_type, request.protocols):
            self._respond(token, JoinResult(InconsistentGroupProtocol.code, request.member))
        elif not request.member:
            self._join_new(group, token, request, now)
        elif request.member in group.pending:
            self._join_pending(group, token, request, now)
        else:
            self._join_again(group, token, request, now)

    def _join_fits(self, request: Join) -> bool:
        """The member's protocols fit into the memory limit."""
        group = self.groups.get(request.group)
        member = group.find(request.member, request.instance) if group is not None else None
        size = protocols_bytes(request.protocols)
        if member is not None:
            return self._fits_memory(size, protocols_bytes(member.protocols), size <= _SMALL_BYTES)
        size += ids_bytes(request.instance or request.client_id, request.instance, request.client_id)
        if group is None:
            size += group_bytes(request.group)
        promised = group is not None and request.member in group.pending
        return self._fits_memory(size, ids_bytes(request.member) if promised else 0, size <= _SMALL_BYTES)

    def _assignment_fits(self, group: Group, request: Sync) -> bool:
        """The leader's assignment fits into the memory limit."""
        sizes = [len(request.assignments.get(name, b"")) for name in group.members]
        before = sum(len(member.assignment) for member in group.members.values())
        return self._fits_memory(sum(sizes), before, max(sizes) <= _SMALL_BYTES)

    def _fits_memory(self, size: int, before: int, small: bool) -> bool:
        """`size` bytes in place of `before` fit into the memory limit. Small ones may use twice the limit.

        Kafka has no such limit. Members whose clients are gone stay until their timeouts, and could fill the
        memory.
        """
        if size <= before:
            return True
        most = self.limits.members_bytes_max * (2 if small else 1)
        fits = self.memory.bytes - before + size <= most
        self.refused += not fits
        return fits

    def _below_size_limit(self, group: Group, member_id: str) -> bool:
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING:
            waits = member is not None and member.join_token is not None
            return waits or group.awaiting_join < self.limits.members_max
        return member is not None or len(group.members) < self.limits.members_max

    def _join_new(self, group: Group, token: Token, request: Join, now: int) -> None:
        if request.instance is not None:
            member_id = f"{request.instance}-{self._new_id()}"
            old_id = group.static.get(request.instance)
            if old_id is None:
                self._add(group, token, request, member_id, now)
            else:
                self._replace_static(group, old_id, member_id, token, request, now)
            return
        member_id = f"{request.client_id}-{self._new_id()}"
        if not request.known_id_required:
            self._add(group, token, request, member_id, now)
            return
        deadline = now + request.session_timeout_ms
        group.await_member(member_id, deadline)
        self._respond(token, JoinResult(MemberIdRequired.code, member_id))

    def _join_pending(self, group: Group, token: Token, request: Join, now: int) -> None:
        if request.instance is not None:
            # An id is only given out to members without a static identity.
            self._respond(token, JoinResult(InvalidRequest.code, request.member))
            return
        self._add(group, token, request, request.member, now)

    def _join_again(self, group: Group, token: Token, request: Join, now: int) -> None:
        error = self._check_member(group, request.member, request.instance)
        if error:
            self._respond(token, JoinResult(error, request.member))
            return
        member = group.members[request.member]
        same = member.protocols == request.protocols
        if group.state is GroupState.EMPTY:
            self._respond(token, JoinResult(UnknownMemberId.code, request.member))
        elif group.state is GroupState.COMPLETING and same:
            # The answer to the first join was lost.
            self._respond(token, self._joined(group, member))
        elif group.state is GroupState.STABLE and same and group.leader != member.id:
            self._respond(token, self._joined(group, member, members=()))
        else:
            self._update(group, member, token, request)
            if group.can_rebalance():
                self._prepare_rebalance(group, now)

    def _add(self, group: Group, token: Token, request: Join, member_id: str, now: int) -> None:
        member = Member(
            id=member_id,
            instance_id=request.instance,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            is_new=True,
        )
        if group.state is GroupState.PREPARING and group.generation == 0:
            group.new_member_added = True
        group.add(member)
        group.await_join(member, token)
        self._renew_session(group, member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
        if group.can_rebalance():
            self._prepare_rebalance(group, now)

    def _update(self, group: Group, member: Member, token: Token, request: Join) -> None:
        # A second join of a member replaces its first one, which the client has given up.
        self._respond(group.take_join(member), JoinResult(RebalanceInProgress.code, member.id))
        group.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        group.await_join(member, token)

    def _replace_static(
        self, group: Group, old_id: str, member_id: str, token: Token, request: Join, now: int
    ) -> None:
        """A static member came back: it gets a new id, the old id is fenced, its assignment stays."""
        leader_before = group.leader or ""
        member = group.members[old_id]
        self._respond(group.take_join(member), JoinResult(FencedInstanceId.code, old_id))
        self._respond(member.sync_token, SyncResult(FencedInstanceId.code))
        member.sync_token = None
        group.replace_static(request.instance or "", old_id, member_id)
        self._renew_session(group, member, now)
        self._update(group, member, token, request)
        if group.state is GroupState.STABLE:
            if group.elect_protocol() == group.protocol:
                stored = self._stored_group(group, {m.id: m.assignment for m in group.members.values()})
                self._write(
                    group, partial(self._static_replaced, group, member, request, leader_before), stored
                )
            else:
                self._prepare_rebalance(group, now)
        elif group.state is GroupState.COMPLETING:
            # The leader may already assign partitions to the old id; the new id would get none.
            self._prepare_rebalance(group, now)

    def _static_replaced(
        self, group: Group, member: Member, request: Join, leader_before: str, error: int, now: int
    ) -> None:
        if member.join_token is None or group.members.get(member.id) is not member:
            return
        if group.state is not GroupState.STABLE:
            return
        token = group.take_join(member)
        self._renew_session(group, member, now)
        if error:
            self._respond(token, JoinResult(error))
        elif request.skips_assignment:
            leads = group.leader == member.id
            answer = self._joined(group, member, skip_assignment=leads)
            self._respond(token, answer)
        else:
            # Before version 9 the leader must not assign again in a stable group, so it gets the old leader's
            # id.
            self._respond(token, self._joined(group, member, members=(), leader=leader_before))

    def _joined(
        self,
        group: Group,
        member: Member,
        members: tuple[JoinedMember, ...] | None = None,
        leader: str | None = None,
        skip_assignment: bool = False,
    ) -> JoinResult:
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

    # ---- rebalance ----

    def _prepare_rebalance(self, group: Group, now: int) -> None:
        if group.state is GroupState.COMPLETING:
            self._reset_assignments(group, RebalanceInProgress.code, now)
        group.pending_sync.clear()
        group.sync_deadline = None
        if group.state is GroupState.EMPTY:
            delay = self.limits.initial_delay_ms
            group.initial_delay_ms = delay
            group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay, 0)
            self._await_joins(group, now + delay)
        else:
            group.initial_remaining_ms = None
            self._await_joins(group, now + group.rebalance_timeout_ms())
        group.become(GroupState.PREPARING, now)

    def _await_joins(self, group: Group, deadline: int) -> None:
        group.join_deadline = deadline
        self.timers.schedule((group.id, "join", ""), deadline)

    def _maybe_end_join(self, group: Group, now: int) -> None:
        """Ends the join phase if every member has joined. It does not shorten the initial delay."""
        if group.initial_remaining_ms is None and group.all_joined():
            self._end_join(group, now)

    def _join_due(self, group: Group, now: int) -> None:
        remaining = group.initial_remaining_ms
        if remaining and group.new_member_added:
            group.new_member_added = False
            delay = min(self.limits.initial_delay_ms, remaining)
            group.initial_remaining_ms = max(remaining - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay
            self._await_joins(group, now + delay)
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
            self._await_joins(group, now + group.rebalance_timeout_ms())
            return
        group.next_generation(now)
        if group.state is GroupState.EMPTY:
            self._write(group, lambda error, now: None, self._stored_group(group, {}))
            return
        for member in group.members.values():
            self._respond(group.take_join(member), self._joined(group, member))
            self._renew_session(group, member, now)
            member.is_new = False
            group.pending_sync.add(member.id)
        group.sync_deadline = now + group.rebalance_timeout_ms()
        self.timers.schedule((group.id, "sync", ""), group.sync_deadline)

    # ---- sync ----

    def sync(self, token: Token, request: Sync, now: int) -> list[Action]:
        """SyncGroup. Answered when the leader's assignment is written, or at once with an error."""
        group = self.groups.get(request.group)
        error = UnknownMemberId.code if group is None else self._check_sync(group, request)
        if group is None or error:
            self._respond(token, SyncResult(error))
        elif group.state is GroupState.PREPARING:
            self._respond(token, SyncResult(RebalanceInProgress.code))
        elif group.state is GroupState.COMPLETING:
            self._sync_completing(group, token, request, now)
        else:
            member = group.members[request.member]
            self._synced(group, member.id)
            self._respond(token, SyncResult(NONE, group.protocol_type, group.protocol, member.assignment))
            self._renew_session(group, member, now)
        return self._take()

    def _check_sync(self, group: Group, request: Sync) -> int:
        if group.state is GroupState.DEAD:
            return CoordinatorNotAvailable.code
        error = self._check_member(group, request.member, request.instance)
        if error:
            return error
        if request.generation != group.generation:
            return IllegalGeneration.code
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return InconsistentGroupProtocol.code
        if request.protocol is not None and request.protocol != group.protocol:
            return InconsistentGroupProtocol.code
        return NONE

    def _sync_completing(self, group: Group, token: Token, request: Sync, now: int) -> None:
        member = group.members[request.member]
        if group.leader == member.id and not self._assignment_fits(group, request):
            # The other members wait until the leader tries again, or until the sync timeout.
            self._respond(token, SyncResult(CoordinatorNotAvailable.code))
            return
        self._respond(member.sync_token, SyncResult(RebalanceInProgress.code))
        member.sync_token = token
        self._synced(group, member.id)
        if group.leader == member.id:
            assignment = {name: request.assignments.get(name, b"") for name in group.members}
            written = partial(self._assignment_written, group, group.generation, assignment)
            self._write(group, written, self._stored_group(group, assignment))

    def _synced(self, group: Group, member_id: str) -> None:
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
            self._prepare_rebalance(group, now)
            self._maybe_end_join(group, now)
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
        if error:
            self._respond(token, SyncResult(error))
        else:
            self._respond(token, SyncResult(NONE, group.protocol_type, group.protocol, member.assignment))
        self._renew_session(group, member, now)

    def _sync_due(self, group: Group, now: int) -> None:
        """Removes the members that joined and did not sync in time."""
        group.sync_deadline = None
        for member_id in list(group.pending_sync):
            member = group.remove(member_id)
            if member is not None:
                self._respond(member.sync_token, SyncResult(UnknownMemberId.code))
        self._prepare_rebalance(group, now)
        self._maybe_end_join(group, now)

    # ---- heartbeat, leave, expiry ----

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance: str | None, now: int
    ) -> int:
        """Heartbeat. Returns the error code."""
        group = self.groups.get(group_id)
        if group is None:
            return UnknownMemberId.code
        error = self._check_member(group, member_id, instance)
        if error:
            return error
        if generation != group.generation:
            return IllegalGeneration.code
        self._renew_session(group, group.members[member_id], now)
        return RebalanceInProgress.code if group.state is GroupState.PREPARING else NONE

    def leave(self, group_id: str, leaving: Sequence[Leaving], now: int) -> tuple[LeaveResult, list[Action]]:
        """LeaveGroup, of one member or several. Returns the response and the actions."""
        group = self.groups.get(group_id)
        if group is None:
            return LeaveResult(NONE, (UnknownMemberId.code,) * len(leaving)), []
        errors = tuple(self._leave(group, item, now) for item in leaving)
        return LeaveResult(NONE, errors), self._take()

    def _leave(self, group: Group, leaving: Leaving, now: int) -> int:
        member_id = leaving.member
        if not member_id:
            current = group.static.get(leaving.instance) if leaving.instance is not None else None
            if current is None:
                return UnknownMemberId.code
            member_id = current
        elif member_id in group.pending:
            self._drop_pending(group, member_id, now)
            return NONE
        else:
            error = self._check_member(group, member_id, leaving.instance)
            if error:
                return error
        self._drop(group, member_id, now)
        return NONE

    def _drop(self, group: Group, member_id: str, now: int) -> None:
        """Removes a member and starts a rebalance."""
        member = group.members[member_id]
        self._respond(group.take_join(member), JoinResult(UnknownMemberId.code))
        self._respond(member.sync_token, SyncResult(UnknownMemberId.code))
        group.remove(member_id)
        if not group.pending_sync:
            group.sync_deadline = None
        if group.can_rebalance() and group.state is not GroupState.EMPTY:
            self._prepare_rebalance(group, now)
        if group.state is GroupState.PREPARING:
            self._maybe_end_join(group, now)

    def _drop_pending(self, group: Group, member_id: str, now: int) -> None:
        group.remove(member_id)
        if group.state is GroupState.PREPARING:
            self._maybe_end_join(group, now)
        self._remove_unused(group)

    def _session_due(self, group: Group, member_id: str, now: int) -> None:
        member = group.members[member_id]
        member.deadline = None
        if not member.is_waiting:
            self._drop(group, member_id, now)

    # ---- records ----

    @staticmethod
    def _stored_group(group: Group, assignment: Mapping[str, bytes]) -> StoredGroup:
        protocol = group.protocol or ""
        members = tuple(
            StoredMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(protocol),
                assignment.get(member.id, b""),
            )
            for member in group.members.values()
        )
        since = -1 if group.state_since_ms is None else group.state_since_ms
        return StoredGroup(
            group.id,
            group.protocol_type or "",
            group.generation,
            group.protocol,
            group.leader,
            since,
            members,
        )
