"""A consumer's commits, which reach the coordinator in the order in which they are made.

`CommitQueue` keeps the order; it is pure. `Commits` sends. The application, the interval of
enable.auto.commit and a revocation each put a `Commit` into the queue, with the member and generation it is
made in. One daemon thread per consumer sends one request at a time, with the newest offset of each waiting
partition. So an older offset never overwrites a newer one, and the coordinator refuses commits of another
generation. A crash loses what waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from logcore import _native

from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException, failed
from ._faults import LastingFault
from ._requests import RETRY_PAUSE
from ._types import TopicPartition, error_of, group_by_topic

logger = logging.getLogger("cluster.client")

COMMIT_TIMEOUT = 60.0
"""Seconds a commit may take, retries included."""

_OFFSET_COMMIT, _NEWEST_VERSION = 8, 9
_OF_ONE_OFFSET = frozenset({KafkaError.OFFSET_METADATA_TOO_LARGE, KafkaError.INVALID_COMMIT_OFFSET_SIZE})
"""Errors of one commit's own offset or metadata; an earlier commit of the partition may still succeed."""

Callback = Callable[[KafkaError | None, list[TopicPartition]], None]
"""Called once with a commit's error, if all partitions failed alike, and its partitions with their errors."""


@dataclass(frozen=True)
class Identity:
    """The member that commits. Generation -1 is a consumer that assigns partitions to itself.

    With the consumer protocol the generation is the member epoch. `joins` counts how often the member had
    joined: it keeps its id when it is removed and joins again.
    """

    generation: int = -1
    member: str = ""
    instance: str | None = None
    joins: int = 0


@dataclass(eq=False)
class Commit:
    """One commit. `ended` is called once; a commit with `merge` may be merged with the next one."""

    identity: Identity
    partitions: list[TopicPartition]
    deadline: float
    ended: Callback
    merge: bool = False
    over: bool = False
    open: dict[TopicPartition, TopicPartition] = field(init=False)
    """The partitions without an answer."""

    def __post_init__(self) -> None:
        # If a partition is named twice, its last offset counts.
        self.open = {partition: partition for partition in self.partitions}
        self.partitions = list(self.open.values())

    def end(self, error: KafkaError | None) -> None:
        """Ends the commit, unless it is over."""
        if not self.over:
            self.over = True
            self.ended(error, self.partitions)


@dataclass(frozen=True)
class Request:
    """One OffsetCommit request, to be sent before its deadline."""

    identity: Identity
    partitions: list[TopicPartition]
    deadline: float


class CommitQueue:
    """The order of commits. Does no I/O and reads no clock; its caller holds a lock.

    At most one request is under way: each one that `next` returns is followed by `answered` or `failed`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Commit] = deque()
        self._sent: list[Commit] = []
        """The commits of the request under way, all of one identity. Those that are over stay until all are
        over: their offsets may have been written, and the retry must not write older ones.
        """

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def add(self, commit: Commit) -> None:
        """Puts a commit at the end."""
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.merge and commit.merge and last.identity == commit.identity:
            last.open.update(commit.open)
            last.partitions = list(last.open.values())
            last.deadline = commit.deadline
        else:
            self._waiting.append(commit)

    def next(self, now: float) -> Request | None:
        """The next request: each partition's newest offset in the first commits that share an identity."""
        self._end_late(now, _late("it had to wait for others"))
        while self._waiting and (not self._sent or self._sent[0].identity == self._waiting[0].identity):
            self._sent.append(self._waiting.popleft())
        if not self._sent:
            return None
        deadline = max(commit.deadline for commit in self._sent if not commit.over)
        return Request(self._sent[0].identity, list(self._newest().values()), deadline)

    def answered(self, codes: dict[tuple[str, int], int]) -> None:
        """Takes the coordinator's codes by topic and partition.

        The next request sends what they leave open.
        """
        newest = self._newest()
        for commit in self._sent:
            for partition in list(commit.open.values()):
                code = codes.get((partition.topic, partition.partition), KafkaError.UNKNOWN)
                if code in _OF_ONE_OFFSET and newest[partition] is not partition:
                    continue
                partition.error = error_of(code)
                del commit.open[partition]
            if not commit.open:
                commit.end(_common_error(commit.partitions))
        self._drop_over()

    def failed(self, error: KafkaError, now: float) -> None:
        """Notes that there is no answer. If the error may pass, commits with time left are sent again."""
        if error.retriable():
            self._end_late(now, error)
        else:
            for commit in self._sent:
                commit.end(error)
        self._drop_over()

    def abandon(self, commit: Commit) -> None:
        """Drops a commit whose caller has given up. It may have been sent already."""
        commit.over = True
        if commit in self._waiting:
            self._waiting.remove(commit)

    def end_all(self, error: KafkaError) -> None:
        """Ends all commits, sent or not."""
        for commit in [*self._sent, *self._waiting]:
            commit.end(error)
        self._sent.clear()
        self._waiting.clear()

    def unanswered(self) -> list[Commit]:
        """The commits that are not over."""
        return [commit for commit in [*self._sent, *self._waiting] if not commit.over]

    def _newest(self) -> dict[TopicPartition, TopicPartition]:
        return {key: partition for commit in self._sent for key, partition in commit.open.items()}

    def _end_late(self, now: float, error: KafkaError) -> None:
        for commit in [*self._sent, *self._waiting]:
            if commit.deadline <= now:
                commit.end(error)
        self._drop_over()

    def _drop_over(self) -> None:
        if any(commit.over for commit in self._waiting):
            self._waiting = deque(commit for commit in self._waiting if not commit.over)
        if all(commit.over for commit in self._sent):
            self._sent = []


def _late(why: str) -> KafkaError:
    text = f"Commit failed: the coordinator did not answer in time, {why}; commit again"
    return KafkaError(KafkaError._TIMED_OUT, text, retriable=True)


def _common_error(partitions: list[TopicPartition]) -> KafkaError | None:
    """Returns the error that all partitions share, or None if their errors differ."""
    codes = {None if partition.error is None else partition.error.code() for partition in partitions}
    return partitions[0].error if len(codes) == 1 else None


class Commits:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        coordinator: Coordinator,
        identity: Callable[[], Identity],
        renew: Callable[[Identity], Identity | None],
        stored: Callable[[], list[TopicPartition]],
        interval: float | None,
        ended: Callback | None,
        report: Callable[[KafkaError], None],
    ) -> None:
        """`identity` returns the member to commit for, or raises KafkaException when it may not commit.

        `renew` returns the identity to send a commit with that was made for another, or None when the group
        has removed the member since.
        `stored` returns the offsets to commit. `interval` is in seconds; None commits only when asked.
        `ended` is called for each commit in the background, `report` for a failure that is tried again and
        lasts.
        """
        self._coordinator = coordinator
        self._identity = identity
        self._renew = renew
        self._stored = stored
        self._interval = interval
        self._ended = ended
        self._report = report
        self._fault = LastingFault()
        """Used by the thread only."""
        self._last_failure: KafkaError | None = None
        """Of the request that is tried again."""
        self._changed = threading.Condition()
        self._queue = CommitQueue()
        self._last: dict[TopicPartition, int] = {}
        """The offset of each partition's newest commit, unless that failed."""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        """The number of commits without an answer."""
        with self._changed:
            return len(self._queue)

    def commit(
        self, partitions: list[TopicPartition], timeout: float = COMMIT_TIMEOUT
    ) -> list[TopicPartition]:
        """Commits after all commits before, and returns the partitions with each one's error.

        Raises KafkaException when all fail alike.
        """
        self.check_fork()
        partitions = _real(partitions)
        if not partitions:
            raise failed(KafkaError._NO_OFFSET, "Commit failed: there is no offset to commit")
        outcome: Future[tuple[KafkaError | None, list[TopicPartition]]] = Future()
        commit = Commit(
            self._identity(),
            partitions,
            time.monotonic() + timeout,
            lambda error, results: outcome.set_result((error, results)),
        )
        self._add(commit)
        try:
            # The sending thread times out first, with the reason.
            error, results = outcome.result(timeout + 2 * RETRY_PAUSE)
        except TimeoutError:
            with self._changed:
                self._queue.abandon(commit)
            late = _late("the coordinator may have carried it out")
            self._forget_failed(partitions, late)
            raise KafkaException(late) from None
        self._forget_failed(results, error)
        if error is not None:
            raise KafkaException(error)
        errors = {result: result.error for result in results}
        for partition in partitions:
            partition.error = errors[partition]
        return partitions

    def commit_later(self, partitions: list[TopicPartition]) -> None:
        """Commits in the background."""
        self.check_fork()
        found = _real(partitions)
        if not found:
            self._end_in_background(KafkaError(KafkaError._NO_OFFSET), _copies(partitions))
            return
        try:
            identity = self._identity()
        except KafkaException as error:
            self._end_in_background(error.error, found)
            return
        self._add_in_background(identity, found)

    def commit_stored(self) -> None:
        """Commits the stored offsets that are not committed yet, in the background."""
        # The identity is read first, so that the offsets are of its generation or a later one.
        try:
            identity = self._identity()
        except KafkaException as error:
            refused = self._fresh()
            if refused:
                self._end_in_background(error.error, refused)
            return
        fresh = self._fresh()
        if fresh:
            self._add_in_background(identity, fresh)

    def flush(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until all commits before this call are over.

        Returns whether they are.
        """
        with self._changed:
            before = self._queue.unanswered()
            return self._changed.wait_for(
                lambda: all(commit.over for commit in before) or not self._is_alive(), timeout
            )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets the committed offsets of partitions, because other members may commit them from now on."""
        with self._changed:
            for partition in partitions:
                self._last.pop(partition, None)

    def start(self) -> None:
        """Starts the thread, for commits at intervals."""
        with self._changed:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="logcore-commits", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which may still wait for an answer, and every commit that is not answered."""
        with self._changed:
            self._stopping = True
            why = "the client was closed before the commit was answered"
            if self._last_failure is not None:
                why += f"; last failure: {self._last_failure.str()}"
            self._queue.end_all(KafkaError(KafkaError._DESTROY, why))
            self._changed.notify_all()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def check_fork(self) -> None:
        """Raises RuntimeError in a forked child, which does not have the threads."""
        if os.getpid() != self._process:
            raise RuntimeError("this client was made before a fork; make a new one in the child process")

    def _fresh(self) -> list[TopicPartition]:
        stored = self._stored()
        with self._changed:
            return [found for found in stored if self._last.get(found) != found.offset]

    def _add_in_background(self, identity: Identity, partitions: list[TopicPartition]) -> None:
        deadline = time.monotonic() + COMMIT_TIMEOUT
        merge = self._ended is None
        self._add(Commit(identity, partitions, deadline, self._end_in_background, merge))

    def _add(self, commit: Commit) -> None:
        # Offsets that cannot be encoded raise here, and do not fail a request with others' offsets.
        _native.encode_request(
            _OFFSET_COMMIT, _NEWEST_VERSION, self._message(commit.identity, commit.partitions)
        )
        with self._changed:
            self.start()
            if self._stopping:
                commit.end(KafkaError(KafkaError._DESTROY))
                return
            self._last.update((partition, partition.offset) for partition in commit.partitions)
            self._queue.add(commit)
            self._changed.notify_all()

    def _end_in_background(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._forget_failed(partitions, error)
        if error is not None:
            for partition in partitions:
                partition.error = partition.error or error
        else:
            error = next((found.error for found in partitions if found.error is not None), None)
        if self._ended is not None:
            self._ended(error, partitions)
        elif error is not None:
            logger.warning("committing offsets of group %s failed: %s", self._coordinator.group, error.str())

    def _forget_failed(self, partitions: list[TopicPartition], error: KafkaError | None) -> None:
        with self._changed:
            for partition in partitions:
                failure = error is not None or partition.error is not None
                if failure and self._last.get(partition) == partition.offset:
                    del self._last[partition]

    # ---- the thread ----

    def _run(self) -> None:
        due = time.monotonic() + (self._interval or 0)
        while True:
            with self._changed:
                request = None
                while request is None:
                    if self._stopping:
                        return
                    now = time.monotonic()
                    if self._interval is not None and now >= due:
                        due = now + max(self._interval, 0.01)
                        self._commit_at_interval()
                    request = self._queue.next(now)
                    self._changed.notify_all()
                    if request is None:
                        self._changed.wait(None if self._interval is None else max(due - now, 0))
            try:
                codes, failure = self._ask(request), None
            except KafkaException as error:
                failure = error.error
            except RuntimeError:
                # The client was closed under the request.
                self.stop()
                return
            except Exception as error:
                logger.exception("committing offsets of group %s failed", self._coordinator.group)
                failure = KafkaError(KafkaError._FAIL, f"Commit failed: {error}")
            self._note(failure)
            with self._changed:
                self._last_failure = failure
                if failure is None:
                    self._queue.answered(codes)
                else:
                    self._queue.failed(failure, time.monotonic() + RETRY_PAUSE)
                    self._changed.notify_all()
                    if self._queue:
                        self._changed.wait_for(lambda: self._stopping, RETRY_PAUSE)

    def _note(self, failure: KafkaError | None) -> None:
        """Reports a failure that is tried again and lasts; the extension reports connections by itself."""
        if failure is None or not failure.retriable():
            self._fault.passed()
        elif self._fault.lasts(failure, time.monotonic()) and failure.code() > 0:
            group = self._coordinator.group
            text = f"committing offsets of group {group} fails and is tried again: {failure.str()}"
            self._report(KafkaError(failure.code(), text, retriable=True))

    def _commit_at_interval(self) -> None:
        try:
            self._identity()
        except KafkaException:
            # Not a member any more: the next poll gives the partitions up.
            return
        self.commit_stored()

    def _ask(self, request: Request) -> dict[tuple[str, int], int]:
        identity = self._renew(request.identity)
        if identity is None:
            text = "Commit failed: the group has removed this member; poll, and commit what is read then"
            raise failed(KafkaError.STALE_MEMBER_EPOCH, text)
        timeout = max(request.deadline - time.monotonic(), 0.001)
        message = self._message(identity, request.partitions)
        codes = _codes(self._coordinator.ask("OffsetCommit", message, _all_codes, timeout=timeout))
        if KafkaError.STALE_MEMBER_EPOCH in codes.values():
            # The next heartbeat brings the new epoch, or the member's removal.
            raise KafkaException(KafkaError(KafkaError.STALE_MEMBER_EPOCH, None, retriable=True))
        return codes

    def _message(self, identity: Identity, partitions: list[TopicPartition]) -> dict[str, Any]:
        return _message(self._coordinator.group, identity, partitions)


def commit_without_members(
    coordinator: Coordinator, partitions: list[TopicPartition], timeout: float
) -> list[TopicPartition]:
    """Commits for a group that has no members; returns the partitions with each one's error.

    Raises KafkaException when all fail alike.
    """
    message = _message(coordinator.group, Identity(), partitions)
    codes = _codes(coordinator.ask_until("OffsetCommit", message, _all_codes, timeout=timeout))
    results = _copies(partitions)
    for result in results:
        result.error = error_of(codes.get((result.topic, result.partition), KafkaError.UNKNOWN))
    error = _common_error(results)
    if error is not None:
        raise KafkaException(error)
    return results


def _copies(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Copies to write results to. The application may change its own objects meanwhile."""
    return [
        TopicPartition(given.topic, given.partition, given.offset, given.metadata, given.leader_epoch)
        for given in partitions
    ]


def _real(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Copies of the partitions whose offset can be committed."""
    return [found for found in _copies(partitions) if found.offset >= 0]


def _message(group: str, identity: Identity, partitions: list[TopicPartition]) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": identity.generation,
        "member_id": identity.member,
        "group_instance_id": identity.instance,
        "topics": [
            {"name": topic, "partitions": [committing(partition) for partition in found]}
            for topic, found in group_by_topic(partitions).items()
        ],
    }


def committing(partition: TopicPartition) -> dict[str, Any]:
    epoch = partition.leader_epoch
    return {
        "partition_index": partition.partition,
        "committed_offset": partition.offset,
        "committed_leader_epoch": -1 if epoch is None else epoch,
        "committed_metadata": partition.metadata or "",
    }


def _codes(response: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (topic["name"], answer["partition_index"]): answer["error_code"]
        for topic in response["topics"]
        for answer in topic["partitions"]
    }


def _all_codes(response: dict[str, Any]) -> set[int]:
    return set(_codes(response).values())
