"""Asks transaction coordinators whether partitions are in producers' transactions, or adds them (KIP-890).

A leader asks before the first batch of a transaction, so that no transaction stays open that its coordinator
does not know. It adds the partition of a producer that has an epoch a transaction and adds none itself. One
connection a coordinator's broker, this one's own by the same road; what is queued for it goes out in one
AddPartitionsToTxn request. Nothing is tried again: the producer does. Lives on the event loop. Source:
AddPartitionsToTxnManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cluster.broker.leaders import MetadataLeaders
from cluster.errors import (
    NONE,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    NetworkException,
)
from cluster.model import TRANSACTION_STATE_TOPIC, BrokerId, TopicPartition
from cluster.peer import Body, Peer
from cluster.state_topics import Producer, partition_of
from cluster.transactions import Leader

_ADD_PARTITIONS_TO_TXN, _VERSION = 24, 4


Question = tuple[int, str, tuple[int, int], tuple[str, int], bool]
"""Number, transactional id, producer and partition: is the partition in the producer's transaction? With True
it is added.
"""


class _Transaction(NamedTuple):
    producer: Producer
    adds: bool
    waiting: dict[TopicPartition, asyncio.Future[int]]


class Guard:
    """What was verified must not be appended once this has `ended`."""

    ended = False


_Asked = dict[str, _Transaction]
"""By transactional id: a request may name each once."""


class TransactionVerification:
    """The questions of this broker."""

    def __init__(
        self,
        leaders: MetadataLeaders,
        state_partitions: Callable[[], int | None],
        broker: BrokerId,
        timeout_ms: int,
        answer: Callable[[int, int], None],
    ) -> None:
        """`state_partitions`: how many partitions __transaction_state has, None before it exists; `answer`
        gives the data plane the error code of a question.
        """
        self._leaders = leaders
        self._state_partitions = state_partitions
        self._client_id = f"broker-{broker}-txn-verification"
        self._timeout_ms = timeout_ms
        self._answer = answer
        self._queues: dict[Leader, _Asked] = {}
        self._tasks: dict[Leader, asyncio.Task[None]] = {}
        self._peers: dict[Leader, Peer] = {}
        """The connections. They stay open: one a transaction would use up the ports."""
        self._guards: dict[tuple[int, TopicPartition], list[Guard]] = {}
        """By producer id and partition."""

    def take(self, questions: Iterable[Question]) -> None:
        """The data plane's questions."""
        for number, transactional_id, producer, partition, adds in questions:
            answer = self._ask(transactional_id, Producer(*producer), TopicPartition(*partition), adds)
            answer.add_done_callback(lambda done, number=number: self._answered(number, done))  # type: ignore[misc]

    def _answered(self, number: int, done: asyncio.Future[int]) -> None:
        self._answer(number, CoordinatorNotAvailable.code if done.cancelled() else done.result())

    async def verify(
        self, transactional_id: str, producer: Producer, partition: TopicPartition, *, adds: bool
    ) -> int:
        """The error code: 0 if the partition is in the transaction."""
        return await self._ask(transactional_id, producer, partition, adds)

    @contextmanager
    def guard(self, producer_id: int, partition: TopicPartition) -> Iterator[Guard]:
        """A guard that the producer's marker in this partition ends (VerificationGuard). A batch that was
        verified before the marker and appended after it would begin a transaction that nothing ends.
        """
        key, guard = (producer_id, partition), Guard()
        self._guards.setdefault(key, []).append(guard)
        try:
            yield guard
        finally:
            self._guards[key].remove(guard)
            if not self._guards[key]:
                del self._guards[key]

    def marked(self, producer_id: int, partition: TopicPartition) -> None:
        """The producer's marker was appended."""
        for guard in self._guards.get((producer_id, partition), ()):
            guard.ended = True

    async def stop(self) -> None:
        """Ends what is under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for peer in self._peers.values():
            peer.close()

    def _ask(
        self, transactional_id: str, producer: Producer, partition: TopicPartition, adds: bool
    ) -> asyncio.Future[int]:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        leader = self._coordinator_of(transactional_id)
        if leader is None:
            answer.set_result(CoordinatorNotAvailable.code)
            return answer
        queue = self._queues.setdefault(leader, {})
        known = queue.get(transactional_id)
        if known is not None and known.producer != producer:
            if known.producer.epoch > producer.epoch:
                answer.set_result(InvalidProducerEpoch.code)
                return answer
            # A newer producer of the same id fences the one before.
            _end(known.waiting.values(), InvalidProducerEpoch.code)
            known = None
        elif known is not None and known.adds != adds:
            # A producer does the one or the other. It tries again.
            answer.set_result(ConcurrentTransactions.code)
            return answer
        if known is None:
            known = queue[transactional_id] = _Transaction(producer, adds, {})
        if leader not in self._tasks:
            self._tasks[leader] = asyncio.create_task(
                self._serve(leader), name=f"verification of transactions at broker {leader.broker}"
            )
        return known.waiting.setdefault(partition, answer)

    def _coordinator_of(self, transactional_id: str) -> Leader | None:
        partitions = self._state_partitions()
        if partitions is None:
            return None
        number = partition_of(transactional_id, partitions)
        return self._leaders.leader_of(TopicPartition(TRANSACTION_STATE_TOPIC, number))

    async def _serve(self, leader: Leader) -> None:
        """Asks what is queued for a broker, until nothing is."""
        peer = self._peers.get(leader)
        if peer is None:
            endpoint = leader.endpoint
            peer = Peer(endpoint.host, endpoint.port, self._client_id, self._timeout_ms)
            self._peers[leader] = peer
        try:
            while asked := self._queues.pop(leader, None):
                try:
                    answer = await peer.request(_ADD_PARTITIONS_TO_TXN, _VERSION, _request(asked))
                    _tell(asked, answer)
                except (OSError, ValueError):
                    _end_all(asked, NetworkException.code)
                except asyncio.CancelledError:
                    _end_all(asked, CoordinatorNotAvailable.code)
                    raise
        finally:
            del self._tasks[leader]


def _request(asked: _Asked) -> Body:
    transactions: list[dict[str, Any]] = []
    for name, (producer, adds, waiting) in asked.items():
        topics: dict[str, list[int]] = {}
        for topic, number in waiting:
            topics.setdefault(topic, []).append(number)
        transactions.append(
            {
                "transactional_id": name,
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "verify_only": not adds,
                "topics": [{"name": topic, "partitions": numbers} for topic, numbers in topics.items()],
            }
        )
    return {"transactions": transactions}


def _tell(asked: _Asked, answer: Body) -> None:
    """Gives each question its answer."""
    if answer["error_code"] != NONE:
        _end_all(asked, answer["error_code"])
        return
    for transaction in answer["results_by_transaction"]:
        known = asked.get(transaction["transactional_id"])
        for topic in transaction["topic_results"]:
            for one in topic["results_by_partition"]:
                partition = TopicPartition(topic["name"], one["partition_index"])
                if known is not None and partition in known.waiting:
                    _end([known.waiting[partition]], one["partition_error_code"])
    _end_all(asked, InvalidTxnState.code)


def _end_all(asked: _Asked, code: int) -> None:
    for transaction in asked.values():
        _end(transaction.waiting.values(), code)


def _end(answers: Iterable[asyncio.Future[int]], code: int) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(code)
