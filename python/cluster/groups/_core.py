"""What the parts of the group machine share: the groups, what is due when, what is to be done, what is being
written. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from cluster.errors import FencedInstanceId, UnknownMemberId
from cluster.groups._timers import Due, Timers
from cluster.groups.group import CommittedOffset, Group, Held, Member, Token
from cluster.groups.messages import Action, GroupLimits, Respond, Result, StoredGroup, Write
from cluster.model import TopicPartition

Written = Callable[[int, int], None]
"""Called with the error of a write and the time."""


class Core:
    """The state of the machine."""

    def __init__(self, limits: GroupLimits, new_id: Callable[[], str]) -> None:
        self.limits = limits
        self.groups: dict[str, Group] = {}
        self.held = Held()
        self.timers = Timers()
        self.refused = 0
        """How many requests were refused because members and groups hold too much."""
        self._new_id = new_id
        self._out: list[Action] = []
        self._writing: dict[int, Written] = {}
        self._write_ids = itertools.count(1)

    # ---- what is to be done ----

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
        """A Write was carried out: `error` is 0, or the code of what went wrong."""
        self._writing.pop(write)(error, now)
        return self._take()

    # ---- what is due when ----

    def next_deadline(self) -> int | None:
        """When `advance` is to be called next; it may be that nothing has to be done then."""
        return self.timers.next()

    def _deadline(self, due: Due) -> int | None:
        name, kind, member_id = due
        group = self.groups[name]
        if kind == "join":
            return group.join_deadline
        if kind == "sync":
            return group.sync_deadline
        if kind == "pending":
            return group.pending[member_id]
        return group.members[member_id].deadline

    def _heard_of(self, group: Group, member: Member, now: int, patience_ms: int | None = None) -> None:
        """The member lives: it has its session timeout (or `patience_ms`) again."""
        member.deadline = now + (member.session_timeout_ms if patience_ms is None else patience_ms)
        self.timers.schedule((group.id, "session", member.id), member.deadline)

    # ---- who is who ----

    @staticmethod
    def _check_member(group: Group, member_id: str, instance_id: str | None) -> int:
        """0, or the error for a member that is not, or not any longer, who it says."""
        if instance_id is not None:
            current = group.static.get(instance_id)
            if current is None:
                return UnknownMemberId.code
            if current != member_id:
                return FencedInstanceId.code
        return 0 if member_id in group.members else UnknownMemberId.code

    def _found(self, group_id: str, offsets: dict[TopicPartition, CommittedOffset] | None = None) -> Group:
        """A group that was not there, with what it has committed."""
        group = self.groups[group_id] = Group(group_id, self.held, self.timers, offsets=offsets or {})
        return group

    def _bury(self, group: Group) -> None:
        """The group is no more."""
        group.end()
        del self.groups[group.id]

    def _bury_unused(self, group: Group) -> None:
        """A group of which nothing was ever stored goes with the last that was in it: it needs no tombstone."""
        if group.unused:
            self._bury(group)
