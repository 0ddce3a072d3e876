"""The way of transaction markers to brokers: what is sent, to which, and when it is sent again.

If one failed, a partition would stay without its marker, so that its readers wait for ever, or a coordinator
that was replaced would go on to end transactions.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from cluster.errors import (
    NONE,
    InvalidProducerEpoch,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
    UnsupportedForMessageFormat,
)
from cluster.model import BrokerId, Endpoint, TopicPartition
from cluster.state_topics import Producer
from cluster.transactions import Leader, SendMarkers
from cluster.transactions.markers import MarkerSender
from logcore._native import (
    api_keys,
    decode_request,
    decode_request_header,
    encode_response,
    encode_response_header,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
KEY, VERSION = api_keys()["WriteTxnMarkers"], 1
TIMEOUT = 30.0


class FakeBroker:
    """Answers WriteTxnMarkers. Each request is kept as {producer id: its partitions}."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests: asyncio.Queue[dict[int, set[TopicPartition]]] = asyncio.Queue()
        self.bodies: list[dict[str, Any]] = []
        self.codes: dict[TopicPartition, list[int]] = {}
        """The codes of a partition's next answers; NONE after them."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.closes = False
        """Closes the connection instead of answering."""
        self.connections = 0

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.leader = Leader(BrokerId(self.number), Endpoint("PLAINTEXT", "127.0.0.1", port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                [length] = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(length)
                _, _, correlation, _, at = decode_request_header(frame)
                body = decode_request(KEY, VERSION, frame[at:])
                self.bodies.append(body)
                self.requests.put_nowait(
                    {
                        one["producer_id"]: {
                            TopicPartition(topic["name"], number)
                            for topic in one["topics"]
                            for number in topic["partition_indexes"]
                        }
                        for one in body["markers"]
                    }
                )
                await self.may_answer.wait()
                if self.closes:
                    return
                writer.write(self._answered(correlation, body))
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    def _code(self, partition: TopicPartition) -> int:
        codes = self.codes.get(partition)
        return codes.pop(0) if codes else NONE

    def _answered(self, correlation: int, body: dict[str, Any]) -> bytes:
        markers = [
            {
                "producer_id": one["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {
                                "partition_index": number,
                                "error_code": self._code(TopicPartition(topic["name"], number)),
                            }
                            for number in topic["partition_indexes"]
                        ],
                    }
                    for topic in one["topics"]
                ],
            }
            for one in body["markers"]
        ]
        answer = encode_response_header(KEY, VERSION, correlation)
        answer += encode_response(KEY, VERSION, {"markers": markers})
        return struct.pack(">i", len(answer)) + answer


class Cluster:
    """Two brokers, who leads what, and a sender."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, Leader] = {}
        self.deleted: set[TopicPartition] = set()
        self.first, self.second = FakeBroker(1), FakeBroker(2)
        self.marked: asyncio.Queue[tuple[str, set[TopicPartition]]] = asyncio.Queue()
        self.sender = MarkerSender(self, BrokerId(7), 10_000, self._marked)

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        return self.leaders.get(partition)

    def is_gone(self, partition: TopicPartition) -> bool:
        return partition in self.deleted

    def _marked(self, state_partition: int, markers: SendMarkers, partitions: list[TopicPartition]) -> None:
        assert state_partition == int(markers.transactional_id[1:])
        self.marked.put_nowait((markers.transactional_id, set(partitions)))

    def send(self, number: int, *partitions: TopicPartition) -> None:
        """The commit of transactional id `t<number>`, whose producer id is `number`."""
        producer = Producer(number, 3)
        self.sender.send(number, SendMarkers(f"t{number}", producer, True, frozenset(partitions), 5))


def play(script: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster = Cluster()
        await cluster.first.start()
        await cluster.second.start()
        cluster.leaders = {A: cluster.first.leader, B: cluster.second.leader}
        try:
            await script(cluster)
        finally:
            await cluster.sender.stop()
            cluster.first.server.close()
            cluster.second.server.close()
        assert cluster.marked.empty(), "a partition was reported twice"

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_each_leader_gets_its_partitions_and_the_transaction() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.send(1, A, B)
        found = [await cluster.marked.get(), await cluster.marked.get()]
        assert sorted(found, key=str) == sorted([("t1", {A}), ("t1", {B})], key=str)
        [marker] = cluster.first.bodies[0]["markers"]
        assert (marker["producer_id"], marker["producer_epoch"], marker["coordinator_epoch"]) == (1, 3, 5)
        assert marker["transaction_result"] is True

    play(script)


def test_transactions_that_wait_for_a_broker_share_a_request_and_a_connection() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.first.may_answer.clear()
        cluster.send(1, A)
        assert await cluster.first.requests.get() == {1: {A}}
        cluster.send(2, A)
        cluster.send(3, A)
        cluster.first.may_answer.set()
        assert await cluster.first.requests.get() == {2: {A}, 3: {A}}
        assert {(await cluster.marked.get())[0] for _ in range(3)} == {"t1", "t2", "t3"}
        cluster.send(4, A)
        await cluster.marked.get()
        assert cluster.first.connections == 1

    play(script)


def test_a_partition_whose_leader_moved_gets_its_marker_there() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.first.codes[A] = [NotLeaderOrFollower.code]
        cluster.first.may_answer.clear()
        cluster.send(1, A)
        await cluster.first.requests.get()
        cluster.leaders[A] = cluster.second.leader
        cluster.first.may_answer.set()
        assert await cluster.second.requests.get() == {1: {A}}
        assert await cluster.marked.get() == ("t1", {A})

    play(script)


def test_only_partitions_that_refused_are_asked_again() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.leaders[B] = cluster.first.leader
        cluster.first.codes[B] = [NotEnoughReplicasAfterAppend.code, UnknownTopicOrPartition.code]
        cluster.send(1, A, B)
        assert await cluster.marked.get() == ("t1", {A})
        assert await cluster.marked.get() == ("t1", {B})
        assert [await cluster.first.requests.get() for _ in range(3)] == [{1: {A, B}}, {1: {B}}, {1: {B}}]

    play(script)


def test_a_broker_that_cannot_be_reached_is_tried_again() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.first.closes = True
        cluster.send(1, A)
        await cluster.first.requests.get()
        await cluster.first.requests.get()
        cluster.first.server.close()
        cluster.leaders[A] = cluster.second.leader
        assert await cluster.marked.get() == ("t1", {A})

    play(script)


def test_a_partition_without_a_leader_waits_for_one() -> None:
    async def script(cluster: Cluster) -> None:
        leader = cluster.leaders.pop(A)
        cluster.send(1, A, B)
        assert await cluster.marked.get() == ("t1", {B})
        cluster.leaders[A] = leader
        assert await cluster.marked.get() == ("t1", {A})

    play(script)


def test_a_deleted_partition_needs_no_marker() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.first.codes[A] = [UnknownTopicOrPartition.code]
        cluster.first.may_answer.clear()
        cluster.send(1, A)
        await cluster.first.requests.get()
        del cluster.leaders[A]
        cluster.deleted.add(A)
        cluster.first.may_answer.set()
        assert await cluster.marked.get() == ("t1", {A})
        assert cluster.first.requests.empty()

    play(script)


def test_a_log_without_transactions_needs_no_marker() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.first.codes[A] = [UnsupportedForMessageFormat.code]
        cluster.send(1, A)
        assert await cluster.marked.get() == ("t1", {A})

    play(script)


def test_a_fenced_coordinator_gives_the_transaction_up() -> None:
    async def script(cluster: Cluster) -> None:
        for number, code in enumerate((TransactionCoordinatorFenced.code, InvalidProducerEpoch.code), 1):
            cluster.first.codes[A] = [code]
            cluster.leaders.pop(B, None)
            cluster.send(number, A, B)
            assert await cluster.first.requests.get() == {number: {A}}
        cluster.leaders[B] = cluster.second.leader
        cluster.send(3, A, B)
        assert {(await cluster.marked.get())[0] for _ in range(2)} == {"t3"}
        assert await cluster.first.requests.get() == {3: {A}}
        assert await cluster.second.requests.get() == {3: {B}}

    play(script)


def test_markers_of_a_partition_that_another_coordinator_has_are_dropped() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.first.may_answer.clear()
        cluster.send(1, A)
        await cluster.first.requests.get()
        cluster.send(1, A)
        cluster.send(2, A)
        cluster.sender.drop(1)
        cluster.first.may_answer.set()
        assert await cluster.first.requests.get() == {2: {A}}
        assert await cluster.marked.get() == ("t2", {A}), "the answer for t1 is nobody's"

    play(script)
