"""The transaction coordinator: the machines of the partitions of __transaction_state that this broker leads,
the markers they send, and the calls of the broker's handlers. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import cast

from cluster.errors import (
    InvalidRequest,
)
from cluster.model import TRANSACTION_STATE_TOPIC, BrokerId, TopicPartition
from cluster.state_topics import WRITE_ERRORS, Batch, Clock, Coordinators, Producer, StateLog, Token
from cluster.transactions.machine import Action, TransactionMachine
from cluster.transactions.markers import Leaders, MarkerSender
from cluster.transactions.messages import (
    Listing,
    ProducerResult,
    SendMarkers,
    Stored,
    TransactionLimits,
    TransactionState,
    Write,
)
from cluster.transactions.records import encode_write

_ProducerCall = Callable[[TransactionMachine, Token, int | None, int], list[Action]]
"""A request that may need a new producer id: the machine, the token, the id and the time."""

NewProducerId = Callable[[], Awaitable[int]]
"""An unused producer id. Raises KafkaProtocolError."""


class _TransactionRules:
    """How the runtime of state topics treats transactions."""

    topic = TRANSACTION_STATE_TOPIC
    what = "transactions"

    def __init__(
        self, limits: TransactionLimits, version: Callable[[], int], send: Callable[[int, SendMarkers], None]
    ) -> None:
        self._limits = limits
        self._version = version
        self._send = send

    def machine(self, partition: int, epoch: int) -> TransactionMachine:
        return TransactionMachine(self._limits, epoch)

    def batch(self, write: Write) -> Batch:
        return encode_write(write, self._version())

    def timeout_ms(self, write: Write) -> int:
        return write.timeout_ms

    def subject(self, write: Write) -> str:
        return f"transactional id {write.transactional_id}"

    def code(self, write: Write, code: int) -> int:
        return WRITE_ERRORS.get(code, code)

    def carry_out(self, partition: int, action: object) -> None:
        self._send(partition, cast(SendMarkers, action))


class TransactionCoordinator:
    """All transactions that this broker coordinates."""

    def __init__(
        self,
        limits: TransactionLimits,
        state_log: StateLog,
        leaders: Leaders,
        broker: BrokerId,
        new_producer_id: NewProducerId,
        version: Callable[[], int],
        *,
        request_timeout_ms: int = 30_000,
        abort_interval_ms: int = 10_000,
        expiry_interval_ms: int = 3_600_000,
    ) -> None:
        self._markers = MarkerSender(leaders, broker, request_timeout_ms, self._marked)
        self.partitions: Coordinators[TransactionMachine, Write] = Coordinators(
            _TransactionRules(limits, version, self._markers.send), state_log, Clock()
        )
        self._new_producer_id = new_producer_id
        self._abort_interval_ms = abort_interval_ms
        self._expiry_interval_ms = expiry_interval_ms
        self._sweeps: list[asyncio.Task[None]] = []

    # ---- start and stop ----

    def start(self) -> None:
        """Starts to abort transactions that time out, and the expiry of transactional ids."""
        machine, sweep = TransactionMachine, self.partitions.sweep
        self._sweeps = [
            asyncio.create_task(sweep(machine.timed_out, machine.abort_timed_out, self._abort_interval_ms)),
            asyncio.create_task(sweep(machine.lapsed, machine.expire, self._expiry_interval_ms)),
        ]

    async def stop(self) -> None:
        """Answers waiting requests with COORDINATOR_NOT_AVAILABLE."""
        for sweep in self._sweeps:
            sweep.cancel()
        await asyncio.gather(*self._sweeps, return_exceptions=True)
        await self.partitions.stop()
        await self._markers.stop()

    def leadership_changed(self, partition: int, epoch: int | None, new: bool) -> None:
        """This broker leads a partition of __transaction_state, since this leader epoch, or (None) it does
        not.
        """
        if epoch is None:
            self._markers.drop(partition)
        self.partitions.leadership_changed(partition, epoch, new)

    def _marked(self, state_partition: int, markers: SendMarkers, partitions: list[TopicPartition]) -> None:
        self.partitions.do_in(
            state_partition,
            markers.coordinator_epoch,
            lambda machine, now: machine.marked(markers.transactional_id, markers.producer, partitions, now),
        )

    # ---- requests ----

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> ProducerResult:
        """InitProducerId for a transactional id. Raises KafkaProtocolError if this broker does not coordinate
        it, or no producer id is to be had.
        """
        return await self._producer(
            transactional_id,
            lambda machine, token, new_id, now: machine.init(
                token, transactional_id, timeout_ms, expected, new_id, now
            ),
        )

    async def _producer(self, transactional_id: str, call: _ProducerCall) -> ProducerResult:
        _check(transactional_id)
        new_id: int | None = None
        while True:
            found = await self.partitions.ask(
                transactional_id,
                lambda machine, token, now, taken=new_id: call(machine, token, taken, now),  # type: ignore[misc]
            )
            result = cast(ProducerResult, found)
            if not result.needs_id:
                return result
            new_id = await self._new_producer_id()

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        client_version: int = 0,
    ) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn. Returns the error code. Raises as :meth:`init_producer`.
        `client_version`: the `transaction.version` that the client follows.
        """
        _check(transactional_id)
        found = await self.partitions.ask(
            transactional_id,
            lambda machine, token, now: machine.add_partitions(
                token, transactional_id, producer, partitions, client_version, now
            ),
        )
        return cast(int, found)

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Whether partitions are in a transaction: an error code for each. Raises as `init_producer`."""
        _check(transactional_id)
        return self.partitions.machine(transactional_id).verify(transactional_id, producer, partitions)

    async def end(
        self, transactional_id: str, producer: Producer, committed: bool, client_version: int = 0
    ) -> ProducerResult:
        """EndTxn. Returns the producer of the next transaction. Raises as :meth:`init_producer`."""
        return await self._producer(
            transactional_id,
            lambda machine, token, new_id, now: machine.end(
                token, transactional_id, producer, committed, client_version, new_id, now
            ),
        )

    # ---- what is there ----

    def describe(self, transactional_id: str) -> Stored | None:
        """A transactional id's state; None if it is unknown. Raises as :meth:`init_producer`."""
        _check(transactional_id)
        return self.partitions.machine(transactional_id).describe(transactional_id)

    def list_transactions(
        self, states: Iterable[TransactionState], producer_ids: Iterable[int], duration_ms: int
    ) -> Iterator[Listing]:
        """The transactional ids here; see :meth:`TransactionMachine.list_transactions`."""
        now = self.partitions.now()
        for machine in self.partitions.machines:
            yield from machine.list_transactions(states, producer_ids, duration_ms, now)


def _check(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("The transactional id is empty.")
