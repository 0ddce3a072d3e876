"""Producer ids, unique in the cluster. The broker takes them from the coordinator in blocks
(ZkProducerIdManager).

A block is taken with a conditional write of one znode, so two brokers never get the same ids. A crash loses
the rest of the block; there are 2^63 ids. Lives on the event loop.
"""

from __future__ import annotations

import asyncio

from cluster.controller import ZooKeeper, znodes
from cluster.controller.zookeeper import BadVersionError, NoNodeError, ZooKeeperError
from cluster.errors import CoordinatorNotAvailable, UnknownServerError
from cluster.model import BrokerId

BLOCK_SIZE = 1000


class ProducerIds:
    """The current block of producer ids."""

    def __init__(self, zk: ZooKeeper, broker: BrokerId) -> None:
        self._zk = zk
        self._broker = broker
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """The next id. Raises CoordinatorNotAvailable if a new block is needed and the coordinator does not
        give one.
        """
        async with self._taking:
            if self._next > self._last:
                await self._take_block()
            taken = self._next
            self._next += 1
            return taken

    async def _take_block(self) -> None:
        while True:
            try:
                data, stat = await self._zk.get(znodes.PRODUCER_ID_BLOCK)
                first = znodes.decode_producer_id_block(data)[2] + 1 if data else 0
                last = first + BLOCK_SIZE - 1
                if last >= 1 << 63:
                    raise UnknownServerError("all 2^63 producer ids of the cluster are used up")
                block = znodes.encode_producer_id_block(self._broker, first, last)
                await self._zk.set(znodes.PRODUCER_ID_BLOCK, block, stat.version)
            except BadVersionError:
                continue
            except NoNodeError:
                await self._zk.ensure([znodes.PRODUCER_ID_BLOCK])
                continue
            except ZooKeeperError as error:
                raise CoordinatorNotAvailable(
                    f"the coordinator gives no block of producer ids now: {error}; try again later"
                ) from error
            self._next, self._last = first, last
            return
