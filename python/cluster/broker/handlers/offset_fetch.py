"""OffsetFetch: how far a group, or (version 8) several, have read. Version 0 reads the same offsets as the
others. A partition that is named twice is answered once, as with Kafka (`GroupMetadataManager.getOffsets`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._repetitions import Repetitions
from cluster.errors import NONE, InvalidRequest
from cluster.groups import CommittedOffset
from cluster.model import TopicPartition
from cluster.pace import Pace

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
    repetitions = Repetitions()
    groups, pace = [], Pace()
    for item in body["groups"]:
        groups.append(_named(context, request, item, repetitions))
        await pace.step()
    return {"groups": groups}


def _named(context: Context, request: Request, item: Body, repetitions: Repetitions) -> Body:
    group = item["group_id"]
    try:
        answer = repetitions.say(group, partial(_group, context, request, group, item["topics"]))
    except InvalidRequest as error:
        answer = _failed(request, None, error.code)
    return {"group_id": group, **answer}


def _group(context: Context, request: Request, group: str, topics: list[Body] | None) -> Body:
    error = context.groups.status(group, empty_allowed=True)
    if error:
        return _failed(request, topics, error)
    committed = context.groups.machine.committed(group)
    found: dict[str, list[Body]] = {}
    for item in sorted(committed) if topics is None else _asked(topics):
        entry = _partition(request, item.partition, committed.get(item))
        found.setdefault(item.topic, []).append(entry)
    return {
        "topics": [{"name": name, "partitions": entries} for name, entries in found.items()],
        "error_code": NONE,
    }


def _asked(topics: list[Body]) -> Iterable[TopicPartition]:
    return dict.fromkeys(
        TopicPartition(topic["name"], number) for topic in topics for number in topic["partition_indexes"]
    )


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
