"""The driver of dynamic settings: reads them at the start, watches their notices, and applies changes.

Changes are applied one after the other. Each reads the znode's current settings, so a late notice applies
nothing old. A change made through this broker is in force when it is answered. Settings that another program
wrote and that cannot be applied are named in the log; the old ones stay in force. Lives on the event loop;
the data plane is called in threads. A crash loses nothing: the next start reads the znodes. Source:
kafka.server.ZkConfigManager, ZkAdminManager, ConfigHandler.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol

from cluster.broker.config import BrokerConfig
from cluster.broker.dynamic import broker_rules, quotas
from cluster.broker.dynamic.alteration import Alteration
from cluster.broker.dynamic.live import LiveConfig
from cluster.broker.dynamic.mutations import MutationQuotas
from cluster.broker.dynamic.store import Alter, ConfigStore, notice_number
from cluster.broker.settings import ConfigError
from cluster.broker.topic_policy import check_topic_config
from cluster.controller import ZooKeeper, znodes
from cluster.controller.zookeeper import ConnectionLostError
from cluster.errors import InvalidRequest, RequestTimedOut
from cluster.model import BrokerId

log = logging.getLogger(__name__)

# Threads of their own: a name server that does not answer delays only requests that name hosts.
_resolvers = ThreadPoolExecutor(4, "logcore-names")

_READS_AT_ONCE = 256
"""How many znodes the start reads at the same time."""

CLUSTER_ENTITY = f"brokers/{znodes.DEFAULT_ENTITY}"


class DataPlane(Protocol):
    """The part of `logcore._native.Server` that takes settings. Its methods may block and run in threads."""

    def check_config(self, properties: dict[str, str]) -> None:
        """Raises what `update_config` would raise for these settings."""

    def update_config(self, properties: dict[str, str]) -> None:
        """Replaces the broker's settings. If one is not allowed, ServerError names it and nothing changes."""

    def set_client_quotas(self, quotas: list[tuple[str | None, str | None, dict[str, float]]]) -> None:
        """Replaces the quotas of users and clients."""

    def set_ip_quotas(self, quotas: list[tuple[str | None, float]]) -> None:
        """Replaces the connection rates of addresses."""


TopicChanged = Callable[[str], Awaitable[None]]
"""Reads and applies the settings of a topic."""

BrokerChanged = Callable[[BrokerConfig, BrokerConfig], Awaitable[None]]
"""Called with the broker's configuration before and after a change that the data plane has applied."""


class DynamicConfigs:
    """The dynamic settings of one broker."""

    def __init__(self, zk: ZooKeeper, broker: BrokerId, live: LiveConfig) -> None:
        self.live = live
        self.quotas: dict[str, dict[str, str]] = {}
        """The settings in the znode of each user, client and address."""
        self.mutations = MutationQuotas(_mutation_window(live.static), time.monotonic)
        self._client_quotas: list[quotas.ClientQuota] | None = None
        self._quotas_wait = 0
        self._ip_quotas: list[tuple[str | None, float]] | None = None
        """The rates that the data plane has."""
        self._addresses: dict[str, str] = {}
        """Addresses of the hosts that have quotas."""
        self._zk = zk
        self._store = ConfigStore(zk)
        self._broker = broker
        self._own_entity = f"brokers/{broker}"
        self._data_plane: DataPlane | None = None
        self._topic_changed: TopicChanged | None = None
        self._broker_changed: BrokerChanged | None = None
        self._half_applied = False
        """The data plane has new settings, but `BrokerChanged` failed. They are applied again."""
        self._applying = asyncio.Lock()
        self._woken = asyncio.Event()
        self._seen = -1
        self._task: asyncio.Task[None] | None = None

    # ---- start and stop ----

    async def load(self) -> None:
        """Reads the broker's settings into `live`, before there is anything to apply them to."""
        self._seen = max(map(_number, await self._store.notices(self._woken.set)), default=-1)
        await self._reload_broker()

    async def start(self, data_plane: DataPlane, on_topic: TopicChanged, on_broker: BrokerChanged) -> None:
        """Applies all settings, and from now on every change since `load`."""
        self._data_plane, self._topic_changed, self._broker_changed = data_plane, on_topic, on_broker
        entities = await self._store.quota_entities()
        for first in range(0, len(entities), _READS_AT_ONCE):
            batch = entities[first : first + _READS_AT_ONCE]
            self.quotas |= zip(batch, await asyncio.gather(*map(self._read, batch)), strict=True)
        loaded, self.live.current = self.live.current, self.live.static
        if loaded is not self.live.static:
            await self._apply_broker_config(loaded)
        await self._find_addresses(quotas.ip_rates(self.quotas))
        await self._apply_quotas()
        self._task = asyncio.create_task(self._run(), name="dynamic settings")

    async def stop(self) -> None:
        """Stops watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def session_renewed(self) -> None:
        """A new session replaced a lost one and its watch: read the notices."""
        self._woken.set()

    # ---- notices ----

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._apply_notices()
            except (ConnectionLostError, RequestTimedOut):
                await self._zk.wait_connected()
                self._woken.set()
            except Exception:
                log.exception(
                    "the notices of changed settings could not be read; the next notice tries again"
                )

    async def _apply_notices(self) -> None:
        names = await self._store.notices(self._woken.set)
        async with self.quotas_together(is_answered=False):
            for name in names:
                number = _number(name)
                if number <= self._seen:
                    continue
                try:
                    entity = await self._store.noticed(name)
                    if entity is not None:
                        await self._apply(entity)
                except (ConnectionLostError, RequestTimedOut):
                    raise
                except Exception:
                    log.exception("a change of settings could not be applied and is skipped")
                self._seen = number
        await self._store.purge(names, int(time.time() * 1000))

    async def _apply(self, entity: str) -> None:
        """Reads the settings of an entity and applies them."""
        kind, _, name = entity.partition("/")
        if kind == "ips":
            # Outside the lock, so that a slow name server does not delay other settings.
            host = _host_of(entity)
            await self._find_addresses([*quotas.ip_rates(self.quotas), *host], anew=host)
        async with self._applying:
            if kind == "topics" and self._topic_changed is not None:
                await self._topic_changed(name)
            elif entity in (CLUSTER_ENTITY, self._own_entity):
                await self._reload_broker()
            elif quotas.entity_of(entity) is not None:
                await self._reload_quotas(entity)
            elif kind not in ("topics", "brokers"):
                log.warning("a notice names %s, whose kind is unknown; it is ignored", entity)

    async def _read(self, entity: str) -> dict[str, str]:
        """The settings of an entity. If its znode cannot be read, none, and the log says so."""
        try:
            return await self._store.read(entity)
        except znodes.ZnodeError as error:
            log.error("the settings of %s are ignored: %s", entity, error)
            return {}

    # ---- the broker's settings ----

    async def _reload_broker(self) -> None:
        self.live.cluster = _readable(CLUSTER_ENTITY, await self._read(CLUSTER_ENTITY), own=False)
        self.live.own = _readable(self._own_entity, await self._read(self._own_entity), own=True)
        own = self.live.own
        if self._data_plane is not None:
            own = broker_rules.with_open_listeners(self.live)
            if broker_rules.other_listeners(self.live):
                log.error("listeners that were changed in the coordinator are opened at the next start only")
        try:
            config = self.live.effective(self.live.cluster, own)
        except ConfigError as error:
            log.error("dynamic settings of the broker are not applied: %s", error)
            return
        if config.given == self.live.current.given and not self._half_applied:
            return
        for warning in set(config.warnings) - set(self.live.current.warnings):
            log.warning("dynamic settings: %s", warning)
        if self._data_plane is not None:
            for name in broker_rules.of_next_start(self.live.current, config):
                log.warning("dynamic settings: %s takes effect at the next start", name)
        await self._apply_broker_config(config)

    async def _apply_broker_config(self, config: BrokerConfig) -> None:
        from logcore._native import ServerError

        if self._data_plane is not None:
            try:
                await asyncio.to_thread(self._data_plane.update_config, config.server_settings())
            except ServerError as error:
                log.error("dynamic settings of the broker are not applied: %s", error)
                return
        self._half_applied = True
        if self._broker_changed is not None:
            await self._broker_changed(self.live.current, config)
        self.live.current = config
        self._half_applied = False

    # ---- quotas ----

    async def _reload_quotas(self, entity: str) -> None:
        config = await self._read(entity)
        if config:
            self.quotas[entity] = config
        else:
            self.quotas.pop(entity, None)
        await self._apply_quotas()

    @asynccontextmanager
    async def quotas_together(self, is_answered: bool = True) -> AsyncIterator[None]:
        """Collects changes of quotas and applies them at its end, because applying costs time for each quota
        there is.

        Without a client that waits (`is_answered` false), the last of several concurrent blocks applies them
        all.
        """
        self._quotas_wait += 1
        try:
            yield
        finally:
            self._quotas_wait -= 1
            async with self._applying:
                await (self._push_quotas() if is_answered else self._apply_quotas())

    async def _apply_quotas(self) -> None:
        if self._quotas_wait == 0:
            await self._push_quotas()

    async def _push_quotas(self) -> None:
        """Gives the data plane the quotas that changed."""
        if self._data_plane is None:
            return
        clients = quotas.client_quotas(self.quotas)
        if clients != self._client_quotas:
            await asyncio.to_thread(self._data_plane.set_client_quotas, clients)
            self.mutations.replace(clients)
            self._client_quotas = clients
        rates = self._rates_by_address()
        if rates != self._ip_quotas:
            await asyncio.to_thread(self._data_plane.set_ip_quotas, rates)
            self._ip_quotas = rates

    def _rates_by_address(self) -> list[tuple[str | None, float]]:
        rates: list[tuple[str | None, float]] = []
        for host, rate in quotas.ip_rates(self.quotas).items():
            address = None if host is None else self._addresses.get(host)
            if host is not None and address is None:
                log.error("the connection rate of %s is ignored: the host name has no address", host)
            else:
                rates.append((address, rate))
        return rates

    async def _find_addresses(self, hosts: Iterable[str | None], anew: Iterable[str] = ()) -> None:
        """Resolves the hosts without a known address and those in `anew`, all at the same time."""
        wanted = {
            host for host in hosts if host is not None and (host in anew or host not in self._addresses)
        }
        found = await asyncio.gather(*map(_address, wanted))
        for host, address in zip(wanted, found, strict=True):
            if address is not None:
                self._addresses[host] = address

    # ---- commands of the handlers ----

    async def alter_topic(self, name: str, alter: Alteration, validate_only: bool) -> None:
        """Changes a topic's settings. Raises InvalidConfig if the new ones are not allowed."""

        def checked(config: Mapping[str, str]) -> dict[str, str]:
            altered = alter(config)
            check_topic_config(altered, self.live.current)
            return altered

        await self._change(f"topics/{name}", _in_a_thread(checked), validate_only)

    async def alter_broker(self, alter: Alteration, own: bool, validate_only: bool) -> None:
        """Changes the dynamic settings of this broker (`own`) or the defaults of all brokers."""
        checked = broker_rules.checked(alter, self.live, own)

        def accepted(config: Mapping[str, str]) -> dict[str, str]:
            altered = checked(config)
            self._check_data_plane(altered, own)
            return altered

        await self._change(self._own_entity if own else CLUSTER_ENTITY, _in_a_thread(accepted), validate_only)

    def _check_data_plane(self, config: Mapping[str, str], own: bool) -> None:
        """Refuses settings that the data plane refuses. If they were stored, it would refuse every later
        change too.
        """
        from logcore._native import ServerConfigError

        assert self._data_plane is not None
        ignored = broker_rules.unreadable(config, own)
        layer = {name: text for name, text in config.items() if name not in ignored}
        layers = (self.live.cluster, layer) if own else (layer, self.live.own)
        after = self.live.effective(*layers)
        try:
            self._data_plane.check_config(after.server_settings())
        except ServerConfigError as error:
            raise InvalidRequest(f"Invalid dynamic configuration: {error}") from None

    async def alter_quotas(
        self, entity: quotas.Entity, ops: list[quotas.QuotaOp], validate_only: bool
    ) -> None:
        """Changes the quotas of an entity."""
        path = quotas.entity_path(entity)
        altered = quotas.alteration(entity, ops)

        async def alter(config: Mapping[str, str]) -> Mapping[str, str]:
            return altered(config)

        # As in Kafka this is the sanitized name, so an IPv6 address cannot be resolved.
        name = path.removeprefix("ips/")
        if name not in (path, znodes.DEFAULT_ENTITY) and await _address(name) is None:
            raise InvalidRequest(f"{name} is not a valid IP or resolvable host.")
        await self._change(path, alter, validate_only)

    async def _change(self, entity: str, alter: Alter, validate_only: bool) -> None:
        try:
            await self._store.change(entity, alter, validate_only)
            if not validate_only:
                await self._apply(entity)
        except ConnectionLostError:
            raise RequestTimedOut("The coordinator did not answer; the change may have been made.") from None


def _in_a_thread(alter: Alteration) -> Alter:
    """Runs `alter` in a thread, because settings can be as long as a znode, with lists of many words."""

    async def altered(config: Mapping[str, str]) -> dict[str, str]:
        return await asyncio.to_thread(alter, config)

    return altered


def _mutation_window(config: BrokerConfig) -> int:
    """Seconds."""
    return config.number("controller.quota.window.num") * config.number(
        "controller.quota.window.size.seconds"
    )


def _number(name: str) -> int:
    number = notice_number(name)
    return -1 if number is None else number


def _readable(entity: str, config: Mapping[str, str], own: bool) -> dict[str, str]:
    """The settings of a broker's znode that can be applied. The log names the others."""
    reasons = broker_rules.unreadable(config, own)
    for name, reason in reasons.items():
        log.error("setting %s of %s in the coordinator is ignored: %s", name, entity, reason)
    return {name: text for name, text in config.items() if name not in reasons}


def _host_of(entity: str) -> list[str]:
    """The address or host of an entity, if it has one."""
    host = (quotas.entity_of(entity) or {}).get(quotas.IP)
    return [] if host is None else [host]


async def _address(host: str) -> str | None:
    """The first address of a host; None if it has none."""
    loop = asyncio.get_running_loop()
    look_up = functools.partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    try:
        found = await loop.run_in_executor(_resolvers, look_up)
    except (OSError, UnicodeError):
        return None
    return str(found[0][4][0])
