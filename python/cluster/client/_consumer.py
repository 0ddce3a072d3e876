"""`Consumer`: confluent-kafka's, over the extension's fetcher, the group and the committed offsets.

Everything here runs in the application's thread. Background threads post events (rebalances, commits,
failures), which `poll` and `consume` carry out; no callback runs in another thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logcore import _native

from . import _config
from ._assignment import Assignment, Located, LookupFailed
from ._commits import Commits
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException, failed, log_error
from ._group import Assigned, Failed, Group, Revoked
from ._group_classic import ClassicGroup
from ._group_consumer import ConsumerGroup
from ._offsets import Offsets
from ._requests import Requests, list_topics, seconds
from ._subscription import Subscription
from ._types import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    ClusterMetadata,
    ConsumerGroupMetadata,
    TopicPartition,
)

RebalanceCallback = Callable[["Consumer", list[TopicPartition]], None]

CLOSE_TIMEOUT = 10.0
"""Seconds that closing may wait for brokers: for the last commit, for leaving the group, for its threads."""
UNREPORTED_MAX = 100_000
"""Commits that on_commit has not been called for yet. More are refused until the application polls."""


@dataclass(frozen=True)
class Committed:
    """A commit in the background has ended."""

    error: KafkaError | None
    partitions: list[TopicPartition]


@dataclass(frozen=True)
class TriedAgain:
    """A request of the background keeps failing; error_cb is told."""

    error: KafkaError


Event = Assigned | Revoked | Failed | Located | LookupFailed | Committed | TriedAgain


class Consumer:
    """Reads topics, alone (`assign`) or sharing them with its group (`subscribe`).

    Call `poll` or `consume` often: they return messages, run the callbacks and show the group that the
    application lives (`max.poll.interval.ms`). One thread at a time. `close` commits, leaves the group and
    lets others take over at once.

    Raises KafkaException naming the property for a wrong configuration, RuntimeError when closed or used
    after a fork.
    """

    def __init__(self, *configs: dict[str, Any], **overrides: Any) -> None:
        config = _config.parse(configs, "c", overrides)
        _config.finish_consumer(config)
        values = config.values
        self._callbacks = config.callbacks
        error_cb = self._callbacks.get("error_cb")
        self._report_error = log_error if error_cb is None else _OffsetResetsLogged(error_cb)
        core = _native.ConsumerCore(values, self._report_error)
        self._core: _native.ConsumerCore | None = core
        self._network = core.network(None if error_cb is not None else log_error)
        self._events: deque[Event] = deque()
        post = self._post = _Poster(self._events, core)
        coordinator = Coordinator(Requests(self._network), values["group.id"])
        protocol = ConsumerGroup if values["group.protocol"] == "consumer" else ClassicGroup
        self._group: Group = protocol(coordinator, values, post)
        self._auto_commit = bool(values.get("enable.auto.commit", True))
        interval = values.get("auto.commit.interval.ms", 5_000) / 1000
        self._commits = Commits(
            coordinator,
            self._group.identity,
            self._group.renew,
            _Stored(core),
            interval if self._auto_commit and interval > 0 else None,
            (lambda *outcome: post(Committed(*outcome))) if "on_commit" in self._callbacks else None,
            log_error if error_cb is None else lambda error: post(TriedAgain(error)),
        )
        committed_only = values.get("isolation.level", "read_committed") == "read_committed"
        self._offsets = Offsets(coordinator, self._commits.flush, committed_only, self._group.reader)
        commits, group, auto_commit = self._commits, self._group, self._auto_commit

        def commit_consumed() -> None:
            # Once a partition is removed, what was consumed of it cannot be committed any more.
            if auto_commit and not group.lost:
                commits.commit_stored()

        self._commit_consumed = commit_consumed
        self._assignment = Assignment(core, self._offsets, post, commit_consumed, commits.forget)
        self._owned: list[TopicPartition] = []
        """The group's partitions that the application has taken over."""
        self._callback_must_assign = False
        """A rebalance is being carried out, and its callback has not assigned or unassigned partitions."""
        self._on_assign: RebalanceCallback | None = None
        self._on_revoke: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None

    # ---- subscribing and assigning ----

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Joins the group for these topics; a name that begins with ^ is a regular expression.

        The callbacks get the consumer and the partitions. on_assign may change where they begin by calling
        `assign`. on_lost (without one, on_revoke) is called for partitions that other members may have
        already. With cooperative-sticky or group.protocol=consumer the callbacks get the partitions that come
        or go, and on_assign may call `incremental_assign`.
        """
        self._open()
        if isinstance(topics, str) or not all(isinstance(topic, str) for topic in topics):
            raise TypeError("expected list of topic unicode strings")
        try:
            subscription = Subscription.of(list(topics))
        except ValueError as error:
            raise failed(KafkaError._INVALID_ARG, str(error)) from None
        if not topics:
            raise failed(KafkaError._INVALID_ARG, "Failed to set subscription: the list of topics is empty")
        for callback in (on_assign, on_revoke, on_lost):
            if callback is not None and not callable(callback):
                raise TypeError("rebalance callbacks must be callable")
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._start_commits()
        self._group.subscribe(subscription)

    def unsubscribe(self) -> None:
        """Ends the subscription: gives its partitions up and leaves the group."""
        self._open()
        self._leave(_Patience(CLOSE_TIMEOUT))

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Reads exactly these partitions from now on.

        Each begins at its offset; OFFSET_STORED and OFFSET_INVALID stand for the group's committed offset, or
        what auto.offset.reset says without one.
        """
        self._open()
        self._callback_must_assign = False
        self._assignment.replace(partitions)
        self._start_commits()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Reads these partitions too."""
        self._open()
        if any(partition in self._assignment for partition in partitions):
            raise failed(KafkaError._CONFLICT, "a partition is assigned already")
        self._callback_must_assign = False
        self._assignment.add(partitions)
        self._start_commits()

    def unassign(self) -> None:
        """Stops reading."""
        self._open()
        self._callback_must_assign = False
        self._assignment.clear()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Stops reading these partitions."""
        self._open()
        if any(partition not in self._assignment for partition in partitions):
            raise failed(KafkaError._INVALID_ARG, "a partition is not assigned")
        self._callback_must_assign = False
        self._assignment.remove(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions being read."""
        self._open()
        return self._assignment.partitions()

    def _start_commits(self) -> None:
        if self._auto_commit:
            self._commits.start()

    # ---- reading ----

    def poll(self, timeout: float | None = -1) -> _native.Message | None:
        """One message, or None after `timeout` seconds (negative: as long as it takes).

        A message whose `error()` is not None is an event: the end of a partition, or a failure.
        """
        core = self._core or self._open()
        group = self._group
        until = _deadline(timeout)
        group.polling = True
        try:
            while True:
                if self._events:
                    event = self._serve()
                    if event is not None:
                        return event
                    self._open()
                found = core.poll(timeout)
                if found is not None:
                    return found
                timeout = _left(until)
                if timeout == 0 and not self._events:
                    return None
        finally:
            group.last_poll = time.monotonic()
            group.polling = False

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[_native.Message]:
        """Up to `num_messages` messages: as many as come within `timeout` seconds.

        Fewer when a callback is due meanwhile. Events are among them, as of `poll`.
        """
        core = self._core or self._open()
        if not 0 <= num_messages <= 1_000_000:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        group = self._group
        until = _deadline(timeout)
        group.polling = True
        try:
            # With messages in hand nothing more is run: a callback may raise, and they would be lost.
            while num_messages > 0:
                if self._events:
                    event = self._serve()
                    if event is not None:
                        return [event]
                    self._open()
                    continue
                messages = core.consume(num_messages, timeout)
                timeout = _left(until)
                if messages or (timeout == 0 and not self._events):
                    return messages
            return []
        finally:
            group.last_poll = time.monotonic()
            group.polling = False

    def _serve(self) -> _native.Message | None:
        """Carries out one event; a failure for the application becomes a message."""
        event = self._events.popleft()
        self._group.alive()
        match event:
            case Assigned() | Revoked() | Failed() if not self._group.is_current(event):
                return None
            case Assigned():
                self._group.took_over(event)
                self._take_over(event.partitions)
            case Revoked():
                try:
                    self._give_up(event.partitions, event.lost, _Patience(CLOSE_TIMEOUT))
                finally:
                    self._group.revoked(event)
            case Failed() if event.retried:
                self._report_error(event.error)
            case Failed():
                return _native.Message(error=event.error)
            case Located():
                # Several partitions may fail; each failure is a message of its own.
                for error in self._assignment.begin(event):
                    self._events.append(LookupFailed(None, error))
            case LookupFailed():
                if event.lookup is None or self._assignment.waits_for(event.lookup):
                    return _native.Message(error=event.error)
            case Committed():
                self._callbacks["on_commit"](event.error, event.partitions)
            case TriedAgain():
                self._report_error(event.error)
        return None

    def _take_over(self, partitions: list[TopicPartition]) -> None:
        kept = self._owned if self._group.incremental else []
        self._owned = [*kept, *partitions]
        self._callback_must_assign = True
        try:
            if self._on_assign is not None:
                self._on_assign(self, list(partitions))
        finally:
            # A callback that raises does not keep its partitions from being read: the group counts on this
            # member for them. poll raises its exception.
            if self._core is not None and self._callback_must_assign:
                if self._group.incremental:
                    self.incremental_assign([found for found in partitions if found not in self._assignment])
                else:
                    self.assign(partitions)

    def _give_up(self, partitions: list[TopicPartition], lost: bool, patience: _Patience) -> None:
        kept = self._owned if self._group.incremental else []
        self._owned = [found for found in kept if found not in partitions]
        self._callback_must_assign = True
        callback = (self._on_lost or self._on_revoke) if lost else self._on_revoke
        try:
            if callback is not None:
                callback(self, list(partitions))
        finally:
            # A callback that closed the consumer has left nothing to do.
            if self._core is not None:
                if self._callback_must_assign and self._group.incremental:
                    self.incremental_unassign([found for found in partitions if found in self._assignment])
                elif self._callback_must_assign:
                    self.unassign()
                if not lost:
                    # The next generation's members begin where this one's commits end.
                    patience.spend(self._commits.flush)

    # ---- positions ----

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The offset after the last message handed out, OFFSET_INVALID before the first."""
        core = self._open()
        results = []
        for partition in partitions:
            progress = core.progress(partition.topic, partition.partition)
            offset = OFFSET_INVALID if progress is None else progress[0]
            results.append(TopicPartition(partition.topic, partition.partition, offset))
        return results

    def seek(self, partition: TopicPartition) -> None:
        """Goes on at the partition's offset (a logical one too). The partition must be assigned."""
        self._open()
        if partition not in self._assignment:
            raise failed(
                KafkaError._STATE,
                f"Failed to seek to offset {partition.offset}: the partition is not assigned",
            )
        if partition.offset in (OFFSET_STORED, OFFSET_INVALID):
            raise failed(KafkaError._INVALID_ARG, "seek needs an offset, OFFSET_BEGINNING or OFFSET_END")
        self._assignment.seek(partition)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Hands out no messages of these partitions until `resume`."""
        self._set_paused(partitions, True)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Undoes `pause`."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: list[TopicPartition], paused: bool) -> None:
        self._open()
        for partition in partitions:
            if partition not in self._assignment:
                raise failed(KafkaError._UNKNOWN_PARTITION, f"{partition} is not assigned")
        self._assignment.set_paused(partitions, paused)

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The first offset at or after the timestamp (milliseconds) given as each partition's offset,
        OFFSET_END where no record is as late.
        """
        self._open()
        questions = [(partition.topic, partition.partition, partition.offset) for partition in partitions]
        answers = {
            (topic, number): (offset, error)
            for topic, number, offset, _, _, error in self._network.list_offsets(
                questions, timeout=seconds(timeout)
            )
        }
        results = []
        for partition in partitions:
            offset, error = answers[partition.topic, partition.partition]
            result = TopicPartition(
                partition.topic, partition.partition, offset if offset != -1 else OFFSET_END
            )
            result.error = error
            results.append(result)
        if results and all(result.error is not None for result in results):
            raise KafkaException(results[0].error)
        return results

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """The first offset and the one after the last; `cached` does not ask and may be OFFSET_INVALID."""
        core = self._open()
        topic, number = partition.topic, partition.partition
        if cached:
            progress = core.progress(topic, number)
            low, high = (-1, -1) if progress is None else progress[3:]
            return (low if low >= 0 else OFFSET_INVALID, high if high >= 0 else OFFSET_INVALID)
        limits = []
        for timestamp in (OFFSET_BEGINNING, OFFSET_END):
            [(_, _, offset, _, _, error)] = self._network.list_offsets(
                [(topic, number, timestamp)], timeout=seconds(timeout)
            )
            if error is not None:
                raise KafkaException(error)
            limits.append(offset)
        return limits[0], limits[1]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's brokers and topics (or one topic).

        Seconds; negative waits for as long as it takes.
        """
        self._open()
        return list_topics(self._network, topic, timeout, create=False)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """The cluster's id."""
        return self.list_topics(timeout=timeout).cluster_id

    def memberid(self) -> str:
        """This consumer's member id in its group; empty while it has none."""
        self._open()
        return self._group.member_id

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer's membership, for `Producer.send_offsets_to_transaction`."""
        self._open()
        return self._group.metadata()

    # ---- offsets ----

    def store_offsets(
        self, message: _native.Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Sets what the next commit commits, with enable.auto.offset.store=false."""
        core = self._open()
        for partition in self._named(message, offsets) or []:
            epoch = -1 if partition.leader_epoch is None else partition.leader_epoch
            if not core.store(partition.topic, partition.partition, partition.offset, epoch):
                raise failed(KafkaError._STATE, f"{partition.topic}-{partition.partition} is not assigned")

    def commit(
        self,
        message: _native.Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commits a message's offset + 1, the offsets given, or (without either) what was consumed.

        Asynchronous: returns None at once, and on_commit is called with the outcome. Otherwise waits for this
        commit and those before it, returns the partitions with each one's error, and raises KafkaException
        when nothing was committed: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION or (group.protocol=consumer)
        STALE_MEMBER_EPOCH when the group has given the partitions to others.
        """
        core = self._open()
        partitions = self._named(message, offsets)
        if partitions is None:
            partitions = _Stored(core)()
        if not asynchronous:
            return self._commits.commit(partitions)
        if "on_commit" in self._callbacks and len(self._commits) + len(self._events) >= UNREPORTED_MAX:
            text = f"Commit failed: {UNREPORTED_MAX:,} commits wait for on_commit; poll, and commit again"
            raise failed(KafkaError._QUEUE_FULL, text)
        if partitions:
            self._commits.commit_later(partitions)
        return None

    def _named(
        self, message: _native.Message | None, offsets: list[TopicPartition] | None
    ) -> list[TopicPartition] | None:
        if message is not None and offsets is not None:
            raise ValueError("expected either message or offsets, not both")
        if message is None:
            return None if offsets is None else list(offsets)
        error = message.error()
        topic = message.topic()
        if error is not None or topic is None:
            raise failed(KafkaError._INVALID_ARG, "a message that carries an error has no offset to commit")
        return [
            TopicPartition(
                topic, message.partition(), message.offset() + 1, leader_epoch=message.leader_epoch()
            )
        ]

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The group's committed offsets, OFFSET_INVALID where there is none."""
        self._open()
        return self._offsets.committed(list(partitions), seconds(timeout))

    # ---- the end ----

    def close(self) -> None:
        """Commits what was consumed, leaves the group and stops. Closing twice is allowed.

        Waits for brokers that do not answer 10 seconds in all.
        """
        if self._core is None:
            return
        core = self._open()
        patience = _Patience(CLOSE_TIMEOUT)
        try:
            self._leave(patience)
            self._commit_consumed()
            patience.spend(self._commits.flush)
        finally:
            self._core = None
            self._group.close()
            self._commits.stop()
            patience.spend(self._offsets.stop)
            try:
                self._report_commits()
            finally:
                core.close()

    def _leave(self, patience: _Patience) -> None:
        if not self._group.subscribed:
            return
        lost = self._group.lost
        self._group.prepare_to_leave()
        try:
            if self._owned:
                self._give_up(self._owned, lost, patience)
        finally:
            patience.spend(self._commits.flush)
            patience.spend(self._group.leave)

    def _report_commits(self) -> None:
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Committed):
                self._callbacks["on_commit"](event.error, event.partitions)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Without close() the group learns of it when the session times out; the threads end now.
        core: _native.ConsumerCore | None = getattr(self, "_core", None)
        if core is not None and hasattr(self, "_offsets"):
            self._group.close()
            self._commits.stop()
            self._offsets.stop(0)
            core.close()

    def _open(self) -> _native.ConsumerCore:
        if self._core is None:
            raise RuntimeError("Consumer closed")
        self._commits.check_fork()
        return self._core


class _Patience:
    """Seconds that several waits for brokers share. What the application's callbacks take does not count."""

    def __init__(self, left: float) -> None:
        self._left = left

    def spend(self, wait: Callable[[float], object]) -> None:
        """Runs `wait` with the seconds that are left."""
        begun = time.monotonic()
        try:
            wait(self._left)
        finally:
            self._left = max(self._left - (time.monotonic() - begun), 0.0)


class _OffsetResetsLogged:
    """Calls error_cb. An offset that was reset is logged instead, as in librdkafka."""

    def __init__(self, error_cb: Callable[[KafkaError], None]) -> None:
        self._error_cb = error_cb

    def __call__(self, error: KafkaError) -> None:
        report = log_error if error == KafkaError._AUTO_OFFSET_RESET else self._error_cb
        report(error)


class _Poster:
    """Hands events to the consumer without holding on to it."""

    def __init__(self, events: deque[Event], core: _native.ConsumerCore) -> None:
        self._events = events
        self._core = core

    def __call__(self, event: Event) -> None:
        self._events.append(event)
        self._core.interrupt()


class _Stored:
    """The offsets to commit, as the core has them."""

    def __init__(self, core: _native.ConsumerCore) -> None:
        self._core = core

    def __call__(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition, offset, leader_epoch=epoch)
            for topic, partition, offset, epoch in self._core.stored()
        ]


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else time.monotonic() + timeout


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.0)
