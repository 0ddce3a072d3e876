"""The consumer groups of one partition of __consumer_offsets: their writes and timers. Pure.

A request changes its group at once, and its response waits until the records are written. If they cannot be
written, the change is undone. If they are in the log and only the in-sync replicas are late, it stays. A
response without records waits for the writes before it, so that no client sees what could be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidFetchSize,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
    UnknownServerError,
)
from cluster.groups.consumer.group import ConsumerGroup, Draft, Kind
from cluster.groups.consumer.messages import (
    ClusterTopics,
    ConsumerLimits,
)
from cluster.groups.consumer.records import encode_change
from cluster.groups.consumer.values import (
    LEAVE_STATIC_EPOCH,
    MemberState,
)
from cluster.groups.memory import MemoryUse
from cluster.groups.messages import Snapshot, StoredGroup
from cluster.groups.outbox import Outbox
from cluster.groups.timers import TimerKey, Timers
from cluster.state_topics import WRITE_ERRORS, Token

_IN_LOG = frozenset({RequestTimedOut.code, NotEnoughReplicasAfterAppend.code})
"""Errors of writes that are in the log of this broker."""

_WRITE_ERRORS = {**WRITE_ERRORS, InvalidFetchSize.code: UnknownServerError.code}
"""What members get for the error of a write."""


class Classic(Protocol):
    """The classic groups of the partition, for groups that change their protocol."""

    def snapshot(self, group_id: str) -> Snapshot | None:
        """The classic group that was written or has members."""

    def record(self, group_id: str) -> StoredGroup:
        """The record of a classic group that exists."""

    def end(self, group_id: str) -> None:
        """Ends a classic group; its offsets stay. Members that wait join again."""

    def begin(self, snapshot: Snapshot, now: int) -> None:
        """Begins a classic group, and a rebalance of its members."""


@dataclass(slots=True)
class _Waiting:
    """A write that is under way."""

    draft: Draft
    answers: list[tuple[Token, Any]] = field(default_factory=list)
    after: list[Callable[[int], None]] = field(default_factory=list)
    """What happens at the time when it is written."""


class GroupStore:
    """The groups, their writes and their timers."""

    def __init__(
        self,
        limits: ConsumerLimits,
        topics: ClusterTopics,
        classic: Classic,
        new_id: Callable[[], str],
        outbox: Outbox,
        memory: MemoryUse,
    ) -> None:
        self.limits = limits
        self.topics = topics
        self.classic = classic
        self.new_id = new_id
        self.outbox = outbox
        self.memory = memory
        self.groups: dict[str, ConsumerGroup] = {}
        self.timers = Timers()
        self._writing: dict[int, _Waiting] = {}

    # ---- drafts and writes ----

    @contextmanager
    def draft(self, group: ConsumerGroup, now: int) -> Iterator[Draft]:
        """The changes of a request; an error undoes them."""
        draft = Draft(group)
        try:
            yield draft
        except Exception:
            draft.undo(now)
            self.drop_unused(group)
            raise

    def commit(
        self,
        draft: Draft,
        answer: tuple[Token, Any] | None = None,
        after: Callable[[int], None] | None = None,
        now: int = 0,
        stored: StoredGroup | None = None,
        remove_classic: bool = False,
    ) -> None:
        """Writes the changes and answers then. The batch gets the record of the classic group of that id
        (`stored`), or its tombstone.
        """
        group = draft.group
        if draft.changes:
            waiting = _Waiting(draft)
            records = [encode_change(group.id, change) for change in draft.changes]
            number = self.outbox.write(
                group.id,
                lambda error, at: self._written(number, error, at),
                stored=stored,
                remove_group=remove_classic,
                records=records,
            )
            self._writing[number] = waiting
            group.last_write = number
        elif group.last_write:
            waiting = self._writing[group.last_write]
        else:
            if after is not None:
                after(now)
            if answer is not None:
                self.outbox.respond(*answer)
            return
        if answer is not None:
            waiting.answers.append(answer)
        if after is not None:
            waiting.after.append(after)

    def _written(self, number: int, error: int, now: int) -> None:
        waiting = self._writing.pop(number)
        group = waiting.draft.group
        is_last = group.last_write == number
        if is_last:
            group.last_write = 0
        if error == NONE:
            for after in waiting.after:
                after(now)
        elif error not in _IN_LOG and is_last:
            self.groups.setdefault(group.id, group)
            waiting.draft.undo(now)
            for _, member in list(group.deadlines):
                if member not in group.members:
                    self.cancel_all(group, member)
            self.start_sessions(group, now)
        self.drop_unused(group)
        code = _WRITE_ERRORS.get(error, error)
        for token, result in waiting.answers:
            self.outbox.respond(token, result if code == NONE else type(result)(error=code))

    def drop_unused(self, group: ConsumerGroup) -> None:
        """Forgets a group that was never written or whose entries are gone."""
        if not group.exists and not group.members and self.groups.get(group.id) is group:
            del self.groups[group.id]
            for kind, member in list(group.deadlines):
                self.cancel(group, kind, member)
            group.end()

    # ---- timers ----

    def deadline(self, due: TimerKey) -> int | None:
        """When a timer is due; None if it was cancelled."""
        name, kind, member = due
        group = self.groups.get(name)
        return None if group is None else group.deadlines.get((kind, member))

    def schedule(self, group: ConsumerGroup, kind: str, member: str, deadline: int) -> None:
        """Sets a member's timer."""
        group.deadlines[kind, member] = deadline
        self.timers.schedule((group.id, kind, member), deadline)

    def cancel(self, group: ConsumerGroup, kind: str, member: str) -> None:
        """Cancels a member's timer if there is one."""
        if group.deadlines.pop((kind, member), None) is not None:
            self.timers.cancel((group.id, kind, member))

    def cancel_all(self, group: ConsumerGroup, member: str) -> None:
        """Cancels all timers of a member."""
        for kind in ("session", "rebalance", "join", "sync"):
            self.cancel(group, kind, member)

    def renew_session(self, group: ConsumerGroup, member: str, now: int) -> None:
        """Starts the member's session again."""
        subscription = group.members.get(member)
        if subscription is not None:
            classic = subscription.classic
            timeout = self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
            self.schedule(group, "session", member, now + timeout)

    def start_sessions(self, group: ConsumerGroup, now: int) -> None:
        """Starts the timers of members that have none."""
        for member in group.members:
            if ("session", member) not in group.deadlines:
                self.renew_session(group, member, now)
                self.time_revocation(group, member, now)

    def time_revocation(self, group: ConsumerGroup, member: str, now: int) -> None:
        """Starts or ends the time in which the member must give up partitions. Classic members must join
        instead.
        """
        subscription = group.members[member]
        current = group.current(member)
        revokes = current.state is MemberState.UNREVOKED_PARTITIONS and current.epoch != LEAVE_STATIC_EPOCH
        if revokes and subscription.classic is None:
            self.schedule(group, "rebalance", member, now + subscription.rebalance_timeout_ms)
        else:
            self.cancel(group, "rebalance", member)

    def update_timers(self, draft: Draft, now: int) -> None:
        """Cancels the timers of members that a draft removed, and starts those of members that it added."""
        group = draft.group
        for kind, member, _ in draft.changes:
            if kind is Kind.SUBSCRIPTION:
                if member not in group.members:
                    self.cancel_all(group, member)
                elif ("session", member) not in group.deadlines:
                    self.renew_session(group, member, now)

    def check_memory(self, size: int) -> None:
        """Raises CoordinatorNotAvailable if all members would take too much memory; small ones may use twice
        the limit.
        """
        if not self.memory.fits(size):
            raise CoordinatorNotAvailable("The members of all groups take too much memory. Try again later.")
