"""Producer ids, unique in the cluster: taken from the coordinator in blocks of 1000 (ZkProducerIdManager).

Owns the block in hand; lives on the event loop. A block is taken with a conditional write of one znode, so
two brokers never get the same. After a crash the rest of the block is lost, which costs nothing: there are
2^63 of them.
"""

from __future__ import annotations

import asyncio

from cluster.controller import ZooKeeper, znodes
from cluster.errors import CoordinatorNotAvailable, UnknownServerError
from cluster.model import BrokerId

BLOCK_SIZE = 1000


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, zk: ZooKeeper, broker: BrokerId) -> None:
        self._zk = zk
        self._broker = broker
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """The next id; raises CoordinatorNotAvailable when a new block is needed and cannot be had now."""
        async with self._taking:
            if self._next > self._last:
                await self._take_block()
            taken = self._next
            self._next += 1
            return taken

    async def _take_block(self) -> None:
        from kazoo.exceptions import BadVersionError, KazooException, NoNodeError

        while True:
            try:
                data, stat = await self._zk.get(znodes.PRODUCER_ID_BLOCK)
                first = znodes.decode_producer_id_block(data)[2] + 1 if data else 0
                last = first + BLOCK_SIZE - 1
                if last >= 1 << 63:
                    raise UnknownServerError("every producer id there is has been given out")
                block = znodes.encode_producer_id_block(self._broker, first, last)
                await self._zk.set(znodes.PRODUCER_ID_BLOCK, block, stat.version)
            except BadVersionError:
                continue
            except NoNodeError:
                await self._zk.ensure([znodes.PRODUCER_ID_BLOCK])
                continue
            except KazooException as error:
                raise CoordinatorNotAvailable(
                    f"no block of producer ids can be had now: {error!r}"
                ) from error
            self._next, self._last = first, last
            return
