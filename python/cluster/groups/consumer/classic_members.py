"""Members of the classic protocol in groups of the consumer protocol. Pure. Source: GroupMetadataManager
(classicGroupJoinToConsumerGroup, classicGroupSyncToConsumerGroup, classicGroupHeartbeatToConsumerGroup).

A classic member moves to its target at its joins, and learns it with its syncs. Its heartbeats tell it to
join again. It must join and sync in time.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.errors import (
    NONE,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaProtocolError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from cluster.groups.consumer import membership
from cluster.groups.consumer.classic import (
    encode_assignment,
    read_subscription,
)
from cluster.groups.consumer.group import ConsumerGroup, Draft, subscription_bytes
from cluster.groups.consumer.store import GroupStore
from cluster.groups.consumer.values import (
    ClassicMember,
    MemberState,
    Subscription,
)
from cluster.groups.messages import (
    CONSUMER_PROTOCOL,
    Join,
    JoinResult,
    LeaveResult,
    Leaving,
    Sync,
    SyncResult,
)
from cluster.state_topics import Token


class ClassicMembers:
    """The requests of classic members to groups of the consumer protocol that have members."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def join(self, token: Token, request: Join, now: int) -> None:
        """JoinGroup of a classic member to a group with members."""
        try:
            self._join(token, self._store.groups[request.group], request, now)
        except KafkaProtocolError as error:
            self._store.outbox.respond(token, JoinResult(error.code, request.member))

    def _join(self, token: Token, group: ConsumerGroup, request: Join, now: int) -> None:
        member = request.member or self._store.new_id()
        membership.check_key(member)
        membership.check_size(group, member, self._store.limits.members_max)
        if request.protocol_type != CONSUMER_PROTOCOL or not group.supports(dict(request.protocols)):
            raise InconsistentGroupProtocol
        if request.known_id_required and not request.member and request.instance is None:
            self._store.outbox.respond(token, JoinResult(MemberIdRequired.code, member))
            return
        read = read_subscription(request.protocols[0][1], self._store.topics)
        with self._store.draft(group, now) as draft:
            if request.instance is not None:
                if request.member:
                    membership.known_member(group, member, request.instance)
                else:
                    membership.take_instance(draft, member, request.instance, released_only=False)
            before = group.members.get(member)
            subscription = Subscription(
                instance=request.instance,
                rack=read.rack,
                client_id=request.client_id,
                client_host=request.client_host,
                topics=read.topics,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                classic=ClassicMember(request.session_timeout_ms, request.protocols),
            )
            if before is None:
                self._store.check_memory(subscription_bytes(member, subscription))
            membership.subscribe(draft, member, subscription, self._store.topics, self._store.limits, now)
            membership.move(draft, member, read.owned)
            epoch = group.current(member).epoch
        self._store.update_timers(draft, now)
        self._store.cancel(group, "rebalance", member)

        def joined(at: int) -> None:
            self._store.cancel(group, "join", member)
            self._store.renew_session(group, member, at)
            # The member must sync in time.
            self._store.schedule(group, "sync", member, at + request.rebalance_timeout_ms)

        result = JoinResult(NONE, member, epoch, CONSUMER_PROTOCOL, request.protocols[0][0])
        self._store.commit(draft, (token, result), joined, now)

    def sync(self, token: Token, request: Sync, now: int) -> None:
        """SyncGroup of a classic member."""
        group = self._store.groups[request.group]
        try:
            member = self._classic_member(group, request.member, request.instance, request.generation)
            classic = group.members[member].classic
            assert classic is not None
            protocol, metadata = classic.protocols[0]
            if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol not in (
                None,
                protocol,
            ):
                raise InconsistentGroupProtocol
            current = group.current(member)
            if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
                self._await_join(group, member, now)
                raise RebalanceInProgress
            assignment = encode_assignment(current.assigned, metadata, self._store.topics)
        except KafkaProtocolError as error:
            self._store.outbox.respond(token, SyncResult(error.code))
            return

        def synced(at: int) -> None:
            self._store.cancel(group, "sync", member)
            self._store.renew_session(group, member, at)

        result = SyncResult(NONE, request.protocol_type, request.protocol, assignment)
        self._store.commit(Draft(group), (token, result), synced, now)

    def _classic_member(
        self, group: ConsumerGroup, member: str, instance: str | None, generation: int
    ) -> str:
        membership.known_member(group, member, instance)
        if group.members[member].classic is None:
            raise UnknownMemberId(f"Member {member} does not use the classic protocol.")
        if group.current(member).epoch != generation:
            raise IllegalGeneration
        return member

    def _await_join(self, group: ConsumerGroup, member: str, now: int) -> None:
        """The member must join again in time."""
        if ("join", member) not in group.deadlines:
            self._store.schedule(group, "join", member, now + group.members[member].rebalance_timeout_ms)

    def heartbeat(self, group_id: str, generation: int, member: str, instance: str | None, now: int) -> int:
        """Heartbeat of a classic member. Returns the error code."""
        group = self._store.groups[group_id]
        try:
            self._classic_member(group, member, instance, generation)
        except KafkaProtocolError as error:
            return error.code
        self._store.renew_session(group, member, now)
        state = group.current(member).state
        released = state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_release(member)
        if group.epoch > generation or state is MemberState.UNREVOKED_PARTITIONS or released:
            self._await_join(group, member, now)
            return RebalanceInProgress.code
        return NONE

    def leave(self, group_id: str, leaving: Sequence[Leaving], now: int) -> LeaveResult:
        """LeaveGroup of classic members."""
        group = self._store.groups[group_id]
        errors: list[int] = []
        members: dict[str, None] = {}
        for item in leaving:
            try:
                members[self._leaving(group, item)] = None
                errors.append(NONE)
            except KafkaProtocolError as error:
                errors.append(error.code)
        if members:
            with self._store.draft(group, now) as draft:
                membership.remove(draft, members, self._store.topics)
            for member in members:
                self._store.cancel_all(group, member)
            self._store.commit(draft)
        return LeaveResult(NONE, tuple(errors))

    @staticmethod
    def _leaving(group: ConsumerGroup, item: Leaving) -> str:
        member = item.member
        if item.instance is not None:
            owner = group.static.get(item.instance)
            if owner is None:
                raise UnknownMemberId
            if member and member != owner:
                raise FencedInstanceId
            member = owner
        if member not in group.members or group.members[member].classic is None:
            raise UnknownMemberId
        return member
