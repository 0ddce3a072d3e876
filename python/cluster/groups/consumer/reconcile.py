"""One step of a member towards its target assignment. Pure. Source: CurrentAssignmentBuilder.

A member first gives up the partitions that it must not keep, in its old epoch. Then it gets the new epoch
with the partitions that no other member has. It waits for the others: at each of its heartbeats it gets those
that became free. So no partition has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.errors import FencedMemberEpoch
from cluster.groups.assignors import Assignment
from cluster.groups.consumer.values import Current, MemberState
from cluster.model import TopicId

IsOwned = Callable[[TopicId, int], bool]
"""A member has the partition, or has not given it up."""


@dataclass(frozen=True, slots=True)
class Target:
    """A member's target assignment, and the epoch of the group that it belongs to."""

    epoch: int
    assignment: Assignment


def is_reconciled(current: Current, epoch: int) -> bool:
    """The member has its target assignment of that epoch."""
    return current.state is MemberState.STABLE and current.epoch == epoch


def reconcile(current: Current, target: Target, is_owned: IsOwned, reported: Assignment | None) -> Current:
    """The member's next step. `reported`: the partitions that it says it has; None if it does not say.

    Raises FencedMemberEpoch for a member whose state is not known.
    """
    if current.state is MemberState.STABLE:
        if current.epoch == target.epoch:
            return current
        return _next(current, current.epoch, target, is_owned, reported)
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _has_any(reported, current.revoking):
            return current
        return _next(current, current.epoch + 1, target, is_owned, reported)
    if current.state is MemberState.UNRELEASED_PARTITIONS:
        return _next(current, current.epoch, target, is_owned, reported)
    if reported is None or reported:
        raise FencedMemberEpoch(
            "The consumer group member is in an unknown state. The member must abandon all its partitions "
            "and rejoin."
        )
    return _next(current, target.epoch, target, is_owned, reported)


def _has_any(reported: Assignment | None, partitions: Assignment) -> bool:
    """The member may have one of the partitions."""
    if reported is None:
        return True
    return any(numbers & partitions.get(topic, frozenset()) for topic, numbers in reported.items())


def _next(
    current: Current, epoch: int, target: Target, is_owned: IsOwned, reported: Assignment | None
) -> Current:
    kept: dict[TopicId, frozenset[int]] = {}
    revoking: dict[TopicId, frozenset[int]] = {}
    added: dict[TopicId, frozenset[int]] = {}
    unreleased = False
    for topic in [
        *target.assignment,
        *(topic for topic in current.assigned if topic not in target.assignment),
    ]:
        wanted = target.assignment.get(topic, frozenset())
        has = current.assigned.get(topic, frozenset())
        missing = wanted - has
        free = frozenset(number for number in missing if not is_owned(topic, number))
        unreleased = unreleased or len(free) < len(missing)
        for part, found in ((kept, has & wanted), (revoking, has - wanted), (added, free)):
            if found:
                part[topic] = found
    if revoking and _has_any(reported, revoking):
        return Current(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return Current(target.epoch, current.epoch, state, _union(kept, added))


def _union(one: Mapping[TopicId, frozenset[int]], other: Mapping[TopicId, frozenset[int]]) -> Assignment:
    return {**one, **{topic: one.get(topic, frozenset()) | numbers for topic, numbers in other.items()}}
