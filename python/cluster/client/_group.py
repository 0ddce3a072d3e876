"""A consumer's membership in its group: joining, the eager rebalance protocol, heartbeats, leaving.

One daemon thread per subscribed consumer. It never calls the application: it posts what happened, and `Consumer.poll`
carries it out in the application's thread and reports back (`revoked`). Partitions are given up before the thread joins
the next generation, so no partition is two members' at once. Sources: KIP-62 (two timeouts), KIP-345 (static members),
KIP-394 (member id required), the Java class ConsumerCoordinator.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from logcore import _native

from ._assignors import ASSIGNORS, Member
from ._commits import Identity
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException, failed
from ._types import TopicPartition

logger = logging.getLogger("cluster.client")

_UNKNOWN_MEMBER_ID = 25
_ILLEGAL_GENERATION = 22
_REBALANCE_IN_PROGRESS = 27
_MEMBER_ID_REQUIRED = 79
_FENCED_INSTANCE_ID = 82
_SUBSCRIPTION_VERSION = 0
"""Version 0 of the consumer protocol's data is read by every client; the later fields are for cooperative assignors."""
_REQUEST_TIMEOUT = 10.0
_JOIN_SLACK = 5.0
"""Seconds beyond the rebalance timeout that a JoinGroup may take to be answered."""
_RETRY = 0.2
_MISSING_CHECK = 1.0
"""Seconds between two looks for topics that are subscribed to and do not exist."""
_PATTERN_CHECK = 10.0
"""Seconds between two looks for topics that a pattern may match."""


@dataclass(frozen=True)
class Assigned:
    """The group gave this consumer these partitions; `identity` is whom it gave them to."""

    partitions: list[TopicPartition]
    identity: Identity


@dataclass(frozen=True)
class Revoked:
    """These partitions are to be given up; `lost`: others may have them already."""

    partitions: list[TopicPartition]
    lost: bool


@dataclass(frozen=True)
class Failed:
    """Something the application should hear of."""

    error: KafkaError


Event = Assigned | Revoked | Failed


@dataclass(frozen=True)
class _Led:
    """What a leader assigned: the topics of all members, and the partitions of those that exist."""

    topics: list[str]
    counts: dict[str, int]


class _Rejoin(Exception):
    """The generation is over. `lost`: so is this member's place in it."""

    def __init__(self, lost: bool, forget_member: bool = False) -> None:
        super().__init__()
        self.lost = lost
        self.forget_member = forget_member


@dataclass
class Subscription:
    """What a consumer subscribed to: names, and regular expressions (written with a leading ^)."""

    topics: list[str] = field(default_factory=list)
    patterns: list[re.Pattern[str]] = field(default_factory=list)

    @classmethod
    def of(cls, topics: list[str]) -> Subscription:
        """Splits names from expressions. Raises ValueError for an expression that does not compile."""
        found = cls()
        for topic in topics:
            if topic.startswith("^"):
                try:
                    found.patterns.append(re.compile(topic))
                except re.error as error:
                    raise ValueError(f"{topic!r} is not a regular expression: {error}") from None
            else:
                found.topics.append(topic)
        return found


class Membership:
    """See the module. Created by the consumer, started by `subscribe`."""

    def __init__(
        self, coordinator: Coordinator, settings: dict[str, Any], post: Callable[[Event], None]
    ) -> None:
        self._coordinator = coordinator
        self._post = post
        self._session = settings["session.timeout.ms"] / 1000
        self._heartbeat = settings["heartbeat.interval.ms"] / 1000
        self._max_poll = settings["max.poll.interval.ms"] / 1000
        self._refresh = settings.get("topic.metadata.refresh.interval.ms", 300_000) / 1000
        self._strategies: list[str] = settings.get("partition.assignment.strategy", ["range", "roundrobin"])
        self._instance: str | None = settings.get("group.instance.id")
        self._create_topics = bool(settings.get("allow.auto.create.topics", False))
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._subscription: Subscription | None = None
        self._resubscribed = False
        self._closing = False
        self._member = ""
        self._generation = -1
        self._joined = False
        self._committer: Identity | None = None
        """Whom the partitions that the application has taken over were given to; None before the first."""
        self._fenced = False
        self._assigned: list[TopicPartition] = []
        self._awaiting_revoke = False
        self._told_missing: set[str] = set()
        self._told = 0
        self.last_poll = time.monotonic()
        self.polling = False

    # ---- called by the consumer, in the application's thread ----

    def identity(self) -> Identity:
        """Who commits: the member that took its partitions over, or generation -1 without a membership.

        Raises KafkaException when the group has thrown this member out.
        """
        with self._changed:
            if self._fenced:
                raise KafkaException(KafkaError(_FENCED_INSTANCE_ID, None, True))
            if self._committer is not None:
                if not self._joined:
                    raise failed(
                        _ILLEGAL_GENERATION if self._member else _UNKNOWN_MEMBER_ID,
                        "Commit failed: the group has thrown this member out; poll, and commit what is read then",
                    )
                return self._committer
            if self._joined:
                return self._itself()
            return Identity()

    def _itself(self) -> Identity:
        return Identity(self._generation, self._member, self._instance)

    def took_over(self, identity: Identity) -> None:
        """The application has what an `Assigned` named."""
        with self._changed:
            self._committer = identity

    @property
    def lost(self) -> bool:
        """Whether others may have what this member was assigned."""
        return self._committer is not None and not self._joined

    @property
    def grouped(self) -> bool:
        """Whether there is a membership to leave, be it one that is lost."""
        return self._subscription is not None or self._committer is not None or self._fenced

    @property
    def member_id(self) -> str:
        return self._member

    def subscribe(self, subscription: Subscription) -> None:
        """Joins the group with this subscription, or joins anew with another."""
        with self._changed:
            self._subscription = subscription
            self._resubscribed, self._fenced = True, False
            self.last_poll = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logcore-group", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def revoked(self) -> None:
        """The application has given up what a `Revoked` named."""
        with self._changed:
            self._awaiting_revoke = False
            self._changed.notify_all()

    def alive(self) -> None:
        """The application polls."""
        with self._changed:
            self.last_poll = time.monotonic()
            self._changed.notify_all()

    def take_back(self) -> list[TopicPartition]:
        """Ends the subscription; returns the partitions that the application still has and must give up."""
        with self._changed:
            self._subscription = None
            held, self._assigned = self._assigned, []
            self._awaiting_revoke = False
            self._changed.notify_all()
        return held

    def leave(self, timeout: float) -> None:
        """Tells the coordinator that this member is gone, so that the others need not wait for its session to end.

        A static member stays in the group: it is expected back.
        """
        with self._changed:
            member, self._member, self._joined, self._generation = self._member, "", False, -1
            self._committer, self._fenced = None, False
            self._changed.notify_all()
        if member and self._instance is None:
            self._send_leave(member, timeout)

    def close(self) -> None:
        """Ends the thread at its next chance; it may still wait for an answer of the broker."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _send_leave(self, member: str, timeout: float) -> None:
        # Version 3 and later name several members; the single one of before is understood by every broker.
        message = {"group_id": self._coordinator.group, "member_id": member}
        try:
            self._coordinator.call("LeaveGroup", message, timeout=timeout, newest=2)
        except KafkaException as error:
            logger.info("leaving group %s failed: %s", self._coordinator.group, error.error.str())

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._subscription is not None)
                if self._closing:
                    return
            try:
                self._live_one_generation()
            except _Rejoin as end:
                self._end_generation(end)
            except KafkaException as error:
                self._told_or_retried(error)
            except RuntimeError:
                # The client was closed under the request, or the process forked.
                return
            except Exception as error:
                logger.exception("the membership in group %s failed", self._coordinator.group)
                self._post(Failed(KafkaError(KafkaError._FAIL, f"group membership: {error}")))
                self._pause(1.0)

    def _live_one_generation(self) -> None:
        with self._changed:
            self._resubscribed = False
            subscription = self._subscription
        if subscription is None:
            return
        topics = self._look_at_topics(subscription)
        partitions, led = self._join(topics)
        with self._changed:
            if self._subscription is None:
                abandoned = self._member
            elif self._subscription is not subscription:
                # Changed while joining; what was assigned is for the next generation to assign.
                raise _Rejoin(lost=False)
            else:
                abandoned = ""
                self._joined = True
                self._assigned = partitions
                self._told = 0
                identity = self._itself()
        if abandoned:
            self.leave(_REQUEST_TIMEOUT)
            return
        self._post(Assigned(partitions, identity))
        self._stay(subscription, topics, led)

    def _end_generation(self, end: _Rejoin) -> None:
        """Has the application give up its partitions, keeping the session alive meanwhile, unless it is lost."""
        with self._changed:
            held, self._assigned = self._assigned, []
            if end.lost:
                self._joined = False
                self._generation = -1
            if end.forget_member:
                self._member = ""
            self._awaiting_revoke = bool(held)
        if not held:
            return
        self._post(Revoked(held, end.lost))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not self._awaiting_revoke, self._heartbeat)
                if self._closing or not self._awaiting_revoke:
                    return
                joined = self._joined
            if joined:
                try:
                    self._beat()
                except _Rejoin as worse:
                    if worse.lost:
                        with self._changed:
                            self._joined = False
                            if worse.forget_member:
                                self._member = ""
                except KafkaException:
                    logger.info("a heartbeat to group %s failed", self._coordinator.group, exc_info=True)

    def _told_or_retried(self, error: KafkaException) -> None:
        """A failure to join: told when trying again at once will not mend it, retried in any case."""
        if error.error.retriable():
            self._pause(_RETRY)
            return
        if self._told != error.error.code():
            self._told = error.error.code()
            self._post(Failed(error.error))
        fenced = error.error.code() == _FENCED_INSTANCE_ID
        with self._changed:
            self._member, self._joined, self._generation = "", False, -1
            if fenced:
                self._fenced = True
                # Another process has this instance id; joining again would throw that one out in turn.
                self._subscription = None
        self._pause(1.0)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _look_at_topics(self, subscription: Subscription) -> list[str]:
        """The topics subscribed to right now: those named, and those that match a pattern."""
        network = self._coordinator.requests.network
        asked = None if subscription.patterns else subscription.topics
        answer = network.metadata(asked, create=self._create_topics, timeout=_REQUEST_TIMEOUT)
        there = {name for name, (code, _, _) in answer["topics"].items() if code == 0}
        matched = {
            name
            for name, (code, internal, _) in answer["topics"].items()
            if code == 0 and not internal and any(pattern.match(name) for pattern in subscription.patterns)
        }
        self._tell_missing({name for name in subscription.topics if name not in there}, answer)
        return sorted(matched.union(subscription.topics))

    def _count_partitions(self, topics: list[str]) -> dict[str, int]:
        """How many partitions those of `topics` have that exist."""
        network = self._coordinator.requests.network
        answer = network.metadata(topics, create=self._create_topics, timeout=_REQUEST_TIMEOUT)
        return {
            name: len(partitions) for name, (code, _, partitions) in answer["topics"].items() if code == 0
        }

    def _tell_missing(self, missing: set[str], answer: dict[str, Any]) -> None:
        for name in missing - self._told_missing:
            code = answer["topics"].get(name, (3, False, []))[0] or 3
            if self._create_topics and KafkaError(code).retriable():
                continue
            text = f"Subscribed topic not available: {name}: {KafkaError(code).str()}"
            self._post(Failed(KafkaError(code, text)))
        self._told_missing = missing

    def _join(self, topics: list[str]) -> tuple[list[TopicPartition], _Led | None]:
        """JoinGroup and SyncGroup; returns what was assigned, and of a leader what it assigned."""
        subscription = _native.encode_data(
            "ConsumerProtocolSubscription", _SUBSCRIPTION_VERSION, {"topics": topics, "user_data": None}
        )
        metadata = _SUBSCRIPTION_VERSION.to_bytes(2, "big") + subscription
        message = {
            "group_id": self._coordinator.group,
            "session_timeout_ms": int(self._session * 1000),
            "rebalance_timeout_ms": int(self._max_poll * 1000),
            "member_id": self._member,
            "group_instance_id": self._instance,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name in self._strategies],
        }
        joined = self._coordinator.call(
            "JoinGroup", message, timeout=self._max_poll + _JOIN_SLACK, purpose="group", newest=5
        )
        if joined["error_code"] == _MEMBER_ID_REQUIRED:
            with self._changed:
                self._member = joined["member_id"]
            raise _Rejoin(lost=False)
        self._check(joined["error_code"])
        with self._changed:
            self._member = joined["member_id"]
            self._generation = joined["generation_id"]
        led: _Led | None = None
        assignments: list[dict[str, Any]] = []
        if joined["leader"] == joined["member_id"]:
            led, assignments = self._assign(joined)
        synced = self._coordinator.call(
            "SyncGroup",
            {
                "group_id": self._coordinator.group,
                "generation_id": joined["generation_id"],
                "member_id": joined["member_id"],
                "group_instance_id": self._instance,
                "assignments": assignments,
            },
            timeout=self._max_poll + _JOIN_SLACK,
            purpose="group",
            newest=3,
        )
        self._check(synced["error_code"])
        return _read_assignment(synced["assignment"]), led

    def _assign(self, joined: dict[str, Any]) -> tuple[_Led, list[dict[str, Any]]]:
        """The leader's work: all members' partitions by the assignor they agreed on."""
        members = []
        for member in joined["members"]:
            data = member["metadata"]
            version = min(int.from_bytes(data[:2], "big"), 3)
            decoded = _native.decode_data("ConsumerProtocolSubscription", version, data[2:])
            members.append(
                Member(member["member_id"], frozenset(decoded["topics"]), member.get("group_instance_id"))
            )
        wanted = sorted({topic for member in members for topic in member.topics})
        counts = self._count_partitions(wanted)
        assignment = ASSIGNORS[joined["protocol_name"]](members, counts)
        assignments = [
            {"member_id": member, "assignment": _write_assignment(partitions)}
            for member, partitions in assignment.items()
        ]
        return _Led(wanted, counts), assignments

    def _check(self, code: int) -> None:
        """Raises what an error code of JoinGroup, SyncGroup or Heartbeat means."""
        if code == 0:
            return
        if code == _REBALANCE_IN_PROGRESS:
            raise _Rejoin(lost=False)
        if code == _UNKNOWN_MEMBER_ID:
            raise _Rejoin(lost=True, forget_member=True)
        if code == _ILLEGAL_GENERATION:
            raise _Rejoin(lost=True)
        raise KafkaException(KafkaError(code))

    def _beat(self) -> None:
        message = {
            "group_id": self._coordinator.group,
            "generation_id": self._generation,
            "member_id": self._member,
            "group_instance_id": self._instance,
        }
        timeout = min(_REQUEST_TIMEOUT, self._session)
        self._check(
            self._coordinator.call("Heartbeat", message, timeout=timeout, purpose="group", newest=3)[
                "error_code"
            ]
        )

    def _stay(self, subscription: Subscription, topics: list[str], led: _Led | None) -> None:
        """Heartbeats until the generation ends, which is a `_Rejoin`, or the subscription does."""
        beaten = time.monotonic()
        looked = beaten
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._subscription is not subscription, self._heartbeat
                )
                if self._closing or self._subscription is None:
                    return
                if self._resubscribed:
                    raise _Rejoin(lost=False)
            now = time.monotonic()
            if not self.polling and now - self.last_poll > self._max_poll:
                self._give_up_slow_application()
                return
            try:
                self._beat()
                beaten = time.monotonic()
            except KafkaException as error:
                if error.error.code() == _FENCED_INSTANCE_ID:
                    self._post(Failed(KafkaError(_FENCED_INSTANCE_ID, None, True)))
                    with self._changed:
                        self._subscription, self._fenced = None, True
                    raise _Rejoin(lost=True, forget_member=True) from error
                if time.monotonic() - beaten > self._session:
                    raise _Rejoin(lost=True, forget_member=self._instance is None) from error
            period = _MISSING_CHECK if self._told_missing else self._refresh
            if subscription.patterns:
                period = min(period, _PATTERN_CHECK)
            if now - looked >= period:
                looked = now
                self._look_for_changes(subscription, topics, led)

    def _look_for_changes(self, subscription: Subscription, topics: list[str], led: _Led | None) -> None:
        """Joins anew when a pattern matches other topics, or, of a leader, when what it assigned has grown."""
        try:
            changed = self._look_at_topics(subscription) != topics
            changed = changed or (led is not None and self._count_partitions(led.topics) != led.counts)
        except KafkaException:
            return
        if changed:
            raise _Rejoin(lost=False)

    def _give_up_slow_application(self) -> None:
        """max.poll.interval.ms passed without a poll: leave, and come back when the application does."""
        text = (
            f"the application did not call poll() for {self._max_poll * 1000:.0f} ms (max.poll.interval.ms)"
        )
        self._post(Failed(KafkaError(KafkaError._MAX_POLL_EXCEEDED, text)))
        member = self._member
        stalled_at = self.last_poll
        if self._instance is None:
            self._send_leave(member, _REQUEST_TIMEOUT)
        with self._changed:
            held, self._assigned = self._assigned, []
            self._joined, self._generation = False, -1
            if self._instance is None:
                self._member = ""
            self._awaiting_revoke = bool(held)
        if held:
            self._post(Revoked(held, True))
        with self._changed:
            # The application is told of the failure above by a poll; that poll says `alive`.
            self._changed.wait_for(
                lambda: (
                    self._closing
                    or self._subscription is None
                    or (self.last_poll != stalled_at and not self._awaiting_revoke)
                )
            )


def _read_assignment(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    version = min(int.from_bytes(data[:2], "big"), 3)
    decoded = _native.decode_data("ConsumerProtocolAssignment", version, data[2:])
    return [
        TopicPartition(topic["topic"], partition)
        for topic in decoded["assigned_partitions"]
        for partition in topic["partitions"]
    ]


def _write_assignment(partitions: list[tuple[str, int]]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    message = {
        "assigned_partitions": [{"topic": topic, "partitions": found} for topic, found in topics.items()],
        "user_data": None,
    }
    encoded = _native.encode_data("ConsumerProtocolAssignment", _SUBSCRIPTION_VERSION, message)
    return _SUBSCRIPTION_VERSION.to_bytes(2, "big") + encoded
