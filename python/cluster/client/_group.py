"""A consumer's part in its group: what the classic and the consumer protocol share.

`Group` is what `Consumer` uses; `ClassicGroup` and `ConsumerGroup` speak the two protocols. A group owns one
daemon thread, started by the first `subscribe`, and one `Membership` at a time. The thread joins, sends
heartbeats and posts events; it never calls the application. `Consumer.poll` carries the events out in the
application's thread. All state is in the `Membership`, under one lock. `subscribe` begins a membership and
`leave` ends it: what a request under way brings afterwards belongs to the ended one and is dropped. A member
gives partitions up before others get them, so no two members have one at once.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ._commits import Identity
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException, failed
from ._faults import LastingFault
from ._subscription import SubscribedTopics, Subscription
from ._types import ConsumerGroupMetadata, TopicPartition

logger = logging.getLogger("cluster.client")

LEAVE_TIMEOUT = 10.0
RETRY_PAUSE = 0.2
ERROR_PAUSE = 1.0
"""Seconds before joining again after a failure that does not pass by itself."""
_MISSING_CHECK = 1.0
"""Seconds between two looks for topics that are subscribed to and do not exist."""
_PATTERN_CHECK = 10.0
"""Seconds between two looks for topics that a pattern may match."""


class GenerationEnded(Exception):
    """The member must join again. `lost`: other members may have its partitions already.

    `forget_member`: the coordinator does not know the member id. `fatal`: the member must not join again;
    the `error` says why. `error`: the coordinator's answer, if it was one.
    """

    def __init__(
        self, lost: bool, forget_member: bool = False, fatal: bool = False, error: KafkaError | None = None
    ) -> None:
        super().__init__()
        self.error = error
        self.lost = lost
        self.forget_member = forget_member
        self.fatal = fatal


class Standing(Enum):
    """Where a membership stands."""

    OUTSIDE = "joining, or about to join"
    INSIDE = "a member of a generation"
    FAILED = "ended by the coordinator; it does not join again"
    LEFT = "ended by the application"


@dataclass(eq=False)
class Membership:
    """One membership, from `subscribe` to `leave`. Read and changed under the group's lock."""

    subscription: Subscription
    standing: Standing = Standing.OUTSIDE
    member_id: str | None = None
    """None before the member joins."""
    generation: int = -1
    """The generation, or the member epoch of the consumer protocol."""
    joins: int = 0
    """How often it joined; counted with the consumer protocol only."""
    failure: KafkaError | None = None
    """Why it is FAILED."""
    assigned: list[TopicPartition] = field(default_factory=list)
    """The partitions that the group assigned and has not revoked."""
    assigned_in: int = -1
    """The generation of the last assignment."""
    owner: Identity | None = None
    """The member that the application took its partitions over for; None before the first time."""
    subscription_changed: bool = False
    revoking: bool = False
    """A `Revoked` is posted and not carried out."""
    leaving: bool = False
    """`leave` comes next: the thread sends heartbeats and does not join again."""
    fault: LastingFault = field(default_factory=LastingFault)
    """Failures since the last heartbeat that was answered well. Used by the thread only."""

    def lose(self, forget_member: bool) -> None:
        """The group goes on without this member."""
        if self.standing is Standing.INSIDE:
            self.standing = Standing.OUTSIDE
        self.generation = -1
        if forget_member:
            self.member_id = None

    @property
    def lost(self) -> bool:
        """Whether other members may have the partitions that the application took over."""
        return self.owner is not None and self.standing is not Standing.INSIDE


@dataclass(frozen=True)
class Assigned:
    """The group assigned these partitions to the member `owner`; with incremental rebalances in addition to
    its others.
    """

    membership: Membership
    partitions: list[TopicPartition]
    owner: Identity


@dataclass(frozen=True)
class Revoked:
    """The application must give these partitions up; `lost`: other members may have them already."""

    membership: Membership
    partitions: list[TopicPartition]
    lost: bool


@dataclass(frozen=True)
class Failed:
    """A failure for `poll` to return; `retried`: for error_cb or the log, because the group tries again."""

    membership: Membership
    error: KafkaError
    retried: bool = False


Event = Assigned | Revoked | Failed


class Group(ABC):
    """See the module."""

    instance: str | None
    """The group.instance.id."""
    _heartbeat: float
    """Seconds between two heartbeats."""
    _removed: int = KafkaError.ILLEGAL_GENERATION
    """The error of commits of a member that was removed and whose id is known."""

    def __init__(
        self, coordinator: Coordinator, settings: dict[str, Any], post: Callable[[Event], None]
    ) -> None:
        self.instance = settings.get("group.instance.id")
        create = bool(settings.get("allow.auto.create.topics", False))
        self._topics = SubscribedTopics(coordinator.requests.network, create)
        self._name = coordinator.group
        self._post = post
        self._max_poll = settings["max.poll.interval.ms"] / 1000
        self._refresh = settings.get("topic.metadata.refresh.interval.ms", 300_000) / 1000
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._current: Membership | None = None
        # Written by the application's thread, read by this one: a float and a bool need no lock.
        self.last_poll = time.monotonic()
        self.polling = False

    # ---- called by the application's thread ----

    def subscribe(self, subscription: Subscription) -> None:
        """Begins a membership, or joins anew with another subscription."""
        with self._changed:
            membership = self._current
            if membership is None:
                self._current = Membership(subscription)
            else:
                membership.subscription, membership.subscription_changed = subscription, True
                if membership.standing is Standing.FAILED:
                    membership.standing = Standing.OUTSIDE
            self.last_poll = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logcore-group", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def prepare_to_leave(self) -> None:
        """The application gives its partitions up and leaves then: from now on no event is current."""
        with self._changed:
            if self._current is not None:
                self._current.leaving = True
                self._changed.notify_all()

    def leave(self, timeout: float) -> None:
        """Ends the membership and tells the coordinator, waiting for its answer at most `timeout` seconds."""
        with self._changed:
            membership, self._current = self._current, None
            if membership is None:
                return
            membership.standing = Standing.LEFT
            # An id that the thread gets from now on is its own to leave with.
            member_id = membership.member_id
            self._changed.notify_all()
        if member_id is not None:
            self._leave(member_id, timeout)

    def close(self) -> None:
        """Ends the thread at its next chance; it may still wait for an answer of the coordinator."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def is_current(self, event: Event) -> bool:
        """Whether the event is of the membership that the application is in."""
        return event.membership is self._current and not event.membership.leaving

    def took_over(self, event: Assigned) -> None:
        """The application has the partitions of an `Assigned`."""
        with self._changed:
            event.membership.owner = event.owner

    def revoked(self, event: Revoked) -> None:
        """The application has given up the partitions of a `Revoked`."""
        with self._changed:
            event.membership.revoking = False
            self._changed.notify_all()

    def alive(self) -> None:
        """The application polls."""
        with self._changed:
            self.last_poll = time.monotonic()
            self._changed.notify_all()

    def identity(self) -> Identity:
        """The member to commit for: the one that took its partitions over, or none outside of a group.

        Any thread may call it. Raises KafkaException when the group goes on without this member.
        """
        with self._changed:
            membership = self._current
            if membership is None:
                return Identity()
            if membership.standing is Standing.FAILED:
                raise KafkaException(membership.failure)
            if membership.lost:
                known = membership.member_id is not None
                raise failed(
                    self._removed if known else KafkaError.UNKNOWN_MEMBER_ID,
                    "Commit failed: the group has removed this member; poll, and commit what is read then",
                )
            if membership.owner is not None:
                return membership.owner
            return self._identity_of(membership)

    def renew(self, identity: Identity) -> Identity | None:
        """The identity to send a commit with that was made for `identity`. None: the group has removed the
        member since, so its commits must not be sent. Any thread may call it.
        """
        return identity

    def reader(self) -> Identity:
        """The member to fetch committed offsets for; none if the coordinator need not check it. Any thread
        may call it.
        """
        return Identity()

    def metadata(self) -> ConsumerGroupMetadata:
        """The member that took its partitions over, for a transaction. A coordinator refuses a former one."""
        with self._changed:
            membership = self._current
            found = Identity()
            if membership is not None:
                found = membership.owner or self._identity_of(membership)
            return ConsumerGroupMetadata(self._name, found.generation, found.member, found.instance)

    def _identity_of(self, membership: Membership) -> Identity:
        if membership.standing is not Standing.INSIDE or membership.member_id is None:
            return Identity()
        return Identity(membership.generation, membership.member_id, self.instance, membership.joins)

    # ---- the protocol ----

    @property
    @abstractmethod
    def incremental(self) -> bool:
        """Whether a rebalance takes and gives single partitions; otherwise it takes all before it gives."""

    @abstractmethod
    def _take_part(self, membership: Membership) -> None:
        """Joins, and stays. Ends by GenerationEnded or KafkaException, or when the membership does."""

    @abstractmethod
    def _keep_alive(self, membership: Membership) -> None:
        """Sends a heartbeat while the application gives partitions up. Raises as `_take_part`."""

    @abstractmethod
    def _leave(self, member_id: str, timeout: float) -> None:
        """Tells the coordinator that the member leaves. Failures are logged."""

    # ---- what the application's thread reads ----

    @property
    def lost(self) -> bool:
        """Whether other members may have what the application took over."""
        membership = self._current
        return membership is not None and membership.lost

    @property
    def subscribed(self) -> bool:
        """Whether there is a membership to leave."""
        return self._current is not None

    @property
    def member_id(self) -> str:
        """The member id; empty while there is none."""
        membership = self._current
        return "" if membership is None else membership.member_id or ""

    # ---- the thread ----

    def _run(self) -> None:
        while (membership := self._next_membership()) is not None:
            try:
                self._run_generation(membership)
            except RuntimeError:
                # The client was closed under the request, or the process forked.
                return
            except Exception as error:
                logger.exception("the membership in group %s failed", self._name)
                self._fail(membership, KafkaError(KafkaError._FAIL, f"group membership: {error}"))
                self._pause(membership, ERROR_PAUSE)

    def _next_membership(self) -> Membership | None:
        """Waits for a membership that shall join; None when the consumer is closed."""

        def joining() -> Membership | None:
            found = self._current
            if found is None or found.leaving or found.standing is Standing.FAILED:
                return None
            return found

        with self._changed:
            self._changed.wait_for(lambda: self._closing or joining())
            return None if self._closing else joining()

    def _run_generation(self, membership: Membership) -> None:
        try:
            self._take_part(membership)
        except GenerationEnded as end:
            self._end_generation(membership, end)
            if end.error is not None and not end.fatal:
                self._report_lasting(membership, end.error)
                if membership.fault.times > 1:
                    self._pause(membership, RETRY_PAUSE)
        except KafkaException as error:
            self._join_failed(membership, error.error)

    def _change_partitions(
        self, membership: Membership, partitions: list[TopicPartition], owner: Identity
    ) -> bool:
        """Has the application give up and take over what differs from what it has. Returns whether it gave
        anything up. Raises GenerationEnded when the group has removed the member meanwhile.
        """
        with self._changed:
            revoked = [found for found in membership.assigned if found not in partitions]
            added = [found for found in partitions if found not in membership.assigned]
            membership.assigned = [found for found in membership.assigned if found in partitions]
            membership.revoking = bool(revoked)
        if revoked:
            self._post(Revoked(membership, revoked, False))
            self._await_revocation(membership)
            if membership.standing is not Standing.INSIDE:
                raise GenerationEnded(lost=True)
        with self._changed:
            membership.assigned = membership.assigned + added
        if added or not revoked:
            self._post(Assigned(membership, added, owner))
        return bool(revoked)

    def _is_slow(self) -> bool:
        """Whether max.poll.interval.ms has passed since the last poll."""
        return not self.polling and time.monotonic() - self.last_poll > self._max_poll

    def _look_period(self, membership: Membership) -> float:
        """Seconds between two looks for the topics subscribed to."""
        period = _MISSING_CHECK if membership.subscription.missing else self._refresh
        return min(period, _PATTERN_CHECK) if membership.subscription.patterns else period

    def _end_generation(self, membership: Membership, end: GenerationEnded) -> None:
        """Has the application give up its partitions, with heartbeats meanwhile unless the member is lost."""
        with self._changed:
            if membership.standing is Standing.LEFT:
                return
            if end.lost:
                membership.lose(end.forget_member)
            if end.fatal:
                assert end.error is not None
                membership.standing = Standing.FAILED
                membership.failure = KafkaError(end.error.code(), end.error.str(), True)
            if self.incremental and not end.lost:
                return
            partitions, membership.assigned = membership.assigned, []
            membership.revoking = bool(partitions)
        if end.fatal and membership.failure is not None:
            self._fail(membership, membership.failure)
        if not partitions:
            return
        self._post(Revoked(membership, partitions, end.lost))
        self._await_revocation(membership)

    def _await_revocation(self, membership: Membership) -> None:
        """Waits until the application has given up what it was asked to, with heartbeats meanwhile."""
        while self._is_revoking(membership):
            try:
                if membership.standing is Standing.INSIDE:
                    self._keep_alive(membership)
            except GenerationEnded as worse:
                if worse.lost:
                    with self._changed:
                        membership.lose(worse.forget_member)
            except KafkaException:
                logger.info("a heartbeat to group %s failed", self._name, exc_info=True)

    def _is_revoking(self, membership: Membership) -> bool:
        """Waits at most one heartbeat interval; whether the application still has partitions to give up."""

        def done() -> bool:
            return self._closing or membership.standing is Standing.LEFT or not membership.revoking

        with self._changed:
            self._changed.wait_for(done, self._heartbeat)
            return not done()

    def _remove_slow_application(self, membership: Membership) -> None:
        """max.poll.interval.ms passed without a poll: leaves, and joins again when the application polls."""
        member_id, stalled_at = membership.member_id, self.last_poll
        milliseconds = self._max_poll * 1000
        text = f"the application did not call poll() for {milliseconds:.0f} ms (max.poll.interval.ms)"
        self._fail(membership, KafkaError(KafkaError._MAX_POLL_EXCEEDED, text))
        if member_id is not None:
            self._leave(member_id, LEAVE_TIMEOUT)
        with self._changed:
            if membership.standing is Standing.LEFT:
                return
            partitions, membership.assigned = membership.assigned, []
            membership.lose(forget_member=self.instance is None)
            membership.revoking = bool(partitions)
        if partitions:
            self._post(Revoked(membership, partitions, True))
        with self._changed:
            # The poll that returns the failure above also calls `alive`.
            self._changed.wait_for(
                lambda: (
                    self._closing
                    or membership.standing is Standing.LEFT
                    or (self.last_poll != stalled_at and not membership.revoking)
                )
            )

    def _join_failed(self, membership: Membership, error: KafkaError) -> None:
        """Reports a failure to join. The thread then joins again."""
        self._report(membership, error)
        if error.retriable():
            self._pause(membership, RETRY_PAUSE)
            return
        with self._changed:
            membership.lose(forget_member=True)
        self._pause(membership, ERROR_PAUSE)

    def _report(self, membership: Membership, error: KafkaError) -> None:
        """Reports a failure that the group thread tries again: at once if it does not pass by itself."""
        if error.retriable():
            self._report_lasting(membership, error)
        elif membership.fault.is_new(error):
            self._fail(membership, error)

    def _report_lasting(self, membership: Membership, error: KafkaError) -> None:
        """Reports a failure once it has lasted. The extension reports broken connections by itself."""
        if membership.fault.lasts(error, time.monotonic()) and error.code() > 0:
            text = f"taking part in group {self._name} fails and is tried again: {error.str()}"
            self._post(Failed(membership, KafkaError(error.code(), text, retriable=True), retried=True))

    def _fail(self, membership: Membership, error: KafkaError) -> None:
        self._post(Failed(membership, error))

    def _pause(self, membership: Membership, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closing or membership.standing is Standing.LEFT or membership.subscription_changed
                ),
                seconds,
            )
