"""The controller's driver: elects itself, reads the znodes, carries out the state machine's actions.

One task takes one piece of work after the other: an event, or a command of a handler. A piece is done when
its znodes are written, its logs are open and the view is published. A command on many topics runs in slices
with other work in between; only one such command runs at a time. A command whose caller is gone does not
begin. Lives on the event loop; logs are opened in threads.

After a lost connection the interrupted call is repeated, as in Kafka. After a lost session or a crash the
znodes are read again: missing partition states are written, and unfinished deletions are repeated, because
the znode that asks for a deletion goes last. A command interrupted by a lost session answers
REQUEST_TIMED_OUT, since it may have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cluster.controller import znodes
from cluster.controller._actions import Executor, Logs
from cluster.controller.metadata import MetadataCache
from cluster.controller.names import TopicNames
from cluster.controller.state import UNREADABLE, Action, CloseTopic, ControllerState, Withdraw
from cluster.controller.topics import (
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicToDelete,
    plan_partitions,
    plan_topic,
)
from cluster.controller.zookeeper import (
    Check,
    ConnectionLostError,
    Create,
    NodeExistsError,
    NoNodeError,
    SetData,
    ZooKeeper,
)
from cluster.errors import (
    InvalidConfig,
    InvalidPartitions,
    KafkaProtocolError,
    NotController,
    PolicyViolation,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from cluster.model import (
    NO_TOPIC_ID,
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    PartitionState,
    Replicas,
    TopicInfo,
    new_topic_id,
    topic_id_text,
)
from cluster.time_slice import TimeSlice, in_thread_if_long

log = logging.getLogger(__name__)

_DEFAULT_TIMEOUT_SECONDS = 30.0
"""The default of Kafka's request.timeout.ms."""

T = TypeVar("T")

_READS_AT_ONCE = 256
"""How many topics the start reads at the same time: enough to hide the round trips, few enough for the
memory.
"""

_SLICE_WEIGHT = 512
"""Topics and partitions in one slice of a command."""

_CREATED_AT_ONCE = 256
"""How many topics are written and opened at the same time: enough to hide the round trips."""

Permit = Callable[[int], None]
"""Called with the number of partitions before they are created or deleted. Raises if the quota forbids it."""


def _permitted(_partitions: int) -> None:
    """The broker's own changes have no quota."""


Outcomes = list[KafkaProtocolError | None]
"""The result of each item of a command, in order: None, or the error."""


class Controller:
    """The controller of a cluster, on the broker `local`."""

    def __init__(
        self,
        zk: ZooKeeper,
        logs: Logs,
        metadata: MetadataCache,
        local: BrokerId,
        defaults: TopicDefaults,
        *,
        delete_enabled: bool = True,
        unclean_election: bool = False,
    ) -> None:
        self._zk = zk = zk.repeating()
        self._metadata = metadata
        self._local = local
        self._defaults = defaults
        self._delete_enabled = delete_enabled
        self._unclean_election = unclean_election
        self._state = ControllerState(local, delete_enabled, unclean_election)
        self._logs = logs
        self._executor = Executor(zk, logs, metadata, self._state)
        self._work: OrderedDict[object, Callable[[], Awaitable[None]]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._long = asyncio.Lock()
        """Held by the running command on many topics."""
        self._checking = asyncio.Lock()
        """Held by the running check of many topics."""
        self._begun: set[asyncio.Task[None]] = set()
        self._pending: set[str] = set()
        self._worker: asyncio.Task[None] | None = None
        self._active = False
        self._topics_deleted: Callable[[Sequence[str]], None] | None = None
        self._failed: defaultdict[str, set[int]] = defaultdict(set)
        """By topic: partitions whose logs failed and that are not published as offline yet."""
        self._deleted: list[str] = []
        """Topics that the current piece of work deleted."""

    @property
    def active(self) -> bool:
        """This broker is the controller."""
        return self._active

    @property
    def waiting(self) -> int:
        """How many pieces of work are queued."""
        return len(self._work)

    def on_topics_deleted(self, callback: Callable[[Sequence[str]], None]) -> None:
        """Sets the function that is called on the loop after each piece of work with the names of deleted
        topics.
        """
        self._topics_deleted = callback

    async def start(self) -> None:
        """Elects itself and reads everything. Returns when every partition is open and published."""
        self._worker = asyncio.create_task(self._run(), name="controller")
        await self._command(self._elect)

    async def stop(self) -> None:
        """Ends the task. The next controller repeats the interrupted piece of work."""
        tasks = [*self._begun] if self._worker is None else [*self._begun, self._worker]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._active = False

    def session_renewed(self) -> None:
        """A new session replaced a lost one: elect and read again."""
        self._active = False
        self._event("elect", self._elect)

    # ---- the one task ----

    async def _run(self) -> None:
        time_slice = TimeSlice()
        while True:
            await time_slice.yield_if_over()
            while not self._work:
                self._arrived.clear()
                await self._arrived.wait()
            _, work = self._work.popitem(last=False)
            try:
                try:
                    await work()
                finally:
                    self._report_deleted()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("a piece of work of the controller failed; the next one follows")

    def _report_deleted(self) -> None:
        deleted, self._deleted = self._deleted, []
        if deleted and self._topics_deleted is not None:
            self._topics_deleted(deleted)

    def _queue(self, work: Callable[[], Awaitable[None]]) -> object:
        """Queues `work` and returns its key in the queue."""
        key = object()
        self._work[key] = work
        self._arrived.set()
        return key

    def _event(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Queues `work` unless an event of that name is queued. It is repeated after a lost connection."""
        if name in self._pending:
            return
        self._pending.add(name)

        async def run() -> None:
            self._pending.discard(name)
            try:
                await work()
            except ConnectionLostError:
                await self._zk.wait_connected()
                self._event(name, work)

        self._queue(run)

    async def _command(
        self, work: Callable[[], Awaitable[T]], on_begin: Callable[[], None] = lambda: None
    ) -> T:
        """Queues `work` and waits for its result. Cancelled before `work` begins, it does not begin."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            on_begin()
            try:
                result = await work()
            except ConnectionLostError:
                self._event("topics", self._topics_changed)
                if not outcome.done():
                    outcome.set_exception(
                        RequestTimedOut("The coordinator did not answer; the change may have been made.")
                    )
            except Exception as error:
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(result)

        key = self._queue(run)
        try:
            return await outcome
        finally:
            self._work.pop(key, None)

    async def _in_slices(
        self, items: Sequence[T], weight: Callable[[T], int], work: Callable[[Sequence[T]], Awaitable[None]]
    ) -> None:
        """Does `work` on slices of the items. Cancelled before the first slice begins, it does nothing; after
        that, all.
        """
        begun = asyncio.Event()

        async def do() -> None:
            end = _slice_end(items, 0, weight)
            async with self._long if end < len(items) else nullcontext():
                await self._command(partial(work, items[:end]), begun.set)
                while end < len(items):
                    start, end = end, _slice_end(items, end, weight)
                    await self._command(partial(work, items[start:end]))

        task = asyncio.create_task(do())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        # Reads the exception: after a cancellation the task is not awaited.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not begun.is_set():
                task.cancel()
            raise

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        await self._executor.run(actions)

    # ---- election and loading ----

    async def _elect(self) -> None:
        epoch, version = await self._read_epoch()
        now = int(time.time() * 1000)
        try:
            await self._zk.transaction(
                [
                    Create(znodes.CONTROLLER, znodes.encode_controller(self._local, now), ephemeral=True),
                    SetData(znodes.CONTROLLER_EPOCH, str(epoch + 1).encode(), version),
                ]
            )
        except NodeExistsError:
            if await self._holds_office():
                return
            await self._follow()
            return
        self._active = True
        self._state.elected(ControllerEpoch(epoch + 1))
        self._executor.guard = Check(znodes.CONTROLLER_EPOCH, version + 1)
        self._metadata.controller_id = self._local
        log.info("broker %d is the controller, epoch %d", self._local, epoch + 1)
        await self._watch_office()
        await self._load()

    async def _read_epoch(self) -> tuple[int, int]:
        found = await self._zk.find(znodes.CONTROLLER_EPOCH)
        if found is None:
            try:
                await self._zk.create(znodes.CONTROLLER_EPOCH, b"0")
            except NodeExistsError:
                return await self._read_epoch()
            return 0, 0
        return znodes.decode_controller_epoch(found[0]), found[1].version

    async def _holds_office(self) -> bool:
        """This session is the controller already: the answer to an earlier attempt was lost."""
        found = await self._zk.find(znodes.CONTROLLER)
        if found is None or found[1].owner != self._zk.session_id:
            return False
        if not self._active:
            await self._zk.delete(znodes.CONTROLLER)
            await self._elect()
        else:
            await self._watch_office()
        return True

    async def _watch_office(self) -> None:
        """Elects this broker again if the controller's znode is deleted."""
        try:
            await self._zk.get(znodes.CONTROLLER, watch=lambda: self._event("elect", self._elect))
        except NoNodeError:
            self._event("elect", self._elect)

    async def _follow(self) -> None:
        """Another broker is the controller. Elects this one when it goes."""
        self._active = False
        try:
            data, _ = await self._zk.get(znodes.CONTROLLER, watch=lambda: self._event("elect", self._elect))
        except NoNodeError:
            await self._elect()
            return
        self._metadata.controller_id = znodes.decode_controller(data)
        log.warning("broker %d is the controller; this broker waits", self._metadata.controller_id)

    async def _load(self) -> None:
        await self._read_brokers()
        if await self._zk.find(znodes.FEATURE) is None:
            with contextlib.suppress(NodeExistsError):
                await self._zk.create(znodes.FEATURE, znodes.encode_features())
        await self._deletions_requested()
        await self._topics_changed()
        for topic in self._metadata.snapshot():
            if topic.name not in self._state.topics:
                await self._carry_out([Withdraw(topic.name), CloseTopic(topic)])

    def _watch(self, name: str, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        return lambda: self._event(name, work) if self._active else None

    async def _load_topics(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _READS_AT_ONCE):
            batch = names[start : start + _READS_AT_ONCE]
            for name, actions in zip(
                batch, await asyncio.gather(*(self._load_topic(name) for name in batch)), strict=True
            ):
                await self._settle(name, actions)

    async def _settle(self, name: str, actions: Sequence[Action]) -> None:
        """Carries out the actions for one topic."""
        await self._carry_out(actions)
        self._state.settled(name)

    async def _load_topic(self, name: str) -> list[Action]:
        """Reads a topic. If its znode cannot be read, a known topic stays as it is; an unknown one is not
        served.
        """
        watch = self._watch(f"topic {name}", lambda: self._topic_changed(name))
        try:
            data, _ = await self._zk.get(znodes.topic_path(name), watch)
        except NoNodeError:
            return self._state.topic_vanished(name)
        try:
            topic_id, assignment = znodes.decode_topic(name, data)
        except znodes.ZnodeError as error:
            log.error(
                "topic %s is %s: %s; write it as Kafka does (zookeeper-shell set), and it is read again",
                name,
                "kept as it was" if name in self._state.topics else "not served",
                error,
            )
            return []
        states = await asyncio.gather(*(self._read_state(name, number) for number in assignment))
        return self._state.topic_loaded(
            name,
            topic_id,
            new_topic_id(),
            assignment,
            {number: state for number, state in zip(assignment, states, strict=True) if state is not None},
            await self._read_config(name),
        )

    async def _read_state(self, name: str, number: int) -> PartitionState | None:
        found = await self._zk.find(znodes.state_path(name, number))
        if found is None:
            return None
        try:
            return znodes.decode_state(name, number, found[0], found[1].version)
        except znodes.ZnodeError as error:
            log.error(
                "partition %s-%d is not served: %s; write it as Kafka does (zookeeper-shell set), and start "
                "the broker again",
                name,
                number,
                error,
            )
            return UNREADABLE

    async def _read_config(self, name: str) -> dict[str, str]:
        path = znodes.topic_config_path(name)
        found = await self._zk.find(path)
        try:
            return znodes.decode_config(path, found[0] if found else None)
        except znodes.ZnodeError as error:
            log.error(
                "topic %s has the broker's defaults for its settings: %s; write it as Kafka does "
                "(zookeeper-shell set), "
                "and start the broker again",
                name,
                error,
            )
            return {}

    async def _watch_topic(self, name: str) -> None:
        watch = self._watch(f"topic {name}", lambda: self._topic_changed(name))
        with contextlib.suppress(NoNodeError):
            await self._zk.get(znodes.topic_path(name), watch)

    async def _read_brokers(self) -> None:
        ids = await self._zk.children(znodes.BROKER_IDS, self._watch("brokers", self._read_brokers))
        found = await asyncio.gather(*(self._zk.find(znodes.broker_path(int(name))) for name in ids))
        brokers: dict[BrokerId, BrokerInfo] = {}
        for name, node in zip(ids, found, strict=True):
            if node is not None:
                broker = BrokerId(int(name))
                brokers[broker] = znodes.decode_broker(broker, node[0], node[1].czxid)
        self._metadata.brokers = brokers
        # This controller can command only the broker it runs in.
        await self._carry_out(
            self._state.brokers_changed({i: b for i, b in brokers.items() if i == self._local})
        )

    # ---- events from watches ----

    async def _topics_changed(self) -> None:
        await self._finish_deletions(await self._zk.children(znodes.DELETE_TOPICS))
        names = set(await self._zk.children(znodes.TOPICS, self._watch("topics", self._topics_changed)))
        for name in set(self._state.topics) - names:
            await self._carry_out(self._state.topic_vanished(name))
        settled = self._state.topics.keys() - self._state.unsettled
        await self._load_topics(sorted(names - settled))

    async def _topic_changed(self, name: str) -> None:
        await self._settle(name, await self._load_topic(name))

    async def _deletions_requested(self) -> None:
        watch = self._watch("delete", self._deletions_requested)
        await self._finish_deletions(await self._zk.children(znodes.DELETE_TOPICS, watch))

    async def _finish_deletions(self, requested: Iterable[str]) -> None:
        """Deletes the topics. The znode says whether a topic exists: an interrupted deletion removed it from
        the state.
        """
        for name in sorted(requested):
            await self._delete(name, await self._zk.find(znodes.topic_path(name)) is not None)

    async def _delete(self, name: str, exists: bool) -> None:
        await self._carry_out(self._state.deletion_requested(name, exists))
        if exists and self._delete_enabled:
            self._deleted.append(name)

    async def topic_config_changed(self, name: str) -> None:
        """Reads a topic's settings again. On return they are applied to its logs."""
        await self._command(lambda: self._read_topic_config(name))

    async def _read_topic_config(self, name: str) -> None:
        await self._carry_out(self._state.config_changed(name, await self._read_config(name)))

    def brokers_changed(self) -> None:
        """Reads the brokers' registrations again."""
        self._event("brokers", self._read_brokers)

    def unclean_election_changed(self, enabled: bool) -> None:
        """`unclean.leader.election.enable` was changed."""
        self._unclean_election = enabled
        self._event("unclean election", self._elect_uncleanly)

    async def _elect_uncleanly(self) -> None:
        await self._carry_out(self._state.unclean_election_changed(self._unclean_election))

    def logs_failed(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Logs of this broker went offline while they were served: publishes their partitions as offline."""
        for topic, number in partitions:
            self._failed[topic].add(number)
        self._event("failed logs", self._take_offline)

    async def _take_offline(self) -> None:
        failed, self._failed = self._failed, defaultdict(set)
        for topic, numbers in failed.items():
            await self._carry_out(self._state.logs_failed(topic, numbers))

    # ---- commands of the handlers ----

    def _require_active(self) -> None:
        if not self._active:
            raise NotController

    def _assignable(self) -> list[BrokerInfo]:
        return list(self._state.brokers.values())

    async def create_topic(self, new: NewTopic) -> TopicInfo:
        """Creates a topic and returns it published. Raises KafkaProtocolError."""
        [made] = await self.create_topics([new])
        if isinstance(made, KafkaProtocolError):
            raise made
        return made

    async def create_topics(
        self, news: Sequence[NewTopic], validate_only: bool = False, permit: Permit = _permitted
    ) -> list[TopicInfo | KafkaProtocolError]:
        """Creates topics, or only checks them. Returns each topic, published, or its error."""
        self._require_active()
        if validate_only:
            async with self._checking if len(news) > _SLICE_WEIGHT else nullcontext():
                return await self._plan_topics(news)
        made: list[TopicInfo | KafkaProtocolError] = []

        async def create(part: Sequence[NewTopic]) -> None:
            self._require_active()
            planned = await self._plan_topics(part)
            # Another broker may have been elected meanwhile.
            self._require_active()
            made.extend(await self._create_each(planned, permit))

        await self._in_slices(news, _partitions_of, create)
        return made

    async def _plan_topics(self, news: Sequence[NewTopic]) -> list[TopicInfo | KafkaProtocolError]:
        names = TopicNames(self._state.topics)
        logs_left = self._logs.partitions_left()
        planned: list[TopicInfo | KafkaProtocolError] = []
        time_slice = TimeSlice()
        for new in news:
            parts = new.partitions + len(new.assignment) + len(new.config)
            topic = await in_thread_if_long(parts, partial(self._plan, new, names, logs_left))
            if isinstance(topic, TopicInfo):
                logs_left -= self._own(topic.assignment)
            planned.append(topic)
            await time_slice.yield_if_over()
        return planned

    async def _create_each(
        self, planned: Sequence[TopicInfo | KafkaProtocolError], permit: Permit
    ) -> list[TopicInfo | KafkaProtocolError]:
        """Creates planned topics, many at the same time."""
        made: list[TopicInfo | KafkaProtocolError] = []
        time_slice = TimeSlice()
        for start in range(0, len(planned), _CREATED_AT_ONCE):
            permitted = _permit_each(planned[start : start + _CREATED_AT_ONCE], permit)
            made += await asyncio.gather(*(self._create(topic) for topic in permitted))
            await time_slice.yield_if_over()
        return made

    def _own(self, assignment: Mapping[int, Replicas]) -> int:
        """How many partitions have a replica on this broker, which is a log."""
        return sum(self._local in item.replicas for item in assignment.values())

    def _check_limits(self, topic: TopicInfo, added: int, logs_left: int) -> None:
        """Refuses a topic too large for a znode, or `added` logs above this broker's limits."""
        partitions = len(znodes.encode_topic(topic.id, topic.assignment))
        settings = len(znodes.encode_config(topic.config))
        if partitions + settings > znodes.REQUEST_BYTES_MAX:
            reason = (
                f"Topic '{topic.name}' takes {partitions} bytes for its {len(topic.assignment)} partitions "
                f"and {settings} for its settings in the coordinator, which takes {znodes.REQUEST_BYTES_MAX} "
                "at most (jute.maxbuffer)"
            )
            if settings > partitions:
                raise InvalidConfig(f"{reason}; ask for fewer or shorter settings.")
            raise InvalidPartitions(f"{reason}; ask for fewer partitions.")
        if added > logs_left:
            raise PolicyViolation(
                f"Topic '{topic.name}' needs {added} more logs on broker {self._local}, whose limits of open "
                f"files (ulimit -n) and mappings (vm.max_map_count) allow {logs_left}; raise the lower "
                "limit, or ask for fewer partitions."
            )

    def _plan(self, new: NewTopic, names: TopicNames, logs_left: int) -> TopicInfo | KafkaProtocolError:
        brokers = self._assignable()
        start, shift = (random.randrange(max(1, len(brokers))) for _ in range(2))
        try:
            plan = plan_topic(new, brokers, names, self._defaults, start, shift)
            topic = TopicInfo(plan.name, new_topic_id(), plan.assignment, {}, plan.config)
            self._check_limits(topic, self._own(topic.assignment), logs_left)
        except KafkaProtocolError as error:
            return error.with_traceback(None)
        names.add(plan.name)
        return topic

    async def _create(self, topic: TopicInfo | KafkaProtocolError) -> TopicInfo | KafkaProtocolError:
        if isinstance(topic, KafkaProtocolError):
            return topic
        if not await self._write_topic(topic):
            self._event("topics", self._topics_changed)
            return TopicAlreadyExists(f"Topic '{topic.name}' already exists.")
        await self._settle(
            topic.name,
            self._state.topic_loaded(topic.name, topic.id, topic.id, topic.assignment, {}, topic.config),
        )
        # The watch can wait: this controller wrote the node, so no change was missed.
        self._event(f"watch {topic.name}", lambda: self._watch_topic(topic.name))
        return self._metadata.topic(topic.name) or topic

    async def _write_topic(self, topic: TopicInfo) -> bool:
        """Writes a topic. Returns False if another topic has this name.

        A repeated call finds the topic that an earlier attempt wrote, which is this one if its data is the
        same.
        """
        path = znodes.topic_config_path(topic.name)
        config = znodes.encode_config(topic.config)
        create = Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.id, topic.assignment))
        # An earlier topic may have left its settings.
        for settings in (Create(path, config), SetData(path, config)):
            with contextlib.suppress(NodeExistsError):
                await self._zk.transaction([self._executor.guard, settings, create])
                return True
        found = await self._zk.find(create.path)
        return found is not None and found[0] == create.data

    async def create_partitions(
        self,
        news: Sequence[NewPartitions],
        outcomes: Outcomes,
        validate_only: bool = False,
        permit: Permit = _permitted,
    ) -> None:
        """Adds partitions to topics, or only checks it. A topic's partitions are published before its outcome
        is set.
        """

        async def create(new: NewPartitions) -> None:
            await self._create_partitions(new, validate_only, permit)

        if validate_only:
            await self._each(news, create, outcomes)
            return
        await self._in_slices(news, lambda new: new.count, lambda part: self._each(part, create, outcomes))

    async def _each(
        self, items: Sequence[T], work: Callable[[T], Awaitable[None]], outcomes: Outcomes
    ) -> None:
        """Does `work` on each item. A failure ends only its own item; a lost connection ends them all."""
        time_slice = TimeSlice()
        for item in items:
            try:
                await work(item)
                outcomes.append(None)
            except ConnectionLostError:
                raise
            except KafkaProtocolError as error:
                # The frames of the traceback would keep the outcomes alive.
                outcomes.append(error.with_traceback(None))
            except Exception as error:
                log.exception("a command failed")
                outcomes.append(UnknownServerError(str(error)))
            await time_slice.yield_if_over()

    async def _create_partitions(self, new: NewPartitions, validate_only: bool, permit: Permit) -> None:
        self._require_active()
        topic = self._state.topics.get(new.name)
        if topic is None:
            raise UnknownTopicOrPartition(f"The topic '{new.name}' does not exist.")
        grown = await in_thread_if_long(new.count, partial(self._grown, new, topic))
        self._require_active()
        if validate_only:
            return
        permit(len(grown.assignment) - len(topic.assignment))
        await self._zk.set(znodes.topic_path(new.name), znodes.encode_topic(topic.id, grown.assignment))
        await self._settle(
            topic.name,
            self._state.topic_loaded(
                topic.name, topic.id, topic.id, grown.assignment, dict(topic.partitions), topic.config
            ),
        )

    def _grown(self, new: NewPartitions, topic: TopicInfo) -> TopicInfo:
        """The topic with the new partitions."""
        added = plan_partitions(new, topic, self._assignable())
        grown = replace(topic, assignment=topic.assignment | added)
        self._check_limits(grown, self._own(added), self._logs.partitions_left())
        return grown

    async def delete_topics(
        self, topics: Sequence[TopicToDelete], outcomes: Outcomes, permit: Permit = _permitted
    ) -> None:
        """Deletes topics with their records. A topic's logs and znodes are gone before its outcome is set."""

        def partitions(asked: TopicToDelete) -> int:
            topic = self._state.topics.get(asked.name)
            return 0 if topic is None else len(topic.assignment)

        delete = partial(self._delete_topic, permit=permit)
        await self._in_slices(topics, partitions, lambda part: self._each(part, delete, outcomes))

    async def _delete_topic(self, asked: TopicToDelete, permit: Permit) -> None:
        self._require_active()
        if not self._delete_enabled:
            raise TopicDeletionDisabled
        name = asked.name
        topic = self._state.topics.get(name)
        if asked.id != NO_TOPIC_ID and (topic is None or topic.id != asked.id):
            raise UnknownTopicId(f"The topic '{name}' with the id {topic_id_text(asked.id)} is gone.")
        if topic is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        permit(len(topic.assignment))
        try:
            await self._zk.create(znodes.delete_topic_path(name))
        except NodeExistsError:
            log.info("the deletion of %s was requested before", name)
        await self._delete(name, True)


def _partitions_of(new: NewTopic) -> int:
    return max(new.partitions, len(new.assignment))


def _slice_end(items: Sequence[T], start: int, weight: Callable[[T], int]) -> int:
    """The end of the slice that begins at `start`. A slice has at least one item."""
    weighed = 0
    for index in range(start, len(items)):
        weighed += 1 + max(0, weight(items[index]))
        if weighed > _SLICE_WEIGHT and index > start:
            return index
    return len(items)


def _permit_each(
    topics: Iterable[TopicInfo | KafkaProtocolError], permit: Permit
) -> list[TopicInfo | KafkaProtocolError]:
    """The topics, with the error in place of those that the quota forbids."""
    permitted: list[TopicInfo | KafkaProtocolError] = []
    for topic in topics:
        try:
            if isinstance(topic, TopicInfo):
                permit(len(topic.assignment))
            permitted.append(topic)
        except KafkaProtocolError as error:
            permitted.append(error)
    return permitted


async def outcome_of(work: Awaitable[object], timeout_ms: int) -> KafkaProtocolError | None:
    """Waits for a command and returns its error, or None. After the timeout it returns REQUEST_TIMED_OUT.

    A command that has begun then continues, as in Kafka. One that has not begun is dropped, because nothing
    would bound the memory of such commands. A timeout of 0 is the default timeout, so the client gets its
    request's errors.
    """
    try:
        seconds = timeout_ms / 1000 if timeout_ms > 0 else _DEFAULT_TIMEOUT_SECONDS
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return RequestTimedOut()
    except KafkaProtocolError as error:
        return error
    except Exception as error:
        log.exception("a command failed")
        return UnknownServerError(str(error))
    return None
