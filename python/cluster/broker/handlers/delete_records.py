"""DeleteRecords: moves the start of partitions' logs forward (KafkaApis.handleDeleteRecordsRequest).

This broker has the only replica, so it waits for no other within the timeout.
"""

from __future__ import annotations

import asyncio

from cluster.broker.context import Body, Context, Request
from cluster.controller.names import is_internal
from cluster.errors import NONE, InvalidTopicException, NotLeaderOrFollower, UnknownTopicOrPartition
from cluster.time_slice import TimeSlice

API = "DeleteRecords"

_NO_OFFSET = -1


async def handle(context: Context, request: Request) -> Body:
    """Deletes in each partition. For a partition that is named twice the last offset counts."""
    asked = await asyncio.to_thread(_asked, request)
    wanted, refused, time_slice = [], {}, TimeSlice()
    for (topic, partition), offset in asked.items():
        code = _refusal(context, topic, partition)
        if code:
            refused[topic, partition] = code, _NO_OFFSET
        else:
            wanted.append((topic, partition, offset))
        await time_slice.yield_if_over()

    def delete() -> Body:
        deleted = context.logs.delete_records(wanted)
        done = {item[:2]: _named(*result) for item, result in zip(wanted, deleted, strict=True)}
        return _answer({key: done[key] if key in done else refused[key] for key in asked})

    return await asyncio.to_thread(delete)


def _asked(request: Request) -> dict[tuple[str, int], int]:
    return {
        (topic["name"], partition["partition_index"]): partition["offset"]
        for topic in request.body["topics"]
        for partition in topic["partitions"]
    }


def _named(code: int, start: int) -> tuple[int, int]:
    # The cluster has the partition, so another broker leads it.
    return (NotLeaderOrFollower.code if code == UnknownTopicOrPartition.code else code), start


def _refusal(context: Context, topic: str, partition: int) -> int:
    if not context.has_partition(topic, partition):
        return UnknownTopicOrPartition.code
    return InvalidTopicException.code if is_internal(topic) else NONE


def _answer(results: dict[tuple[str, int], tuple[int, int]]) -> Body:
    topics: dict[str, list[Body]] = {}
    for (topic, partition), (code, start) in results.items():
        entry = {"partition_index": partition, "low_watermark": start, "error_code": code}
        topics.setdefault(topic, []).append(entry)
    return {"topics": [{"name": name, "partitions": entries} for name, entries in topics.items()]}


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    return _answer(dict.fromkeys(_asked(request), (code, _NO_OFFSET)))
