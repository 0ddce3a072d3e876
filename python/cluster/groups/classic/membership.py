"""The requests of a classic group's members: joins, syncs, heartbeats, leaving, and the end of sessions.

A change of members begins a rebalance; `rebalance.py` has its phases. Does not know records, loading or
offsets. Pure. Source: kafka.coordinator.group.GroupCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from cluster.groups.classic.group import Group, GroupState, Member
from cluster.groups.classic.rebalance import Rebalances, joined
from cluster.groups.classic.table import GroupTable
from cluster.groups.memory import group_bytes, ids_bytes, protocols_bytes
from cluster.groups.messages import (
    Commit,
    GroupLimits,
    Join,
    JoinResult,
    LeaveResult,
    Leaving,
    Sync,
    SyncResult,
)
from cluster.groups.outbox import Outbox
from cluster.state_topics import Token

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A new member does not send heartbeats yet. Without this timeout one that is gone would stay for ever."""

_GROUP_ID_NOT_FOUND = 9
"""The first version of OffsetCommit that has this error for a group that does not exist."""


class Membership:
    """The members of all classic groups of a partition."""

    def __init__(
        self,
        limits: GroupLimits,
        new_id: Callable[[], str],
        outbox: Outbox,
        table: GroupTable,
        rebalances: Rebalances,
    ) -> None:
        self._limits = limits
        self._new_id = new_id
        self._outbox = outbox
        self._table = table
        self._rebalances = rebalances

    # ---- join ----

    def join(self, token: Token, request: Join, now: int) -> None:
        """JoinGroup with a permitted session timeout. Answered when the join phase ends, or at once with an
        error.
        """
        self._join(token, request, now)
        group = self._table.get(request.group)
        if group is not None:
            if group.state is GroupState.PREPARING:
                self._rebalances.maybe_end_join(group, now)
            self._table.remove_unused(group)

    def _join(self, token: Token, request: Join, now: int) -> None:
        if not self._join_fits(request):
            self._outbox.respond(token, JoinResult(CoordinatorNotAvailable.code, request.member))
            return
        group = self._table.get(request.group)
        if group is None:
            if request.member:
                self._outbox.respond(token, JoinResult(UnknownMemberId.code, request.member))
                return
            group = self._table.add(request.group)
        if not self._below_size_limit(group, request.member):
            group.remove(request.member)
            self._outbox.respond(token, JoinResult(GroupMaxSizeReached.code))
        elif not group.supports(request.protocol_type, request.protocols):
            self._outbox.respond(token, JoinResult(InconsistentGroupProtocol.code, request.member))
        elif not request.member:
            self._join_new(group, token, request, now)
        elif request.member in group.pending:
            self._join_pending(group, token, request, now)
        else:
            self._join_again(group, token, request, now)

    def _join_fits(self, request: Join) -> bool:
        """The member's protocols fit into the memory limit."""
        group = self._table.get(request.group)
        member = group.find(request.member, request.instance) if group is not None else None
        size = protocols_bytes(request.protocols)
        if member is not None:
            return self._table.memory.fits(size, protocols_bytes(member.protocols))
        size += ids_bytes(request.instance or request.client_id, request.instance, request.client_id)
        if group is None:
            size += group_bytes(request.group)
        promised = group is not None and request.member in group.pending
        return self._table.memory.fits(size, ids_bytes(request.member) if promised else 0)

    def _below_size_limit(self, group: Group, member_id: str) -> bool:
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING:
            waits = member is not None and member.join_token is not None
            return waits or group.awaiting_join < self._limits.members_max
        return member is not None or len(group.members) < self._limits.members_max

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
        self._outbox.respond(token, JoinResult(MemberIdRequired.code, member_id))

    def _join_pending(self, group: Group, token: Token, request: Join, now: int) -> None:
        if request.instance is not None:
            # An id is only given out to members without a static identity.
            self._outbox.respond(token, JoinResult(InvalidRequest.code, request.member))
            return
        self._add(group, token, request, request.member, now)

    def _join_again(self, group: Group, token: Token, request: Join, now: int) -> None:
        error = group.check_member(request.member, request.instance)
        if error:
            self._outbox.respond(token, JoinResult(error, request.member))
            return
        member = group.members[request.member]
        same = member.protocols == request.protocols
        if group.state is GroupState.EMPTY:
            self._outbox.respond(token, JoinResult(UnknownMemberId.code, request.member))
        elif group.state is GroupState.COMPLETING and same:
            # The answer to the first join was lost.
            self._outbox.respond(token, joined(group, member))
        elif group.state is GroupState.STABLE and same and group.leader != member.id:
            self._outbox.respond(token, joined(group, member, members=()))
        else:
            self._update(group, member, token, request)
            if group.can_rebalance():
                self._rebalances.begin(group, now)

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
        group.renew_session(member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
        if group.can_rebalance():
            self._rebalances.begin(group, now)

    def _update(self, group: Group, member: Member, token: Token, request: Join) -> None:
        # A second join of a member replaces its first one, which the client has given up.
        self._outbox.respond(group.take_join(member), JoinResult(RebalanceInProgress.code, member.id))
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
        self._outbox.respond(group.take_join(member), JoinResult(FencedInstanceId.code, old_id))
        self._outbox.respond(member.sync_token, SyncResult(FencedInstanceId.code))
        member.sync_token = None
        group.replace_static(request.instance or "", old_id, member_id)
        group.renew_session(member, now)
        self._update(group, member, token, request)
        if group.state is GroupState.STABLE:
            if group.elect_protocol() == group.protocol:
                written = partial(self._static_replaced, group, member, request, leader_before)
                self._outbox.write(group.id, written, stored=group.record())
            else:
                self._rebalances.begin(group, now)
        elif group.state is GroupState.COMPLETING:
            # The leader may already assign partitions to the old id; the new id would get none.
            self._rebalances.begin(group, now)

    def _static_replaced(
        self, group: Group, member: Member, request: Join, leader_before: str, error: int, now: int
    ) -> None:
        if member.join_token is None or group.members.get(member.id) is not member:
            return
        if group.state is not GroupState.STABLE:
            return
        token = group.take_join(member)
        group.renew_session(member, now)
        if error:
            self._outbox.respond(token, JoinResult(error))
        elif request.skips_assignment:
            leads = group.leader == member.id
            self._outbox.respond(token, joined(group, member, skip_assignment=leads))
        else:
            # Before version 9 the leader must not assign again in a stable group, so it gets the old leader's
            # id.
            self._outbox.respond(token, joined(group, member, members=(), leader=leader_before))

    # ---- sync, heartbeat, commit ----

    def sync(self, token: Token, request: Sync, now: int) -> None:
        """SyncGroup. Answered when the leader's assignment is written, or at once with an error."""
        group = self._table.get(request.group)
        if group is None:
            self._outbox.respond(token, SyncResult(UnknownMemberId.code))
        else:
            self._rebalances.sync(group, token, request, now)

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance: str | None, now: int
    ) -> int:
        """Heartbeat. Returns the error code."""
        group = self._table.get(group_id)
        if group is None:
            return UnknownMemberId.code
        error = group.check_member(member_id, instance)
        if error:
            return error
        if generation != group.generation:
            return IllegalGeneration.code
        group.renew_session(group.members[member_id], now)
        return RebalanceInProgress.code if group.state is GroupState.PREPARING else NONE

    def check_commit(self, request: Commit, now: int) -> int:
        """The error for an OffsetCommit or a TxnOffsetCommit, or 0. A commit keeps the member's session."""
        in_transaction = request.producer is not None
        group = self._table.get(request.group)
        if group is None:
            if request.generation < 0:
                return NONE
            if in_transaction:
                return UnknownMemberId.code
            known = request.version >= _GROUP_ID_NOT_FOUND
            return GroupIdNotFound.code if known else IllegalGeneration.code
        if request.generation < 0 and group.state is GroupState.EMPTY:
            return NONE
        if request.generation >= 0 or request.member or request.instance is not None:
            error = group.check_member(request.member, request.instance)
            if error:
                return error
            if request.generation != group.generation:
                return IllegalGeneration.code
            if group.state is GroupState.COMPLETING and not in_transaction:
                return RebalanceInProgress.code
        elif not in_transaction:
            # While a group has members, only they may commit. Old transactional producers do not name the
            # member.
            return UnknownMemberId.code
        member = group.members.get(request.member)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING):
            group.renew_session(member, now)
        return NONE

    # ---- the end of membership ----

    def leave(self, group_id: str, leaving: Sequence[Leaving], now: int) -> LeaveResult:
        """LeaveGroup, of one member or several."""
        group = self._table.get(group_id)
        if group is None:
            return LeaveResult(NONE, (UnknownMemberId.code,) * len(leaving))
        return LeaveResult(NONE, tuple(self._leave(group, item, now) for item in leaving))

    def _leave(self, group: Group, leaving: Leaving, now: int) -> int:
        member_id = leaving.member
        if not member_id:
            current = group.static.get(leaving.instance) if leaving.instance is not None else None
            if current is None:
                return UnknownMemberId.code
            member_id = current
        elif member_id in group.pending:
            self.drop_pending(group, member_id, now)
            return NONE
        else:
            error = group.check_member(member_id, leaving.instance)
            if error:
                return error
        self._drop(group, member_id, now)
        return NONE

    def _drop(self, group: Group, member_id: str, now: int) -> None:
        """Removes a member and starts a rebalance."""
        member = group.members[member_id]
        self._outbox.respond(group.take_join(member), JoinResult(UnknownMemberId.code))
        self._outbox.respond(member.sync_token, SyncResult(UnknownMemberId.code))
        group.remove(member_id)
        if not group.pending_sync:
            group.sync_deadline = None
        if group.can_rebalance() and group.state is not GroupState.EMPTY:
            self._rebalances.begin(group, now)
        if group.state is GroupState.PREPARING:
            self._rebalances.maybe_end_join(group, now)

    def drop_pending(self, group: Group, member_id: str, now: int) -> None:
        """The generated id is not used, or its time is over."""
        group.remove(member_id)
        if group.state is GroupState.PREPARING:
            self._rebalances.maybe_end_join(group, now)
        self._table.remove_unused(group)

    def session_due(self, group: Group, member_id: str, now: int) -> None:
        """The member sent nothing during its session timeout."""
        member = group.members[member_id]
        member.deadline = None
        if not member.is_waiting:
            self._drop(group, member_id, now)
