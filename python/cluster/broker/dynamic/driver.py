"""Dynamic settings at work: reads them at the start, watches their notices, and has each part of the broker take them.

Owns the order of things: settings are applied one change after the other, always as the znode has them at that
moment, so whoever comes late applies nothing old. A change made through this broker is in force when it is answered;
its own notice finds nothing left to do. Lives on the event loop; the data plane is told in threads. A crash loses
nothing: the next start reads the znodes. What another program wrote there and cannot be applied is named in the log,
and what was in force stays so. Source: kafka.server.ZkConfigManager, ZkAdminManager, ConfigHandler.
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
from cluster.errors import InvalidRequest, RequestTimedOut
from cluster.model import BrokerId

log = logging.getLogger(__name__)

# A name server that does not answer keeps nobody waiting but those who name hosts.
_resolvers = ThreadPoolExecutor(4, "logcore-names")

_READS_AT_ONCE = 256
"""How many znodes are read at the same time at the start, as the controller does it."""

CLUSTER_ENTITY = f"brokers/{znodes.DEFAULT_ENTITY}"


class DataPlane(Protocol):
    """The part of `logcore._native.Server` that settings go to; its methods may block and run in threads."""

    def check_config(self, properties: dict[str, str]) -> None:
        """Raises what `update_config` would raise for these settings."""

    def update_config(self, properties: dict[str, str]) -> None:
        """Replaces the broker's settings; ServerError names one that cannot be, and then nothing changes."""

    def set_client_quotas(self, quotas: list[tuple[str | None, str | None, dict[str, float]]]) -> None:
        """Replaces the quotas of users and clients."""

    def set_ip_quotas(self, quotas: list[tuple[str | None, float]]) -> None:
        """Replaces the connection rates of addresses."""


TopicChanged = Callable[[str], Awaitable[None]]
"""Has the settings of a topic read and applied."""

BrokerChanged = Callable[[BrokerConfig, BrokerConfig], Awaitable[None]]
"""Called with the broker's configuration before and after a change that the data plane has taken."""


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
        """What the data plane was told last."""
        self._addresses: dict[str, str] = {}
        """Of the hosts that have quotas."""
        self._zk = zk
        self._store = ConfigStore(zk)
        self._broker = broker
        self._own_entity = f"brokers/{broker}"
        self._data_plane: DataPlane | None = None
        self._topic_changed: TopicChanged | None = None
        self._broker_changed: BrokerChanged | None = None
        self._half_taken = False
        """The data plane has settings that the coordinator could not be told of: they do not hold until it was."""
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
        """Applies what there is, and from now on what changes after `load`."""
        self._data_plane, self._topic_changed, self._broker_changed = data_plane, on_topic, on_broker
        entities = await self._store.quota_entities()
        for first in range(0, len(entities), _READS_AT_ONCE):
            batch = entities[first : first + _READS_AT_ONCE]
            self.quotas |= zip(batch, await asyncio.gather(*map(self._read, batch)), strict=True)
        loaded, self.live.current = self.live.current, self.live.static
        if loaded is not self.live.static:
            await self._take_broker_config(loaded)
        await self._find_addresses(quotas.ip_rates(self.quotas))
        await self._take_quotas()
        self._task = asyncio.create_task(self._run(), name="dynamic settings")

    async def stop(self) -> None:
        """Watches no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def session_renewed(self) -> None:
        """The session was lost, and with it the watch: look what was changed meanwhile."""
        self._woken.set()

    # ---- what the watch brings ----

    async def _run(self) -> None:
        lost: tuple[type[Exception], ...] = (*_connection_errors(), RequestTimedOut)
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._take_notices()
            except lost:
                await self._zk.wait_connected()
                self._woken.set()
            except Exception:
                log.exception("the notices of changed settings could not be read; the next one tries again")

    async def _take_notices(self) -> None:
        lost: tuple[type[Exception], ...] = (*_connection_errors(), RequestTimedOut)
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
                except lost:
                    raise
                except Exception:
                    log.exception("a change of settings is passed over")
                self._seen = number
        await self._store.purge(names, int(time.time() * 1000))

    async def _apply(self, entity: str) -> None:
        """Has the settings of an entity, as they are now, take effect."""
        kind, _, name = entity.partition("/")
        if kind == "ips":
            # Not in the lock: a name server that is slow holds up nobody else's settings.
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
                log.warning("nobody knows what %s, whose settings were changed, is", entity)

    async def _read(self, entity: str) -> dict[str, str]:
        """The settings of an entity; none, and a line in the log, when nobody can read its znode."""
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
        if config.given == self.live.current.given and not self._half_taken:
            return
        for warning in set(config.warnings) - set(self.live.current.warnings):
            log.warning("dynamic settings: %s", warning)
        if self._data_plane is not None:
            for name in broker_rules.of_next_start(self.live.current, config):
                log.warning("dynamic settings: %s holds from the next start on", name)
        await self._take_broker_config(config)

    async def _take_broker_config(self, config: BrokerConfig) -> None:
        from logcore._native import ServerError

        if self._data_plane is not None:
            try:
                await asyncio.to_thread(self._data_plane.update_config, config.server_settings())
            except ServerError as error:
                log.error("dynamic settings of the broker are not applied: %s", error)
                return
        self._half_taken = True
        if self._broker_changed is not None:
            await self._broker_changed(self.live.current, config)
        self.live.current = config
        self._half_taken = False

    # ---- quotas ----

    async def _reload_quotas(self, entity: str) -> None:
        config = await self._read(entity)
        if config:
            self.quotas[entity] = config
        else:
            self.quotas.pop(entity, None)
        await self._take_quotas()

    @asynccontextmanager
    async def quotas_together(self, is_answered: bool = True) -> AsyncIterator[None]:
        """What changes of quotas inside is in force at its end: telling the data plane takes as long as there are quotas. If
        nobody is answered then, it is when whoever is in the middle of changes is at the end of them.
        """
        self._quotas_wait += 1
        try:
            yield
        finally:
            self._quotas_wait -= 1
            async with self._applying:
                await (self._tell_quotas() if is_answered else self._take_quotas())

    async def _take_quotas(self) -> None:
        if self._quotas_wait == 0:
            await self._tell_quotas()

    async def _tell_quotas(self) -> None:
        """Tells the data plane what it was not told yet."""
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
                log.error("the connection rate of %s is ignored: its address cannot be found", host)
            else:
                rates.append((address, rate))
        return rates

    async def _find_addresses(self, hosts: Iterable[str | None], anew: Iterable[str] = ()) -> None:
        """Looks up those hosts that have no address yet or are to be looked up `anew`, all at the same time."""
        wanted = {
            host for host in hosts if host is not None and (host in anew or host not in self._addresses)
        }
        found = await asyncio.gather(*map(_address, wanted))
        for host, address in zip(wanted, found, strict=True):
            if address is not None:
                self._addresses[host] = address

    # ---- commands of the handlers ----

    async def alter_topic(self, name: str, alter: Alteration, validate_only: bool) -> None:
        """Changes a topic's settings; InvalidConfig when it cannot have those it would have."""

        def checked(config: Mapping[str, str]) -> dict[str, str]:
            altered = alter(config)
            check_topic_config(altered, self.live.current)
            return altered

        await self._change(f"topics/{name}", _in_a_thread(checked), validate_only)

    async def alter_broker(self, alter: Alteration, own: bool, validate_only: bool) -> None:
        """Changes the dynamic settings of this broker (`own`) or the defaults of all."""
        checked = broker_rules.checked(alter, self.live, own)

        def taken(config: Mapping[str, str]) -> dict[str, str]:
            altered = checked(config)
            self._check_taken(altered, own)
            return altered

        await self._change(self._own_entity if own else CLUSTER_ENTITY, _in_a_thread(taken), validate_only)

    def _check_taken(self, config: Mapping[str, str], own: bool) -> None:
        """Refuses settings of a broker's znode that the data plane would not take: stored, they would keep it from
        every later change.
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

        # As Kafka does, the sanitized name: an IPv6 address has none.
        name = path.removeprefix("ips/")
        if name not in (path, znodes.DEFAULT_ENTITY) and await _address(name) is None:
            raise InvalidRequest(f"{name} is not a valid IP or resolvable host.")
        await self._change(path, alter, validate_only)

    async def _change(self, entity: str, alter: Alter, validate_only: bool) -> None:
        try:
            await self._store.change(entity, alter, validate_only)
            if not validate_only:
                await self._apply(entity)
        except _connection_errors():
            raise RequestTimedOut("The coordinator did not answer; the change may have been made.") from None


def _in_a_thread(alter: Alteration) -> Alter:
    """Settings are as long as the coordinator has room, and lists among them have very many words."""

    async def altered(config: Mapping[str, str]) -> dict[str, str]:
        return await asyncio.to_thread(alter, config)

    return altered


def _connection_errors() -> tuple[type[Exception], ...]:
    """What calls to the coordinator raise when it cannot be reached."""
    from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError

    return (ConnectionLoss, OperationTimeoutError, SessionExpiredError)


def _mutation_window(config: BrokerConfig) -> int:
    """Seconds."""
    return config.number("controller.quota.window.num") * config.number(
        "controller.quota.window.size.seconds"
    )


def _number(name: str) -> int:
    number = notice_number(name)
    return -1 if number is None else number


def _readable(entity: str, config: Mapping[str, str], own: bool) -> dict[str, str]:
    """The settings of a broker's znode that can be applied; the log names the others."""
    reasons = broker_rules.unreadable(config, own)
    for name, reason in reasons.items():
        log.error("setting %s of %s in the coordinator is ignored: %s", name, entity, reason)
    return {name: text for name, text in config.items() if name not in reasons}


def _host_of(entity: str) -> list[str]:
    """The address or host whose quotas an entity has, if it is one's."""
    host = (quotas.entity_of(entity) or {}).get(quotas.IP)
    return [] if host is None else [host]


async def _address(host: str) -> str | None:
    """The first address of a host; None when it has none."""
    loop = asyncio.get_running_loop()
    look_up = functools.partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    try:
        found = await loop.run_in_executor(_resolvers, look_up)
    except (OSError, UnicodeError):
        return None
    return str(found[0][4][0])
