"""What operators ask of the cluster: to reassign partitions, to elect leaders and to finalize features; and
producer ids.

Requests come from clients and from the znodes that old tools write. Owns their order with the controller's
other work, and the timer that balances leaders; decides nothing. Lives on the event loop. A new controller
reads the znodes again, and goes on. Source: KafkaController, ZkProducerIdManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from cluster.controller import znodes
from cluster.controller.actions import Action
from cluster.controller.elections import ElectionResults, ElectionType
from cluster.controller.features import FeatureUpdate, updated
from cluster.controller.reassignment import ReassignmentResults, Wanted
from cluster.controller.state import ControllerState
from cluster.controller.work import WorkQueue
from cluster.controller.zookeeper import BadVersionError, Delete, NoNodeError, Operation, SetData, ZooKeeper
from cluster.errors import (
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    KafkaProtocolError,
    NotController,
    StaleBrokerEpoch,
    UnknownServerError,
)
from cluster.model import BrokerId, Replicas, TopicPartition
from cluster.time_slice import TimeSlice

log = logging.getLogger(__name__)

PRODUCER_IDS = 1000
"""Producer ids in a block (`ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`)."""

_PARTITIONS_AT_ONCE = 100
"""Partitions of a request that are decided on without a break: some milliseconds."""

_FIRST_BALANCE_SECONDS = 5.0
"""From the election of a controller to its first balance of leaders."""


class Balance(NamedTuple):
    """The automatic balance of leaders."""

    percentage: int
    """leader.imbalance.per.broker.percentage"""
    interval_seconds: int
    """leader.imbalance.check.interval.seconds"""


async def _parts(partitions: Iterable[TopicPartition]) -> AsyncIterator[list[TopicPartition]]:
    """The partitions of a request in parts. Other tasks run between two parts."""
    left = iter(partitions)
    time_slice = TimeSlice()
    while part := list(islice(left, _PARTITIONS_AT_ONCE)):
        yield part
        await time_slice.yield_if_over()


class Core(Protocol):
    """The parts of the controller's driver that operations use."""

    @property
    def state(self) -> ControllerState: ...
    @property
    def queue(self) -> WorkQueue: ...
    @property
    def zk(self) -> ZooKeeper: ...
    def require_active(self) -> None: ...
    def watch(self, name: str, work: Callable[[], Awaitable[None]]) -> Callable[[], None]: ...
    async def carry_out(self, actions: Sequence[Action]) -> None: ...
    async def write(self, *operations: Operation) -> None: ...
    async def delivered(self) -> None: ...


class Operations:
    """The operations."""

    def __init__(self, core: Core, balance: Balance | None) -> None:
        """Without `balance` leaders are moved on request only."""
        self._core = core
        self._balance = balance
        self._timer: asyncio.TimerHandle | None = None

    async def resume(self) -> None:
        """This broker became the controller: goes on with what was asked of the last one."""
        await self._reassignments_asked()
        await self._elections_asked()
        self._balance_in(_FIRST_BALANCE_SECONDS)

    def stop(self) -> None:
        """This broker is not the controller any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- reassignments ----

    async def alter_reassignments(self, wanted: Wanted) -> ReassignmentResults:
        """Begins, replaces or cancels reassignments. Raises NotController."""

        async def alter() -> ReassignmentResults:
            self._core.require_active()
            results: ReassignmentResults = {}
            async for part in _parts(wanted):
                found, actions = self._core.state.reassignments.alter({item: wanted[item] for item in part})
                await self._core.carry_out(actions)
                self._core.require_active()
                results |= found
            return results

        return await self._core.queue.command(alter)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Replicas]:
        """The replicas of partitions (None: of all) that are reassigned. Raises NotController."""

        async def find() -> dict[TopicPartition, Replicas]:
            self._core.require_active()
            reassignments = self._core.state.reassignments
            found: dict[TopicPartition, Replicas] = {}
            async for part in _parts(reassignments.under_way() if partitions is None else partitions):
                found |= reassignments.listed(part)
            return found

        return await self._core.queue.command(find)

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool
    ) -> tuple[dict[str, KafkaProtocolError | None], int]:
        """Finalizes versions of features (KIP-584). Returns the result of each, and the epoch from which on
        they are in force. Raises NotController.
        """

        async def update() -> tuple[dict[str, KafkaProtocolError | None], int]:
            self._core.require_active()
            data, stat = await self._core.zk.get(znodes.FEATURE)
            finalized = znodes.decode_features(data)
            levels, results = updated(finalized, updates, self._core.state.registered.values())
            if levels == finalized or validate_only:
                return results, stat.version
            # Only the controller writes it.
            await self._core.write(SetData(znodes.FEATURE, znodes.encode_features(levels)))
            log.info("the finalized features are %s", levels)
            return results, stat.version + 1

        return await self._core.queue.command(update)

    async def _reassignments_asked(self) -> None:
        """A tool has written reassignments into a znode, which is deleted when they are complete."""
        path = znodes.REASSIGN_PARTITIONS
        watch = self._core.watch("asked reassignments", self._reassignments_asked)
        found = await self._core.zk.find(path) if await self._core.zk.exists(path, watch) else None
        if found is None:
            return
        try:
            wanted = znodes.decode_reassignments(found[0])
        except znodes.ZnodeError as error:
            log.error("reassignments are ignored: %s; delete the znode and write it as Kafka does", error)
            return
        results, actions = self._core.state.reassignments.asked_by_znode(wanted)
        for partition, refusal in results.items():
            if refusal is not None:
                log.warning("the reassignment of %s in %s is refused: %s", partition, path, refusal)
        await self._core.carry_out(actions)

    # ---- elections ----

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition], kind: ElectionType
    ) -> ElectionResults:
        """Elects leaders. On return this broker's metadata show them. Raises NotController."""

        async def elect() -> ElectionResults:
            self._core.require_active()
            results: ElectionResults = {}
            async for part in _parts(partitions):
                found, actions = self._core.state.elections.requested(part, kind)
                await self._core.carry_out(actions)
                self._core.require_active()
                results |= found
            await self._core.delivered()
            return results

        return await self._core.queue.command(elect)

    async def _elections_asked(self) -> None:
        """A tool has written partitions into a znode that are to be led by their preferred leaders."""
        path = znodes.PREFERRED_ELECTION
        watch = self._core.watch("asked elections", self._elections_asked)
        found = await self._core.zk.find(path) if await self._core.zk.exists(path, watch) else None
        if found is None:
            return
        try:
            wanted = znodes.decode_preferred_election(found[0])
        except znodes.ZnodeError as error:
            log.error("elections are ignored: %s", error)
            wanted = []
        results, actions = self._core.state.elections.requested(wanted, ElectionType.PREFERRED)
        for partition, refusal in results.items():
            if refusal is not None and not isinstance(refusal, ElectionNotNeeded):
                log.warning("the election of %s in %s is refused: %s", partition, path, refusal)
        await self._core.carry_out(actions)
        with contextlib.suppress(NoNodeError, NotController):
            # A deposed controller leaves it to the next one.
            await self._core.write(Delete(path))

    def _balance_in(self, seconds: float) -> None:
        self.stop()
        if self._balance is not None:
            balance = self._core.watch("balance", self._balance_leaders)
            self._timer = asyncio.get_running_loop().call_later(seconds, balance)

    async def _balance_leaders(self) -> None:
        """Elects the preferred leaders of the brokers that lead too few of their partitions."""
        assert self._balance is not None
        try:
            self._core.require_active()
            actions = self._core.state.elections.balanced(self._balance.percentage)
            if actions:
                log.info("moving leaders to their preferred brokers")
            await self._core.carry_out(actions)
        finally:
            self._balance_in(self._balance.interval_seconds)

    # ---- producer ids ----

    async def allocate_producer_ids(self, broker: BrokerId, epoch: int) -> int:
        """Gives a broker a block of `PRODUCER_IDS` producer ids. Returns the first.

        A block is taken with a conditional write, so two brokers never get the same ids. A crash loses the
        rest of the block. Raises NotController, BrokerIdNotRegistered or StaleBrokerEpoch.
        """
        self._core.require_active()
        info = self._core.state.registered.get(broker)
        if info is None:
            raise BrokerIdNotRegistered
        if info.epoch != epoch:
            raise StaleBrokerEpoch
        while True:
            try:
                data, stat = await self._core.zk.get(znodes.PRODUCER_ID_BLOCK)
                first = znodes.decode_producer_id_block(data)[2] + 1 if data else 0
                last = first + PRODUCER_IDS - 1
                if last >= 1 << 63:
                    raise UnknownServerError("All 2^63 producer ids of the cluster are used up.")
                block = znodes.encode_producer_id_block(broker, first, last)
                await self._core.zk.set(znodes.PRODUCER_ID_BLOCK, block, stat.version)
            except BadVersionError:
                continue
            except NoNodeError:
                await self._core.zk.ensure([znodes.PRODUCER_ID_BLOCK])
                continue
            return first
