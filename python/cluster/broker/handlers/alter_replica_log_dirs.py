"""AlterReplicaLogDirs: moves logs to other log directories of this broker, which serves them meanwhile
(ReplicaManager.alterReplicaLogDirs, KIP-113).
"""

from __future__ import annotations

import asyncio

from cluster.broker.context import Body, Context, ReplicaLogs, Request
from cluster.errors import ReplicaNotAvailable, UnknownTopicOrPartition
from cluster.time_slice import TimeSlice

API = "AlterReplicaLogDirs"


async def handle(context: Context, request: Request) -> Body:
    """Begins each move. For a partition that is named twice the last directory counts."""
    codes, time_slice = await asyncio.to_thread(_alter, context.logs, request), TimeSlice()
    for key, code in codes.items():
        codes[key] = _named(context, key, code)
        await time_slice.yield_if_over()
    return await asyncio.to_thread(_answer, codes)


def _alter(logs: ReplicaLogs, request: Request) -> dict[tuple[str, int], int]:
    asked = _asked(request)
    moves = [(topic, partition, path) for (topic, partition), path in asked.items()]
    return dict(zip(asked, logs.alter_replica_log_dirs(moves), strict=True))


def _asked(request: Request) -> dict[tuple[str, int], str]:
    return {
        (topic["name"], partition): item["path"]
        for item in request.body["dirs"]
        for topic in item["topics"]
        for partition in topic["partitions"]
    }


def _named(context: Context, key: tuple[str, int], code: int) -> int:
    if code == ReplicaNotAvailable.code and not context.has_partition(*key):
        return UnknownTopicOrPartition.code
    return code


def _answer(codes: dict[tuple[str, int], int]) -> Body:
    topics: dict[str, list[Body]] = {}
    for (topic, partition), code in codes.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": entries} for name, entries in topics.items()]}


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    return _answer(dict.fromkeys(_asked(request), code))
