"""OffsetFetch: how far a group, or (version 8) several, have read. Version 0 reads the same offsets as the
others.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE
from cluster.groups import CommittedOffset
from cluster.model import TopicPartition

API_KEY = 9
VERSIONS = (0, 9)

_BATCHED = 8
_TOP_LEVEL_ERROR = 2
_LEADER_EPOCH = 5

_NOT_COMMITTED = CommittedOffset(-1)


async def handle(context: Context, request: Request) -> Body:
    """Answers at once, with -1 where nothing is committed."""
    body = request.body
    if request.api_version < _BATCHED:
        return _group(context, request, body["group_id"], body["topics"])
    return {
        "groups": [
            {"group_id": item["group_id"], **_group(context, request, item["group_id"], item["topics"])}
            for item in body["groups"]
        ]
    }


def _group(context: Context, request: Request, group: str, topics: list[Body] | None) -> Body:
    error = context.groups.status(group, empty_allowed=True)
    if error:
        return _failed(request, topics, error)
    committed = context.groups.machine.committed(group)
    if topics is None:
        topics = _everything(committed)
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _partition(request, number, committed.get(TopicPartition(topic["name"], number)))
                    for number in topic["partition_indexes"]
                ],
            }
            for topic in topics
        ],
        "error_code": NONE,
    }


def _everything(committed: Mapping[TopicPartition, CommittedOffset]) -> list[Body]:
    numbers: dict[str, list[int]] = {}
    for item in sorted(committed):
        numbers.setdefault(item.topic, []).append(item.partition)
    return [{"name": name, "partition_indexes": found} for name, found in numbers.items()]


def _partition(request: Request, number: int, kept: CommittedOffset | None, code: int = NONE) -> Body:
    shown = kept or _NOT_COMMITTED
    entry: Body = {
        "partition_index": number,
        "committed_offset": shown.offset,
        "metadata": shown.metadata,
        "error_code": code,
    }
    if request.api_version >= _LEADER_EPOCH:
        entry["committed_leader_epoch"] = shown.leader_epoch
    return entry


def _failed(request: Request, topics: list[Body] | None, code: int) -> Body:
    if request.api_version >= _TOP_LEVEL_ERROR:
        return {"topics": [], "error_code": code}
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _partition(request, number, None, code) for number in topic["partition_indexes"]
                ],
            }
            for topic in topics or ()
        ]
    }


def failure(request: Request, code: int) -> Body:
    """No offsets, and the error."""
    body = request.body
    if request.api_version < _BATCHED:
        return _failed(request, body["topics"], code)
    return {
        "groups": [
            {"group_id": item["group_id"], "topics": [], "error_code": code} for item in body["groups"]
        ]
    }
