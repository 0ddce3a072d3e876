"""The consumer protocol (KIP-848): the coordinator assigns, and each member moves towards its assignment.

One heartbeat joins, carries changes and brings the assignment. The member first gives up what its assignment
lacks, then takes over what is new, and says in its next heartbeat what it has. Other members go on reading.
A member that the group has removed loses its partitions and joins again with epoch 0. Sources:
ConsumerMembershipManager, AbstractMembershipManager.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ._commits import Identity
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException
from ._group import (
    ERROR_PAUSE,
    LEAVE_TIMEOUT,
    RETRY_PAUSE,
    Assigned,
    Event,
    Group,
    Membership,
    Standing,
)
from ._group_consumer_protocol import JOIN_EPOCH, ConsumerProtocol, Partitions
from ._requests import Requests
from ._subscription import REQUEST_TIMEOUT, Subscription
from ._types import TopicPartition, Uuid

_METADATA_CHECK = 0.5
"""Seconds between two looks for a topic whose id is not known."""


@dataclass
class _Part:
    """What the thread knows of its part in the group since it joined."""

    subscription: Subscription
    topics: list[str]
    looked: float
    """When it looked for the topics."""
    owned: Partitions = field(default_factory=dict)
    """What the application has."""
    target: Partitions | None = None
    """What the coordinator assigned; None once the application has all of it."""
    answered: bool = False
    """`target` was carried out as far as its topics are known, and the coordinator knows that."""
    due: float = 0.0
    """When to send the next heartbeat."""


class ConsumerGroup(Group):
    """See the module."""

    _removed = KafkaError.STALE_MEMBER_EPOCH

    def __init__(
        self, coordinator: Coordinator, settings: dict[str, Any], post: Callable[[Event], None]
    ) -> None:
        super().__init__(coordinator, settings, post)
        self._protocol = ConsumerProtocol(coordinator, settings)
        self._ids = TopicNames(coordinator.requests)
        self._heartbeat = RETRY_PAUSE
        self._part: _Part | None = None
        """Used by the thread only."""

    @property
    def incremental(self) -> bool:
        return True

    # ---- called by other threads ----

    def took_over(self, event: Assigned) -> None:
        with self._changed:
            # The epoch may have grown since the event was posted.
            event.membership.owner = self.renew(event.owner) or event.owner

    def renew(self, identity: Identity) -> Identity | None:
        with self._changed:
            if not identity.member:
                return identity
            membership = self._current
            now = Identity() if membership is None else self._identity_of(membership)
            same = (now.member, now.joins) == (identity.member, identity.joins)
            return now if same else None

    def reader(self) -> Identity:
        with self._changed:
            return Identity() if self._current is None else self._identity_of(self._current)

    # ---- the thread ----

    def _leave(self, member_id: str, timeout: float) -> None:
        self._protocol.leave(member_id, timeout)

    def _keep_alive(self, membership: Membership) -> None:
        if self._part is not None:
            self._send(membership, self._part)

    def _take_part(self, membership: Membership) -> None:
        with self._changed:
            membership.subscription_changed = False
            subscription = membership.subscription
        topics = self._find(membership)
        with self._changed:
            if membership.standing is Standing.LEFT:
                return
            membership.member_id = membership.member_id or str(Uuid.from_bytes(uuid.uuid4().bytes))
            membership.joins += 1
        part = self._part = _Part(subscription, topics, time.monotonic())
        while True:
            self._send(membership, part)
            if self._reconcile(membership, part):
                continue
            if self._wait(membership, part):
                return
            if self._is_slow() and not membership.leaving:
                self._remove_slow_application(membership)
                return
            self._look_for_changes(membership, part)

    def _send(self, membership: Membership, part: _Part) -> None:
        """Sends a heartbeat and notes the answer, or when to try again. Raises GenerationEnded."""
        joins = membership.standing is not Standing.INSIDE
        member_id, epoch = membership.member_id or "", JOIN_EPOCH if joins else membership.generation
        try:
            answer = self._protocol.heartbeat(member_id, epoch, part.topics, part.owned)
        except KafkaException as failure:
            self._report(membership, failure.error)
            pause = RETRY_PAUSE if failure.error.retriable() else ERROR_PAUSE
            part.due = time.monotonic() + pause
            return
        membership.fault.passed()
        self._heartbeat = max(answer.interval, 0.001)
        part.due = time.monotonic() + self._heartbeat
        if answer.assignment is not None:
            part.target, part.answered = answer.assignment, False
        with self._changed:
            left = membership.standing is Standing.LEFT
            if not left:
                membership.standing, membership.generation = Standing.INSIDE, answer.epoch
                if membership.owner is not None:
                    # What the application has, it has in this epoch too, and commits in it.
                    membership.owner = self._identity_of(membership)
        if left and joins:
            # The application left before the coordinator knew the member.
            self._protocol.leave(member_id, LEAVE_TIMEOUT)

    def _reconcile(self, membership: Membership, part: _Part) -> bool:
        """Has the application give up and take over what differs from the target. Returns whether to tell the
        coordinator at once.
        """
        target = part.target
        if target is None or membership.leaving or membership.standing is not Standing.INSIDE:
            return False
        names = self._ids.names(target)
        resolved = {topic: numbers for topic, numbers in target.items() if topic in names}
        if part.answered and resolved == part.owned:
            part.due = min(part.due, time.monotonic() + _METADATA_CHECK)
            return False
        wanted = [
            TopicPartition(names[topic], number) for topic, found in resolved.items() for number in found
        ]
        with self._changed:
            owner = self._identity_of(membership)
            same = membership.owner is not None and set(wanted) == set(membership.assigned)
        if not same:
            self._change_partitions(membership, wanted, owner)
        part.owned = resolved
        if part.target is target:
            part.answered = True
            if len(resolved) == len(target):
                part.target = None
        self._protocol.acknowledge()
        return True

    def _wait(self, membership: Membership, part: _Part) -> bool:
        """Waits for the next heartbeat, a new subscription or the end. Returns whether it is the end."""

        def interrupted() -> bool:
            changed = membership.subscription_changed and not membership.leaving
            return ended() or changed

        def ended() -> bool:
            return self._closing or membership.standing is Standing.LEFT

        with self._changed:
            self._changed.wait_for(interrupted, max(part.due - time.monotonic(), 0))
            return ended()

    def _look_for_changes(self, membership: Membership, part: _Part) -> None:
        """Finds the topics of a new subscription, and other topics that match."""
        now = time.monotonic()
        with self._changed:
            membership.subscription_changed = False
            changed = part.subscription is not membership.subscription
        if membership.leaving or not (changed or now - part.looked >= self._look_period(membership)):
            return
        subscription = membership.subscription
        try:
            part.topics = self._find(membership)
        except KafkaException as failure:
            # Connections report their own failures. The heartbeats go on meanwhile.
            self._report(membership, failure.error)
            return
        part.looked, part.subscription = now, subscription

    def _find(self, membership: Membership) -> list[str]:
        return self._topics.find(membership.subscription, lambda error: self._fail(membership, error))


class TopicNames:
    """The names of topics by their ids. Used by the group's thread."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._names: dict[bytes, str] = {}

    def names(self, ids: Iterable[bytes]) -> dict[bytes, str]:
        """The names of the topics that a broker knows; asks for those that were not asked for before."""
        ids = list(ids)
        unknown = [topic for topic in ids if topic not in self._names]
        if unknown:
            self._ask(unknown)
        # Ids that no assignment has any more need not be kept.
        self._names = {topic: self._names[topic] for topic in ids if topic in self._names}
        return dict(self._names)

    def _ask(self, ids: list[bytes]) -> None:
        message = {
            "topics": [{"topic_id": topic, "name": None} for topic in ids],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        try:
            response = self._requests.send("Metadata", message, timeout=REQUEST_TIMEOUT)
        except KafkaException:
            # The thread asks again; connections report their own failures.
            return
        for topic in response["topics"]:
            if topic["error_code"] == 0 and topic["name"] is not None:
                self._names[topic["topic_id"]] = topic["name"]
