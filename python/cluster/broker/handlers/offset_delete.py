"""OffsetDelete: deletes committed offsets of a group in topics that it does not read (KIP-496)."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, UnknownTopicOrPartition, for_code
from cluster.model import TopicPartition
from cluster.time_slice import TimeSlice

API = "OffsetDelete"


async def handle(context: Context, request: Request) -> Body:
    """Answers when the deletion is written."""
    group = request.body["group_id"]
    error = context.groups.status(group)
    if error:
        raise for_code(error)
    codes: dict[TopicPartition, int] = {}
    time_slice = TimeSlice()
    for topic in request.body["topics"]:
        for entry in topic["partitions"]:
            item = TopicPartition(topic["name"], entry["partition_index"])
            codes[item] = NONE if context.has_partition(*item) else UnknownTopicOrPartition.code
            await time_slice.yield_if_over()
    known = [item for item, code in codes.items() if code == NONE]
    result = await context.groups.delete_offsets(group, known)
    if result.error:
        raise for_code(result.error)
    return _answer(request, codes | dict(result.errors))


def _answer(request: Request, codes: Mapping[TopicPartition, int]) -> Body:
    return {
        "error_code": NONE,
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": entry["partition_index"],
                        "error_code": codes[TopicPartition(topic["name"], entry["partition_index"])],
                    }
                    for entry in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ],
    }


def failure(request: Request, code: int) -> Body:
    """The error, and no partitions."""
    return {"error_code": code, "topics": []}
