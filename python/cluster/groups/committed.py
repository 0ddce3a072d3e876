"""The committed offsets of one group. Knows neither members nor writes; the rules are in `offsets.py`.

Offsets of open transactions count once their producer's transaction commits, unless a later commit of the
same partition counts already (KIP-447, GroupMetadata's pendingTransactionalOffsetCommits). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import chain

from cluster.model import TopicPartition


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset. `expire_ms` is None unless an old client requested a retention."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    kept: CommittedOffset
    position: int
    """The place of its record in the log: of two, the higher one is later."""


class GroupOffsets:
    """Committed offsets, commits that are being written, and offsets of open transactions."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self._writing: Counter[TopicPartition] = Counter()
        self._in_transactions: dict[int, dict[TopicPartition, _Pending]] = {}
        """By producer id."""

    def __bool__(self) -> bool:
        return bool(self.committed) or self.has_unstable()

    def items(self) -> list[TopicPartition]:
        """The partitions with a committed offset, or with one in an open transaction."""
        return list(dict.fromkeys(chain(self.committed, *self._in_transactions.values())))

    def has_unstable(self) -> bool:
        """:meth:`is_unstable` is true for some partition."""
        return bool(self._writing) or bool(self._in_transactions)

    def is_unstable(self, item: TopicPartition) -> bool:
        """A commit of the partition is being written, or may come with an open transaction."""
        return item in self._writing or any(item in each for each in self._in_transactions.values())

    def begin_commit(self, items: Set[TopicPartition]) -> None:
        """The write of these offsets begins."""
        self._writing.update(items)

    def end_commit(self, items: Set[TopicPartition]) -> None:
        """The write of these offsets ended, with or without success."""
        self._writing.subtract(items)
        self._writing = +self._writing

    def keep(self, offsets: Mapping[TopicPartition, CommittedOffset], position: int) -> None:
        """Adds committed offsets. `position`: the place of their record in the log. Earlier offsets of open
        transactions will never count.
        """
        self.committed.update(offsets)
        if not self._in_transactions:
            return
        for item in offsets:
            for pending in self._in_transactions.values():
                found = pending.get(item)
                if found is not None and found.position < position:
                    del pending[item]

    def forget(self, items: Iterable[TopicPartition]) -> None:
        """Removes committed offsets, those of open transactions too."""
        for item in items:
            self.committed.pop(item, None)
            for pending in self._in_transactions.values():
                pending.pop(item, None)

    # ---- transactions ----

    def keep_in_transaction(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], position: int
    ) -> None:
        """Adds offsets that count once the producer's transaction commits."""
        pending = self._in_transactions.setdefault(producer_id, {})
        for item, kept in offsets.items():
            pending[item] = _Pending(kept, position)

    def drop_from_transaction(self, producer_id: int, items: Iterable[TopicPartition], position: int) -> None:
        """The record at this position could not be written."""
        pending = self._in_transactions.get(producer_id, {})
        for item in items:
            if item in pending and pending[item].position == position:
                del pending[item]
        if not pending:
            self._in_transactions.pop(producer_id, None)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """The producer's transaction ended."""
        for item, one in self._in_transactions.pop(producer_id, {}).items():
            if committed:
                self.keep({item: one.kept}, one.position)
