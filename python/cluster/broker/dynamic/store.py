"""The znodes of dynamic settings and their change notices.

A change is one transaction: the entity's settings, if their version is unchanged, and a sequential node below
/config/changes that names the entity. Owns no decision about settings. Lives on the event loop. Source:
kafka.zk.AdminZkClient, kafka.common.ZkNodeChangeNotificationListener.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from cluster.controller import ZooKeeper, znodes
from cluster.controller.zookeeper import (
    BadVersionError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SetData,
    Stat,
)
from cluster.errors import InvalidConfig, RequestTimedOut

NOTICES_KEPT_MS = 15 * 60 * 1000
"""How long a notice stays for brokers that are disconnected for a moment."""

_ATTEMPTS = 10
"""How often a change is tried while other programs change the same settings."""

_PATHS = 3
"""How often one request can have the entity's path: in its settings, in its notice, and in a deletion."""

_NUMBER = re.compile("[0-9]{1,19}")
_QUOTAS = ("users/", "clients/", "ips/")
"""Entities whose znode is deleted when it has no settings left."""


Alter = Callable[[Mapping[str, str]], Awaitable[Mapping[str, str]]]
"""Makes the new settings of an entity from its current ones. Raises if they are not allowed."""


class ConfigStore:
    """Dynamic settings in the coordinator."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    async def read(self, entity: str) -> dict[str, str]:
        """The settings of an entity, for example brokers/ID; none if it has no znode."""
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
        """Writes the settings that `alter` returns, and a notice. With `validate_only` it only checks them.

        Raises InvalidConfig for settings that are too large for the coordinator, and any error of `alter`.
        """
        path = znodes.config_path(entity)
        bytes_max = znodes.REQUEST_BYTES_MAX - _PATHS * len(path.encode())
        for _ in range(_ATTEMPTS):
            found = await self._zk.find(path)
            config = await alter(znodes.decode_config(path, found[0] if found else None))
            data = znodes.encode_config(config)
            if len(data) > bytes_max:
                raise InvalidConfig(
                    f"The settings of {entity} take {len(data)} bytes in the coordinator, which takes "
                    f"{bytes_max} at most (jute.maxbuffer); ask for fewer or shorter ones."
                )
            if validate_only:
                return
            try:
                operations = await self._operations(entity, config, data, found[1] if found else None)
                await self._zk.transaction([*operations, _notice(entity)])
                return
            except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError):
                # Another program changed the same settings: start again from the current ones.
                continue
        raise RequestTimedOut(f"Other programs keep changing the settings of {entity}; try again later.")

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
        """Deletions that go with a user's last client: the parent of its clients, and the user if nothing
        else is left.
        """
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
        """The names of the notices, oldest first. `watch` is called once when they change."""
        names = await self._zk.children(znodes.CONFIG_CHANGES, watch)
        return sorted(name for name in names if notice_number(name) is not None)

    async def noticed(self, name: str) -> str | None:
        """The entity that a notice names; None if the notice is gone."""
        path = f"{znodes.CONFIG_CHANGES}/{name}"
        found = await self._zk.find(path)
        return znodes.decode_config_change(path, found[0]) if found else None

    async def purge(self, names: list[str], now_ms: int) -> None:
        """Deletes the expired notices among `names`, which are sorted by age, oldest first."""
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            found = await self._zk.find(path)
            if found is not None and now_ms - found[1].created_ms <= NOTICES_KEPT_MS:
                return
            await self._zk.delete(path)


def notice_number(name: str) -> int | None:
    """The number in the name of a notice's znode; None if it is not a notice."""
    prefix = znodes.CONFIG_CHANGE_PREFIX.rpartition("/")[2]
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and _NUMBER.fullmatch(number) else None


def _notice(entity: str) -> Create:
    return Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True)
