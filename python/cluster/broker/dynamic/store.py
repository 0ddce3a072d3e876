"""The znodes of dynamic settings: read, written with their notice, and which notices are new or too old.

Owns how a change is stored: the settings of an entity and a sequential node below /config/changes that names it, in
one transaction, and only if nobody else wrote the settings meanwhile. Owns no decision about settings. Lives on the
event loop. Source: kafka.zk.AdminZkClient, kafka.common.ZkNodeChangeNotificationListener.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from cluster.controller import ZooKeeper, znodes
from cluster.controller.zookeeper import Create, Delete, Operation, SetData, Stat
from cluster.errors import InvalidConfig, RequestTimedOut

NOTICES_KEPT_MS = 15 * 60 * 1000
"""How long a notice stays for brokers that are away for a moment."""

_ATTEMPTS = 10
"""How often a change is tried while others change the same settings."""

_NAMED_TIMES = 3
"""How often a change names its entity: in the path of its settings, in its notice, and in what goes with it. Names leave
room, for the protocol's strings are short.
"""

_NUMBER = re.compile("[0-9]{1,19}")
_QUOTAS = ("users/", "clients/", "ips/")
"""Entities whose znode goes when nothing is left in it."""


Alter = Callable[[Mapping[str, str]], Awaitable[Mapping[str, str]]]
"""From the settings an entity has to those it shall have; raises for such as must not be written."""


class ConfigStore:
    """Dynamic settings in the coordinator."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    async def read(self, entity: str) -> dict[str, str]:
        """The settings of an entity, as in brokers/ID; none when it has no znode."""
        path = znodes.config_path(entity)
        found = await self._zk.find(path)
        return znodes.decode_config(path, found[0] if found else None)

    async def quota_entities(self) -> list[str]:
        """Every user, client and address that has a znode."""
        users = [f"users/{name}" for name in await self._names("users")]
        found = [f"{kind}/{name}" for kind in ("clients", "ips") for name in await self._names(kind)]
        for user in users:
            found += [f"{user}/clients/{name}" for name in await self._names(f"{user}/clients")]
        return users + found

    async def _names(self, parent: str) -> list[str]:
        return await self._zk.children(znodes.config_path(parent))

    async def change(self, entity: str, alter: Alter, validate_only: bool = False) -> None:
        """Writes what `alter` makes of an entity's settings, and a notice; nothing if it raises, or `validate_only`.
        Raises InvalidConfig for settings that are too large for the coordinator.
        """
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

        path = znodes.config_path(entity)
        room = znodes.REQUEST_BYTES_MAX - _NAMED_TIMES * len(path.encode())
        for _ in range(_ATTEMPTS):
            found = await self._zk.find(path)
            config = await alter(znodes.decode_config(path, found[0] if found else None))
            data = znodes.encode_config(config)
            if len(data) > room:
                raise InvalidConfig(
                    f"The settings of {entity} take {len(data)} bytes in the coordinator, which takes {room} at "
                    "most (jute.maxbuffer); ask for fewer or shorter ones."
                )
            if validate_only:
                return
            try:
                operations = await self._operations(entity, config, data, found[1] if found else None)
                await self._zk.transaction([*operations, _notice(entity)])
                return
            except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError):
                # Somebody else changed the same settings: decide again on what they are now.
                continue
        raise RequestTimedOut(f"The settings of {entity} are being changed by others all the time.")

    async def _operations(
        self, entity: str, config: Mapping[str, str], data: bytes, stat: Stat | None
    ) -> list[Operation]:
        path = znodes.config_path(entity)
        if stat is None:
            if not config and entity.startswith(_QUOTAS):
                return []
            await self._zk.ensure([path.rpartition("/")[0]])
            return [Create(path, data)]
        if config or not entity.startswith(_QUOTAS) or await self._zk.children(path):
            return [SetData(path, data, stat.version)]
        return [Delete(path, stat.version), *await self._empty_parents(entity)]

    async def _empty_parents(self, entity: str) -> list[Operation]:
        """What goes with the last client of a user: the parent of clients, and the user if it has nothing else."""
        user, separator, client = entity.partition("/clients/")
        if not separator:
            return []
        path = znodes.config_path(user)
        if await self._zk.children(f"{path}/clients") != [client]:
            return []
        found = await self._zk.find(path)
        operations: list[Operation] = [Delete(f"{path}/clients")]
        others = await self._zk.children(path) != ["clients"]
        if found is not None and not others and not znodes.decode_config(path, found[0]):
            operations.append(Delete(path, found[1].version))
        return operations

    async def notices(self, watch: Callable[[], None]) -> list[str]:
        """The names of the notices there are, oldest first; `watch` is called once when there are others."""
        names = await self._zk.children(znodes.CONFIG_CHANGES, watch)
        return sorted(name for name in names if notice_number(name) is not None)

    async def noticed(self, name: str) -> str | None:
        """The entity a notice is about; None when it is gone."""
        path = f"{znodes.CONFIG_CHANGES}/{name}"
        found = await self._zk.find(path)
        return znodes.decode_config_change(path, found[0]) if found else None

    async def purge(self, names: list[str], now_ms: int) -> None:
        """Deletes the notices among `names` that are too old to be of use, of which the first are the oldest."""
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            found = await self._zk.find(path)
            if found is not None and now_ms - found[1].created_ms <= NOTICES_KEPT_MS:
                return
            await self._zk.delete(path)


def notice_number(name: str) -> int | None:
    """The number of a notice by its znode's name; None when it is something else."""
    prefix = znodes.CONFIG_CHANGE_PREFIX.rpartition("/")[2]
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and _NUMBER.fullmatch(number) else None


def _notice(entity: str) -> Create:
    return Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True)
