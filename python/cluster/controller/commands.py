"""Commands of clients on topics: create, add partitions, delete.

Owns the checks that need the whole cluster, and the order of writes. Only the active controller takes
commands. Each runs in the controller's queue, long ones in slices. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from cluster.controller import znodes
from cluster.controller.actions import Action
from cluster.controller.names import TopicNames
from cluster.controller.state import ControllerState
from cluster.controller.topics import (
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicToDelete,
    plan_partitions,
    plan_topic,
)
from cluster.controller.work import SLICE_WEIGHT, WorkQueue
from cluster.controller.zookeeper import (
    ConnectionLostError,
    Create,
    NodeExistsError,
    Operation,
    SetData,
    ZooKeeper,
)
from cluster.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopicException,
    KafkaProtocolError,
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
    Replicas,
    TopicInfo,
    new_topic_id,
    topic_id_text,
)
from cluster.time_slice import TimeSlice, in_thread_if_long

log = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULT_TIMEOUT_SECONDS = 30.0
"""The default of Kafka's request.timeout.ms."""

_CREATED_AT_ONCE = 256
"""How many topics are written at the same time: enough to hide the round trips."""

Permit = Callable[[int], None]
"""Called with the number of partitions before they are created or deleted. Raises if the quota forbids it."""


def _permitted(_partitions: int) -> None:
    """The broker's own changes have no quota."""


Outcomes = list[KafkaProtocolError | None]
"""The result of each item of a command, in order: None, or the error."""


class Core(Protocol):
    """The parts of the controller's driver that commands use."""

    @property
    def local(self) -> BrokerId: ...
    @property
    def state(self) -> ControllerState: ...
    @property
    def queue(self) -> WorkQueue: ...
    @property
    def zk(self) -> ZooKeeper: ...
    @property
    def delete_enabled(self) -> bool: ...
    def require_active(self) -> None: ...
    async def write(self, *operations: Operation) -> None: ...
    def topics_may_have_changed(self) -> None: ...
    def together(self) -> AbstractContextManager[None]: ...
    async def settle(self, name: str, actions: Sequence[Action]) -> None: ...
    async def delivered(self) -> None: ...
    async def watch_topic(self, name: str) -> None: ...
    async def delete(self, name: str) -> None: ...
    def deletion(self, name: str) -> asyncio.Future[None] | None: ...


class TopicCommands:
    """The commands."""

    def __init__(self, core: Core, defaults: TopicDefaults, logs_left: Callable[[], int]) -> None:
        """`logs_left` says how many more logs this broker can open."""
        self._core = core
        self._defaults = defaults
        self._logs_left = logs_left
        self._checking = asyncio.Lock()
        """Held by the running check of many topics."""

    def _assignable(self) -> list[BrokerInfo]:
        return list(self._core.state.alive())

    async def create_one(self, new: NewTopic) -> TopicInfo:
        """Creates a topic and returns it published. Raises KafkaProtocolError."""
        [made] = await self.create([new])
        if isinstance(made, KafkaProtocolError):
            raise made
        return made

    async def create(
        self, news: Sequence[NewTopic], validate_only: bool = False, permit: Permit = _permitted
    ) -> list[TopicInfo | KafkaProtocolError]:
        """Creates topics, or only checks them. Returns each topic, published, or its error."""
        self._core.require_active()
        if validate_only:
            async with self._checking if len(news) > SLICE_WEIGHT else nullcontext():
                return await self._plan_topics(news)
        made: list[TopicInfo | KafkaProtocolError] = []

        async def create(part: Sequence[NewTopic]) -> None:
            self._core.require_active()
            planned = await self._plan_topics(part)
            # Another broker may have been elected meanwhile.
            self._core.require_active()
            made.extend(await self._create_each(planned, permit))

        await self._core.queue.in_slices(news, _partitions_of, create)
        return made

    async def _plan_topics(self, news: Sequence[NewTopic]) -> list[TopicInfo | KafkaProtocolError]:
        names = TopicNames(self._core.state.topics)
        logs_left = self._logs_left()
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
            await self._core.delivered()
            await time_slice.yield_if_over()
        return made

    def _own(self, assignment: Mapping[int, Replicas]) -> int:
        """How many partitions have a replica on this broker, which is a log."""
        return sum(self._core.local in item.replicas for item in assignment.values())

    def _check_limits(self, topic: TopicInfo, added: int, logs_left: int) -> None:
        """Refuses a topic too large for a znode, or `added` logs above this broker's limits."""
        partitions = len(znodes.encode_topic(topic.id, topic.assignment))
        settings = len(znodes.encode_config(topic.config))
        if partitions + settings > znodes.REQUEST_BYTES_MAX:
            reason = (
                f"Topic '{topic.name}' takes {partitions} bytes for its {len(topic.assignment)} partitions "
                f"and {settings} "
                f"for its settings in the coordinator, which takes {znodes.REQUEST_BYTES_MAX} at most "
                "(jute.maxbuffer)"
            )
            if settings > partitions:
                raise InvalidConfig(f"{reason}; ask for fewer or shorter settings.")
            raise InvalidPartitions(f"{reason}; ask for fewer partitions.")
        if added > logs_left:
            raise PolicyViolation(
                f"Topic '{topic.name}' needs {added} more logs on broker {self._core.local}, whose limits of "
                f"open files (ulimit -n) and mappings (vm.max_map_count) allow {logs_left}; raise the lower "
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
            self._core.topics_may_have_changed()
            return TopicAlreadyExists(f"Topic '{topic.name}' already exists.")
        await self._core.settle(
            topic.name,
            self._core.state.topic_loaded(topic.name, topic.id, topic.id, topic.assignment, {}, topic.config),
        )
        # The watch can wait: this controller wrote the node, so no change was missed.
        self._core.queue.event(f"watch {topic.name}", lambda: self._core.watch_topic(topic.name))
        return topic

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
                await self._core.write(settings, create)
                return True
        found = await self._core.zk.find(create.path)
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
        await self._core.queue.in_slices(
            news, lambda new: new.count, lambda part: self._each(part, create, outcomes)
        )

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
        self._core.require_active()
        topic = self._core.state.topics.get(new.name)
        if topic is None:
            raise UnknownTopicOrPartition(f"The topic '{new.name}' does not exist.")
        if new.name in self._core.state.deletions:
            raise InvalidTopicException("The topic is queued for deletion.")
        grown = await in_thread_if_long(new.count, partial(self._grown, new, topic))
        self._core.require_active()
        if validate_only:
            return
        permit(len(grown.assignment) - len(topic.assignment))
        data = znodes.encode_topic(topic.id, grown.assignment)
        await self._core.write(SetData(znodes.topic_path(new.name), data))
        await self._core.settle(
            topic.name,
            self._core.state.topic_loaded(
                topic.name, topic.id, topic.id, grown.assignment, dict(topic.partitions), topic.config
            ),
        )
        await self._core.delivered()

    def _grown(self, new: NewPartitions, topic: TopicInfo) -> TopicInfo:
        """The topic with the new partitions."""
        added = plan_partitions(new, topic, self._assignable())
        grown = replace(topic, assignment=topic.assignment | added)
        self._check_limits(grown, self._own(added), self._logs_left())
        return grown

    async def delete(
        self, topics: Sequence[TopicToDelete], outcomes: Outcomes, permit: Permit = _permitted
    ) -> None:
        """Deletes topics with their records. A topic's logs and znodes are gone before its outcome is set,
        except on brokers that are not alive.
        """
        begun: asyncio.Queue[list[tuple[TopicToDelete, KafkaProtocolError | None]]] = asyncio.Queue()

        def partitions(asked: TopicToDelete) -> int:
            topic = self._core.state.topics.get(asked.name)
            return 0 if topic is None else len(topic.assignment)

        delete = partial(self._delete_topic, permit=permit)

        async def begin(part: Sequence[TopicToDelete]) -> None:
            results: Outcomes = []
            with self._core.together():
                await self._each(part, delete, results)
            begun.put_nowait(list(zip(part, results, strict=True)))

        async def follow() -> None:
            time_slice = TimeSlice()
            while len(outcomes) < len(topics):
                for asked, refused in await begun.get():
                    outcomes.append(refused or await self._gone(asked.name))
                    await time_slice.yield_if_over()

        following = asyncio.create_task(follow())
        try:
            await self._core.queue.in_slices(topics, partitions, begin)
            await following
        finally:
            following.cancel()

    async def _gone(self, name: str) -> KafkaProtocolError | None:
        waiting = self._core.deletion(name)
        try:
            if waiting is not None:
                await asyncio.shield(waiting)
        except KafkaProtocolError as error:
            return error.with_traceback(None)
        return None

    async def _delete_topic(self, asked: TopicToDelete, permit: Permit) -> None:
        self._core.require_active()
        if not self._core.delete_enabled:
            raise TopicDeletionDisabled
        name = asked.name
        topic = self._core.state.topics.get(name)
        if asked.id != NO_TOPIC_ID and (topic is None or topic.id != asked.id):
            raise UnknownTopicId(f"The topic '{name}' with the id {topic_id_text(asked.id)} is gone.")
        if topic is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        permit(len(topic.assignment))
        try:
            await self._core.zk.create(znodes.delete_topic_path(name))
        except NodeExistsError:
            log.info("the deletion of %s was requested before", name)
        await self._core.delete(name)


def _partitions_of(new: NewTopic) -> int:
    return max(new.partitions, len(new.assignment))


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
