"""A consumer's part in its group: joining, the eager rebalance protocol, heartbeats, leaving.

`Group` owns one daemon thread, started by the first `subscribe`, and one `Membership` at a time. The thread
joins, sends heartbeats and posts events; it never calls the application. `Consumer.poll` carries the events
out in the application's thread. All state is in the `Membership`, under one lock. `subscribe` begins a
membership and `leave` ends it: what a request under way brings afterwards belongs to the ended one and is
dropped. Partitions are given up before the member joins the next generation, so no two members have one at
once. Sources: KIP-62 (two timeouts), ConsumerCoordinator.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ._commits import Identity
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException, failed
from ._faults import LastingFault
from ._group_protocol import GenerationEnded, GroupProtocol
from ._subscription import SubscribedTopics, Subscription
from ._types import TopicPartition

logger = logging.getLogger("cluster.client")

_LEAVE_TIMEOUT = 10.0
_RETRY_PAUSE = 0.2
_ERROR_PAUSE = 1.0
"""Seconds before joining again after a failure that does not pass by itself."""
_MISSING_CHECK = 1.0
"""Seconds between two looks for topics that are subscribed to and do not exist."""
_PATTERN_CHECK = 10.0
"""Seconds between two looks for topics that a pattern may match."""


class Standing(Enum):
    """Where a membership stands."""

    OUTSIDE = "joining, or about to join"
    INSIDE = "a member of a generation"
    FENCED = "another process uses this group.instance.id; it does not join again"
    LEFT = "ended by the application"


@dataclass(eq=False)
class Membership:
    """One membership, from `subscribe` to `leave`. Read and changed under the group's lock."""

    subscription: Subscription
    standing: Standing = Standing.OUTSIDE
    member_id: str | None = None
    """None until the coordinator has given one."""
    generation: int = -1
    assigned: list[TopicPartition] = field(default_factory=list)
    """The partitions that the group assigned and has not revoked."""
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
    """The group assigned these partitions to the member `owner`."""

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


@dataclass(frozen=True)
class _Led:
    """What a leader assigned: every member's topics, with the number of partitions of those that exist."""

    topics: list[str]
    counts: dict[str, int]


class Group:
    """See the module."""

    def __init__(
        self, coordinator: Coordinator, settings: dict[str, Any], post: Callable[[Event], None]
    ) -> None:
        self._protocol = GroupProtocol(coordinator, settings)
        create = bool(settings.get("allow.auto.create.topics", False))
        self._topics = SubscribedTopics(coordinator.requests.network, create)
        self._name = coordinator.group
        self._post = post
        self._session = settings["session.timeout.ms"] / 1000
        self._heartbeat = settings["heartbeat.interval.ms"] / 1000
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
                if membership.standing is Standing.FENCED:
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
            self._protocol.leave(member_id, timeout)

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
            if membership.standing is Standing.FENCED:
                raise KafkaException(KafkaError(KafkaError.FENCED_INSTANCE_ID, None, True))
            if membership.lost:
                known = membership.member_id is not None
                raise failed(
                    KafkaError.ILLEGAL_GENERATION if known else KafkaError.UNKNOWN_MEMBER_ID,
                    "Commit failed: the group has removed this member; poll, and commit what is read then",
                )
            if membership.owner is not None:
                return membership.owner
            return self._identity_of(membership)

    def _identity_of(self, membership: Membership) -> Identity:
        if membership.standing is not Standing.INSIDE or membership.member_id is None:
            return Identity()
        return Identity(membership.generation, membership.member_id, self._protocol.instance)

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
                self._pause(membership, _ERROR_PAUSE)

    def _next_membership(self) -> Membership | None:
        """Waits for a membership that shall join; None when the consumer is closed."""

        def joining() -> Membership | None:
            found = self._current
            if found is None or found.leaving or found.standing is Standing.FENCED:
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
            if end.error is not None:
                self._report_lasting(membership, end.error)
                if membership.fault.times > 1:
                    self._pause(membership, _RETRY_PAUSE)
        except KafkaException as error:
            self._join_failed(membership, error.error)

    def _take_part(self, membership: Membership) -> None:
        """Joins one generation and stays in it. Ends by GenerationEnded, or when the membership does."""
        with self._changed:
            membership.subscription_changed = False
            subscription, member_id = membership.subscription, membership.member_id
        topics = self._topics.find(subscription, lambda error: self._fail(membership, error))
        joined = self._protocol.join(member_id, topics)
        if not self._keep_member_id(membership, joined.member_id) or joined.generation < 0:
            return
        led: _Led | None = None
        if joined.members:
            wanted = sorted({topic for member in joined.members for topic in member.topics})
            led = _Led(wanted, self._topics.count_partitions(wanted))
        partitions = self._protocol.sync(joined, {} if led is None else led.counts)
        with self._changed:
            if membership.standing is Standing.LEFT:
                return
            membership.standing, membership.generation = Standing.INSIDE, joined.generation
            if membership.subscription is not subscription:
                # The assignment is of the former subscription; the next generation's will be of the new one.
                raise GenerationEnded(lost=False)
            membership.assigned = partitions
            owner = self._identity_of(membership)
        self._post(Assigned(membership, partitions, owner))
        self._stay(membership, topics, led)

    def _keep_member_id(self, membership: Membership, member_id: str) -> bool:
        """Notes the id. Leaves with it instead if the application has left without knowing it; then False."""
        with self._changed:
            if membership.standing is not Standing.LEFT:
                membership.member_id = member_id
                return True
            left_with = membership.member_id
        if left_with != member_id:
            self._protocol.leave(member_id, _LEAVE_TIMEOUT)
        return False

    def _stay(self, membership: Membership, topics: list[str], led: _Led | None) -> None:
        """Sends heartbeats until the generation or the membership ends."""
        last_answer = last_look = time.monotonic()

        def interrupted() -> bool:
            return self._closing or membership.standing is Standing.LEFT or membership.subscription_changed

        while True:
            with self._changed:
                self._changed.wait_for(interrupted, self._heartbeat)
                if self._closing or membership.standing is Standing.LEFT:
                    return
                if membership.subscription_changed and not membership.leaving:
                    raise GenerationEnded(lost=False)
            now = time.monotonic()
            if not self.polling and now - self.last_poll > self._max_poll and not membership.leaving:
                self._remove_slow_application(membership)
                return
            try:
                self._protocol.heartbeat(membership.member_id, membership.generation)
                last_answer = time.monotonic()
                membership.fault.passed()
            except GenerationEnded as end:
                if not end.lost:
                    # The coordinator knows the member: others join or leave.
                    membership.fault.passed()
                if end.lost or not membership.leaving:
                    raise
            except KafkaException as error:
                if time.monotonic() - last_answer > self._session:
                    forget = self._protocol.instance is None
                    raise GenerationEnded(lost=True, forget_member=forget, error=error.error) from error
                self._report(membership, error.error)
            period = _MISSING_CHECK if membership.subscription.missing else self._refresh
            if membership.subscription.patterns:
                period = min(period, _PATTERN_CHECK)
            if now - last_look >= period and not membership.leaving:
                last_look = now
                self._look_for_changes(membership, topics, led)

    def _look_for_changes(self, membership: Membership, topics: list[str], led: _Led | None) -> None:
        """Ends the generation when other topics match, or a leader's topics have more partitions."""
        try:
            found = self._topics.find(membership.subscription, lambda error: self._fail(membership, error))
            changed = found != topics
            changed = changed or (led is not None and self._topics.count_partitions(led.topics) != led.counts)
        except KafkaException:
            # The connections report their own failures; the next look is one period away.
            return
        if changed:
            raise GenerationEnded(lost=False)

    def _end_generation(self, membership: Membership, end: GenerationEnded) -> None:
        """Has the application give up its partitions, with heartbeats meanwhile unless the member is lost."""
        with self._changed:
            if membership.standing is Standing.LEFT:
                return
            if end.lost:
                membership.lose(end.forget_member)
            if end.fenced:
                # Joining again would remove the other process from the group.
                membership.standing = Standing.FENCED
            partitions, membership.assigned = membership.assigned, []
            membership.revoking = bool(partitions)
        if end.fenced:
            self._fail(membership, KafkaError(KafkaError.FENCED_INSTANCE_ID, None, True))
        if not partitions:
            return
        self._post(Revoked(membership, partitions, end.lost))
        while self._is_revoking(membership):
            try:
                if membership.standing is Standing.INSIDE:
                    self._protocol.heartbeat(membership.member_id, membership.generation)
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
            self._protocol.leave(member_id, _LEAVE_TIMEOUT)
        with self._changed:
            if membership.standing is Standing.LEFT:
                return
            partitions, membership.assigned = membership.assigned, []
            membership.lose(forget_member=self._protocol.instance is None)
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
            self._pause(membership, _RETRY_PAUSE)
            return
        with self._changed:
            membership.lose(forget_member=True)
        self._pause(membership, _ERROR_PAUSE)

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
