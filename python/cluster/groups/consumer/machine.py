"""The consumer groups of one partition of __consumer_offsets: requests and the time in, actions out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cluster.errors import (
    NONE,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    KafkaProtocolError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from cluster.groups.consumer import membership
from cluster.groups.consumer.assignment import preferred_assignor
from cluster.groups.consumer.classic import downgraded, upgrade
from cluster.groups.consumer.classic_members import ClassicMembers
from cluster.groups.consumer.group import Change, ConsumerGroup, Draft, Kind, subscription_bytes
from cluster.groups.consumer.messages import (
    ClusterTopics,
    ConsumerGroupView,
    ConsumerLimits,
    ConsumerMemberView,
    Heartbeat,
    HeartbeatResult,
)
from cluster.groups.consumer.store import Classic, GroupStore
from cluster.groups.consumer.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Subscription,
)
from cluster.groups.memory import MemoryUse
from cluster.groups.messages import CONSUMER_PROTOCOL, Commit, StoredGroup
from cluster.groups.outbox import Outbox
from cluster.state_topics import Token

_COMMIT_WITH_EPOCH = 9
"""The first version of OffsetCommit whose clients know member epochs."""


class ConsumerGroups:
    """The groups."""

    def __init__(
        self,
        limits: ConsumerLimits,
        topics: ClusterTopics,
        classic: Classic,
        new_id: Callable[[], str],
        outbox: Outbox,
        memory: MemoryUse,
    ) -> None:
        self._store = GroupStore(limits, topics, classic, new_id, outbox, memory)
        self.classic = ClassicMembers(self._store)

    def get(self, group: str) -> ConsumerGroup | None:
        """The consumer group with that id."""
        return self._store.groups.get(group)

    def groups(self) -> Iterator[ConsumerGroup]:
        """All groups."""
        return iter(list(self._store.groups.values()))

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._store.groups.get(group_id)
        if group is None:
            if self._store.classic.snapshot(group_id) is not None:
                raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
            raise GroupIdNotFound(f"Consumer group {group_id} not found.")
        return group

    # ---- timers ----

    def next_deadline(self) -> int | None:
        """When `advance` must be called next."""
        return self._store.timers.next()

    def advance(self, now: int, most: int | None = None) -> None:
        """Handles the timers due at `now`: removes the members that are late."""
        late: dict[str, list[str]] = {}
        for name, kind, member in self._store.timers.over(now, self._store.deadline, most):
            group = self._store.groups[name]
            del group.deadlines[kind, member]
            if member in group.members and member not in late.setdefault(name, []):
                late[name].append(member)
        for name, members in late.items():
            self._fence(self._store.groups[name], members, now)

    def postpone(self, by_ms: int) -> None:
        """Moves every deadline."""
        for group in self._store.groups.values():
            for key in group.deadlines:
                group.deadlines[key] += by_ms

    # ---- ConsumerGroupHeartbeat ----

    def heartbeat(self, token: Token, request: Heartbeat, now: int) -> None:
        """ConsumerGroupHeartbeat: joins, keeps the member's session, or leaves."""
        try:
            membership.check_request(request, self._store.limits)
            if request.epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                self._leave(token, request, now)
            else:
                self._beat(token, request, now)
        except KafkaProtocolError as error:
            self._store.outbox.respond(token, HeartbeatResult(error.code, str(error)))

    def _beat(self, token: Token, request: Heartbeat, now: int) -> None:
        joins = request.epoch == JOIN_EPOCH
        known = self._store.groups.get(request.group)
        if known is None and not joins:
            known = self._existing(request.group)
        if known is None:
            # Before a classic group of that id is disturbed.
            self._check_first(request)
        group = known or ConsumerGroup(request.group, self._store.memory)
        with self._store.draft(group, now) as draft:
            replaced = known is None and self._replace_classic(draft)
            membership.check_size(group, request.member, self._store.limits.members_max)
            member = request.member or self._store.new_id()
            if request.instance is None:
                if not joins:
                    membership.known_member(group, member, None)
                membership.check_epoch(group.current(member), request.epoch, request.owned)
            elif joins:
                membership.take_instance(draft, member, request.instance, released_only=True)
            else:
                membership.known_member(group, member, request.instance)
                membership.check_epoch(group.current(member), request.epoch, request.owned)
            before = group.members.get(member)
            subscription = membership.subscribed(request, before or Subscription())
            if before is None:
                self._store.check_memory(subscription_bytes(member, subscription))
            had = group.current(member).assigned
            membership.subscribe(draft, member, subscription, self._store.topics, self._store.limits, now)
            moved = membership.move(draft, member, request.owned)
            current = group.current(member)
        self._store.groups[group.id] = group
        self._store.update_timers(draft, now)
        if before is not None and before.classic is not None:
            self._store.cancel(group, "join", member)
            self._store.cancel(group, "sync", member)
        self._store.renew_session(group, member, now)
        if moved:
            self._store.time_revocation(group, member, now)
        shown = current.assigned if request.is_full or current.assigned != had else None
        result = HeartbeatResult(
            NONE, None, member, current.epoch, self._store.limits.heartbeat_interval_ms, shown
        )
        self._store.commit(draft, (token, result), remove_classic=replaced)

    def _check_first(self, request: Heartbeat) -> None:
        """Raises the errors of a group's first member of the consumer protocol."""
        if request.regex:
            self._store.topics.matching(request.regex)
        self._store.check_memory(
            subscription_bytes(request.member, membership.subscribed(request, Subscription()))
        )

    def _leave(self, token: Token, request: Heartbeat, now: int) -> None:
        group = self._existing(request.group)
        member = membership.known_member(group, request.member, request.instance)
        answer = (token, HeartbeatResult(NONE, None, member, request.epoch))
        if request.instance is None or request.epoch == LEAVE_EPOCH:
            self._fence(group, [member], now, answer)
            return
        with self._store.draft(group, now) as draft:
            membership.leave_for_a_while(draft, member)
        self._store.cancel(group, "rebalance", member)
        self._store.commit(draft, answer)

    def _fence(
        self, group: ConsumerGroup, members: Sequence[str], now: int, answer: tuple[Token, Any] | None = None
    ) -> None:
        """Removes members. The rest may become a classic group."""
        with self._store.draft(group, now) as draft:
            stored = self._downgrade(draft, members, now)
            if stored is None:
                membership.remove(draft, members, self._store.topics)
        for member in members:
            self._store.cancel_all(group, member)
        self._store.commit(draft, answer, stored=stored)
        self._store.drop_unused(group)

    # ---- changes of the protocol ----

    def _replace_classic(self, draft: Draft) -> bool:
        """Makes the draft's group from the classic group of its id, if there is one. Returns whether that one
        needs a tombstone.
        """
        group = draft.group
        snapshot = self._store.classic.snapshot(group.id)
        if snapshot is None:
            return False
        if snapshot.members:
            if not self._store.limits.upgrade or snapshot.protocol_type != CONSUMER_PROTOCOL:
                raise GroupIdNotFound(f"Group {group.id} is not a consumer group.")
            if len(snapshot.members) >= self._store.limits.members_max:
                raise GroupMaxSizeReached(f"Group {group.id} has too many members for a consumer group.")
            upgrade(draft, snapshot, self._store.topics)
        self._store.classic.end(group.id)
        draft.on_undo.append(lambda at: self._store.classic.begin(snapshot, at))
        return snapshot.generation > 0

    def _downgrade(self, draft: Draft, leaving: Sequence[str], now: int) -> StoredGroup | None:
        """Makes the group classic if all members that stay use the classic protocol. Returns its record."""
        group = draft.group
        stay = group.members.keys() - set(leaving)
        if not self._store.limits.downgrade or not stay or not stay <= set(group.classic_members):
            return None
        if all(group.members[member].classic is not None for member in leaving):
            return None
        snapshot = downgraded(group, leaving, self._store.topics)
        for change in list(group.changes()):
            draft.set(change.kind, change.name, None)
        self._store.classic.begin(snapshot, now)
        draft.on_undo.append(lambda at: self._store.classic.end(group.id))
        return self._store.classic.record(group.id)

    def delete(self, group: ConsumerGroup) -> None:
        """Deletes a group without members."""
        assert not group.members
        draft = Draft(group)
        for change in list(group.changes()):
            draft.set(change.kind, change.name, None)
        self._store.commit(draft)
        self._store.drop_unused(group)

    # ---- offsets ----

    @staticmethod
    def check_commit(group: ConsumerGroup, request: Commit) -> int:
        """The error for an OffsetCommit or a TxnOffsetCommit."""
        in_transaction = request.producer is not None
        if request.generation < 0 and not group.members:
            return NONE
        subscription = group.members.get(request.member)
        if subscription is None:
            return UnknownMemberId.code
        if not in_transaction and request.version < _COMMIT_WITH_EPOCH and subscription.classic is None:
            return UnsupportedVersion.code
        error = _epoch_error(group, request.member, request.generation)
        return IllegalGeneration.code if in_transaction and error == StaleMemberEpoch.code else error

    @staticmethod
    def check_fetch(group: ConsumerGroup, member: str | None, epoch: int) -> int:
        """The error for an OffsetFetch of a member, if it says which it is."""
        if member is None and epoch < 0:
            return NONE
        if member is None or member not in group.members:
            return UnknownMemberId.code
        return _epoch_error(group, member, epoch)

    # ---- what is there ----

    def describe(self, group: ConsumerGroup) -> ConsumerGroupView:
        """A group and its members."""
        members = tuple(
            ConsumerMemberView(member, subscription, group.current(member), group.target(member))
            for member, subscription in group.members.items()
        )
        assignor = preferred_assignor(group, self._store.limits.assignors[0])
        return ConsumerGroupView(group.state, group.epoch, group.target_epoch, assignor, members)

    # ---- loading ----

    def load(self, group_id: str, change: Change) -> None:
        """A record was read from the log. The last one of its key counts."""
        group = self._store.groups.get(group_id)
        if group is None:
            group = self._store.groups[group_id] = ConsumerGroup(group_id, self._store.memory)
        group.set(change)

    def loaded(self, now: int) -> None:
        """The log was read to its end: sessions start. What has no epoch is left over from a group that is
        gone.
        """
        for group in list(self._store.groups.values()):
            for change in list(group.changes()):
                of_member = change.kind in (Kind.CURRENT, Kind.TARGET)
                if not group.exists or (of_member and change.name not in group.members):
                    group.set(change._replace(value=None))
            self._store.drop_unused(group)
            self._store.start_sessions(group, now)

    def unload(self) -> None:
        """Another coordinator has these groups now."""
        for group in self._store.groups.values():
            group.end()
        self._store.groups.clear()

    def waiting(self) -> int:
        """How many members' sessions run. Any thread may call it."""
        return sum(len(group.members) for group in list(self._store.groups.values()))


def _epoch_error(group: ConsumerGroup, member: str, epoch: int) -> int:
    if epoch == group.current(member).epoch:
        return NONE
    is_classic = group.members[member].classic is not None
    return IllegalGeneration.code if is_classic else StaleMemberEpoch.code
