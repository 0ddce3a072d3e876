"""Committed offsets: commits, deletion, retention, transactions. Source: GroupCoordinator, GroupMetadata
(KIP-211).

An offset is committed once it is written. It expires `offsets.retention.minutes` after the group became
empty. For a group that never had members, and for a topic that no member of a consumer group reads, it
expires that long after the commit. Does not know who may commit, nor how groups get members. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from cluster.errors import (
    NONE,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
)
from cluster.groups.classic.group import Group, GroupState
from cluster.groups.classic.table import GroupTable
from cluster.groups.committed import CommittedOffset
from cluster.groups.messages import CONSUMER_PROTOCOL, Commit, CommitResult, GroupLimits
from cluster.groups.outbox import Outbox, Written
from cluster.groups.records import read_subscription
from cluster.model import TopicPartition
from cluster.state_topics import Producer, Token


class Offsets:
    """The committed offsets of all groups of a partition. A group is in the table while it has offsets."""

    read_subscription = staticmethod(read_subscription)
    """The topics in a consumer's subscription; None if it cannot be decoded."""

    def __init__(
        self,
        limits: GroupLimits,
        outbox: Outbox,
        table: GroupTable,
        read_by_members: Callable[[str], Set[str] | None],
    ) -> None:
        """`read_by_members`: the topics that a group of the consumer protocol reads; None for any other."""
        self._limits = limits
        self._outbox = outbox
        self._table = table
        self._read_by_members = read_by_members
        self._in_transactions: dict[int, set[str]] = {}
        """By producer id: the groups with offsets of its transaction."""

    # ---- commits ----

    def commit(self, token: Token, request: Commit) -> None:
        """OffsetCommit and TxnOffsetCommit of a member that may commit. Answered when it is written, or at
        once with an error.
        """
        limit = self._limits.metadata_bytes_max
        fitting = {item: kept for item, kept in request.offsets.items() if _length(kept.metadata) <= limit}
        errors = {item: OffsetMetadataTooLarge.code for item in request.offsets if item not in fitting}
        if not fitting:
            self._outbox.respond(token, CommitResult(NONE, errors))
            return
        # A new group stores only its offsets here and has no members.
        group = self._table.get(request.group) or self._table.add(request.group)
        if request.producer is not None:
            self._write_in_transaction(group, token, request.producer, fitting, errors)
        else:
            self._write_commit(group, token, fitting, errors)
        group.count()

    def _write_commit(
        self,
        group: Group,
        token: Token,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, int],
    ) -> None:
        group.offsets.begin_commit(offsets.keys())

        def written(error: int, now: int) -> None:
            if error == NONE:
                group.offsets.keep(offsets, number)
            group.offsets.end_commit(offsets.keys())
            self._outbox.respond(token, CommitResult(error, errors))
            self._table.offsets_changed(group)

        number = self._outbox.write(group.id, written, offsets=offsets)

    def _write_in_transaction(
        self,
        group: Group,
        token: Token,
        producer: Producer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, int],
    ) -> None:
        def written(error: int, now: int) -> None:
            if error != NONE:
                group.offsets.drop_from_transaction(producer.id, offsets, number)
            self._outbox.respond(token, CommitResult(error, errors))
            self._table.offsets_changed(group)

        number = self._outbox.write(group.id, written, offsets=offsets, producer=producer)
        # Before the record is written: the transaction's marker may come first.
        self._keep_in_transaction(group, producer, offsets, number)

    def _keep_in_transaction(
        self,
        group: Group,
        producer: Producer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        position: int,
    ) -> None:
        group.offsets.keep_in_transaction(producer.id, offsets, position)
        self._in_transactions.setdefault(producer.id, set()).add(group.id)

    def transaction_ended(self, producer_id: int, committed: bool) -> None:
        """A producer's transaction ended: its offsets count, or are dropped."""
        for name in self._in_transactions.pop(producer_id, ()):
            group = self._table.get(name)
            if group is not None:
                group.offsets.end_transaction(producer_id, committed)
                self._table.offsets_changed(group)

    # ---- what is there ----

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group."""
        group = self._table.get(group_id)
        return {} if group is None else group.offsets.committed

    def has_offsets(self, group_id: str) -> bool:
        """There are committed offsets, or commits that are being written."""
        group = self._table.get(group_id)
        return group is not None and bool(group.offsets)

    def unstable(self, group_id: str, items: Iterable[TopicPartition]) -> frozenset[int]:
        """The numbers of the partitions whose offset may change soon (`require_stable`)."""
        group = self._table.get(group_id)
        if group is None or not group.offsets.has_unstable():
            return frozenset()
        return frozenset(item.partition for item in items if group.offsets.is_unstable(item))

    # ---- removal ----

    def delete(self, token: Token, group_id: str, items: Iterable[TopicPartition]) -> None:
        """OffsetDelete. Responds with a CommitResult. Topics that a member reads keep their offsets."""
        group, read = self._table.get(group_id), self._read_by_members(group_id)
        if group is None:
            self._outbox.respond(token, CommitResult(GroupIdNotFound.code if read is None else NONE))
            return
        wanted = list(items)
        errors: dict[TopicPartition, int] = {}
        if read is not None:
            errors = {item: GroupSubscribedToTopic.code for item in wanted if item.topic in read}
        elif group.state is not GroupState.EMPTY:
            if group.protocol_type != CONSUMER_PROTOCOL:
                self._outbox.respond(token, CommitResult(NonEmptyGroup.code))
                return
            read = None if group.protocol is None else self._subscriptions(group)
            kept = [item for item in wanted if read is None or item.topic in read]
            errors = dict.fromkeys(kept, GroupSubscribedToTopic.code)

        def written(error: int, now: int) -> None:
            self._outbox.respond(token, CommitResult(error, errors))

        gone = [item for item in wanted if item not in errors and item in group.offsets.committed]
        if gone:
            self._remove(group, gone, written)
        else:
            self._outbox.respond(token, CommitResult(NONE, errors))

    def expire(self, group_id: str, now: int) -> None:
        """Removes expired offsets of a group, and the group if it has no offsets left."""
        group = self._table.get(group_id)
        if group is not None:
            self._remove(group, self._expired(group, now))

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Removes offsets in deleted topics, those of open transactions too."""
        gone = set(topics)
        for group in self._table.all():
            self._remove(group, [item for item in group.offsets.items() if item.topic in gone])

    def _remove(
        self, group: Group, items: list[TopicPartition], written: Written = lambda error, now: None
    ) -> None:
        group.offsets.forget(items)
        group.count()
        lapsed = group.state is GroupState.EMPTY and not group.offsets and not group.pending
        if lapsed:
            self._table.remove(group)
        # A group that never had a generation was never stored, and needs no tombstone.
        stored = lapsed and group.generation > 0
        if items or stored:
            self._outbox.write(group.id, written, offsets=dict.fromkeys(items), remove_group=stored)

    def _expired(self, group: Group, now: int) -> list[TopicPartition]:
        emptied = _emptied(group)
        lapsed = [
            item
            for item, kept in group.offsets.committed.items()
            if not group.offsets.is_unstable(item) and self._is_expired(kept, emptied, now)
        ]
        read = self._read_by_members(group.id)
        if read is not None:
            return [item for item in lapsed if item.topic not in read]
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

    def _is_expired(self, kept: CommittedOffset, emptied: int | None, now: int) -> bool:
        if kept.expire_ms is not None:
            return now >= kept.expire_ms
        since = kept.commit_ms if emptied is None else emptied
        return now - since >= self._limits.offsets_retention_ms

    # ---- loading ----

    def load(
        self,
        group_id: str,
        item: TopicPartition,
        kept: CommittedOffset | None,
        producer: Producer | None = None,
    ) -> None:
        """An offset's record was read from the log; None removes the offset. The last record counts. With a
        `producer` it is part of its transaction.
        """
        group = self._table.get(group_id)
        if kept is None:
            if group is not None:
                group.offsets.forget([item])
                self._table.offsets_changed(group)
            return
        position = self._outbox.number()
        group = group or self._table.add(group_id)
        if producer is None:
            group.offsets.keep({item: kept}, position)
        else:
            self._keep_in_transaction(group, producer, {item: kept}, position)
        group.count()


def _length(metadata: str) -> int:
    """As Kafka counts, which is in UTF-16's units although `offset.metadata.max.bytes` speaks of bytes
    (`OffsetMetadataManager.isMetadataInvalid`).
    """
    return len(metadata.encode("utf-16-le")) // 2


def _emptied(group: Group) -> int | None:
    """When the group became empty: the retention of its offsets starts then, else with their commits."""
    is_empty = group.state is GroupState.EMPTY and group.protocol_type is not None
    return group.state_since_ms if is_empty else None
