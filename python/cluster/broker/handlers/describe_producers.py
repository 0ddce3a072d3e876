"""DescribeProducers: the producers that a partition has state of (ReplicaManager.activeProducerState,
KIP-664).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache, partial

from cluster.broker.context import Body, Context, ReplicaLogs, Request
from cluster.broker.handlers._repeats import RepeatBudget
from cluster.controller.names import validate_topic_name
from cluster.errors import (
    InvalidRequest,
    InvalidTopicException,
    KafkaProtocolError,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from cluster.time_slice import TimeSlice

API = "DescribeProducers"

_FIELDS = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_timestamp",
    "coordinator_epoch",
    "current_txn_start_offset",
)


async def handle(context: Context, request: Request) -> Body:
    """Describes each partition. One that is named repeatedly is described once and repeated."""
    topics = request.body["topics"]
    known, refused, time_slice = set(), {}, TimeSlice()
    # Only the event loop reads metadata; the logs may block, so a thread reads them.
    for topic in topics:
        name = topic["name"]
        error = _refusal(context, name)
        if error is not None:
            refused[name] = error
        for partition in topic["partition_indexes"]:
            if context.has_partition(name, partition):
                known.add((name, partition))
            await time_slice.yield_if_over()
        await time_slice.yield_if_over()
    return await asyncio.to_thread(_describe, context.logs, topics, known, refused)


def _refusal(context: Context, name: str) -> KafkaProtocolError | None:
    """The error for a topic without partitions (`KafkaApis.checkValidTopic`, then its metadata)."""
    if context.metadata.topic(name) is not None:
        return None
    try:
        validate_topic_name(name)
    except InvalidTopicException as error:
        return error
    return UnknownTopicOrPartition()


def _describe(
    logs: ReplicaLogs,
    topics: list[Body],
    known: set[tuple[str, int]],
    refused: Mapping[str, KafkaProtocolError],
) -> Body:
    repeats = RepeatBudget()
    describe = cache(partial(_partition, logs))

    def entry(topic: str, partition: int) -> Body:
        if topic in refused:
            # As in Kafka, an unknown topic has a message and an unknown partition has none.
            return _entry(partition, refused[topic].code) | {"error_message": str(refused[topic])}
        if (topic, partition) not in known:
            return _entry(partition, UnknownTopicOrPartition.code)
        try:
            return repeats.described((topic, partition), partial(describe, topic, partition))
        except InvalidRequest as error:
            return _entry(partition, error.code) | {"error_message": str(error)}

    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [entry(topic["name"], partition) for partition in topic["partition_indexes"]],
            }
            for topic in topics
        ]
    }


def _partition(logs: ReplicaLogs, topic: str, partition: int) -> Body:
    code, producers = logs.describe_producers(topic, partition)
    if code == UnknownTopicOrPartition.code:
        # The cluster has the partition, so another broker leads it.
        code = NotLeaderOrFollower.code
    return _entry(partition, code) | {
        "active_producers": [dict(zip(_FIELDS, producer, strict=True)) for producer in producers]
    }


def _entry(partition: int, code: int) -> Body:
    return {"partition_index": partition, "error_code": code, "active_producers": []}


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_entry(partition, code) for partition in topic["partition_indexes"]],
            }
            for topic in request.body["topics"]
        ]
    }
