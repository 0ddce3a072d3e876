"""The log of one replica: a list of records with leader epochs, as `rust/crates/storage` keeps it.

Each record carries a hash of everything before it, so two logs are equal up to an offset if the hashes of the
record before it are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Record(NamedTuple):
    epoch: int
    value: int
    prefix: int
    """Hash of the log up to and with this record."""


@dataclass
class Log:
    """One replica on a disk. It outlives its broker's process."""

    topic_id: bytes
    directory: int
    records: list[Record] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs and their first offsets (`leader-epoch-checkpoint`)."""
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def prefix(self, end: int) -> int:
        """Hash of the log before `end`."""
        return self.records[end - 1].prefix if end else 0

    def append(self, epoch: int, value: int) -> None:
        self.begin_epoch(epoch)
        self.records.append(Record(epoch, value, hash((self.prefix(self.end), epoch, value))))

    def begin_epoch(self, epoch: int) -> None:
        """`LeaderEpochFileCache.assign`"""
        if epoch > self.last_epoch:
            self.epochs = [item for item in self.epochs if item[1] < self.end]
            self.epochs.append((epoch, self.end))

    def epoch_start(self, epoch: int) -> int | None:
        return next((start for known, start in self.epochs if known == epoch), None)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """The largest epoch up to `epoch`, and its end (`LeaderEpochFileCache.endOffsetFor`)."""
        if epoch == self.last_epoch:
            return epoch, self.end
        above = [start for known, start in self.epochs if known > epoch]
        if not above:
            return None
        below = [known for known, _ in self.epochs if known <= epoch]
        return (below[-1] if below else epoch), above[0]

    def truncation_point(self, epoch: int, leader_end: int) -> int:
        """Where the log can differ from its leader's, whose `epoch` ends at `leader_end`."""
        found = self.epoch_end(epoch)
        if found is None:
            return min(leader_end, self.end)
        own, end = found
        return min(end, self.end) if own != epoch else min(end, leader_end, self.end)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs = [item for item in self.epochs if item[1] < offset]
        self.high_watermark = min(self.high_watermark, offset)
