"""The state of one consumer group: a table whose entries are its records. Pure.

    Empty -> Assigning -> Reconciling -> Stable -> Assigning ...

Each record of the group sets or removes one entry, in any order. So a log loads to the same state after any
compaction, and a write that fails is undone by setting the entries before it. Source: ConsumerGroup,
ModernGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from cluster.groups.assignors import EMPTY, Assignment
from cluster.groups.consumer.reconcile import is_reconciled
from cluster.groups.consumer.values import Current, Resolved, Subscription, Topics
from cluster.groups.memory import MemoryUse, protocols_bytes, text_bytes
from cluster.model import TopicId

NEVER_MS = -(1 << 62)
"""A time before every other."""

EMPTY_STATE = "Empty"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
STABLE = "Stable"


class Kind(IntEnum):
    """The kinds of a consumer group's records, with the versions of their keys."""

    EPOCH = 3
    TOPICS = 4
    SUBSCRIPTION = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


class Change(NamedTuple):
    """A record of a consumer group. A value of None is a tombstone.

    The value's type by kind: EPOCH and TARGET_EPOCH int, TOPICS Topics, SUBSCRIPTION Subscription, TARGET
    Assignment, CURRENT Current, REGEX Resolved.
    """

    kind: Kind
    name: str
    """The member's id, or the regular expression; empty for the other kinds."""
    value: Any


_GROUP_BYTES = 2048
"""Measured: memory of a group without members, with its id."""

_MEMBER_BYTES = 2048
"""Measured: memory of a member with its entries and timers, without its names."""

_TOPIC_BYTES = 512
"""Measured: memory of a topic in an assignment, without its partitions."""

_PARTITION_BYTES = 96
"""Measured: memory of an assigned partition."""


def _assignment_bytes(assignment: Assignment) -> int:
    return sum(_TOPIC_BYTES + _PARTITION_BYTES * len(numbers) for numbers in assignment.values())


def subscription_bytes(member: str, subscription: Subscription) -> int:
    """Memory of a member, without its partitions."""
    names = (
        member,
        subscription.instance,
        subscription.rack,
        subscription.client_id,
        subscription.client_host,
        subscription.regex,
        *subscription.topics,
    )
    classic = 0 if subscription.classic is None else protocols_bytes(subscription.classic.protocols)
    return _MEMBER_BYTES + classic + sum(64 + text_bytes(name) for name in names if name is not None)


def _bytes_of(kind: Kind, name: str, value: Any) -> int:
    """Memory of an entry."""
    if value is None:
        return 0
    if kind is Kind.EPOCH:
        return _GROUP_BYTES
    if kind is Kind.SUBSCRIPTION:
        return subscription_bytes(name, value)
    if kind is Kind.TARGET:
        return _assignment_bytes(value)
    if kind is Kind.CURRENT:
        return _assignment_bytes(value.assigned) + _assignment_bytes(value.revoking)
    if kind is Kind.REGEX:
        return text_bytes(name) + sum(64 + len(topic) for topic in value.topics)
    return 0


@dataclass(slots=True)
class ConsumerGroup:
    """A group. Members are in the order of their joins. Only `set` changes its entries."""

    id: str
    memory: MemoryUse = field(default_factory=MemoryUse)
    """Shared by all groups."""
    entries: dict[Kind, dict[str, Any]] = field(default_factory=lambda: {kind: {} for kind in Kind})
    static: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    owners: dict[TopicId, dict[int, str]] = field(default_factory=dict)
    """The member that has each partition, also one that it must give up."""
    regex_readers: Counter[str] = field(default_factory=Counter)
    """How many members read by each regular expression."""
    memory_bytes: int = 0
    """Memory of all entries."""
    deadlines: dict[tuple[str, str], int] = field(default_factory=dict)
    """When each member's timers are due, by the timer's kind and the member."""
    topics_seen: int = -1
    """The version of the cluster's topics that the entries were compared with."""
    regexes_seen: int = -1
    """The same for the regular expressions."""
    regexes_resolved_ms: int = NEVER_MS
    """When the regular expressions were last resolved."""
    last_write: int = 0
    """The number of the group's last write, or 0 if none is under way."""

    # ---- entries ----

    def get(self, kind: Kind, name: str = "") -> Any:
        """An entry's value; None if there is none."""
        return self.entries[kind].get(name)

    def set(self, change: Change) -> Any:
        """Sets or removes an entry. Returns its value before, or None."""
        kind, name, value = change
        table = self.entries[kind]
        before = table.get(name)
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
        self._count(_bytes_of(kind, name, value) - _bytes_of(kind, name, before))
        if kind is Kind.SUBSCRIPTION:
            self._subscription_changed(name, before, value)
        elif kind is Kind.CURRENT:
            self._current_changed(name, before, value)
        return before

    def _count(self, size: int) -> None:
        self.memory_bytes += size
        self.memory.bytes += size

    def end(self) -> None:
        """The group goes: gives back its memory."""
        self._count(-self.memory_bytes)

    def _subscription_changed(
        self, member: str, before: Subscription | None, after: Subscription | None
    ) -> None:
        if before is not None:
            if before.instance is not None and self.static.get(before.instance) == member:
                del self.static[before.instance]
            if before.regex is not None:
                self.regex_readers[before.regex] -= 1
                self.regex_readers += Counter()
        if after is not None:
            if after.instance is not None:
                self.static[after.instance] = member
            if after.regex is not None:
                self.regex_readers[after.regex] += 1

    def _current_changed(self, member: str, before: Current | None, after: Current | None) -> None:
        if before is not None:
            for assignment in (before.assigned, before.revoking):
                self._release(member, assignment)
        if after is not None:
            for assignment in (after.assigned, after.revoking):
                for topic, numbers in assignment.items():
                    self.owners.setdefault(topic, {}).update(dict.fromkeys(numbers, member))

    def _release(self, member: str, assignment: Assignment) -> None:
        for topic, numbers in assignment.items():
            owners = self.owners.get(topic, {})
            for number in numbers:
                if owners.get(number) == member:
                    del owners[number]
            if not owners:
                self.owners.pop(topic, None)

    def changes(self) -> Iterator[Change]:
        """All entries, as records."""
        for kind, table in self.entries.items():
            for name, value in table.items():
                yield Change(kind, name, value)

    # ---- what the entries say ----

    @property
    def epoch(self) -> int:
        """The group's epoch: a change of members, subscriptions or topics increments it."""
        return self.entries[Kind.EPOCH].get("", 0)  # type: ignore[no-any-return]

    @property
    def target_epoch(self) -> int:
        """The epoch of the target assignment."""
        return self.entries[Kind.TARGET_EPOCH].get("", 0)  # type: ignore[no-any-return]

    @property
    def members(self) -> Mapping[str, Subscription]:
        """The members' subscriptions."""
        return self.entries[Kind.SUBSCRIPTION]

    @property
    def topics(self) -> Topics:
        """The topics as the last target assignment saw them."""
        return self.entries[Kind.TOPICS].get("", {})  # type: ignore[no-any-return]

    def current(self, member: str) -> Current:
        """What a member has."""
        return self.entries[Kind.CURRENT].get(member) or Current()

    def target(self, member: str) -> Assignment:
        """A member's target assignment."""
        return self.entries[Kind.TARGET].get(member, EMPTY)  # type: ignore[no-any-return]

    def resolved(self, regex: str | None) -> Resolved | None:
        """The topics of a regular expression, if it was resolved."""
        return None if regex is None else self.entries[Kind.REGEX].get(regex)

    def read_by(self, subscription: Subscription) -> frozenset[str]:
        """The names of the topics that a member reads, whether they exist or not."""
        resolved = self.resolved(subscription.regex)
        return subscription.topics if resolved is None else subscription.topics | resolved.topics

    def subscribed(self) -> frozenset[str]:
        """The names of the topics that any member reads."""
        return frozenset().union(*map(self.read_by, self.members.values()))

    def is_owned(self, topic: TopicId, number: int) -> bool:
        """A member has the partition, or has not given it up."""
        return number in self.owners.get(topic, ())

    @property
    def exists(self) -> bool:
        """The group was written."""
        return bool(self.entries[Kind.EPOCH])

    @property
    def state(self) -> str:
        """The state, with the names that ConsumerGroupDescribe shows."""
        if not self.members:
            return EMPTY_STATE
        if self.epoch > self.target_epoch:
            return ASSIGNING
        if all(is_reconciled(self.current(member), self.target_epoch) for member in self.members):
            return STABLE
        return RECONCILING

    # ---- members of the classic protocol ----

    @property
    def classic_members(self) -> list[str]:
        """The members that use the classic protocol."""
        return [member for member, subscription in self.members.items() if subscription.classic is not None]

    def supports(self, protocols: Mapping[str, bytes]) -> bool:
        """A classic member with these assignors may join: one of them is every classic member's."""
        others = [
            {name for name, _ in subscription.classic.protocols}
            for subscription in self.members.values()
            if subscription.classic is not None
        ]
        return any(all(name in names for names in others) for name in protocols)

    def waits_for_release(self, member: str) -> bool:
        """Another member has a partition of the member's target."""
        assigned = self.current(member).assigned
        return any(
            self.is_owned(topic, number)
            for topic, numbers in self.target(member).items()
            for number in numbers - assigned.get(topic, frozenset())
        )


class Draft:
    """The changes of one request: made at once, written together, or undone together."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.changes: list[Change] = []
        self.on_undo: list[Callable[[int], None]] = []
        """What else is undone, at the time that is passed."""
        self._before: list[Change] = []

    def set(self, kind: Kind, name: str, value: Any) -> None:
        """Sets or removes an entry."""
        change = Change(kind, name, value)
        self.changes.append(change)
        self._before.append(Change(kind, name, self.group.set(change)))

    def update(self, kind: Kind, name: str, value: Any) -> bool:
        """As `set`, if it changes the entry. Returns whether it did."""
        if self.group.get(kind, name) == value:
            return False
        self.set(kind, name, value)
        return True

    def undo(self, now: int) -> None:
        """Sets the entries as they were."""
        for undo in self.on_undo:
            undo(now)
        for change in reversed(self._before):
            self.group.set(change)
        self.group.topics_seen = self.group.regexes_seen = -1
        self.group.regexes_resolved_ms = NEVER_MS
