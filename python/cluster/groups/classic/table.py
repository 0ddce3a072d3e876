"""The classic groups of a partition, by their ids. Knows no rules of membership or offsets."""

from __future__ import annotations

from cluster.groups.classic.group import Group
from cluster.groups.committed import GroupOffsets
from cluster.groups.memory import MemoryUse
from cluster.groups.timers import Timers


class GroupTable:
    """Groups that have members or offsets, or were stored. A consumer group's offsets are here, too, in a
    group without members.
    """

    def __init__(self, memory: MemoryUse) -> None:
        self.memory = memory
        self.timers = Timers()
        self.groups: dict[str, Group] = {}

    def get(self, group_id: str) -> Group | None:
        """The group with that id."""
        return self.groups.get(group_id)

    def all(self) -> list[Group]:
        """All groups. Any thread may call it."""
        return list(self.groups.values())

    def add(self, group_id: str, offsets: GroupOffsets | None = None) -> Group:
        """Adds a group without members, with its offsets."""
        offsets = GroupOffsets() if offsets is None else offsets
        group = self.groups[group_id] = Group(group_id, self.memory, self.timers, offsets=offsets)
        return group

    def remove(self, group: Group) -> None:
        """Removes a group."""
        group.end()
        del self.groups[group.id]

    def remove_unused(self, group: Group) -> None:
        """Removes a group without members and offsets that was never stored. It needs no tombstone."""
        if group.unused:
            self.remove(group)

    def offsets_changed(self, group: Group) -> None:
        """Offsets of the group may be gone."""
        group.count()
        self.remove_unused(group)
