"""One seeded history of a cluster: its brokers, its coordinator, its clients, and what happens to them.

Everything happens on an event loop with simulated time. A seed gives the same history again. After the
faults everything is repaired, and the cluster must come to rest in a perfect state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from cluster.controller import NewPartitions, NewTopic, TopicToDelete, znodes
from cluster.model import NO_LEADER, BrokerId

from ..coordinator.ensemble.simulated_loop import SimulatedLoop
from .broker import CONTROLLED_SHUTDOWN, Broker
from .checker import Checker
from .coordinator import SESSION_SECONDS, Coordinator, Session
from .data_plane import Disk
from .network import Network, SimulatedPeer

RESTS_AFTER_SECONDS = 60.0
"""How long the cluster may take to come to rest after the last fault."""
EVENTS_SHOWN = 60


class World:
    """A cluster and its history."""

    def __init__(self, seed: int, directory: Path, brokers: int, steps: int, unclean: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.unclean = unclean
        self.min_insync = self.chance.choice((1, 1, 2))
        self.steps = steps
        self._pace = self.chance.choice((2.0, 6.0))
        self.loop = SimulatedLoop()
        self.network = Network(self.loop, self.chance)
        self.disks = {broker: Disk(2) for broker in range(brokers)}
        self.checker = Checker(self.disks, unclean)
        self.coordinator = Coordinator(self.checker.written)
        self.coordinator.notify = self._notify
        self.brokers: dict[int, Broker] = {}
        self.sessions: dict[int, Session] = {}
        self.events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._directory = directory
        self._unreachable: set[int] = set()
        """Brokers that are cut from the coordinator."""
        self._expiries: dict[Session, object] = {}
        self._values = 0
        self._names = 0
        self.commands = 0

    # ---- the way between a broker and the coordinator (`Wire`) ----

    def to_coordinator(self, session: Session, arrive: Callable[[], None]) -> None:
        broker = session.process.broker

        def go() -> None:
            if broker in self._unreachable:
                return
            session.sent_at = max(session.sent_at + 1e-6, self.loop.now + self.network.delay() / 2)
            self.loop.call_at(session.sent_at, lambda: broker in self._unreachable or arrive())

        session.process.when_running(go)

    def to_client(self, session: Session, arrive: Callable[[], None]) -> None:
        broker = session.process.broker
        session.received_at = max(session.received_at + 1e-6, self.loop.now + self.network.delay() / 2)
        session.process.post_at(session.received_at, lambda: broker in self._unreachable or arrive())

    def _notify(self, number: int, watch: Callable[[], None]) -> None:
        session = self.sessions.get(number)
        if session is not None and session.session_id == number:
            self.to_client(session, watch)

    def _abandon(self, session: Session) -> None:
        """The coordinator hears nothing of a session any more. It ends it after a while."""
        token = self._expiries[session] = object()
        number = session.session_id

        def end() -> None:
            if self._expiries.get(session) is token and number in self.coordinator.sessions:
                self._say(f"session {number} of broker {session.process.broker} ends")
                self.coordinator.end(number)

        self.loop.call_later(SESSION_SECONDS, end)

    def _reconnect(self, session: Session) -> None:
        if session.process.broker not in self._unreachable:
            self._expiries.pop(session, None)
            session.lost()
            session.made()
            self.sessions[session.session_id] = session

    # ---- brokers ----

    def start(self, broker: int) -> None:
        directory = self._directory / str(broker)
        directory.mkdir(exist_ok=True)
        started = self.brokers[broker] = Broker(self, broker, self.disks[broker], directory)
        self.network.processes[broker] = started.process
        started.process.post(0.01, lambda: self._reconnect(started.session))
        started.start()

    def kill(self, broker: int) -> None:
        """SIGKILL. The high watermarks are those of the last checkpoint."""
        killed = self.brokers.pop(broker)
        killed.serving = False
        killed.process.kill()
        self._abandon(killed.session)
        for log in self.disks[broker].logs.values():
            if self.chance.random() < 0.8:
                log.high_watermark = self.chance.randint(0, log.high_watermark)

    def come_back(self, broker: int) -> None:
        if self.chance.random() < 0.3:
            # The note of the last session is lost: the broker waits until the session ends.
            with contextlib.suppress(FileNotFoundError):
                (self._directory / str(broker) / "coordinator-session").unlink()
        self.disks[broker].failed.clear()
        self.start(broker)

    def hang(self, broker: int) -> None:
        hung = self.brokers[broker]
        hung.process.hung = True
        self._abandon(hung.session)

    def resume(self, broker: int) -> None:
        process, session = self.brokers[broker].process, self.brokers[broker].session
        process.resume()
        if session.session_id not in self.coordinator.sessions or self.chance.random() < 0.3:
            process.post(self.chance.uniform(0.0, 0.2), lambda: self._reconnect(session))
        elif broker not in self._unreachable:
            self._expiries.pop(session, None)

    def cut_from_coordinator(self, broker: int) -> None:
        self._unreachable.add(broker)
        session = self.brokers[broker].session
        self._abandon(session)

        def notice() -> None:
            if broker in self._unreachable:
                session.lost()

        session.process.post(self.chance.uniform(0.05, SESSION_SECONDS * 2 / 3), notice)

    def reach_coordinator(self, broker: int) -> None:
        self._unreachable.discard(broker)
        if broker in self.brokers:
            session = self.brokers[broker].session
            session.process.post(self.chance.uniform(0.0, 0.3), lambda: self._reconnect(session))

    def interrupt_coordinator(self) -> None:
        """Every connection to the coordinator is lost for a moment."""
        for broker in list(self.brokers):
            if broker not in self._unreachable and not self.brokers[broker].process.hung:
                self.cut_from_coordinator(broker)
                self.loop.call_later(self.chance.uniform(0.01, 0.6), self.reach_coordinator, broker)

    async def _shut_down(self, broker: int) -> None:
        stopping = self.brokers[broker]
        controller = stopping.metadata.brokers.get(stopping.metadata.controller_id)
        body = {"broker_id": broker, "broker_epoch": stopping.replicas.broker_epoch}
        with contextlib.suppress(Exception):
            if controller is not None and controller.id != broker:
                peer = SimulatedPeer("", controller.id, "", 0)
                await peer.request(CONTROLLED_SHUTDOWN, 3, body)
            else:
                await stopping.serve(CONTROLLED_SHUTDOWN, 3, body)

        def end() -> None:
            if self.brokers.get(broker) is stopping:
                session = stopping.session.session_id
                self.kill(broker)
                if broker not in self._unreachable:
                    self.coordinator.end(session)

        self.loop.call_soon(end)

    # ---- clients ----

    def _client(self, name: str, command: Callable[[Broker], Any]) -> None:
        """A client's request to the broker that is the controller."""
        controllers = [item for item in self.brokers.values() if item.serving and item.controller.active]
        if not controllers:
            return
        asked = self.chance.choice(controllers)
        self._say(f"broker {asked.id} is asked to {name}")

        async def run() -> None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(command(asked), 10)
                self.commands += 1

        asked.process.spawn(run())

    def _topic(self) -> str | None:
        return self.chance.choice(sorted(self.checker.topics)) if self.checker.topics else None

    def create(self) -> None:
        if len(self.checker.topics) > 6:
            return
        # Names come again, so a late request can meet a later topic of the same name.
        name = f"t{self.chance.randrange(8)}"
        factor = min(self.chance.choice((1, 2, 3, 3, 3)), len(self.brokers))
        new = NewTopic(name, self.chance.randint(1, 4), factor)
        self._client(f"create {name}", lambda broker: broker.controller.topics.create([new]))

    def grow(self) -> None:
        name = self._topic()
        if name is not None and len(self.checker.topics[name][1]) < 8:
            new = NewPartitions(name, len(self.checker.topics[name][1]) + self.chance.randint(1, 2))
            self._client(f"grow {name}", lambda broker: broker.controller.topics.create_partitions([new], []))

    def delete(self) -> None:
        name = self._topic()
        if name is not None:
            gone = TopicToDelete(name)
            self._client(f"delete {name}", lambda broker: broker.controller.topics.delete([gone], []))

    def produce(self) -> None:
        """A record to the leader that some broker names."""
        name = self._topic()
        asked = self.chance.choice(list(self.brokers.values())) if self.brokers else None
        topic = None if name is None or asked is None else asked.metadata.topic(name)
        if topic is None:
            return
        number = self.chance.choice(sorted(topic.partitions))
        leader = self.brokers.get(topic.partitions[number].leader)
        if leader is not None and leader.serving:
            self._values += 1
            value, where = self._values, (topic.id, number)
            leader.process.post(self.network.delay(), lambda: leader.data_plane.produce(where, value))

    # ---- the history ----

    def _say(self, text: str) -> None:
        self.events.append(f"{self.loop.now:8.3f} {text}")

    def run(self) -> None:
        """Runs the history. Raises AssertionError, with the last events, if something was not as it must."""
        with _deterministic(self), _failures_to(self.checker):
            self.loop.set_exception_handler(lambda _, told: self.checker.complain(f"{told}"))
            try:
                self.loop.run_until_complete(self._history())
            finally:
                for broker in list(self.brokers.values()):
                    broker.process.kill()
                left = asyncio.all_tasks(self.loop)
                for task in left:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                self.loop.close()

    def _check(self) -> None:
        if self.checker.failures:
            shown = "\n".join([*self.events, *self.checker.failures[:5]])
            raise AssertionError(f"seed {self.seed}\n{shown}")

    async def _history(self) -> None:
        for path in (*znodes.PERSISTENT_PATHS, "/cluster"):
            parts = path.strip("/").split("/")
            for depth in range(len(parts)):
                parent = "/" + "/".join(parts[: depth + 1])
                if parent not in self.coordinator.nodes:
                    self.coordinator.transaction(0, [znodes_create(parent)])
        for broker in self.disks:
            self.loop.call_later(self.chance.uniform(0.0, 0.5), self.start, broker)
        await self._step(1.5)
        await self.happen()
        await self._rest()

    async def happen(self) -> None:
        """What happens to the cluster. Here: faults and commands, by chance."""
        for _ in range(3):
            self.create()
        await self._step(0.5)
        for _ in range(self.steps):
            self.chance.choices(*self._choices())[0]()
            await self._step(self.chance.expovariate(self._pace))

    async def _step(self, seconds: float) -> None:
        """Lets time pass, and has producers write."""
        end = self.loop.now + seconds
        while self.loop.now < end:
            self.produce()
            await asyncio.sleep(min(self.chance.expovariate(20.0), max(0.0, end - self.loop.now) + 1e-6))
            self._check()

    def _choices(self) -> tuple[list[Callable[[], None]], list[int]]:
        weighed = {
            self.create: 3,
            self.grow: 2,
            self.delete: 2,
            self._kill_any: 3,
            self._kill_controller: 2,
            self._start_any: 6,
            self._hang_any: 2,
            self._resume_any: 4,
            self._isolate_any: 2,
            self._cut_any: 3,
            self._heal: 4,
            self._disk_fails: 1,
            self._stop_any: 1,
            self.interrupt_coordinator: 1,
        }
        return list(weighed), list(weighed.values())

    def _pick(self, those: Iterator[int]) -> int | None:
        found = sorted(those)
        return self.chance.choice(found) if found else None

    def _running(self) -> Iterator[int]:
        return (number for number, broker in self.brokers.items() if broker.serving)

    def _kill_any(self) -> None:
        broker = self._pick(self._running())
        if broker is not None:
            self._say(f"broker {broker} is killed")
            self.kill(broker)
            if self.chance.random() < 0.5:
                self._say(f"broker {broker} comes back at once")
                self.come_back(broker)

    def _kill_controller(self) -> None:
        broker = self._pick(n for n in self._running() if self.brokers[n].controller.active)
        if broker is not None:
            self._say(f"broker {broker}, a controller, is killed")
            self.kill(broker)

    def _start_any(self) -> None:
        broker = self._pick(number for number in self.disks if number not in self.brokers)
        if broker is not None:
            self._say(f"broker {broker} comes back")
            self.come_back(broker)

    def _stop_any(self) -> None:
        broker = self._pick(n for n in self._running() if not self.brokers[n].process.hung)
        if broker is not None:
            self._say(f"broker {broker} shuts down")
            self.brokers[broker].process.spawn(self._shut_down(broker))

    def _hang_any(self) -> None:
        broker = self._pick(n for n in self._running() if not self.brokers[n].process.hung)
        if broker is not None:
            self._say(f"broker {broker} hangs")
            self.hang(broker)

    def _resume_any(self) -> None:
        broker = self._pick(n for n in self._running() if self.brokers[n].process.hung)
        if broker is not None:
            self._say(f"broker {broker} goes on")
            self.resume(broker)

    def _isolate_any(self) -> None:
        broker = self._pick(n for n in self._running() if n not in self._unreachable)
        if broker is not None:
            self._say(f"broker {broker} is cut from the coordinator")
            self.cut_from_coordinator(broker)

    def _cut_any(self) -> None:
        source, target = self.chance.sample(sorted(self.disks), 2)
        both = self.chance.random() < 0.5
        self._say(f"broker {source} is cut from {target}{' and back' if both else ''}")
        self.network.cuts |= {(source, target), (target, source)} if both else {(source, target)}

    def _heal(self) -> None:
        self._say("the network is repaired")
        self.network.cuts.clear()
        for broker in sorted(self._unreachable):
            self.reach_coordinator(broker)

    def _disk_fails(self) -> None:
        broker = self._pick(n for n in self._running() if not self.disks[n].failed)
        if broker is not None:
            failing, directory = self.brokers[broker], self.chance.randrange(2)
            self._say(f"log directory {directory} of broker {broker} fails")
            failed = failing.data_plane.fail(directory)
            failing.process.post(0.001, lambda: failing.replicas.logs_failed(failed))

    # ---- the end ----

    async def _rest(self) -> None:
        self._say("everything is repaired")
        self._heal()
        for number, broker in list(self.brokers.items()):
            if self.disks[number].failed:
                self.kill(number)
            elif broker.process.hung:
                self.resume(number)
        await self._until("come to rest", lambda: self.restless())
        before = self.checker.acknowledgements

        def wrote() -> str | None:
            return None if self.checker.acknowledgements > before else "no record is acknowledged"

        if self.checker.topics:
            await self._until("take records", wrote, writes=True)
        await self._until("come to rest again", lambda: self.restless())

    async def _until(self, what: str, reason: Callable[[], str | None], writes: bool = False) -> None:
        """Waits until there is no reason to wait. Between two looks, a producer may write."""
        end = self.loop.now + RESTS_AFTER_SECONDS
        while (why := reason()) is not None:
            if self.loop.now > end:
                self.checker.complain(f"the cluster does not {what}: {why}")
            for number in self.disks:
                if number not in self.brokers:
                    self.come_back(number)
            if writes:
                self.produce()
            self._check()
            await asyncio.sleep(0.5)

    def restless(self) -> str | None:
        """Why the cluster is not at rest yet."""
        controllers = [item for item in self.brokers.values() if item.serving and item.controller.active]
        if len(controllers) != 1 or znodes.CONTROLLER not in self.coordinator.nodes:
            return f"the controllers are {[item.id for item in controllers]}"
        checker = self.checker
        if checker.deletions:
            return f"deletions wait: {checker.deletions}"
        assigned = {(name, number) for name, (_, of) in checker.topics.items() for number in of}
        if checker.states.keys() != assigned:
            return f"states without partitions, or the reverse: {checker.states.keys() ^ assigned}"
        for path in (znodes.LOG_DIR_FAILURES, znodes.DELETE_TOPICS):
            if self.coordinator.nodes[path].children:
                return f"{path} has {self.coordinator.nodes[path].children}"
        if self.coordinator.nodes[znodes.TOPIC_CONFIGS].children != checker.topics.keys():
            return f"settings: {self.coordinator.nodes[znodes.TOPIC_CONFIGS].children}"
        return self._restless_partition(controllers[0]) or self._restless_broker(controllers[0])

    def _restless_partition(self, controller: Broker) -> str | None:
        for (name, number), state in self.checker.states.items():
            topic_id, assignment = self.checker.topics[name]
            what = f"{name}-{number}"
            if state.leader == NO_LEADER:
                return f"{what} has no leader"
            if set(state.isr) != set(assignment[number].replicas):
                return f"{what} has the ISR {state.isr}, replicas {assignment[number].replicas}"
            known = controller.controller.state.topics.get(name)
            if known is None or known.partitions.get(number) != state:
                return f"the controller does not know {what} in state {state}"
            logs = [self.disks[broker].logs.get((name, number)) for broker in state.isr]
            if any(log is None or log.topic_id != topic_id for log in logs):
                return f"{what} has no log on a replica"
            if len({(log.end, log.prefix(log.end)) for log in logs if log is not None}) > 1:
                return f"the logs of {what} differ"
        return None

    def _restless_broker(self, controller: Broker) -> str | None:
        for number in self.disks:
            broker = self.brokers.get(number)
            if broker is None or not broker.serving:
                return f"broker {number} does not serve"
            metadata = broker.metadata
            if metadata.controller_id != controller.id:
                return f"broker {number} thinks that {metadata.controller_id} is the controller"
            if metadata.brokers.keys() != self.disks.keys():
                return f"broker {number} knows the brokers {metadata.brokers.keys()}"
            if set(metadata.names()) != self.checker.topics.keys():
                return f"broker {number} knows {metadata.names()}, there are {self.checker.topics.keys()}"
            for topic in metadata.topics():
                states = {item: self.checker.states[topic.name, item] for item in topic.partitions}
                if topic.id != self.checker.topics[topic.name][0] or topic.partitions != states:
                    return f"broker {number} knows {topic}, the states are {states}"
                if any(topic.offline.values()):
                    return f"broker {number} takes replicas of {topic.name} for offline: {topic.offline}"
            for name, index in self.disks[number].logs:
                assigned = self.checker.topics.get(name, (None, {}))[1].get(index)
                if assigned is None or BrokerId(number) not in assigned.replicas:
                    return f"broker {number} has a log of {name}-{index}, which is not its own"
            # ISR changes of brokers wait for the version that the coordinator has.
            for where, led in broker.replication._state.led.items():
                state = self.checker.states.get(tuple(where))
                if state is not None and state.leader == number and led.partition_epoch != state.zk_version:
                    return f"broker {number} leads {where} with version {led.partition_epoch}: {state}"
        return None


def znodes_create(path: str) -> Any:
    from cluster.controller.zookeeper import Create

    return Create(path, b"")


@contextlib.contextmanager
def _deterministic(world: World) -> Iterator[None]:
    """Everything random comes from the seed, and nothing depends on real time."""
    state = random.getstate()
    random.seed(world.seed)
    try:
        with (
            mock.patch("cluster.broker.controller_link.Peer", SimulatedPeer),
            mock.patch("cluster.time_slice._SLICE_SECONDS", float("inf")),
            mock.patch("cluster.model.secrets.token_bytes", world.chance.randbytes),
        ):
            yield
    finally:
        random.setstate(state)


class _Failures(logging.Handler):
    """Failures that drivers log and survive."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(logging.ERROR)
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._checker.complain(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def _failures_to(checker: Checker) -> Iterator[None]:
    logger = logging.getLogger("cluster")
    handler, level, propagates = _Failures(checker), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
