"""The group coordinator: passes requests to the machine, writes its records, and calls it when a timer is
due.

Owns the event loop's timer, the futures of waiting requests and the appends; no decisions. Lives on the event
loop. Appends run on the loop, in order: one small batch is one write to the page cache. A write counts once
every in-sync replica has it. A partition of
__consumer_offsets that this broker begins to lead is read from its beginning; until then requests for its
groups get COORDINATOR_LOAD_IN_PROGRESS. When another broker leads it, its groups are dropped, and waiting
requests get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Protocol, TypeVar, cast

from cluster.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidCommitOffsetSize,
    InvalidFetchSize,
    InvalidGroupId,
    KafkaProtocolError,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from cluster.groups.group import Token
from cluster.groups.machine import GroupMachine
from cluster.groups.messages import (
    Action,
    Commit,
    CommitResult,
    GroupLimits,
    Join,
    JoinResult,
    Leaving,
    Respond,
    Result,
    Sync,
    SyncResult,
    Write,
)
from cluster.groups.records import Record, encode_write, load_records, read_subscription

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Result)

_COMMIT_ERRORS = {
    UnknownTopicOrPartition.code: CoordinatorNotAvailable.code,
    NotEnoughReplicas.code: CoordinatorNotAvailable.code,
    NotEnoughReplicasAfterAppend.code: CoordinatorNotAvailable.code,
    NotLeaderOrFollower.code: NotCoordinator.code,
    KafkaStorageError.code: NotCoordinator.code,
    MessageTooLarge.code: InvalidCommitOffsetSize.code,
    RecordListTooLarge.code: InvalidCommitOffsetSize.code,
    InvalidFetchSize.code: InvalidCommitOffsetSize.code,
}
_GROUP_ERRORS = _COMMIT_ERRORS | {
    RequestTimedOut.code: CoordinatorNotAvailable.code,
    MessageTooLarge.code: UnknownServerError.code,
    RecordListTooLarge.code: UnknownServerError.code,
    InvalidFetchSize.code: UnknownServerError.code,
}

_LATE_MS = 200
"""A timer that is later than this means that the event loop stood still."""

_WARN_INTERVAL_MS = 60_000

_CATCH_UP_MS = 1000
"""Within this time the requests that came while the loop stood still are read."""

_TIMERS_AT_ONCE = 64
"""Timers handled in one step of the event loop, in about a millisecond."""


class GroupLog(Protocol):
    """The coordinator's view of __consumer_offsets."""

    def append(self, group: str, records: Sequence[Record], now_ms: int) -> Awaitable[None] | None:
        """Appends one batch to the group's partition. Returns None once every in-sync replica has it, or what
        waits for that. Both raise KafkaProtocolError.
        """

    def partition_of(self, group: str) -> int | None:
        """The group's partition; None before the topic exists."""

    def read(self, partition: int) -> AsyncIterator[Sequence[tuple[bytes | None, bytes | None]]]:
        """Every record of a partition led here, in pieces."""


class Clock:
    """Milliseconds since 1970 that never go back, so that a change of the system clock ends no session."""

    def __init__(self) -> None:
        self._start = time.time() - time.monotonic()

    def now(self) -> int:
        """The time."""
        return int((self._start + time.monotonic()) * 1000)


class GroupCoordinator:
    """All groups this broker coordinates."""

    def __init__(self, limits: GroupLimits, group_log: GroupLog, expiry_interval_ms: int) -> None:
        self.machine = GroupMachine(limits, lambda: str(uuid.uuid4()))
        self.machine.read_subscription = read_subscription
        self._log = group_log
        self._clock = Clock()
        self._expiry_interval_ms = expiry_interval_ms
        self._waiting: dict[Token, asyncio.Future[Result]] = {}
        self._tokens = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._warn_after = 0
        self._refused = 0
        self._warn_of_write_after: dict[int, int] = {}
        self._replicating: dict[int, tuple[int | None, asyncio.Task[None]]] = {}
        """By write that waits for replicas: its partition, and the task that waits."""
        self._partitions: dict[int, asyncio.Task[None] | None] = {}
        """The partitions led here: the task that loads it, or None once it is loaded."""
        self._stopped = False

    # ---- start and stop ----

    def start(self) -> None:
        """Starts the expiry of offsets."""
        self._schedule_expiry()

    def led(self, partition: int, new: bool = False) -> None:
        """This broker leads a partition of __consumer_offsets. A `new` one has no records to load."""
        if partition in self._partitions or self._stopped:
            return
        self._partitions[partition] = (
            None
            if new
            else asyncio.create_task(self._load(partition), name=f"groups of partition {partition}")
        )

    def lost(self, partition: int) -> None:
        """Another broker leads a partition of __consumer_offsets now, or none."""
        if partition not in self._partitions:
            return
        task = self._partitions.pop(partition)
        if task is not None:
            task.cancel()
        for write, (of, waiting) in list(self._replicating.items()):
            if of == partition:
                waiting.cancel()
                self._stored(write, NotCoordinator.code)
        self._do(self.machine.unload(lambda group: self._log.partition_of(group) == partition))

    async def stop(self) -> None:
        """Answers waiting requests with COORDINATOR_NOT_AVAILABLE, so that clients look for the coordinator
        again.
        """
        self._stopped = True
        tasks = [task for task in self._partitions.values() if task is not None]
        tasks += [task for _, task in self._replicating.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for handle in (self._timer, self._expiry):
            if handle is not None:
                handle.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(CoordinatorNotAvailable())
        self._waiting.clear()

    async def loaded(self) -> None:
        """Returns when every partition led here has been read."""
        loading = [task for task in self._partitions.values() if task is not None]
        if loading:
            await asyncio.wait(loading)

    async def _load(self, partition: int) -> None:
        skipped, before = 0, len(self.machine.groups)
        try:
            async for records in self._log.read(partition):
                skipped += load_records(self.machine, records)
        except KafkaProtocolError as error:
            # The log is offline, or led elsewhere; the controller says so next.
            log.warning("groups of __consumer_offsets-%d could not be loaded: %s", partition, error)
            return
        if skipped:
            log.warning(
                "%d records of __consumer_offsets-%d could not be decoded and were skipped",
                skipped,
                partition,
            )
        self._partitions[partition] = None
        self._do(self.machine.loaded(self._clock.now()))
        if len(self.machine.groups) > before:
            log.info("the consumer groups of __consumer_offsets-%d were loaded", partition)

    def status(self, group: str, empty_allowed: bool = False) -> int:
        """The error for requests about this group if this broker cannot answer them now, else 0."""
        if not group and not empty_allowed:
            return InvalidGroupId.code
        if self._stopped:
            return CoordinatorNotAvailable.code
        partition = self._log.partition_of(group)
        if partition not in self._partitions:
            return NotCoordinator.code
        return NONE if self._partitions[partition] is None else CoordinatorLoadInProgress.code

    @property
    def loading(self) -> bool:
        """A partition is being read."""
        return any(task is not None for task in self._partitions.values())

    def now(self) -> int:
        """The coordinator's time."""
        return self._clock.now()

    # ---- requests ----

    async def join(self, request: Join) -> JoinResult:
        """JoinGroup."""
        token, future = self._wait()
        self._do(self.machine.join(token, request, self.now()))
        self._warn_of_memory(request.group)
        return cast(JoinResult, await self._result_of(token, future))

    def _warn_of_memory(self, group: str) -> None:
        """Logs once a minute why members are refused."""
        if self.machine.refused == self._refused:
            return
        self._refused, now = self.machine.refused, self.now()
        if now >= self._warn_after:
            self._warn_after = now + _WARN_INTERVAL_MS
            log.warning(
                "group %s: a member or an assignment is refused, because all members would take more than %d "
                "bytes (a quarter of queued.max.request.bytes; small ones may take twice that): raise "
                "queued.max.request.bytes, or wait for the session timeouts of members that are gone",
                group,
                self.machine.limits.members_bytes_max,
            )

    async def sync(self, request: Sync) -> SyncResult:
        """SyncGroup."""
        token, future = self._wait()
        self._do(self.machine.sync(token, request, self.now()))
        self._warn_of_memory(request.group)
        return cast(SyncResult, await self._result_of(token, future))

    async def commit(self, request: Commit) -> CommitResult:
        """OffsetCommit."""
        token, future = self._wait()
        self._do(self.machine.commit(token, request, self.now()))
        return cast(CommitResult, await self._result_of(token, future))

    def heartbeat(self, group: str, generation: int, member: str, instance: str | None) -> int:
        """Heartbeat. Returns the error code."""
        error = self.machine.heartbeat(group, generation, member, instance, self.now())
        self._do(())
        return error

    def leave(self, group: str, leaving: Leaving) -> int:
        """LeaveGroup for one member. Returns the error code."""
        result, actions = self.machine.leave(group, [leaving], self.now())
        self._do(actions)
        return result.error or result.members[0]

    def delete(self, group: str) -> int:
        """DeleteGroups for one group. Returns the error code."""
        error, actions = self.machine.delete(group, self.now())
        self._do(actions)
        return error

    def topics_deleted(self, topics: Sequence[str]) -> None:
        """Removes offsets in deleted topics."""
        if not self._stopped:
            self._do(self.machine.topics_deleted(topics, self.now()))

    # ---- actions and timers ----

    def _wait(self) -> tuple[Token, asyncio.Future[Result]]:
        token = next(self._tokens)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        return token, future

    async def _result_of(self, token: Token, future: asyncio.Future[Result]) -> Result:
        """The machine's result. If the caller is cancelled, the result is dropped."""
        try:
            return await future
        finally:
            self._waiting.pop(token, None)

    def _do(self, actions: Iterable[Action]) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            if isinstance(action, Respond):
                future = self._waiting.pop(action.token, None)
                if future is not None and not future.done():
                    future.set_result(action.result)
            else:
                code = self._append(action)
                if code is not None:
                    queue.extendleft(reversed(self.machine.stored(action.id, code, self.now())))
        self._set_timer()

    def _append(self, write: Write) -> int | None:
        """Appends a write. Returns its error code, or None if it waits for replicas."""
        try:
            waiting = self._log.append(write.group, encode_write(write), self.now())
        except Exception as error:
            return self._write_code(write, error)
        if waiting is None:
            return NONE
        task = asyncio.ensure_future(self._replicated(write, waiting))
        self._replicating[write.id] = self._log.partition_of(write.group), task
        return None

    async def _replicated(self, write: Write, waiting: Awaitable[None]) -> None:
        code = NONE
        try:
            await waiting
        except Exception as error:
            code = self._write_code(write, error)
        self._stored(write.id, code)

    def _stored(self, write: int, code: int) -> None:
        if self._replicating.pop(write, None) is not None:
            self._do(self.machine.stored(write, code, self.now()))

    def _write_code(self, write: Write, error: Exception) -> int:
        """The error code for a write that failed. Logs the reason."""
        if not isinstance(error, KafkaProtocolError):
            log.error("group %s: its record could not be written", write.group, exc_info=error)
            return UnknownServerError.code
        self._warn_of_write(write.group, error)
        table = _GROUP_ERRORS if write.stored is not None else _COMMIT_ERRORS
        return table.get(error.code, error.code)

    def _warn_of_write(self, group: str, error: KafkaProtocolError) -> None:
        """Logs each kind of error once a minute, because clients try again at once."""
        now = self.now()
        if now >= self._warn_of_write_after.get(error.code, 0):
            self._warn_of_write_after[error.code] = now + _WARN_INTERVAL_MS
            log.warning("group %s: its record could not be written: %s", group, error)

    def _set_timer(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is None or self._stopped:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(deadline - self.now(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        assert self._timer is not None
        late_ms = int((asyncio.get_running_loop().time() - self._timer.when()) * 1000)
        self._timer = None
        if late_ms > _LATE_MS:
            # Heartbeats may wait in the queue: read them before sessions end.
            log.warning(
                "the event loop stood still for %d ms; group members' timeouts are extended by that", late_ms
            )
            self.machine.postpone(late_ms + _CATCH_UP_MS)
        # For timers that are left over, the timer is set again at once, and other work runs in between.
        self._do(self.machine.advance(self.now(), _TIMERS_AT_ONCE))

    def _schedule_expiry(self) -> None:
        delay = self._expiry_interval_ms / 1000
        self._expiry = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._do(self.machine.expire_offsets(self.now()))
        self._schedule_expiry()
