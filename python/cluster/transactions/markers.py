"""The way of transaction markers to the leaders of partitions, this broker's own by the same road.

One connection a broker. What is queued for a broker goes out in one WriteTxnMarkers request. A marker is
sent again, to the leader of that time, after a partition had no known leader, or its leader did not answer or
refused.
Lives on the event loop. Source: TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cluster.errors import (
    NONE,
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRequiredAcks,
    MessageTooLarge,
    RecordListTooLarge,
    TransactionCoordinatorFenced,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
    for_code,
)
from cluster.model import BrokerId, Endpoint, TopicPartition
from cluster.peer import Body, Peer
from cluster.transactions.messages import SendMarkers

log = logging.getLogger(__name__)

WRITE_TXN_MARKERS, _VERSION = 27, 1
_RETRY_SECONDS = 0.1
_WARN_SECONDS = 60.0

_GIVEN_UP = {
    CorruptMessage.code,
    InvalidProducerEpoch.code,
    InvalidRequiredAcks.code,
    MessageTooLarge.code,
    RecordListTooLarge.code,
    TransactionCoordinatorFenced.code,
}
"""Another coordinator ends this transaction, or the marker is invalid: it is not sent again."""

_DONE = {NONE, UnsupportedForMessageFormat.code, UnsupportedVersion.code}
"""The marker is written, or the log's format has no transactions, so no record of one is there."""


class Leader(NamedTuple):
    """A broker that leads a partition, and its endpoint for other brokers."""

    broker: BrokerId
    endpoint: Endpoint


class Leaders(Protocol):
    """Who leads what."""

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        """The leader; None if it is not known now."""

    def is_gone(self, partition: TopicPartition) -> bool:
        """The partition's topic was deleted."""


@dataclass(eq=False, slots=True)
class _Sending:
    """The markers of one transaction, of a partition of __transaction_state."""

    state_partition: int
    markers: SendMarkers
    left: set[TopicPartition]
    """The partitions without a marker."""

    @property
    def key(self) -> tuple[int, str]:
        return self.state_partition, self.markers.transactional_id


Marked = Callable[[int, SendMarkers, list[TopicPartition]], None]
"""Called with the partition of __transaction_state, the markers, and partitions that have theirs."""


class MarkerSender:
    """Sends transaction markers."""

    def __init__(self, leaders: Leaders, broker: BrokerId, timeout_ms: int, marked: Marked) -> None:
        """`timeout_ms`: how long a broker may take to answer."""
        self._leaders = leaders
        self._client_id = f"broker-{broker}-txn-marker-sender"
        self._timeout_ms = timeout_ms
        self._marked = marked
        self._queues: dict[Leader, dict[_Sending, list[TopicPartition]]] = {}
        self._tasks: dict[Leader, asyncio.Task[None]] = {}
        self._peers: dict[Leader, Peer] = {}
        """The connections. They stay open, because one a transaction would use up the ports."""
        self._waiting: dict[_Sending, list[TopicPartition]] = {}
        """Without a known leader, or after a failure."""
        self._retry: asyncio.TimerHandle | None = None
        self._sending: dict[tuple[int, str], _Sending] = {}
        """By partition of __transaction_state and transactional id, which has one transaction at a time."""
        self._warn_after = 0.0
        self._stopped = False

    def send(self, state_partition: int, markers: SendMarkers) -> None:
        """Sends the markers of a transaction until every partition has its own."""
        sending = _Sending(state_partition, markers, set(markers.partitions))
        self._sending[sending.key] = sending
        self._route(sending, markers.partitions)

    def drop(self, state_partition: int) -> None:
        """Another coordinator sends the markers of this partition of __transaction_state."""
        self._sending = {key: one for key, one in self._sending.items() if key[0] != state_partition}

    def _is_current(self, sending: _Sending) -> bool:
        return self._sending.get(sending.key) is sending

    async def stop(self) -> None:
        """Ends what is under way."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for peer in self._peers.values():
            peer.close()

    def _route(self, sending: _Sending, partitions: Iterable[TopicPartition]) -> None:
        gone = []
        for partition in partitions:
            leader = self._leaders.leader_of(partition)
            if leader is not None:
                self._queues.setdefault(leader, {}).setdefault(sending, []).append(partition)
                if leader not in self._tasks:
                    self._tasks[leader] = asyncio.create_task(
                        self._serve(leader), name=f"transaction markers to broker {leader.broker}"
                    )
            elif self._leaders.is_gone(partition):
                gone.append(partition)
            else:
                self._wait(sending, partition)
        if gone:
            self._done(sending, gone)

    def _wait(self, sending: _Sending, partition: TopicPartition) -> None:
        self._waiting.setdefault(sending, []).append(partition)
        if self._retry is None and not self._stopped:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._route_again)

    def _route_again(self) -> None:
        self._retry = None
        waiting, self._waiting = self._waiting, {}
        for sending, partitions in waiting.items():
            if self._is_current(sending):
                self._route(sending, partitions)

    def _done(self, sending: _Sending, partitions: list[TopicPartition]) -> None:
        if self._is_current(sending):
            sending.left.difference_update(partitions)
            if not sending.left:
                del self._sending[sending.key]
            self._marked(sending.state_partition, sending.markers, partitions)

    async def _serve(self, leader: Leader) -> None:
        """Sends what is queued for a broker, until nothing is."""
        peer = self._peers.get(leader)
        if peer is None:
            endpoint = leader.endpoint
            peer = self._peers[leader] = Peer(endpoint.host, endpoint.port, self._client_id, self._timeout_ms)
        try:
            while queue := self._queues.pop(leader, None):
                batch = {one: asked for one, asked in queue.items() if self._is_current(one)}
                if not batch:
                    continue
                try:
                    answer = await peer.request(WRITE_TXN_MARKERS, _VERSION, _request(batch))
                except (OSError, ValueError) as error:
                    self._warn(f"broker {leader.broker} did not take transaction markers: {error}")
                    for sending, partitions in batch.items():
                        for partition in partitions:
                            self._wait(sending, partition)
                else:
                    self._take(batch, answer)
        finally:
            del self._tasks[leader]

    def _take(self, batch: dict[_Sending, list[TopicPartition]], answer: Body) -> None:
        codes: dict[tuple[int, TopicPartition], int] = {}
        for marker in answer["markers"]:
            for topic in marker["topics"]:
                for one in topic["partitions"]:
                    partition = TopicPartition(topic["name"], one["partition_index"])
                    codes[marker["producer_id"], partition] = one["error_code"]
        for sending, partitions in batch.items():
            done = []
            for partition in partitions:
                code = codes.get((sending.markers.producer.id, partition))
                if code in _DONE:
                    done.append(partition)
                elif code in _GIVEN_UP:
                    log.warning(
                        "transactional id %s: its marker in %s is given up: %s",
                        sending.markers.transactional_id,
                        partition,
                        for_code(code).name,
                    )
                    if self._is_current(sending):
                        del self._sending[sending.key]
                else:
                    self._wait(sending, partition)
                    if code is not None:
                        self._warn(f"{partition} did not take a transaction marker: {for_code(code).name}")
            if done:
                self._done(sending, done)

    def _warn(self, text: str) -> None:
        """Logs once a minute, because what failed is tried again at once."""
        now = asyncio.get_running_loop().time()
        if now >= self._warn_after:
            self._warn_after = now + _WARN_SECONDS
            log.warning("%s; it is sent again", text)


def _request(batch: dict[_Sending, list[TopicPartition]]) -> Body:
    markers: list[dict[str, Any]] = []
    for sending, partitions in batch.items():
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        markers.append(
            {
                "producer_id": sending.markers.producer.id,
                "producer_epoch": sending.markers.producer.epoch,
                "transaction_result": sending.markers.committed,
                "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()],
                "coordinator_epoch": sending.markers.coordinator_epoch,
            }
        )
    return {"markers": markers}
