"""One broker: the real controller, replica manager and replication driver over the models of everything else.

It is put together as `cluster.broker._broker` does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cluster.broker import registration
from cluster.broker._broker import _report_failed_log_dir
from cluster.broker.controller_link import ControllerLink
from cluster.broker.errors import BrokerStartError
from cluster.broker.handlers import HANDLERS
from cluster.broker.replicas import MetadataCache, PartitionSpec, ReplicaManager, TopicConfigs
from cluster.controller import Controller, TopicDefaults
from cluster.controller.zookeeper import ZooKeeperError
from cluster.errors import KafkaProtocolError, UnknownServerError
from cluster.model import BrokerId, BrokerInfo, Endpoint, TopicId
from cluster.peer import Body
from cluster.replication import Replication
from logcore._native import decode_response, encode_response

from .coordinator import Session
from .data_plane import LAG_MAX_SECONDS, DataPlane, Disk
from .network import REQUEST_SECONDS, Process, SimulatedPeer

if TYPE_CHECKING:
    from .world import World

LISTENER = "A"
CONTROLLED_SHUTDOWN = 7


class Manager(ReplicaManager):
    """The replica manager. Tells the checker if it obeys an outdated controller."""

    complain: Callable[[str], None]
    _newest_epoch = _epoch = -1

    def _fenced(self, body: Body) -> int:
        self._epoch = body["controller_epoch"]
        self._newest_epoch = max(self._newest_epoch, self._epoch)
        return super()._fenced(body)

    def _obey(self) -> None:
        if self._epoch < self._newest_epoch:
            text = f"broker {self._local} obeys controller epoch {self._epoch} after {self._newest_epoch}"
            self.complain(text)

    def _open(self, specs: Sequence[PartitionSpec]) -> list[tuple[PartitionSpec, int]]:
        self._obey()
        return super()._open(specs)

    def _stop(self, stops: Sequence[tuple[str, int, bool]]) -> list[int]:
        self._obey()
        return super()._stop(stops)

    def _update(self, name: str, topic_id: TopicId, partitions: Sequence[Body]) -> bool:
        self._obey()
        return super()._update(name, topic_id, partitions)


class Broker:
    """A broker's process. Its disk is not its own."""

    def __init__(self, world: World, broker: int, disk: Disk, directory: Path) -> None:
        self.world = world
        self.id = BrokerId(broker)
        self.directory = directory
        process = self.process = Process(world.network, broker)
        self.session = Session(world.coordinator, world, process)
        self.metadata = MetadataCache("cluster")
        self.data_plane = DataPlane(
            broker,
            disk,
            world.loop.time,
            world.checker,
            lambda facts: process.post(0.0, lambda: self.replication.reported(facts)),
            self._follow,
            world.min_insync,
        )
        self._fetching: set[int] = set()
        self.info = BrokerInfo(self.id, (Endpoint(LISTENER, f"broker-{broker}", broker),))
        self._renewal: asyncio.Task[None] | None = None
        self.replication: Replication
        self.replicas: Manager
        self.controller: Controller
        self.serving = False

    def start(self) -> None:
        self.process.spawn(self._start())

    async def _start(self) -> None:
        zk: Any = self.session
        await zk.wait_connected()
        epoch = await self._register()
        zk.on_session(self._session_renewed)
        timeout_ms = int(REQUEST_SECONDS * 1000)
        link = ControllerLink(self.metadata, self.id, LISTENER, timeout_ms, self._answer_here)
        self.replication = Replication(self.id, self.data_plane, link, lambda: self.replicas.broker_epoch)
        self.replicas = Manager(
            self.data_plane,
            self.metadata,
            TopicConfigs(zk),
            self.id,
            LISTENER,
            partial(_report_failed_log_dir, zk, self.id),
            self.replication,
        )
        self.replicas.complain = self.world.checker.complain
        self.replicas.broker_epoch = epoch
        self.controller = Controller(
            zk,
            self._connect_to,
            self.id,
            LISTENER,
            TopicDefaults(1, min(3, len(self.world.disks)), lambda _: None),
            self.data_plane.partitions_left,
            unclean_election=self.world.unclean,
        )
        self.controller.on_controller(partial(setattr, self.metadata, "controller_id"))
        self.replication.start()
        self.process.serve = self.serve
        self.serving = True
        self.process.post(LAG_MAX_SECONDS / 2, self._housekeep)
        await self.controller.start()

    async def _register(self) -> int:
        while True:
            try:
                zk: Any = self.session
                return await registration.register(zk, self.info, str(self.directory))
            except (ZooKeeperError, BrokerStartError):
                await asyncio.sleep(0.3)

    def _session_renewed(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.get_running_loop().create_task(self._register_again())

    async def _register_again(self) -> None:
        self.replicas.broker_epoch = await self._register()
        self.controller.session_renewed()

    def _connect_to(self, info: BrokerInfo) -> Any:
        if info.id == self.id:
            return self.replicas
        endpoint = info.endpoints[0]
        return SimulatedPeer(endpoint.host, endpoint.port, f"controller-{self.id}", 0)

    async def serve(self, api_key: int, version: int, body: Body) -> Body:
        """Answers another broker, or this one."""
        handler = HANDLERS[api_key]
        context: Any = SimpleNamespace(controller=self.controller, replicas=self.replicas)
        request: Any = SimpleNamespace(api_version=version, body=body)
        try:
            return await handler.handle(context, request)
        except KafkaProtocolError as error:
            return handler.failure(request, error.code)
        except ZooKeeperError:
            # As the bridge does: the session ended.
            return handler.failure(request, UnknownServerError.code)

    async def _answer_here(self, api_key: int, version: int, body: Body) -> Body:
        answer = await self.serve(api_key, version, body)
        return decode_response(api_key, version, encode_response(api_key, version, answer))

    def _housekeep(self) -> None:
        self.data_plane.look_for_laggards()
        self.process.post(LAG_MAX_SECONDS / 2, self._housekeep)

    # ---- the fetcher ----

    def _follow(self, leader: int) -> None:
        if leader not in self._fetching:
            self._fetching.add(leader)
            self.process.post(0.001, lambda: self._fetch(leader))

    def _fetch(self, leader: int) -> None:
        plane, network = self.data_plane, self.world.network
        if not any(True for _ in plane.followed_from(leader)):
            self._fetching.discard(leader)
            return
        asked = plane.questions(leader)
        target = self.world.brokers.get(leader)
        is_open = True

        def over(pause: float) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self.process.post(pause, lambda: self._fetch(leader))

        if not asked or leader not in plane.addresses or target is None or not target.serving:
            over(0.1)
            return
        answering = target

        def answer() -> None:
            answers = answering.data_plane.fetched(self.id, asked)
            answering.process.when_running(lambda: network.send(leader, self.process, lambda: take(answers)))

        def take(answers: Any) -> None:
            if is_open:
                found = plane.apply(leader, asked, answers)
                over(0.001 if found else self.world.chance.uniform(0.05, 0.25))

        network.send(self.id, answering.process, answer)
        self.process.post(REQUEST_SECONDS, lambda: over(0.0))
