"""The controller's driver: elects itself, reads the znodes, carries out the state machine's actions.

A piece of work is done when its znodes are written and its requests are in the channels to the brokers. Lives
on the event loop.

After a lost connection the interrupted call is repeated, as in Kafka. After a lost session or a crash the
znodes are read again: missing partition states are written, and unfinished deletions are repeated, because
the znode that asks for a deletion goes last. A command interrupted by a lost session answers
REQUEST_TIMED_OUT, since it may have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from cluster.controller import znodes
from cluster.controller.actions import Action
from cluster.controller.channel import Channels, Transport
from cluster.controller.commands import TopicCommands
from cluster.controller.executor import Executor
from cluster.controller.office import depose, give_up_when_refused
from cluster.controller.operations import Balance, Operations
from cluster.controller.requests import LEADER_AND_ISR, STOP_REPLICA, LiveBrokers, Request, Sender
from cluster.controller.state import ControllerState, NewIsr
from cluster.controller.topics import TopicDefaults
from cluster.controller.view import UNREADABLE
from cluster.controller.work import WorkQueue
from cluster.controller.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    ZooKeeper,
)
from cluster.errors import NONE, KafkaProtocolError, NotController
from cluster.model import (
    BrokerId,
    BrokerInfo,
    ControllerEpoch,
    PartitionState,
    TopicInfo,
    TopicPartition,
    new_topic_id,
)
from cluster.peer import Body

log = logging.getLogger(__name__)

_READS_AT_ONCE = 256
"""How many topics the start reads at the same time: enough to hide the round trips, few enough for the
memory.
"""

_TOLD_SECONDS = 5.0
"""How long a controlled shutdown waits for brokers that do not answer."""

Connect = Callable[[BrokerInfo], Transport]
"""Makes the way to a broker."""


class Controller:
    """The controller of a cluster, on the broker `local`."""

    def __init__(
        self,
        zk: ZooKeeper,
        connect: Connect,
        local: BrokerId,
        inter_broker_listener: str,
        defaults: TopicDefaults,
        logs_left: Callable[[], int],
        *,
        delete_enabled: bool = True,
        unclean_election: bool = False,
        balance: Balance | None = None,
        on_elections: Callable[[float], None] = lambda milliseconds: None,
    ) -> None:
        """`logs_left` says how many more logs this broker can open. `on_elections` is told how long each
        change of the brokers took, elections included.
        """
        self._zk = zk = zk.repeating()
        self._connect = connect
        self._listener = inter_broker_listener
        self._local = local
        self._delete_enabled = delete_enabled
        self._unclean_election = unclean_election
        self._on_elections = on_elections
        self._state = ControllerState(delete_enabled, unclean_election)
        self._channels = Channels(connect, self, self, inter_broker_listener)
        self._executor = Executor(zk, self._channels, self._state)
        self._queue = WorkQueue(zk, self.topics_may_have_changed)
        self._active = False
        self._outlasting: asyncio.Task[None] | None = None
        """Notices the end of another broker that is the controller."""
        self._watched: set[str] = set()
        """The brokers whose registration has a watch."""
        self._on_controller: Callable[[BrokerId], None] | None = None
        self._deleting: dict[str, asyncio.Future[None]] = {}
        """By topic that is being deleted: done when it is gone, or waits only for dead brokers."""
        self._answers: list[tuple[BrokerId, Request, Body]] = []
        self._alive: tuple[Mapping[BrokerId, BrokerInfo], set[BrokerId], LiveBrokers] | None = None
        """The registrations and the unreachable brokers that the live brokers were made of."""
        self._refused: dict[BrokerId, bool] = {}
        """By broker: its address refuses connections, or answers again. Not handled yet."""
        self.topics = TopicCommands(self, defaults, logs_left)
        self.operations = Operations(self, balance)

    @property
    def active(self) -> bool:
        """This broker is the controller."""
        return self._active

    @property
    def local(self) -> BrokerId:
        """The broker that this controller runs in."""
        return self._local

    @property
    def state(self) -> ControllerState:
        """The state machine, for commands."""
        return self._state

    @property
    def queue(self) -> WorkQueue:
        """The queue, for commands."""
        return self._queue

    @property
    def zk(self) -> ZooKeeper:
        """The session with the coordinator, for commands."""
        return self._zk

    @property
    def delete_enabled(self) -> bool:
        """`delete.topic.enable`"""
        return self._delete_enabled

    def on_controller(self, callback: Callable[[BrokerId], None]) -> None:
        """Sets the function that is called on the loop with the id of each elected controller."""
        self._on_controller = callback

    async def start(self) -> None:
        """Elects itself, if there is no controller yet. Then reads everything and returns when its own broker
        has it.
        """
        self._queue.start()
        await self._queue.command(self._elect)
        await self._queue.command(self.delivered)

    async def stop(self) -> None:
        """Ends the task. The next controller repeats the interrupted piece of work."""
        self.operations.stop()
        await self._queue.stop()
        await self._outlast(None)
        await self._channels.close()
        self._active = False

    def session_renewed(self) -> None:
        """A new session replaced a lost one: elect and read again."""
        self._active = False
        self._queue.event("elect", self._elect)

    def require_active(self) -> None:
        """Raises NotController if this broker is not the controller."""
        if not self._active:
            raise NotController

    async def delivered(self) -> None:
        """Returns when this controller's own broker has carried out everything that was sent to it, and what
        its answers led to. To be called by a piece of work.
        """
        await self._channels.delivered(self._local)
        while self._answers:
            await self._handle_answers()
            await self._channels.delivered(self._local)

    def together(self) -> AbstractContextManager[None]:
        """Inside, requests to the brokers are collected, and sent at the end."""
        return self._executor.together()

    async def carry_out(self, actions: Sequence[Action]) -> None:
        """Carries out actions. If some were not, `require_active` raises from then on, until this broker is
        elected again.
        """
        if not self._active:
            return
        if self._state.reassignments.is_due:
            self._queue.event("due reassignments", self._complete_reassignments)
        if not actions:
            return
        try:
            await self._executor.run(actions)
        except BadVersionError:
            # What the state machine decided is not what is written, so no broker may hear of it.
            log.warning("another controller was elected, or another program wrote a partition's state")
            await self._resign()
            self._queue.event("elect", self._elect)

    async def _complete_reassignments(self) -> None:
        await self.carry_out(self._state.complete_reassignments())
        self._release_deletions()

    async def write(self, *operations: Operation) -> None:
        """Writes znodes in one transaction. Raises NotController if another controller was elected."""
        try:
            await self._zk.transaction([self._executor.guard, *operations])
        except BadVersionError:
            raise NotController from None

    async def _resign(self) -> None:
        """Sends nothing more, and ends the waits of commands."""
        self._active = False
        self.operations.stop()
        await self._outlast(None)
        await self._channels.close()
        self._fail_waiting_deletions()

    def topics_may_have_changed(self) -> None:
        """Reads the topics that are new, gone or unsettled."""
        self._queue.event("topics", self._topics_changed)

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
        except BadVersionError:
            # Another broker was elected between the two calls, and may be gone again.
            self._queue.event("elect", self._elect)
            return
        await self._outlast(None)
        await self._channels.close()
        self._active = True
        self._state.elected(ControllerEpoch(epoch + 1))
        self._executor.guard = Check(znodes.CONTROLLER_EPOCH, version + 1)
        self._alive = None
        self._answers.clear()
        self._refused.clear()
        self._watched.clear()
        log.info("broker %d is the controller, epoch %d", self._local, epoch + 1)
        self._tell_elected(self._local)
        await self._watch_office()
        await self._load()

    def _tell_elected(self, broker: BrokerId) -> None:
        if self._on_controller is not None:
            self._on_controller(broker)

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
        _, epoch_version = await self._read_epoch()
        found = await self._zk.find(znodes.CONTROLLER)
        if found is None or found[1].owner != self._zk.session_id:
            return False
        if not self._active:
            await depose(self._zk, epoch_version)
            await self._elect()
        else:
            await self._watch_office()
        return True

    async def _watch_office(self) -> None:
        """Elects this broker again if the controller's znode is deleted, or is another's already."""
        try:
            _, stat = await self._zk.get(
                znodes.CONTROLLER, watch=lambda: self._queue.event("elect", self._elect)
            )
        except NoNodeError:
            self._queue.event("elect", self._elect)
            return
        if stat.owner != self._zk.session_id:
            self._queue.event("elect", self._elect)

    async def _follow(self) -> None:
        """Another broker is the controller. Elects this one when it goes."""
        await self._resign()
        _, epoch_version = await self._read_epoch()
        try:
            data, _ = await self._zk.get(
                znodes.CONTROLLER, watch=lambda: self._queue.event("elect", self._elect)
            )
        except NoNodeError:
            await self._elect()
            return
        elected = znodes.decode_controller(data)
        self._tell_elected(elected)
        log.info("broker %d is the controller", elected)
        found = await self._zk.find(znodes.broker_path(elected))
        with contextlib.suppress(znodes.ZnodeError):
            if found is not None:
                info = znodes.decode_broker(elected, found[0], found[1].czxid)
                if info.endpoint(self._listener) is not None:
                    transport = self._connect(info)
                    await self._outlast(give_up_when_refused(self._zk, elected, epoch_version, transport))

    async def _outlast(self, waiting: Coroutine[None, None, None] | None) -> None:
        """Waits from now on for the end of the controller that is elected now; None: of no other broker."""
        if self._outlasting is not None:
            self._outlasting.cancel()
            await asyncio.gather(self._outlasting, return_exceptions=True)
        self._outlasting = None if waiting is None else asyncio.create_task(waiting, name="controller's end")

    async def _load(self) -> None:
        # Each broker gets one request of each kind, with everything.
        with self.together():
            await self._read_brokers()
            if await self._zk.find(znodes.FEATURE) is None:
                with contextlib.suppress(NodeExistsError):
                    await self._zk.create(znodes.FEATURE, znodes.encode_features({}))
            # Before the topics: nothing leads or creates again what is being deleted.
            await self._deletions_requested()
            await self._topics_changed()
            await self.operations.resume()
            await self._log_dirs_failed()

    def watch(self, name: str, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """A watch that queues `work`, while this broker is the controller."""
        return lambda: self._queue.event(name, work) if self._active else None

    async def _load_topics(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _READS_AT_ONCE):
            batch = names[start : start + _READS_AT_ONCE]
            loaded = await asyncio.gather(*(self._load_topic(name) for name in batch))
            await self.carry_out([action for actions in loaded for action in actions])
            for name in batch:
                self._state.settled(name)

    async def settle(self, name: str, actions: Sequence[Action]) -> None:
        """Carries out the actions for one topic."""
        await self.carry_out(actions)
        self._state.settled(name)

    async def _load_topic(self, name: str) -> list[Action]:
        """Reads a topic. If its znode cannot be read, a known topic stays as it is; an unknown one is not
        served.
        """
        try:
            topic = await self._read_topic(name, watched=True)
        except NoNodeError:
            return self._vanished(name)
        if topic is None:
            return []
        return self._state.topic_loaded(
            name, topic.id, new_topic_id(), topic.assignment, topic.partitions, topic.config
        )

    def _vanished(self, name: str) -> list[Action]:
        actions = self._state.topic_vanished(name)
        if actions:
            log.warning(
                "the znode %s of topic %s is gone or unreadable, without a request to delete the topic: its "
                "logs are kept and not served; they are served again when the znode is there with the same "
                "topic id",
                znodes.topic_path(name),
                name,
            )
        return actions

    async def _read_topic(self, name: str, watched: bool) -> TopicInfo | None:
        """A topic's znodes; None if the topic's own cannot be read. Raises NoNodeError."""
        watch = self.watch(f"topic {name}", lambda: self._topic_changed(name)) if watched else None
        data, _ = await self._zk.get(znodes.topic_path(name), watch)
        known = None if name in self._state.unsettled else self._state.topics.get(name)
        try:
            topic_id, assignment = znodes.decode_topic(name, data)
            if known is not None and (known.id, known.assignment) == (topic_id, assignment):
                # This controller wrote it, as it does at each step of a reassignment.
                return known
        except znodes.ZnodeError as error:
            log.error(
                "topic %s is %s: %s; write it as Kafka does (zookeeper-shell set), and it is read again",
                name,
                "kept as it was" if name in self._state.topics else "not served",
                error,
            )
            return None
        states = await asyncio.gather(*(self._read_state(name, number) for number in assignment))
        found = {number: state for number, state in zip(assignment, states, strict=True) if state is not None}
        return TopicInfo(name, topic_id, assignment, found, await self._read_config(name))

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
        """A topic's own settings; none if they cannot be read, which each broker that holds it reports."""
        path = znodes.topic_config_path(name)
        found = await self._zk.find(path)
        try:
            return znodes.decode_config(path, found[0] if found else None)
        except znodes.ZnodeError:
            return {}

    async def watch_topic(self, name: str) -> None:
        """Reads a topic again when its znode changes."""
        watch = self.watch(f"topic {name}", lambda: self._topic_changed(name))
        with contextlib.suppress(NoNodeError):
            await self._zk.get(znodes.topic_path(name), watch)

    async def _read_brokers(self) -> None:
        with self._timed():
            await self._handle_brokers()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._on_elections((time.monotonic() - began) * 1000)

    async def _handle_brokers(self) -> None:
        ids = await self._zk.children(znodes.BROKER_IDS, self.watch("brokers", self._read_brokers))
        found = await asyncio.gather(
            *(self._zk.find(znodes.broker_path(int(name)), self._watch_of(name)) for name in ids)
        )
        brokers: dict[BrokerId, BrokerInfo] = {}
        for name, node in zip(ids, found, strict=True):
            if node is None:
                continue
            broker = BrokerId(int(name))
            try:
                brokers[broker] = znodes.decode_broker(broker, node[0], node[1].czxid)
            except znodes.ZnodeError as error:
                log.error("broker %d takes no part in the cluster: %s", broker, error)
        await self._channels.set_brokers(brokers)
        known = self._state.registered
        for broker in [item for item in self._refused if known.get(item) != brokers.get(item)]:
            # The address of its last registration refused a connection.
            del self._refused[broker]
        again = self._state.registered_again(brokers)
        if again:
            # They failed first, which must be written before they come back.
            others = {broker: info for broker, info in brokers.items() if broker not in again}
            await self.carry_out(self._state.brokers_changed(others))
        await self.carry_out(self._state.brokers_changed(brokers))

    def _watch_of(self, name: str) -> Callable[[], None] | None:
        """Reads the brokers again when this one changes its endpoints. None if it is watched already."""
        if name in self._watched:
            return None
        self._watched.add(name)
        read = self.watch("brokers", self._read_brokers)

        def changed() -> None:
            self._watched.discard(name)
            read()

        return changed

    # ---- what a request is filled with (`channel.Cluster`) ----

    def sender(self, broker: BrokerId) -> Sender:
        """This controller, for a request to `broker`."""
        info = self._state.registered.get(broker)
        return Sender(self._local, self._state.epoch, -1 if info is None else info.epoch)

    def alive(self) -> LiveBrokers:
        """The brokers that are alive."""
        state, known = self._state, self._alive
        if known is None or known[0] is not state.registered or known[1] != state.unreachable:
            known = self._alive = state.registered, set(state.unreachable), LiveBrokers(state.alive())
        return known[2]

    # ---- events from the channels (`channel.ChannelEvents`) ----

    def answered(self, broker: BrokerId, request: Request, answer: Body) -> None:
        """A broker answered."""
        if request.api_key in (LEADER_AND_ISR, STOP_REPLICA):
            self._answers.append((broker, request, answer))
            self._queue.event("answers", self._handle_answers)

    def connection_refused(self, broker: BrokerId) -> None:
        """Nothing listens at a broker's address."""
        self._refused[broker] = True
        self._queue.event("refused connections", self._handle_refused)

    def connection_made(self, broker: BrokerId) -> None:
        """A broker answered whose address had refused a connection."""
        self._refused[broker] = False
        self._queue.event("refused connections", self._handle_refused)

    async def _handle_refused(self) -> None:
        with self._timed():
            await self._handle_each_refused()

    async def _handle_each_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for broker, is_refused in refused.items():
            if is_refused:
                log.warning("broker %d refuses connections: others lead its partitions", broker)
                await self.carry_out(self._state.connection_refused(broker))
            else:
                log.info("broker %d answers again", broker)
                await self.carry_out(self._state.connection_made(broker))
        self._release_deletions()

    async def _handle_answers(self) -> None:
        answers, self._answers = self._answers, []
        for broker, request, answer in answers:
            if answer["error_code"] != NONE:
                continue
            if request.api_key == LEADER_AND_ISR:
                errors = {
                    TopicPartition(name, item["partition_index"]): item["error_code"]
                    for topic in answer["topics"]
                    if (name := self._state.names.get(topic["topic_id"])) is not None
                    for item in topic["partition_errors"]
                }
                await self.carry_out(self._state.replicas_answered(broker, errors))
            else:
                await self._replicas_stopped(broker, request, answer)
        self._release_deletions()

    async def _replicas_stopped(self, broker: BrokerId, request: Request, answer: Body) -> None:
        codes = {
            (item["topic_name"], item["partition_index"]): item["error_code"]
            for item in answer["partition_errors"]
        }
        for name, topic in request.topics.items():
            stopped = {
                number: codes.get((name, number), NONE)
                for number, entry in topic.partitions.items()
                if entry["delete_partition"]
            }
            if stopped:
                await self.carry_out(self._state.replicas_deleted(broker, name, stopped))

    def _release_deletions(self) -> None:
        """Ends the wait for topics that are gone, or wait only for dead brokers, as Kafka does."""
        for name, waiting in list(self._deleting.items()):
            if self._state.waits_only_for_dead_brokers(name):
                del self._deleting[name]
                if not waiting.done():
                    waiting.set_result(None)

    def _fail_waiting_deletions(self) -> None:
        for waiting in self._deleting.values():
            if not waiting.done():
                waiting.set_exception(NotController())
                # Nobody may wait for it any more.
                waiting.exception()
        self._deleting.clear()

    # ---- events from watches ----

    async def _topics_changed(self) -> None:
        names = set(await self._zk.children(znodes.TOPICS, self.watch("topics", self._topics_changed)))
        for name in sorted(set(self._state.topics) - names):
            await self.carry_out(self._vanished(name))
        settled = self._state.topics.keys() - self._state.unsettled
        await self._load_topics(sorted(names - settled))

    async def _topic_changed(self, name: str) -> None:
        await self.settle(name, await self._load_topic(name))

    async def _deletions_requested(self) -> None:
        watch = self.watch("delete", self._deletions_requested)
        for name in sorted(await self._zk.children(znodes.DELETE_TOPICS, watch)):
            await self.delete(name)

    async def delete(self, name: str) -> None:
        """Begins the deletion of a topic, or drops the request if the topic has no znode."""
        topic = self._state.topics.get(name)
        if topic is None:
            try:
                topic = await self._read_topic(name, watched=False)
            except NoNodeError:
                topic = None
            else:
                # Nothing says where the replicas of an unreadable topic are.
                topic = topic or TopicInfo(name, new_topic_id(), {})
        exists = topic is not None
        if exists and self._delete_enabled and name not in self._deleting:
            self._deleting[name] = asyncio.get_running_loop().create_future()
        await self.carry_out(self._state.deletion_requested(name, topic))
        self._release_deletions()

    def deletion(self, name: str) -> asyncio.Future[None] | None:
        """Done when the topic is gone or its deletion waits only for dead brokers. None if that is so now."""
        return self._deleting.get(name)

    async def _log_dirs_failed(self) -> None:
        """Brokers report failed log directories by nodes below one parent (KIP-112)."""
        parent = znodes.LOG_DIR_FAILURES
        names = await self._zk.children(parent, self.watch("log directories", self._log_dirs_failed))
        brokers: dict[BrokerId, None] = {}
        for name in sorted(names):
            found = await self._zk.find(f"{parent}/{name}")
            if found is not None:
                with contextlib.suppress(znodes.ZnodeError):
                    brokers[znodes.decode_log_dir_failure(f"{parent}/{name}", found[0])] = None
            with contextlib.suppress(NoNodeError):
                await self.write(Delete(f"{parent}/{name}"))
        for broker in brokers:
            await self.carry_out(self._state.log_dir_failed(broker))

    async def topic_config_changed(self, name: str) -> None:
        """Reads a topic's settings again. On return partitions that they allow an election have leaders."""
        if self._active:
            await self._queue.command(lambda: self._read_topic_config(name))

    async def _read_topic_config(self, name: str) -> None:
        await self.carry_out(self._state.config_changed(name, await self._read_config(name)))

    def brokers_changed(self) -> None:
        """Reads the brokers' registrations again."""
        if self._active:
            self._queue.event("brokers", self._read_brokers)

    def unclean_election_changed(self, enabled: bool) -> None:
        """`unclean.leader.election.enable` was changed."""
        self._unclean_election = enabled
        self._queue.event("unclean election", self._elect_uncleanly)

    async def _elect_uncleanly(self) -> None:
        await self.carry_out(self._state.unclean_election_changed(self._unclean_election))

    # ---- requests of brokers ----

    async def alter_isr(
        self, broker: BrokerId, epoch: int, wishes: Sequence[NewIsr]
    ) -> list[PartitionState | KafkaProtocolError]:
        """Changes ISRs for their leader. Returns each partition's state, or its error.

        Raises NotController or StaleBrokerEpoch.
        """

        async def alter() -> list[PartitionState | KafkaProtocolError]:
            self.require_active()
            answers, actions = self._state.alter_isr(broker, epoch, wishes)
            await self.carry_out(actions)
            # If it was not written, another ISR may count.
            self.require_active()
            written: list[PartitionState | KafkaProtocolError] = []
            for wish, answer in zip(wishes, answers, strict=True):
                topic = self._state.topics.get(self._state.names.get(wish.topic_id, wish.topic))
                state = None if topic is None else topic.partitions.get(wish.partition)
                written.append(answer if isinstance(answer, KafkaProtocolError) or state is None else state)
            return written

        return await self._queue.command(alter)

    async def shut_down(self, broker: BrokerId, epoch: int) -> Iterable[TopicPartition]:
        """Moves the leaderships of a broker that stops. Returns the partitions that it still leads.

        Raises NotController, StaleBrokerEpoch or BrokerNotAvailable.
        """

        async def move() -> Iterable[TopicPartition]:
            self.require_active()
            remaining, actions = self._state.shut_down(broker, epoch)
            await self.carry_out(actions)
            self.require_active()
            return remaining

        remaining = await self._queue.command(move)
        # The broker stops now. Until its leaders elsewhere know that they lead, its clients have none.
        told = (self._channels.delivered(info.id) for info in self._state.alive())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_SECONDS):
                await asyncio.gather(*told)
        return remaining
