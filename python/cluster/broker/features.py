"""The broker's copy of the finalized features: watches /feature, and tells the data plane of each change.

Clients see the features in ApiVersions, with their epoch. Lives on the event loop. Source:
FinalizedFeatureChangeListener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.broker.errors import BrokerStartError
from cluster.controller import ZooKeeper, ZooKeeperError, znodes
from cluster.controller.features import SUPPORTED, TRANSACTION_VERSION, Finalized, unsupported

log = logging.getLogger(__name__)

Tell = Callable[[list[tuple[str, int, int]], list[tuple[str, int]], int], None]
"""Called with what is supported and its first and last version, what is finalized and its version, and the
epoch.
"""


class Features:
    """The finalized features."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk
        self._tell: Tell | None = None
        self._finalized = Finalized()
        self._changed = asyncio.Condition()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def transaction_version(self) -> int:
        """The cluster's `transaction.version`; 0 if it is not finalized."""
        return self._finalized.levels.get(TRANSACTION_VERSION, 0)

    async def load(self) -> None:
        """Reads the features and begins to watch them. Raises BrokerStartError if this broker does not
        support one.
        """
        try:
            await self._read()
        except znodes.ZnodeError as error:
            raise BrokerStartError(f"the finalized features cannot be read: {error}") from None
        lacking = self._lacking()
        if lacking is not None:
            raise BrokerStartError(lacking)

    def _lacking(self) -> str | None:
        """What to tell the operator if this broker does not support a finalized feature."""
        levels = self._finalized.levels
        name = unsupported(levels)
        if name is None:
            return None
        return (
            f"the cluster has finalized version {levels[name]} of feature {name}, which this broker does not "
            "support; start a newer one, or let kafka-features.sh downgrade it"
        )

    def start(self, tell: Tell) -> None:
        """Tells the data plane of the features, and from now on of every change."""
        self._tell = tell
        self._tell_data_plane()
        self._task = asyncio.create_task(self._run(), name="features")

    async def _read(self) -> None:
        """Reads the features, and sets the watch."""
        found = None
        if await self._zk.exists(znodes.FEATURE, self._woken.set):
            found = await self._zk.find(znodes.FEATURE)
        finalized = Finalized()
        if found is not None:
            finalized = Finalized(znodes.decode_features(found[0]), found[1].version)
        async with self._changed:
            self._finalized = finalized
            self._changed.notify_all()
        self._tell_data_plane()

    def _tell_data_plane(self) -> None:
        if self._tell is not None:
            supported = [(name, *versions) for name, versions in SUPPORTED.items()]
            self._tell(supported, list(self._finalized.levels.items()), self._finalized.epoch)

    def session_renewed(self) -> None:
        """A new session replaced a lost one and its watch: reads the features again."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._read()
            except ZooKeeperError:
                await self._zk.wait_connected()
                self._woken.set()
            except znodes.ZnodeError as error:
                log.error("the finalized features stay as they were: %s", error)
            except Exception:
                log.exception("the finalized features could not be read; they stay as they were")
            else:
                lacking = self._lacking()
                if lacking is not None:
                    log.error("%s", lacking)

    async def reached(self, epoch: int) -> None:
        """Waits until this broker knows the features of this epoch."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._finalized.epoch >= epoch)

    async def stop(self) -> None:
        """Ends what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
