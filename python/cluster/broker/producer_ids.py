"""Producer ids, unique in the cluster. The broker takes them from the controller in blocks
(AllocateProducerIds; RPCProducerIdManager).

A crash loses the rest of the block; there are 2^63 ids. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.broker.controller_link import ControllerLink
from cluster.errors import NONE, CoordinatorLoadInProgress, KafkaProtocolError, for_code
from cluster.model import BrokerId

log = logging.getLogger(__name__)

_ALLOCATE_PRODUCER_IDS, _VERSION = 67, 0


class ProducerIds:
    """The current block of producer ids."""

    def __init__(self, controller: ControllerLink, broker: BrokerId, broker_epoch: Callable[[], int]) -> None:
        self._controller = controller
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._left = range(0)
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """The next id. Raises CoordinatorLoadInProgress, at which every client tries again, if a new block is
        needed and the controller does not give one.
        """
        async with self._taking:
            if not self._left:
                self._left = await self._block()
            taken, self._left = self._left[0], self._left[1:]
            return taken

    async def _block(self) -> range:
        body = {"broker_id": self._broker, "broker_epoch": self._broker_epoch()}
        try:
            answer = await self._controller.request(_ALLOCATE_PRODUCER_IDS, _VERSION, body)
            if answer["error_code"] != NONE:
                raise for_code(answer["error_code"])()
        except (OSError, ValueError, KafkaProtocolError) as error:
            log.warning("the controller gave no block of producer ids: %s", error)
            raise CoordinatorLoadInProgress(
                f"The controller gives no block of producer ids now: {error}; try again later."
            ) from error
        first, count = answer["producer_id_start"], answer["producer_id_len"]
        return range(first, first + count)
