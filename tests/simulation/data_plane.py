"""A model of the data plane of one broker: leaders, followers and high watermarks, without bytes and sockets.

It follows `rust/crates/server`: `partitions/replicas.rs` on the leader's side, `replication/following.rs` on
the follower's. The replica manager and the replication driver command it as they command the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cluster.broker.replicas import PartitionSpec
from cluster.errors import (
    NONE,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from cluster.replication.state import CAUGHT_UP, FELL_BEHIND

from .logs import Log, Record

LAG_MAX_SECONDS = 2.0
"""`replica.lag.time.max.ms`"""
RECORDS_AT_ONCE = 8
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.05, 1.0

Key = tuple[bytes, int]
"""A partition: its topic's id and its index."""


class Wanted(NamedTuple):
    """A follower's question about one partition."""

    leader_epoch: int
    offset: int
    last_epoch: int


class Answer(NamedTuple):
    """A leader's answer for one partition."""

    code: int
    records: tuple[Record, ...] = ()
    high_watermark: int = 0
    diverging: tuple[int, int] | None = None
    leader_end: int = 0


class Observer(Protocol):
    """What the model tells the checker."""

    def appended(self, broker: int, where: Key, log: Log) -> None: ...
    def truncated(self, broker: int, where: Key, log: Log) -> None: ...
    def raised(self, broker: int, where: Key, log: Log, epoch: int) -> None: ...
    def acknowledged(self, where: Key, offset: int, value: int) -> None: ...
    def deleted(self, broker: int, where: Key) -> None: ...


@dataclass
class Follower:
    """A follower as its leader sees it."""

    in_sync: bool
    joins: bool = False
    log_end: int = -1
    fetched_at: float = -1.0
    leader_end: int = -1
    caught_up_at: float = -1e9
    is_reported: bool = False

    def note(self, offset: int, leader_end: int, now: float) -> None:
        if offset >= leader_end:
            self.caught_up_at = max(self.caught_up_at, now)
        elif offset >= self.leader_end:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.leader_end = max(self.leader_end, leader_end)
        self.fetched_at, self.log_end = now, offset

    def is_caught_up(self, leader_end: int, now: float) -> bool:
        return self.log_end == leader_end or now - self.caught_up_at <= LAG_MAX_SECONDS


@dataclass
class Following:
    """A partition that is fetched from a leader, in one epoch."""

    leader: int
    epoch: int
    begun: bool = False
    failed: bool = False
    failures: int = 0
    retry_at: float = -1.0


@dataclass
class Partition:
    """A partition that this broker serves."""

    topic: str
    index: int
    log: Log
    leader: int = -1
    epoch: int = -1
    leads: bool = False
    followers: dict[int, Follower] = field(default_factory=dict)
    partition_epoch: int = -1
    epoch_start: int = 0
    """The end of the log when this broker began to lead in this epoch."""
    followed: Following | None = None
    waiting: list[tuple[int, int, int]] = field(default_factory=list)
    """Appends that wait for followers: epoch, offset, value."""

    @property
    def key(self) -> Key:
        return self.log.topic_id, self.index


class DiskError(Exception):
    """The log's directory failed."""


class Disk:
    """The logs of one broker. They outlive its process."""

    def __init__(self, directories: int) -> None:
        self.logs: dict[tuple[str, int], Log] = {}
        self.directories = directories
        self.failed: set[int] = set()

    def place(self, index: int) -> int:
        """A directory for a new log."""
        healthy = [number for number in range(self.directories) if number not in self.failed]
        if not healthy:
            raise DiskError("no directory is left")
        return healthy[index % len(healthy)]


class DataPlane:
    """The data plane of broker `local`. Implements `Logs` and the driver's `DataPlane`."""

    def __init__(
        self,
        local: int,
        disk: Disk,
        now: Callable[[], float],
        observer: Observer,
        report: Callable[[list[tuple[str, int, int, int, str]]], None],
        follow: Callable[[int], None],
        min_insync: int,
    ) -> None:
        """`report` takes facts about followers. `follow` is called with a leader to fetch from."""
        self.local = local
        self.disk = disk
        self._now = now
        self._observer = observer
        self._report = report
        self._follow = follow
        self._min_insync = min_insync
        self.partitions: dict[Key, Partition] = {}
        self.addresses: dict[int, int] = {}
        """By broker: its port."""

    # ---- what the replica manager commands ----

    def create_partition(self, spec: PartitionSpec) -> None:
        where = spec.topic, spec.partition
        log = self.disk.logs.get(where)
        if log is not None and log.directory in self.disk.failed:
            raise DiskError(f"{where} is offline")
        if log is not None and log.topic_id != spec.topic_id:
            raise DiskError(f"{where} is the log of another topic")
        if log is None:
            if self.disk.failed and not spec.new:
                raise DiskError(f"{where} may be on a directory that failed")
            log = self.disk.logs[where] = Log(spec.topic_id, self.disk.place(spec.partition))
        key = spec.topic_id, spec.partition
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = Partition(spec.topic, spec.partition, log)
        leads = spec.leader_id == self.local
        if leads and spec.leader_epoch > partition.epoch:
            log.begin_epoch(spec.leader_epoch)
        self._set_replicas(partition, spec, leads)
        partition.leader, partition.epoch = spec.leader_id, spec.leader_epoch
        self._settle(partition)
        before = partition.followed
        if leads or spec.leader_id < 0:
            partition.followed = None
        elif before is None or (before.leader, before.epoch) != (spec.leader_id, spec.leader_epoch):
            partition.followed = Following(spec.leader_id, spec.leader_epoch)
            self._follow(spec.leader_id)

    def _set_replicas(self, partition: Partition, spec: PartitionSpec, leads: bool) -> None:
        same_epoch = partition.leads and partition.epoch == spec.leader_epoch
        if same_epoch and 0 <= spec.partition_epoch < partition.partition_epoch:
            return
        keeps_joining = same_epoch and spec.partition_epoch <= partition.partition_epoch
        if not same_epoch:
            partition.epoch_start = partition.log.end
        followers = {}
        for broker, _, _ in spec.replicas if leads else ():
            if broker == self.local:
                continue
            follower = Follower(broker in spec.isr)
            before = partition.followers.get(broker) if same_epoch else None
            if before is not None:
                follower = before
                follower.in_sync, follower.is_reported = broker in spec.isr, False
                follower.joins = follower.joins and keeps_joining
            elif follower.in_sync:
                follower.caught_up_at = self._now()
            followers[broker] = follower
        partition.leads, partition.followers = leads, followers
        partition.partition_epoch = spec.partition_epoch
        self.raise_high_watermark(partition)

    def stop_partition(self, topic: str, partition: int, delete: bool) -> None:
        log = self.disk.logs.get((topic, partition))
        found = None if log is None else self.partitions.get((log.topic_id, partition))
        if found is not None:
            found.leads, found.leader, found.followed = False, -1, None
            self._settle(found)
        if log is None or not delete:
            return
        if log.directory in self.disk.failed:
            raise DiskError(f"{topic}-{partition} is offline")
        del self.disk.logs[topic, partition]
        self.partitions.pop((log.topic_id, partition), None)
        self._observer.deleted(self.local, (log.topic_id, partition))

    def set_brokers(self, brokers: list[tuple[int, str, int]]) -> None:
        self.addresses = {broker: port for broker, _, port in brokers}
        for partition in self.partitions.values():
            self.raise_high_watermark(partition)

    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        return

    def forget_topic(self, topic: str) -> None:
        return

    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        return

    def partitions_left(self) -> int:
        return 1 << 20

    # ---- what the replication driver commands ----

    def set_isr(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        isr: list[int],
        pending: list[int],
        partition_epoch: int,
    ) -> bool:
        log = self.disk.logs.get((topic, partition))
        found = None if log is None else self.partitions.get((log.topic_id, partition))
        if found is None or not found.leads or found.epoch != leader_epoch:
            return False
        if partition_epoch < found.partition_epoch:
            return False
        found.partition_epoch = partition_epoch
        for broker, follower in found.followers.items():
            follower.in_sync, follower.joins = broker in isr, broker in pending
            follower.is_reported = False
        self.raise_high_watermark(found)
        return True

    # ---- disks ----

    def fail(self, directory: int) -> list[tuple[str, int]]:
        """A directory fails. Returns its partitions."""
        self.disk.failed.add(directory)
        failed = []
        for key, partition in list(self.partitions.items()):
            if partition.log.directory == directory:
                del self.partitions[key]
                partition.waiting.clear()
                failed.append((partition.topic, partition.index))
        return failed

    # ---- the leader's side ----

    def _served(self, where: Key, epoch: int) -> tuple[Partition | None, int]:
        partition = self.partitions.get(where)
        if partition is None:
            is_offline = any(
                log.topic_id == where[0] and index == where[1] and log.directory in self.disk.failed
                for (_, index), log in self.disk.logs.items()
            )
            return None, KafkaStorageError.code if is_offline else UnknownTopicId.code
        if 0 <= epoch < partition.epoch:
            return None, FencedLeaderEpoch.code
        if epoch > partition.epoch:
            return None, UnknownLeaderEpoch.code
        if not partition.leads:
            return None, NotLeaderOrFollower.code
        return partition, NONE

    def produce(self, where: Key, value: int) -> None:
        """A producer's record with acks=all. Its acknowledgement goes to the observer."""
        partition, _ = self._served(where, -1)
        if partition is None:
            return
        in_sync = 1 + sum(follower.in_sync for follower in partition.followers.values())
        if in_sync < min(1 + len(partition.followers), self._min_insync):
            return
        log = partition.log
        log.append(partition.epoch, value)
        self._observer.appended(self.local, where, log)
        partition.waiting.append((partition.epoch, log.end - 1, value))
        self.raise_high_watermark(partition)

    def fetched(self, follower: int, wanted: dict[Key, Wanted]) -> dict[Key, Answer]:
        """A follower's Fetch."""
        answers, facts = {}, []
        for where, question in wanted.items():
            partition, code = self._served(where, question.leader_epoch)
            if partition is None:
                answers[where] = Answer(code)
                continue
            if follower not in partition.followers:
                answers[where] = Answer(UnknownLeaderEpoch.code)
                continue
            answers[where] = answer = self._read(partition.log, question)
            if answer.code == NONE and answer.diverging is None:
                self._note(partition, follower, question.offset, facts)
        if facts:
            self._report(facts)
        return answers

    def _read(self, log: Log, question: Wanted) -> Answer:
        if question.last_epoch >= 0:
            found = log.epoch_end(question.last_epoch)
            if found is None:
                return Answer(OffsetOutOfRange.code, leader_end=log.end)
            epoch, end = found
            if epoch < question.last_epoch or end < question.offset:
                return Answer(NONE, diverging=(epoch, end))
        if question.offset > log.end:
            return Answer(OffsetOutOfRange.code, leader_end=log.end)
        records = tuple(log.records[question.offset : question.offset + RECORDS_AT_ONCE])
        return Answer(NONE, records, log.high_watermark)

    def _note(
        self, partition: Partition, broker: int, offset: int, facts: list[tuple[str, int, int, int, str]]
    ) -> None:
        follower, log = partition.followers[broker], partition.log
        follower.note(offset, log.end, self._now())
        if (
            not (follower.in_sync or follower.joins)
            and offset >= log.high_watermark
            and self._has_epochs_start(partition, offset)
            and not follower.is_reported
        ):
            follower.is_reported = True
            facts.append((partition.topic, partition.index, partition.epoch, broker, CAUGHT_UP))
        self.raise_high_watermark(partition)

    def _has_epochs_start(self, partition: Partition, offset: int) -> bool:
        """A follower below it may lack records that were acknowledged in an earlier epoch."""
        return offset >= partition.epoch_start

    def raise_high_watermark(self, partition: Partition) -> None:
        """`Partition.maybeIncrementLeaderHW`"""
        if not partition.leads:
            return
        log, now = partition.log, self._now()
        in_sync = 1 + sum(follower.in_sync for follower in partition.followers.values())
        if in_sync < min(1 + len(partition.followers), self._min_insync):
            return
        end = log.end
        for broker, follower in partition.followers.items():
            if follower.log_end >= end:
                continue
            if (follower.in_sync or follower.joins) or (
                follower.is_caught_up(log.end, now) and broker in self.addresses
            ):
                end = follower.log_end
        if end > log.high_watermark:
            log.high_watermark = end
            self._observer.raised(self.local, partition.key, log, partition.epoch)
            self._settle(partition)

    def _settle(self, partition: Partition) -> None:
        """Answers producers whose records are committed, or whose leader is gone."""
        still = []
        for epoch, offset, value in partition.waiting:
            if not partition.leads or partition.epoch != epoch:
                continue
            if partition.log.high_watermark > offset:
                self._observer.acknowledged(partition.key, offset, value)
            else:
                still.append((epoch, offset, value))
        partition.waiting = still

    def look_for_laggards(self) -> None:
        """Twice in `replica.lag.time.max.ms`."""
        facts, now = [], self._now()
        for partition in self.partitions.values():
            followers = partition.followers.items()
            if not partition.leads or any(follower.joins for _, follower in followers):
                continue
            for broker, follower in followers:
                is_behind = not follower.is_caught_up(partition.log.end, now)
                if follower.in_sync and is_behind and not follower.is_reported:
                    follower.is_reported = True
                    facts.append((partition.topic, partition.index, partition.epoch, broker, FELL_BEHIND))
        if facts:
            self._report(facts)

    # ---- the follower's side ----

    def followed_from(self, leader: int) -> Iterable[Partition]:
        return (
            partition
            for partition in self.partitions.values()
            if (followed := partition.followed) is not None
            and followed.leader == leader
            and not followed.failed
        )

    def questions(self, leader: int) -> dict[Key, Wanted]:
        """What to ask a leader now."""
        wanted, now = {}, self._now()
        for partition in self.followed_from(leader):
            followed, log = partition.followed, partition.log
            if followed is None or followed.retry_at > now:
                continue
            if not followed.begun:
                followed.begun = True
                if log.last_epoch < 0 and log.high_watermark < log.end:
                    self._truncate(partition, log.high_watermark)
            wanted[partition.key] = Wanted(followed.epoch, log.end, log.last_epoch)
        return wanted

    def apply(self, leader: int, asked: dict[Key, Wanted], answers: dict[Key, Answer]) -> bool:
        """Takes a leader's answers. Returns whether there were records."""
        found_records = False
        for where, question in asked.items():
            partition = self.partitions.get(where)
            followed = None if partition is None else partition.followed
            if partition is None or followed is None or followed.failed:
                continue
            log = partition.log
            now = Wanted(followed.epoch, log.end, log.last_epoch)
            if followed.leader != leader or now != question:
                continue
            answer = answers[where]
            found_records |= bool(answer.records)
            if answer.code == NONE:
                followed.failures = 0
                self._take(partition, answer)
            elif answer.code == OffsetOutOfRange.code and answer.leader_end < log.end:
                self._truncate(partition, answer.leader_end)
            elif answer.code == FencedLeaderEpoch.code:
                followed.failed = True
            else:
                followed.failures += 1
                pause = min(PAUSE_SECONDS * 2 ** min(followed.failures, 10), PAUSE_MAX_SECONDS)
                followed.retry_at = self._now() + pause
        return found_records

    def _take(self, partition: Partition, answer: Answer) -> None:
        log = partition.log
        if answer.diverging is not None:
            self._truncate(partition, log.truncation_point(*answer.diverging))
            return
        for record in answer.records:
            log.append(record.epoch, record.value)
            self._observer.appended(self.local, partition.key, log)
        log.high_watermark = max(log.high_watermark, min(answer.high_watermark, log.end))

    def _truncate(self, partition: Partition, to: int) -> None:
        partition.log.truncate(to)
        self._observer.truncated(self.local, partition.key, partition.log)
