"""The state that the parts of the group machine share: groups, timers, actions, unfinished writes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from cluster.errors import FencedInstanceId, UnknownMemberId
from cluster.groups._timers import TimerKey, Timers
from cluster.groups.group import CommittedOffset, Group, Member, MemoryUse, Token
from cluster.groups.messages import Action, GroupLimits, Respond, Result, StoredGroup, Write
from cluster.model import TopicPartition

Written = Callable[[int, int], None]
"""Called with the error of a write and the time."""


class Core:
    """The state of the machine."""

    def __init__(self, limits: GroupLimits, new_id: Callable[[], str]) -> None:
        self.limits = limits
        self.groups: dict[str, Group] = {}
        self.memory = MemoryUse()
        self.timers = Timers()
        self.refused = 0
        """How many requests were refused because members and groups use too much memory."""
        self._new_id = new_id
        self._out: list[Action] = []
        self._writing: dict[int, Written] = {}
        self._write_ids = itertools.count(1)

    # ---- actions ----

    def _take(self) -> list[Action]:
        actions, self._out = self._out, []
        return actions

    def _respond(self, token: Token | None, result: Result) -> None:
        if token is not None:
            self._out.append(Respond(token, result))

    def _write(
        self,
        group: Group,
        written: Written,
        stored: StoredGroup | None = None,
        offsets: Mapping[TopicPartition, CommittedOffset | None] | None = None,
        remove_group: bool = False,
    ) -> None:
        number = next(self._write_ids)
        self._writing[number] = written
        self._out.append(Write(number, group.id, stored, remove_group, offsets or {}))

    def stored(self, write: int, error: int, now: int) -> list[Action]:
        """A Write was carried out; `error` is its error code, or 0."""
        self._writing.pop(write)(error, now)
        return self._take()

    # ---- timers ----

    def next_deadline(self) -> int | None:
        """When `advance` must be called next. It may have nothing to do then."""
        return self.timers.next()

    def _deadline(self, due: TimerKey) -> int | None:
        name, kind, member_id = due
        group = self.groups[name]
        if kind == "join":
            return group.join_deadline
        if kind == "sync":
            return group.sync_deadline
        if kind == "pending":
            return group.pending[member_id]
        return group.members[member_id].deadline

    def _renew_session(self, group: Group, member: Member, now: int, timeout_ms: int | None = None) -> None:
        """Starts the member's session again, with its session timeout or `timeout_ms`."""
        member.deadline = now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.timers.schedule((group.id, "session", member.id), member.deadline)

    # ---- members and groups ----

    @staticmethod
    def _check_member(group: Group, member_id: str, instance_id: str | None) -> int:
        """The error if the member id is unknown or not the current one of its static identity, else 0."""
        if instance_id is not None:
            current = group.static.get(instance_id)
            if current is None:
                return UnknownMemberId.code
            if current != member_id:
                return FencedInstanceId.code
        return 0 if member_id in group.members else UnknownMemberId.code

    def _add_group(
        self, group_id: str, offsets: dict[TopicPartition, CommittedOffset] | None = None
    ) -> Group:
        """Adds a group with its committed offsets."""
        group = self.groups[group_id] = Group(group_id, self.memory, self.timers, offsets=offsets or {})
        return group

    def _remove_group(self, group: Group) -> None:
        """Removes a group."""
        group.end()
        del self.groups[group.id]

    def _remove_unused(self, group: Group) -> None:
        """Removes a group without members that was never stored. It needs no tombstone."""
        if group.unused:
            self._remove_group(group)
