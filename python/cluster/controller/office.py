"""The end of a controller whose process has ended: its office is given up before its session is over.

Kafka waits for the session, up to `zookeeper.session.timeout.ms`. Epochs fence the controller if it is alive
after all: the next one raises the controller's epoch, and every write and request names it. Lives on the
event loop of a broker that is not the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from cluster.controller import znodes
from cluster.controller.channel import Transport
from cluster.controller.zookeeper import (
    BadVersionError,
    Check,
    Delete,
    NoNodeError,
    ZooKeeper,
    ZooKeeperError,
)
from cluster.model import BrokerId

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
"""Between two attempts to connect that fail in another way than by a refusal."""


async def give_up_when_refused(
    zk: ZooKeeper, controller: BrokerId, epoch_version: int, transport: Transport
) -> None:
    """Waits until the controller refuses connections, and then deletes its znode.

    `epoch_version` is the version of the epoch's znode since its election: after another election nothing is
    deleted.
    """
    try:
        await _refused(transport)
        log.warning("broker %d, the controller, refuses connections: another one is elected", controller)
        # Without the coordinator the session ends the controller, too.
        with contextlib.suppress(ZooKeeperError):
            await depose(zk, epoch_version)
    finally:
        transport.close()


async def depose(zk: ZooKeeper, epoch_version: int) -> None:
    """Deletes the controller's znode. Nothing happens if it is gone, or if another controller was elected
    since the epoch's znode had the version `epoch_version`: each election raises it.
    """
    with contextlib.suppress(BadVersionError, NoNodeError):
        await zk.transaction([Check(znodes.CONTROLLER_EPOCH, epoch_version), Delete(znodes.CONTROLLER)])


async def _refused(transport: Transport) -> None:
    """Returns when an address that once took a connection refuses one. An Apache broker that starts may be
    the controller before it listens.
    """
    has_answered = False
    while True:
        try:
            await transport.connect()
            has_answered = True
            await transport.lost()
        except OSError as error:
            if has_answered and isinstance(error, ConnectionRefusedError):
                return
            await asyncio.sleep(_PAUSE_SECONDS)
