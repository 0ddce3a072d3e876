"""DescribeLogDirs: this broker's log directories, their space, and the logs in them
(ReplicaManager.describeLogDirs, KIP-113, KIP-827).
"""

from __future__ import annotations

import asyncio

from cluster.broker.context import Body, Context, ReplicaLogs, Request
from cluster.errors import NONE, KafkaStorageError

API = "DescribeLogDirs"

_ERROR_CODE = 3
"""The first version with an error code for the whole response."""

_NO_SPACE = (-1, -1)


async def handle(context: Context, request: Request) -> Body:
    """Describes every directory, with the requested partitions; null requests all."""
    return await asyncio.to_thread(_describe, context.logs, request.body["topics"])


def _describe(logs: ReplicaLogs, topics: list[Body] | None) -> Body:
    wanted = None
    if topics is not None:
        wanted = {(topic["topic"], partition) for topic in topics for partition in topic["partitions"]}
    results = []
    for path, space, replicas in logs.describe_log_dirs():
        found: dict[str, list[Body]] = {}
        for topic, partition, size, lag, is_future in replicas:
            if wanted is None or (topic, partition) in wanted:
                entry = {
                    "partition_index": partition,
                    "partition_size": size,
                    "offset_lag": lag,
                    "is_future_key": is_future,
                }
                found.setdefault(topic, []).append(entry)
        total, usable = space or _NO_SPACE
        results.append(
            {
                "error_code": KafkaStorageError.code if space is None else NONE,
                "log_dir": path,
                "topics": [{"name": name, "partitions": entries} for name, entries in found.items()],
                "total_bytes": total,
                "usable_bytes": usable,
            }
        )
    return {"results": results}


def failure(request: Request, code: int) -> Body:
    """The error. Before version 3 the response has no field for it, so a directory without a name has it."""
    if request.api_version >= _ERROR_CODE:
        return {"error_code": code, "results": []}
    return {"results": [{"error_code": code, "log_dir": "", "topics": []}]}
