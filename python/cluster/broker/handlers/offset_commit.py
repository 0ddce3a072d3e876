"""OffsetCommit. Offsets of version 0, which Kafka stores in ZooKeeper, are stored in __consumer_offsets like
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, UnknownTopicOrPartition, for_code
from cluster.groups import Commit, CommittedOffset
from cluster.model import TopicPartition
from cluster.time_slice import TimeSlice, in_thread_if_long

API = "OffsetCommit"

_BROKER_DECIDES = -1

_NEVER_MS = 2**63 - 1
"""The highest time. Kafka's sum overflows with a longer retention, and the offset expires at the next check.
"""


async def handle(context: Context, request: Request) -> Body:
    """Answers when the offsets are written."""
    body = request.body
    error = context.groups.status(body["group_id"], empty_allowed=True)
    if error:
        raise for_code(error)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    errors: dict[TopicPartition, int] = {}
    now = context.groups.now()
    time_slice = TimeSlice()
    for item, entry in _partitions(request):
        await time_slice.yield_if_over()
        topic = context.metadata.topic(item.topic)
        if topic is None or item.partition not in topic.partitions:
            errors[item] = UnknownTopicOrPartition.code
        else:
            offsets[item] = _offset(body, entry, now)
    if offsets:
        result = await context.groups.commit(
            Commit(
                group=body["group_id"],
                generation=body["generation_id_or_member_epoch"],
                member=body["member_id"],
                instance=body["group_instance_id"],
                offsets=offsets,
                version=request.api_version,
            )
        )
        for item in offsets:
            errors[item] = result.errors.get(item, result.error)
            await time_slice.yield_if_over()
    return await in_thread_if_long(len(errors), partial(_answer, request, errors, NONE))


def _partitions(request: Request) -> Iterator[tuple[TopicPartition, Body]]:
    for topic in request.body["topics"]:
        for entry in topic["partitions"]:
            yield TopicPartition(topic["name"], entry["partition_index"]), entry


def _offset(body: Body, entry: Body, now: int) -> CommittedOffset:
    retention, committed = body["retention_time_ms"], entry["commit_timestamp"]
    return CommittedOffset(
        offset=entry["committed_offset"],
        leader_epoch=entry["committed_leader_epoch"],
        metadata=entry["committed_metadata"] or "",
        commit_ms=now if committed == _BROKER_DECIDES else committed,
        expire_ms=None if retention == _BROKER_DECIDES else min(now + retention, _NEVER_MS),
    )


def _answer(request: Request, errors: dict[TopicPartition, int], default: int) -> Body:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": entry["partition_index"],
                        "error_code": errors.get(
                            TopicPartition(topic["name"], entry["partition_index"]), default
                        ),
                    }
                    for entry in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
    }


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    return _answer(request, {}, code)
