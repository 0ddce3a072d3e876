"""The classic protocol: JoinGroup, SyncGroup and heartbeats, with eager and cooperative rebalances.

An eager member gives all its partitions up before it joins the next generation. A cooperative member keeps
them while it joins. It gives up those that its next assignment lacks, and joins again; until then the leader
gives them to nobody. Sources: KIP-62 (two timeouts), KIP-429 (cooperative), ConsumerCoordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._coordinator import Coordinator
from ._errors import KafkaException
from ._group import LEAVE_TIMEOUT, Assigned, Event, GenerationEnded, Group, Membership, Standing
from ._group_classic_protocol import ClassicProtocol


@dataclass(frozen=True)
class _Led:
    """What a leader assigned: every member's topics, with the number of partitions of those that exist."""

    topics: list[str]
    counts: dict[str, int]


class ClassicGroup(Group):
    """See the module."""

    def __init__(
        self, coordinator: Coordinator, settings: dict[str, Any], post: Callable[[Event], None]
    ) -> None:
        super().__init__(coordinator, settings, post)
        self._protocol = ClassicProtocol(coordinator, settings)
        self._session = settings["session.timeout.ms"] / 1000
        self._heartbeat = settings["heartbeat.interval.ms"] / 1000

    @property
    def incremental(self) -> bool:
        return self._protocol.cooperative

    def _leave(self, member_id: str, timeout: float) -> None:
        self._protocol.leave(member_id, timeout)

    def _keep_alive(self, membership: Membership) -> None:
        self._protocol.heartbeat(membership.member_id, membership.generation)

    def _take_part(self, membership: Membership) -> None:
        with self._changed:
            membership.subscription_changed = False
            subscription, member_id = membership.subscription, membership.member_id
            owned, owned_since = list(membership.assigned), membership.assigned_in
        topics = self._topics.find(subscription, lambda error: self._fail(membership, error))
        joined = self._protocol.join(member_id, topics, owned, owned_since)
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
            owner = self._identity_of(membership)
            if membership.owner is not None and self._protocol.cooperative:
                # What the application has, it has in this generation too, and commits in it.
                membership.owner = owner
            if membership.subscription is not subscription:
                # The assignment is of the former subscription; the next generation's will be of the new one.
                raise GenerationEnded(lost=False)
            membership.assigned_in = joined.generation
            if not self._protocol.cooperative:
                membership.assigned = partitions
        if self._protocol.cooperative:
            if self._change_partitions(membership, partitions, owner):
                # The next generation gives the partitions to others.
                raise GenerationEnded(lost=False)
        else:
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
            self._protocol.leave(member_id, LEAVE_TIMEOUT)
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
            if self._is_slow() and not membership.leaving:
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
                    forget = self.instance is None
                    raise GenerationEnded(lost=True, forget_member=forget, error=error.error) from error
                self._report(membership, error.error)
            if now - last_look >= self._look_period(membership) and not membership.leaving:
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
