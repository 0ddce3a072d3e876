"""WriteTxnMarkers: ends producers' transactions in partitions that this broker leads. Of another broker's
coordinator, or of an operator who aborts a transaction that hangs (KIP-664).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from functools import partial
from itertools import repeat

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, KafkaProtocolError, NotLeaderOrFollower
from cluster.model import GROUP_METADATA_TOPIC, TopicPartition
from cluster.state_topics import Producer
from cluster.time_slice import TimeSlice, in_thread_if_long
from logcore._native import build_end_marker

API = "WriteTxnMarkers"


async def handle(context: Context, request: Request) -> Body:
    """Answers once every in-sync replica has the markers, or says why not."""
    codes: list[int] = []
    waiting: dict[int, asyncio.Task[int]] = {}
    time_slice = TimeSlice()
    for marker in request.body["markers"]:
        for partition in _partitions(marker):
            code = _write(context, marker, partition)
            if not isinstance(code, int):
                waiting[len(codes)] = code
                code = NONE
            codes.append(code)
            await time_slice.yield_if_over()
        await time_slice.yield_if_over()
    if waiting:
        # Not `gather`: the groups learn of the marker also if the client is gone.
        await asyncio.wait(waiting.values())
    for index, written in waiting.items():
        codes[index] = written.result()
    parts = len(codes) + len(request.body["markers"])
    return await in_thread_if_long(parts, partial(_answer, request, iter(codes)))


def _partitions(marker: Body) -> Iterator[TopicPartition]:
    for topic in marker["topics"]:
        for number in topic["partition_indexes"]:
            yield TopicPartition(topic["name"], number)


def _write(context: Context, marker: Body, partition: TopicPartition) -> int | asyncio.Task[int]:
    """Appends a marker. Returns its error code, or what waits for the in-sync replicas."""
    if partition.topic == GROUP_METADATA_TOPIC and not context.groups.partitions.is_loaded(
        partition.partition
    ):
        # Its groups might not learn of the marker. The coordinator sends it again.
        return NotLeaderOrFollower.code
    producer = Producer(marker["producer_id"], marker["producer_epoch"])
    now_ms = time.time_ns() // 1_000_000
    try:
        batch = build_end_marker(producer, marker["transaction_result"], marker["coordinator_epoch"], now_ms)
        waiting = context.state_log.append_encoded(
            *partition, batch, context.config.number("request.timeout.ms")
        )
    except KafkaProtocolError as error:
        return error.code
    if partition.topic == GROUP_METADATA_TOPIC:
        context.verification.marked(producer.id, partition)
    if waiting is None:
        _tell_groups(context, marker, partition)
        return NONE
    return asyncio.ensure_future(_replicated(context, marker, partition, waiting))


async def _replicated(
    context: Context, marker: Body, partition: TopicPartition, waiting: Awaitable[None]
) -> int:
    try:
        await waiting
    except KafkaProtocolError as error:
        return error.code
    _tell_groups(context, marker, partition)
    return NONE


def _tell_groups(context: Context, marker: Body, partition: TopicPartition) -> None:
    """The marker is on every in-sync replica."""
    if partition.topic == GROUP_METADATA_TOPIC:
        producer = Producer(marker["producer_id"], marker["producer_epoch"])
        context.groups.transaction_ended(partition.partition, producer, marker["transaction_result"])


def _answer(request: Request, codes: Iterator[int]) -> Body:
    return {
        "markers": [
            {
                "producer_id": marker["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {"partition_index": number, "error_code": next(codes)}
                            for number in topic["partition_indexes"]
                        ],
                    }
                    for topic in marker["topics"]
                ],
            }
            for marker in request.body["markers"]
        ]
    }


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    return _answer(request, repeat(code))
