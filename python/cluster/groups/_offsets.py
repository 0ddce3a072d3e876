"""Committed offsets: commits, fetches and retention. Source: GroupCoordinator, GroupMetadata (KIP-211).

An offset is committed once it is written. It expires `offsets.retention.minutes` after the group became
empty. For a group that never had members, and for a topic that no member of a consumer group reads, it
expires that long after the commit. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial

from cluster.errors import (
    NONE,
    IllegalGeneration,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from cluster.groups._core import Core
from cluster.groups.group import CONSUMER_PROTOCOL, CommittedOffset, Group, GroupState, Token
from cluster.groups.messages import Action, Commit, CommitResult
from cluster.model import TopicPartition

Subscription = Callable[[bytes], frozenset[str] | None]
"""The topics in a consumer's subscription; None if it cannot be decoded."""


class Offsets(Core):
    """The part of the machine for committed offsets."""

    read_subscription: Subscription = staticmethod(lambda data: None)

    def commit(self, token: Token, request: Commit, now: int) -> list[Action]:
        """OffsetCommit. Answered when it is written, or at once with an error."""
        group = self.groups.get(request.group)
        if group is None:
            if request.generation >= 0:
                self._respond(token, CommitResult(IllegalGeneration.code))
                return self._take()
            # The group stores only its offsets here and has no members.
            group = self._add_group(request.group)
        error = self._check_commit(group, request)
        if error:
            self._respond(token, CommitResult(error))
            return self._take()
        if group.state in (GroupState.STABLE, GroupState.PREPARING) and request.member in group.members:
            self._renew_session(group, group.members[request.member], now)
        limit = self.limits.metadata_bytes_max
        fitting = {
            item: kept for item, kept in request.offsets.items() if len(kept.metadata.encode()) <= limit
        }
        errors = {item: OffsetMetadataTooLarge.code for item in request.offsets if item not in fitting}
        if not fitting:
            self._respond(token, CommitResult(NONE, errors))
            self._remove_unused(group)
            return self._take()
        group.begin_commit(fitting.keys())
        self._write(group, partial(self._committed, group, token, fitting, errors), offsets=fitting)
        return self._take()

    def _check_commit(self, group: Group, request: Commit) -> int:
        if request.generation < 0 and group.state is GroupState.EMPTY:
            return NONE
        if request.generation < 0 and not request.member and request.instance is None:
            # While a group has members, only they may commit.
            return UnknownMemberId.code
        error = self._check_member(group, request.member, request.instance)
        if error:
            return error
        if request.generation != group.generation:
            return IllegalGeneration.code
        return RebalanceInProgress.code if group.state is GroupState.COMPLETING else NONE

    def _committed(
        self,
        group: Group,
        token: Token,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, int],
        error: int,
        now: int,
    ) -> None:
        if error == NONE:
            group.keep(offsets)
        group.end_commit(offsets.keys())
        self._respond(token, CommitResult(error, errors))
        self._remove_unused(group)

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group."""
        group = self.groups.get(group_id)
        return {} if group is None else group.offsets

    def expire_offsets(self, now: int) -> list[Action]:
        """Removes expired offsets, and groups that have no offsets left."""
        for group in list(self.groups.values()):
            self._remove_offsets(group, self._expired(group, now), now)
        return self._take()

    def topics_deleted(self, topics: Iterable[str], now: int) -> list[Action]:
        """Removes offsets in deleted topics."""
        gone = set(topics)
        for group in list(self.groups.values()):
            self._remove_offsets(group, [item for item in group.offsets if item.topic in gone], now)
        return self._take()

    def _remove_offsets(self, group: Group, items: list[TopicPartition], now: int) -> None:
        group.forget(items)
        # A group that never had a generation was never stored, and needs no tombstone.
        lapsed = group.state is GroupState.EMPTY and not group.has_offsets() and not group.pending
        if lapsed:
            self._remove_group(group)
        if items or (lapsed and group.generation > 0):
            tombstones = dict.fromkeys(items)
            self._write(
                group, lambda error, now: None, None, tombstones, remove_group=lapsed and group.generation > 0
            )

    def _expired(self, group: Group, now: int) -> list[TopicPartition]:
        since = _retention_start(group)
        lapsed = [
            item
            for item, kept in group.offsets.items()
            if item not in group.pending_commits and self._is_expired(kept, since, now)
        ]
        if not lapsed or group.protocol_type is None or group.state is GroupState.EMPTY:
            return lapsed
        read = self._subscriptions(group) if group.state is GroupState.STABLE else None
        return [] if read is None else [item for item in lapsed if item.topic not in read]

    def _subscriptions(self, group: Group) -> Set[str] | None:
        """The topics that the members of a consumer group read; None if that is not known."""
        if group.protocol_type != CONSUMER_PROTOCOL:
            return None
        topics: set[str] = set()
        for member in group.members.values():
            found = self.read_subscription(member.metadata(group.protocol or ""))
            if found is None:
                return None
            topics |= found
        return topics

    def _is_expired(self, kept: CommittedOffset, since: Callable[[CommittedOffset], int], now: int) -> bool:
        if kept.expire_ms is not None:
            return now >= kept.expire_ms
        return now - since(kept) >= self.limits.offsets_retention_ms


def _commit_time(kept: CommittedOffset) -> int:
    return kept.commit_ms


def _retention_start(group: Group) -> Callable[[CommittedOffset], int]:
    """The start of the retention of a group's offsets: when the group became empty, if known, else the
    commit.
    """
    emptied = group.state_since_ms
    if group.state is not GroupState.EMPTY or group.protocol_type is None or emptied is None:
        return _commit_time
    return lambda kept: emptied
