"""Coordinators of a state topic's partitions: loads, calls, timers and appends.

Each partition that this broker leads has a machine of its own. It is read from the partition's beginning;
until then requests get COORDINATOR_LOAD_IN_PROGRESS. When another broker leads the partition, the machine is
dropped and waiting requests get NOT_COORDINATOR. All requests get it when the partition cannot be read.

Owns the event loop's timer, the futures of waiting requests and the appends; no decisions. Lives on the event
loop: calls of a machine and its appends are in order. An append is one write to the page cache, and counts
once every in-sync replica has it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from cluster.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaProtocolError,
    NotCoordinator,
    UnknownServerError,
)
from cluster.state_topics.log import partition_of
from cluster.state_topics.messages import Batch, Entry, Machine, Marker, Respond, Token, Write
from cluster.time_slice import TimeSlice

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)
W = TypeVar("W", bound=Write)
M_co = TypeVar("M_co", bound=Machine, covariant=True)
W_contra = TypeVar("W_contra", bound=Write, contravariant=True)

_LATE_MS = 200
"""A timer that is later than this means that the event loop stood still."""

_WARN_INTERVAL_MS = 60_000

_CATCH_UP_MS = 1000
"""Within this time the requests that came while the loop stood still are read."""

_TIMERS_AT_ONCE = 64
"""Timers handled in one step of the event loop, in about a millisecond."""


class StateLog(Protocol):
    """The logs of state topics."""

    def partitions(self, topic: str) -> int | None:
        """How many partitions the topic has; None before it exists."""

    def append(
        self, topic: str, partition: int, batch: Batch, now_ms: int, timeout_ms: int
    ) -> Awaitable[None] | None:
        """Appends one batch. Returns None once every in-sync replica has it, or what waits for that. Both
        raise KafkaProtocolError.
        """

    def read(self, topic: str, partition: int) -> AsyncIterator[Sequence[Entry | Marker]]:
        """Every record of a partition led here, in pieces. Raises KafkaProtocolError."""


class Rules(Protocol[M_co, W_contra]):
    """What differs between the coordinators of groups and of transactions."""

    topic: str
    """The state topic."""

    what: str
    """What the topic has the state of, in the plural, for log lines."""

    def machine(self, partition: int, epoch: int) -> M_co:
        """A machine without state, for a partition led here in this leader epoch."""

    def batch(self, write: W_contra) -> Batch:
        """The batch of a write."""

    def timeout_ms(self, write: W_contra) -> int:
        """How long its batch may take to all in-sync replicas."""

    def subject(self, write: W_contra) -> str:
        """What the write is about, for log lines."""

    def code(self, write: W_contra, code: int) -> int:
        """The error code for clients, of a write that failed with `code`."""

    def carry_out(self, partition: int, action: Any) -> None:
        """Carries out an action that is neither Respond nor Write."""


class Clock:
    """Milliseconds since 1970 that never go back, so that a change of the system clock ends no session."""

    def __init__(self) -> None:
        self._start = time.time() - time.monotonic()

    def now(self) -> int:
        """The time."""
        return int((self._start + time.monotonic()) * 1000)


class _Partition(Generic[M]):
    """A partition led here."""

    def __init__(self, number: int, epoch: int, machine: M) -> None:
        self.number = number
        self.epoch = epoch
        self.machine = machine
        self.loading: asyncio.Task[None] | None = None
        self.waiting: dict[Token, asyncio.Future[Any]] = {}
        self.replicating: set[asyncio.Task[None]] = set()
        self.unreplicated: dict[int, None] = {}
        """The numbers of the writes that wait for replicas, in the order of the log."""

    def settle(self, write: int, code: int) -> list[int]:
        """A write was carried out, or failed with a code. Returns the writes to report, in the order of the
        log: what was written before one that is replicated is replicated too.
        """
        settled = [write]
        if code == NONE and self.unreplicated:
            earlier = itertools.takewhile(lambda number: number != write, self.unreplicated)
            settled = [*earlier, write]
        for number in settled:
            self.unreplicated.pop(number, None)
        return settled

    def drop(self, error: Callable[[], KafkaProtocolError]) -> list[asyncio.Task[None]]:
        """Ends what is under way; requests that wait get the error. Returns the tasks that end."""
        tasks = list(self.replicating) if self.loading is None else [self.loading]
        for task in tasks:
            task.cancel()
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(error())
        self.waiting.clear()
        self.machine.unload()
        return tasks


class Coordinators(Generic[M, W]):
    """The coordinators of a state topic on this broker."""

    def __init__(self, rules: Rules[M, W], state_log: StateLog, clock: Clock) -> None:
        self._rules = rules
        self._log = state_log
        self._clock = clock
        self._partitions: dict[int, _Partition[M]] = {}
        self._tokens = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._warn_after: dict[int, int] = {}
        """By error code, when it is logged again."""
        self._stopped = False

    # ---- partitions ----

    def leadership_changed(self, partition: int, epoch: int | None, new: bool) -> None:
        """This broker leads a partition, since this leader epoch, or (None) it does not."""
        if epoch is None:
            self.lost(partition)
        else:
            self.led(partition, epoch, new)

    def led(self, partition: int, epoch: int, new: bool = False) -> None:
        """This broker leads a partition, since this leader epoch. A `new` one has no records to load."""
        if partition in self._partitions or self._stopped:
            return
        machine = self._rules.machine(partition, epoch)
        led = self._partitions[partition] = _Partition(partition, epoch, machine)
        if new:
            self._do(led, machine.loaded(self.now()))
        else:
            led.loading = asyncio.create_task(self._load(led), name=f"load {self._rules.topic}-{partition}")

    def lost(self, partition: int) -> None:
        """Another broker leads a partition now, or none."""
        led = self._partitions.pop(partition, None)
        if led is not None:
            led.drop(NotCoordinator)

    async def stop(self) -> None:
        """Answers waiting requests with COORDINATOR_NOT_AVAILABLE, so that clients look for the coordinator
        again.
        """
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for led in self._partitions.values() for task in led.drop(CoordinatorNotAvailable)]
        self._partitions.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, led: _Partition[M]) -> None:
        topic, number, what = self._rules.topic, led.number, self._rules.what
        began, entries, skipped = self.now(), 0, 0
        try:
            async for found in self._log.read(topic, number):
                entries += len(found)
                skipped += led.machine.load(found)
        except KafkaProtocolError as error:
            # The log is offline, or led elsewhere; the controller says so next.
            log.warning("the %s of %s-%d could not be loaded: %s", what, topic, number, error)
            self._give_up(led)
            return
        except Exception:
            log.exception(
                "the %s of %s-%d could not be loaded; give another broker the partition", what, topic, number
            )
            self._give_up(led)
            return
        if skipped:
            log.warning("%d records of %s-%d could not be decoded and were skipped", skipped, topic, number)
        led.loading = None
        if entries:
            took = self.now() - began
            log.info("the %s of %s-%d were loaded in %d ms", what, topic, number, took)
        self._do(led, led.machine.loaded(self.now()))

    def _give_up(self, led: _Partition[M]) -> None:
        """The partition could not be loaded. It is loaded again when this broker is elected again."""
        if self._partitions.get(led.number) is led:
            del self._partitions[led.number]
            led.machine.unload()

    async def loaded(self) -> None:
        """Returns when every partition led here has been read."""
        loading = [led.loading for led in self._partitions.values() if led.loading is not None]
        if loading:
            await asyncio.wait(loading)

    @property
    def loading(self) -> bool:
        """A partition is being read."""
        return any(led.loading is not None for led in self._partitions.values())

    def is_loaded(self, partition: int) -> bool:
        """The partition is led here, and was read to its end."""
        led = self._partitions.get(partition)
        return led is not None and led.loading is None

    @property
    def machines(self) -> Iterator[M]:
        """The machines that are loaded."""
        return (led.machine for led in list(self._partitions.values()) if led.loading is None)

    def partition_of(self, key: str) -> int | None:
        """The partition of a group or a transactional id; None before the topic exists."""
        partitions = self._log.partitions(self._rules.topic)
        return None if partitions is None else partition_of(key, partitions)

    def status(self, key: str) -> int:
        """The error for requests about this key if this broker cannot answer them now, else 0."""
        try:
            self.machine(key)
        except KafkaProtocolError as error:
            return error.code
        return NONE

    def machine(self, key: str) -> M:
        """The machine with the state of this key. Raises NotCoordinator, CoordinatorLoadInProgress or
        CoordinatorNotAvailable.
        """
        return self._of(key).machine

    def _of(self, key: str) -> _Partition[M]:
        if self._stopped:
            raise CoordinatorNotAvailable
        number = self.partition_of(key)
        led = None if number is None else self._partitions.get(number)
        if led is None:
            raise NotCoordinator
        if led.loading is not None:
            raise CoordinatorLoadInProgress
        return led

    def now(self) -> int:
        """The coordinators' time, in milliseconds."""
        return self._clock.now()

    # ---- calls ----

    async def ask(self, key: str, call: Callable[[M, Token, int], Iterable[object]]) -> Any:
        """Calls the key's machine with a token and the time, and returns the result that it responds with. If
        the caller is cancelled, the result is dropped. Raises as :meth:`machine`.
        """
        led = self._of(key)
        token = next(self._tokens)
        future = led.waiting[token] = asyncio.get_running_loop().create_future()
        try:
            self._do(led, call(led.machine, token, self.now()))
            return await future
        finally:
            led.waiting.pop(token, None)

    def do(self, key: str, call: Callable[[M, int], Iterable[object]]) -> None:
        """Calls the key's machine with the time and carries out its actions. Raises as :meth:`machine`."""
        led = self._of(key)
        self._do(led, call(led.machine, self.now()))

    def do_in(self, partition: int, epoch: int | None, call: Callable[[M, int], Iterable[object]]) -> None:
        """As :meth:`do`, for a partition that is led here since this leader epoch (None: any) and loaded."""
        led = self._partitions.get(partition)
        if led is not None and epoch in (None, led.epoch) and led.loading is None:
            self._do(led, call(led.machine, self.now()))

    def do_in_all(self, call: Callable[[M, int], Iterable[object]]) -> None:
        """As :meth:`do`, for every partition that is loaded."""
        for led in list(self._partitions.values()):
            if led.loading is None:
                self._do(led, call(led.machine, self.now()))

    async def sweep(
        self,
        found: Callable[[M, int], Iterable[str]],
        act: Callable[[M, str, int], Iterable[object]],
        interval_ms: int,
    ) -> None:
        """Every `interval_ms`, calls ``act`` for each key that ``found`` finds at that time in a machine.
        There may be very many, so other work runs in between. Ends when it is cancelled.
        """
        while True:
            await asyncio.sleep(interval_ms / 1000)
            time_slice = TimeSlice()
            for machine in self.machines:
                for key in found(machine, self.now()):
                    try:
                        self.do(key, lambda led, now, key=key: act(led, key, now))  # type: ignore[misc]
                    except KafkaProtocolError:
                        # Another broker leads the partition now.
                        break
                    except Exception:
                        log.exception("%s of %s failed for %s", act.__name__, self._rules.what, key)
                    await time_slice.yield_if_over()
                await time_slice.yield_if_over()

    # ---- actions ----

    def _do(self, led: _Partition[M], actions: Iterable[object]) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            if isinstance(action, Respond):
                future = led.waiting.pop(action.token, None)
                if future is not None and not future.done():
                    future.set_result(action.result)
            elif isinstance(action, Write):
                code = self._append(led, action)  # type: ignore[arg-type]
                if code is not None:
                    queue.extendleft(reversed(self._settled(led, action.id, code)))
            else:
                self._rules.carry_out(led.number, action)
        self._set_timer(led.machine.next_deadline())

    def _settled(self, led: _Partition[M], write: int, code: int) -> list[object]:
        """What a machine does at the end of a write, and of those before it."""
        now = self.now()
        return [
            action for number in led.settle(write, code) for action in led.machine.stored(number, code, now)
        ]

    def _append(self, led: _Partition[M], write: W) -> int | None:
        """Appends a write. Returns its error code, or None if it waits for replicas."""
        rules = self._rules
        try:
            waiting = self._log.append(
                rules.topic, led.number, rules.batch(write), self.now(), rules.timeout_ms(write)
            )
        except Exception as error:
            return self._write_code(write, error)
        if waiting is None:
            return NONE
        task = asyncio.ensure_future(self._replicated(led, write, waiting))
        led.unreplicated[write.id] = None
        led.replicating.add(task)
        task.add_done_callback(led.replicating.discard)
        return None

    async def _replicated(self, led: _Partition[M], write: W, waiting: Awaitable[None]) -> None:
        code = NONE
        try:
            await waiting
        except Exception as error:
            code = self._write_code(write, error)
        if write.id in led.unreplicated:
            self._do(led, self._settled(led, write.id, code))

    def _write_code(self, write: W, error: Exception) -> int:
        """The error code for a write that failed. Logs the reason."""
        subject = self._rules.subject(write)
        if not isinstance(error, KafkaProtocolError):
            log.error("%s: its record could not be written", subject, exc_info=error)
            return UnknownServerError.code
        now = self.now()
        # Each kind of error once a minute, because clients try again at once.
        if now >= self._warn_after.get(error.code, 0):
            self._warn_after[error.code] = now + _WARN_INTERVAL_MS
            log.warning("%s: its record could not be written: %s", subject, error)
        return self._rules.code(write, error.code)

    # ---- timers ----

    def _set_timer(self, deadline: int | None) -> None:
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
                "the event loop stood still for %d ms; the timeouts of %s are extended by that",
                late_ms,
                self._rules.what,
            )
            for led in self._partitions.values():
                led.machine.postpone(late_ms + _CATCH_UP_MS)
        now = self.now()
        failed: set[int] = set()
        due = [led for led in self._partitions.values() if _is_due(led.machine.next_deadline(), now)]
        for led in due:
            # For timers that are left over, the timer is set again at once, and other work runs in between.
            try:
                self._do(led, led.machine.advance(now, max(_TIMERS_AT_ONCE // len(due), 1)))
            except Exception:
                # The other timers go on, and this partition's with its next request.
                log.exception("a timer of the %s of partition %d failed", self._rules.what, led.number)
                failed.add(led.number)
        deadlines = (
            led.machine.next_deadline() for number, led in self._partitions.items() if number not in failed
        )
        self._set_timer(min((at for at in deadlines if at is not None), default=None))


def _is_due(deadline: int | None, now: int) -> bool:
    return deadline is not None and deadline <= now
