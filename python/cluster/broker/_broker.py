"""The composition root of a broker: the order in which its parts start and stop.

Everything in Python runs on the event loop that called `start`; blocking work runs in threads. After a crash
the next start recovers the logs and reads the znodes; the registration ends with its session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker import registration
from cluster.broker.auto_topics import AutoTopics
from cluster.broker.bridge import Bridge
from cluster.broker.config import BrokerConfig
from cluster.broker.context import Body, Context, OwnRequest
from cluster.broker.controller_link import ControllerLink
from cluster.broker.dynamic import broker_rules
from cluster.broker.dynamic.driver import DynamicConfigs
from cluster.broker.dynamic.live import LiveConfig
from cluster.broker.errors import BrokerStartError, BrokerStopError
from cluster.broker.features import Features
from cluster.broker.group_settings import consumer_limits
from cluster.broker.group_topics import GroupTopics
from cluster.broker.handlers import HANDLERS
from cluster.broker.leaders import MetadataLeaders
from cluster.broker.parts import BrokerState, Parts
from cluster.broker.producer_ids import ProducerIds
from cluster.broker.replicas import MetadataCache, ReplicaManager, TopicConfigs, TopicLogs
from cluster.broker.topic_policy import check_topic_config, offsets_topic_config, transactions_topic_config
from cluster.broker.verification import TransactionVerification
from cluster.controller import Balance, Controller, NewTopic, TopicDefaults, Transport, ZooKeeper, znodes
from cluster.controller.features import SUPPORTED
from cluster.controller.zookeeper import Create, ZooKeeperError
from cluster.errors import NONE, KafkaProtocolError, RequestTimedOut, for_code
from cluster.groups import GroupCoordinator, GroupLimits
from cluster.model import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    BrokerId,
    BrokerInfo,
    Endpoint,
    Milliseconds,
)
from cluster.peer import Peer
from cluster.replication import Replication
from cluster.state_topics import StateTopicLog
from cluster.transactions import TransactionCoordinator, TransactionLimits

if TYPE_CHECKING:
    from cluster.broker.metrics_listener import MetricsListener
    from logcore._native import ListenerTls, LoadProgress, Server

log = logging.getLogger(__name__)

_MEMBERS_DIVISOR = 4
"""Group members may hold a quarter of the memory limit of requests, in addition to it."""

_STOP_GRACE_SECONDS = 20.0
"""How long a stop waits for clients to read their answers. Supervisors kill after 30 s, and the logs close
after this.
"""
_HANDLERS_AT_STOP_SECONDS = 10.0
"""How long a stop waits for handlers. On a full disk the coordinator's writes do not end."""
_STARTING_GRACE_SECONDS = 2.0
"""How long an interrupted start waits for answers of the data plane. Handlers do not run yet."""
_DISCONNECTED_AT_STOP_MS = 2000
"""How long a stop waits for calls to the coordinator while there is no connection to it."""
_REREGISTER_PAUSE_SECONDS = 1.0
_NOWHERE = "localhost"
"""With port 0: an address that refuses each connection, as that of a dead broker."""
_CONTROLLED_SHUTDOWN, _CONTROLLED_SHUTDOWN_VERSION = 7, 3
_PROGRESS_SECONDS = 5.0
"""How often a long start logs its progress."""


class Broker:
    """A broker. After a BrokerStartError of `start` nothing is left running."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.loading: LoadProgress | None = None
        """The progress of loading the logs; None before it begins."""
        self._zk: ZooKeeper | None = None
        self._server: Server | None = None
        self._controller: Controller | None = None
        self._replicas: ReplicaManager | None = None
        self._replication: Replication | None = None
        self._link: ControllerLink | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._verification: TransactionVerification | None = None
        self._state_log: StateTopicLog | None = None
        self._dynamic: DynamicConfigs | None = None
        self._features: Features | None = None
        self._bridge: Bridge | None = None
        self._context: Context | None = None
        self._info: BrokerInfo | None = None
        self._bound: dict[str, int] = {}
        self._renewal: asyncio.Task[None] | None = None
        self._no_log_dir = ""
        """Why every log directory failed; empty while one is online."""
        self._log_dirs_failed = asyncio.Event()
        self._registering = asyncio.Lock()
        self._parts = Parts()
        self._metrics: MetricsListener | None = None

    @property
    def metrics_address(self) -> str | None:
        """The URL of the metrics; None if `metrics.listener` is not set or the broker does not run."""
        return self._metrics.address if self._metrics is not None else None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The advertised endpoints, with the bound ports; empty before the start."""
        return self._info.endpoints if self._info is not None else ()

    @property
    def bootstrap(self) -> str:
        """Host and port of the first listener."""
        first = self.endpoints[0]
        return f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"

    async def start(self) -> None:
        """Starts. Returns when every partition is open and requests are answered. If cancelled, it stops the
        broker.
        """
        for warning in self.config.warnings:
            log.warning("%s", warning)
        try:
            await self._start()
        except asyncio.CancelledError:
            await self.stop()
            raise
        except BaseException:
            try:
                await self.stop()
            except BrokerStopError as error:
                # The caller gets the reason of the failed start.
                log.error("%s", error)
            raise

    async def _start(self) -> None:
        try:
            await self._start_parts()
        except ConnectionError as error:
            raise BrokerStartError(str(error)) from None
        except znodes.ZnodeError as error:
            raise BrokerStartError(
                f"{error}; write it as Kafka does (zookeeper-shell set), or delete it if nothing needs it"
            ) from None
        except (ZooKeeperError, RequestTimedOut) as error:
            log.debug("the start failed", exc_info=True)
            raise BrokerStartError(
                f"the coordinator failed at a request of the start: {error}; see its log, and start again"
            ) from None

    async def _start_parts(self) -> None:
        config = self.config
        self._measure()
        stored_broker, stored_cluster = registration.stored_identity(config.log_dirs)
        zk = self._zk = await self._connect()
        async with zk.disconnected_at_most(config.zookeeper_connection_timeout_ms):
            await zk.ensure(znodes.PERSISTENT_PATHS)
            cluster = await registration.cluster_id(zk, stored_cluster)
            broker = await registration.broker_id(
                zk,
                config.broker_id,
                stored_broker,
                config.number("reserved.broker.max.id"),
                config.flag("broker.id.generation.enable"),
            )
            await registration.check_inter_broker_listener(zk, broker, config)
            features = self._features = Features(zk)
            await features.load()
            dynamic = self._dynamic = DynamicConfigs(zk, broker, LiveConfig(config))
            await dynamic.load()
        tls = await asyncio.to_thread(self._open_tls, dynamic.live.current)
        server = self._server = self._parts.server = await self._recover(broker, cluster, dynamic.live)
        on_disk = {topic for topic, _, _ in server.partitions()}
        endpoints = self._listen(server, dynamic.live.current, tls)
        info = self._info = BrokerInfo(broker, endpoints, config.text("broker.rack"), features=SUPPORTED)
        async with zk.disconnected_at_most(config.zookeeper_connection_timeout_ms):
            epoch = await registration.register(zk, info, config.log_dirs[0])
            zk.on_session(self._session_renewed)
            metadata = self._parts.metadata = MetadataCache(cluster)
            features.start(server.set_features)
            context = self._context = self._compose(zk, server, metadata, dynamic, features)
            self._set_broker_epoch(epoch)
            assert self._replication is not None
            self._replication.start()
            self._parts.replication = self._replication
            await dynamic.start(server, self._topic_config_changed, self._config_changed)
            requests_max = config.number("queued.max.requests")
            facts = self._replication.reported
            assert self._state_log is not None
            bridge = self._bridge = Bridge(
                server,
                context,
                requests_max,
                self._logs_failed,
                facts,
                self._state_log.replicated,
                context.verification.take,
            )
            bridge.start()
            await context.controller.start()
            await self._informed(context)
        self._parts.controller = context.controller
        self._warn_of_strays(on_disk, metadata)
        context.groups.start()
        context.transactions.start()
        self._parts.groups = context.groups
        self._parts.state = BrokerState.RUNNING

    async def _informed(self, context: Context) -> None:
        """Waits until a controller has sent this broker its partitions and the metadata."""
        while True:
            try:
                await asyncio.wait_for(context.replicas.informed.wait(), _PROGRESS_SECONDS)
                return
            except TimeoutError:
                log.info(
                    "waiting for controller %d, which has not sent this broker its partitions yet",
                    context.metadata.controller_id,
                )

    def _measure(self) -> None:
        """Starts the metrics listener, which runs until the end of the stop."""
        address = self.config.metrics_listener
        self._parts.state = BrokerState.STARTING
        if address is None:
            return
        from cluster.broker.metrics_listener import MetricsListener

        host, port = address
        try:
            self._metrics = MetricsListener(self._parts, host, port)
        except OSError as error:
            reason = error.strerror or error
            raise BrokerStartError(
                f"metrics.listener={host}:{port} cannot be listened on: {reason}; choose another address and "
                "port"
            ) from None

    async def _connect(self) -> ZooKeeper:
        config = self.config
        try:
            return await ZooKeeper.connect(
                config.zookeeper_connect,
                Milliseconds(config.number("zookeeper.session.timeout.ms")),
                Milliseconds(config.zookeeper_connection_timeout_ms),
            )
        except ConnectionError as error:
            raise BrokerStartError(str(error)) from None

    async def _recover(self, broker: BrokerId, cluster: str, live: LiveConfig) -> Server:
        """Opens the log directories and logs the progress. If cancelled, it still waits until they are open,
        so that `stop` can close them.
        """
        from logcore._native import LoadProgress

        progress = self.loading = self._parts.loading = LoadProgress()
        self._parts.state = BrokerState.RECOVERY
        opening = asyncio.create_task(
            asyncio.to_thread(self._open, broker, cluster, broker_rules.at_start(live), progress)
        )
        try:
            while not (await asyncio.wait([opening], timeout=_PROGRESS_SECONDS))[0]:
                log.info(
                    "loading logs: %d of %d done, %d of %d MiB checked",
                    progress.logs_done,
                    progress.logs_total,
                    progress.bytes_checked >> 20,
                    progress.bytes_total >> 20,
                )
        except asyncio.CancelledError:
            log.warning(
                "stopping once the logs are open: %d of %d done", progress.logs_done, progress.logs_total
            )
            self._server = await opening
            raise
        return opening.result()

    def _open(self, broker: BrokerId, cluster: str, config: BrokerConfig, progress: LoadProgress) -> Server:
        from logcore._native import LogDirError, Server, ServerError

        try:
            return Server(
                node_id=broker,
                cluster_id=cluster,
                log_dirs=self.config.log_dirs,
                config={**config.server_settings()},
                progress=progress,
            )
        except LogDirError as error:
            raise BrokerStartError(f"{error}; repair the directory, or set log.dirs to another") from None
        except ServerError as error:
            raise BrokerStartError(str(error)) from None

    @staticmethod
    def _open_tls(config: BrokerConfig) -> dict[str, ListenerTls]:
        """TLS by listener. It is opened before the logs, so that a mistake is reported at once."""
        if not config.tls:
            return {}
        from cluster.broker.tls import open_tls

        return {listener: open_tls(settings) for listener, settings in config.tls.items()}

    def _listen(
        self, server: Server, config: BrokerConfig, tls: dict[str, ListenerTls]
    ) -> tuple[Endpoint, ...]:
        from logcore._native import ListenerError, ServerError

        wanted = [(item.listener, item.host, item.port) for item in config.listeners]
        try:
            ports = server.start(wanted, tls)
        except ListenerError as error:
            raise BrokerStartError(
                f"{error}; stop the program that uses it, or choose another address and port"
            ) from None
        except ServerError as error:
            raise BrokerStartError(str(error)) from None
        self._bound = {item.listener: port for item, port in zip(config.listeners, ports, strict=True)}
        return self._advertised(config)

    def _advertised(self, config: BrokerConfig) -> tuple[Endpoint, ...]:
        """The advertised endpoints, with the bound ports."""
        return tuple(
            Endpoint(
                item.listener, item.host, item.port or self._bound[item.listener], item.security_protocol
            )
            for item in config.advertised
        )

    async def _topic_config_changed(self, name: str) -> None:
        """Applies a topic's settings to its logs here, and to the elections of its leaders."""
        assert self._replicas is not None
        assert self._controller is not None
        await self._replicas.topic_config_changed(name)
        await self._controller.topic_config_changed(name)

    async def _config_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Applies a dynamic change to the parts other than the data plane."""
        assert self._controller is not None
        assert self._info is not None
        assert self._zk is not None
        info = replace(self._info, endpoints=self._advertised(after))
        if info != self._info:
            # First, because it can fail; the whole change is then applied again.
            async with self._registering:
                await registration.advertise(self._zk, info)
                self._info = info
            self._controller.brokers_changed()
        unclean = after.flag("unclean.leader.election.enable")
        if unclean != before.flag("unclean.leader.election.enable"):
            self._controller.unclean_election_changed(unclean)

    def _compose(
        self,
        zk: ZooKeeper,
        server: Server,
        metadata: MetadataCache,
        dynamic: DynamicConfigs,
        features: Features,
    ) -> Context:
        config = dynamic.live.current
        assert self._info is not None
        broker = self._info.id
        configs = TopicConfigs(zk)
        link = self._link = ControllerLink(
            metadata,
            broker,
            config.inter_broker_listener,
            config.number("request.timeout.ms"),
            self._answer_here,
        )
        replication = self._replication = Replication(
            broker, server, link, lambda: -1 if self._replicas is None else self._replicas.broker_epoch
        )
        replicas = self._replicas = ReplicaManager(
            TopicLogs(server),
            metadata,
            configs,
            broker,
            config.inter_broker_listener,
            partial(_report_failed_log_dir, zk, broker),
            replication,
        )
        controller = self._controller = Controller(
            zk,
            partial(self._connect_to, replicas, config),
            broker,
            config.inter_broker_listener,
            _topic_defaults(dynamic.live),
            server.partitions_left,
            delete_enabled=config.flag("delete.topic.enable"),
            unclean_election=config.flag("unclean.leader.election.enable"),
            balance=_balance(config),
            on_elections=self._parts.election_times.observe,
        )
        limits = GroupLimits(
            session_timeout_min_ms=config.number("group.min.session.timeout.ms"),
            session_timeout_max_ms=config.number("group.max.session.timeout.ms"),
            members_max=config.number("group.max.size"),
            initial_delay_ms=config.number("group.initial.rebalance.delay.ms"),
            offsets_retention_ms=config.number("offsets.retention.minutes") * 60_000,
            metadata_bytes_max=config.number("offset.metadata.max.bytes"),
            members_bytes_max=config.request_bytes // _MEMBERS_DIVISOR,
        )
        state_log = self._state_log = StateTopicLog(server, metadata.partitions)
        groups = self._groups = GroupCoordinator(
            limits,
            state_log,
            config.number("offsets.retention.check.interval.ms"),
            config.number("offsets.commit.timeout.ms"),
            consumer_limits(config),
            GroupTopics(metadata),
        )
        leaders = MetadataLeaders(metadata, config.inter_broker_listener)
        verification = self._verification = TransactionVerification(
            leaders,
            lambda: metadata.partitions(TRANSACTION_STATE_TOPIC),
            broker,
            config.number("request.timeout.ms"),
            server.verified,
        )
        producer_ids = ProducerIds(link, broker, lambda: replicas.broker_epoch)
        transactions = self._transactions = TransactionCoordinator(
            TransactionLimits(
                config.number("transaction.max.timeout.ms"), config.number("transactional.id.expiration.ms")
            ),
            state_log,
            leaders,
            broker,
            producer_ids.take,
            lambda: features.transaction_version,
            request_timeout_ms=config.number("request.timeout.ms"),
            abort_interval_ms=config.number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            expiry_interval_ms=config.number("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )
        replicas.on_topics_deleted(groups.topics_deleted)
        replicas.on_leadership(GROUP_METADATA_TOPIC, groups.partitions.leadership_changed)
        replicas.on_leadership(TRANSACTION_STATE_TOPIC, transactions.leadership_changed)
        controller.on_controller(partial(setattr, metadata, "controller_id"))
        offsets_topic = NewTopic(
            GROUP_METADATA_TOPIC,
            config.number("offsets.topic.num.partitions"),
            config.number("offsets.topic.replication.factor"),
            config=offsets_topic_config(config),
        )
        transactions_topic = NewTopic(
            TRANSACTION_STATE_TOPIC,
            config.number("transaction.state.log.num.partitions"),
            config.number("transaction.state.log.replication.factor"),
            config=transactions_topic_config(config),
        )

        return Context(
            broker,
            dynamic,
            metadata,
            controller,
            replicas,
            configs,
            groups,
            transactions,
            state_log,
            verification,
            producer_ids,
            features,
            AutoTopics(
                controller,
                link,
                metadata,
                [offsets_topic, transactions_topic],
                config.number("request.timeout.ms"),
            ),
            logs=server,
        )

    def _set_broker_epoch(self, epoch: int) -> None:
        assert self._replicas is not None
        assert self._server is not None
        self._replicas.broker_epoch = epoch
        self._server.set_broker_epoch(epoch)

    async def _answer_here(self, api_key: int, version: int, body: Body) -> Body:
        """Answers a request of this broker to a controller that it is itself."""
        from logcore._native import decode_response, encode_response

        assert self._context is not None
        answer = await HANDLERS[api_key].handle(self._context, OwnRequest(api_key, version, body))
        # As over a socket: fields that the handler leaves out have their defaults.
        return decode_response(api_key, version, encode_response(api_key, version, answer))

    def _connect_to(self, replicas: ReplicaManager, config: BrokerConfig, broker: BrokerInfo) -> Transport:
        """The controller's way to a broker. Its own gets the requests without a socket."""
        assert self._info is not None
        if broker.id == self._info.id:
            return replicas
        endpoint = broker.endpoint(config.inter_broker_listener)
        if endpoint is None:
            log.error(
                "broker %d has no listener %s, so it gets nothing from the controller: set "
                "inter.broker.listener.name alike on all brokers, and start it again",
                broker.id,
                config.inter_broker_listener,
            )
            endpoint = Endpoint(config.inter_broker_listener, _NOWHERE, 0)
        timeout_ms = config.number("controller.socket.timeout.ms")
        return Peer(endpoint.host, endpoint.port, f"controller-{self._info.id}", timeout_ms)

    @staticmethod
    def _warn_of_strays(on_disk: set[str], metadata: MetadataCache) -> None:
        strays = sorted(on_disk - set(metadata.names()))
        if strays:
            log.warning(
                "the log directories have topics that the coordinator does not know; they are not served: %s",
                ", ".join(strays),
            )

    # ---- failed disks ----

    async def failed(self) -> str:
        """Waits until every log directory has failed, and returns why. The caller stops the broker."""
        await self._log_dirs_failed.wait()
        return self._no_log_dir

    def _logs_failed(self, partitions: Sequence[tuple[str, int]], every_dir: str | None) -> None:
        if self._replicas is not None:
            self._replicas.logs_failed(partitions)
        if every_dir is not None:
            self._no_log_dir = every_dir
            self._log_dirs_failed.set()

    # ---- a lost session ----

    def _session_renewed(self) -> None:
        if self._zk is None:
            # The broker is stopping.
            return
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._register_again(), name="registration")

    async def _register_again(self) -> None:
        """Registers again: the registration and the controller's office went with the old session."""
        assert self._zk is not None
        assert self._info is not None
        assert self._controller is not None
        assert self._replicas is not None
        while True:
            try:
                async with self._registering:
                    epoch = await registration.register(self._zk, self._info, self.config.log_dirs[0])
                    self._set_broker_epoch(epoch)
                break
            except (ZooKeeperError, BrokerStartError) as error:
                log.warning("the registration with the coordinator failed and is tried again: %s", error)
                await asyncio.sleep(_REREGISTER_PAUSE_SECONDS)
        self._controller.session_renewed()
        if self._dynamic is not None:
            self._dynamic.session_renewed()
        if self._features is not None:
            self._features.session_renewed()

    # ---- stop ----

    async def _hand_over(self) -> None:
        """Asks the controller to move the leaderships of this broker, so that clients see no error
        (`KafkaServer.controlledShutdown`).
        """
        assert self._context is not None
        assert self._link is not None
        assert self._replicas is not None
        assert self._zk is not None
        config, metadata = self._context.config, self._context.metadata
        if len(metadata.brokers) < 2 or not config.flag("controlled.shutdown.enable"):
            return
        self._replicas.leave()
        body = {"broker_id": self._context.broker_id, "broker_epoch": self._replicas.broker_epoch}
        backoff_seconds = config.number("controlled.shutdown.retry.backoff.ms") / 1000
        for attempt in range(config.number("controlled.shutdown.max.retries")):
            if attempt:
                await asyncio.sleep(backoff_seconds)
            try:
                async with asyncio.timeout(backoff_seconds):
                    await self._zk.wait_connected()
            except TimeoutError:
                log.warning("the coordinator does not answer, so no leadership of this broker can be moved")
                break
            try:
                answer = await self._link.request(_CONTROLLED_SHUTDOWN, _CONTROLLED_SHUTDOWN_VERSION, body)
            except (OSError, ValueError, KafkaProtocolError) as error:
                reason = "it does not answer" if isinstance(error, TimeoutError) else error
                log.warning("the controller did not move the leaderships of this broker: %s", reason)
                continue
            if answer["error_code"] != NONE:
                refusal = for_code(answer["error_code"])()
                log.warning("the controller did not move the leaderships of this broker: %s", refusal)
            elif not answer["remaining_partitions"]:
                return
            else:
                remaining = len(answer["remaining_partitions"])
                log.warning("no other broker can lead %d partitions of this one yet", remaining)
        log.warning("stopping without moving every leadership; clients wait for the next leader")

    async def stop(self) -> None:
        """Answers running requests, closes the logs cleanly and leaves the cluster. May be called twice.

        Every part is stopped, also after another part failed; BrokerStopError then names the failures.
        """
        if self._renewal is not None:
            self._renewal.cancel()
        was_running = self._parts.state is BrokerState.RUNNING
        if was_running:
            await self._hand_over()
        self._parts.state = BrokerState.SHUTTING_DOWN
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if self._groups is not None:
            steps.append(("the groups", self._groups.stop))
        if self._transactions is not None:
            steps.append(("the transactions", self._transactions.stop))
        if self._verification is not None:
            steps.append(("the verification of transactions", self._verification.stop))
        if self._server is not None:
            steps.append(("the logs", partial(_close, self._server, self._bridge, self._zk, not was_running)))
        if self._bridge is not None:
            steps.append(("the request bridge", self._bridge.stop))
        if self._dynamic is not None:
            steps.append(("the dynamic settings", self._dynamic.stop))
        if self._features is not None:
            steps.append(("the features", self._features.stop))
        if self._controller is not None:
            steps.append(("the controller", self._controller.stop))
        if self._replicas is not None:
            steps.append(("the replicas", self._replicas.stop))
        if self._replication is not None:
            steps.append(("the in-sync replicas", self._replication.stop))
        if self._link is not None:
            self._link.close()
        if self._zk is not None:
            steps.append(("the coordinator's session", self._zk.close))
        if self._metrics is not None:
            steps.append(("the metrics listener", partial(asyncio.to_thread, self._metrics.stop)))
        self._groups = self._transactions = self._server = self._bridge = self._dynamic = None
        self._features = None
        self._controller = self._replicas = self._replication = self._link = None
        self._zk = self._metrics = None
        failures = [await _failure_of(name, step) for name, step in steps]
        if any(failures):
            raise BrokerStopError("; ".join(filter(None, failures)))


def _balance(config: BrokerConfig) -> Balance | None:
    if not config.flag("auto.leader.rebalance.enable"):
        return None
    return Balance(
        config.number("leader.imbalance.per.broker.percentage"),
        config.number("leader.imbalance.check.interval.seconds"),
    )


def _topic_defaults(live: LiveConfig) -> TopicDefaults:
    return TopicDefaults(
        live.static.number("num.partitions"),
        live.static.number("default.replication.factor"),
        lambda topic: check_topic_config(topic, live.current),
    )


async def _report_failed_log_dir(zk: ZooKeeper, broker: BrokerId) -> None:
    """Tells the controller that a log directory failed (`KafkaZkClient.propagateLogDirEvent`)."""
    notice = Create(
        znodes.LOG_DIR_FAILURE_PREFIX, znodes.encode_log_dir_failure(broker), ephemeral=False, sequential=True
    )
    try:
        await zk.repeating().transaction([notice])
    except ZooKeeperError as error:
        log.error("the controller could not be told of the failed log directory: %s", error)


async def _close(server: Server, bridge: Bridge | None, zk: ZooKeeper | None, starting: bool) -> None:
    """Waits for running requests and closes the logs. Requests that handlers do not answer in time are
    dropped.
    """
    if zk is None or bridge is None or starting:
        if bridge is not None:
            await bridge.give_up()
        await asyncio.to_thread(server.stop, _STARTING_GRACE_SECONDS)
        return
    closing = asyncio.create_task(asyncio.to_thread(server.stop, _STOP_GRACE_SECONDS))
    disconnected = asyncio.create_task(_disconnected(zk))
    timeout = _HANDLERS_AT_STOP_SECONDS
    await asyncio.wait((closing, disconnected), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        log.info(
            "stopping: requests that handlers have not answered are dropped; clients have %d s to read their "
            "answers",
            _STOP_GRACE_SECONDS,
        )
        await bridge.give_up()
    disconnected.cancel()
    await asyncio.gather(disconnected, return_exceptions=True)
    await closing


async def _disconnected(zk: ZooKeeper) -> None:
    """Returns after a while without a connection to the coordinator."""
    with suppress(ConnectionError):
        async with zk.disconnected_at_most(_DISCONNECTED_AT_STOP_MS):
            await asyncio.Event().wait()


async def _failure_of(name: str, step: Callable[[], Awaitable[None]]) -> str | None:
    """Runs one step of a stop. Returns why it failed, or None."""
    from logcore._native import ServerError

    try:
        await step()
    except ServerError as error:
        return str(error)
    except Exception as error:
        log.debug("a step of the stop failed", exc_info=True)
        return f"{name} did not stop cleanly: {error!r}"
    return None
