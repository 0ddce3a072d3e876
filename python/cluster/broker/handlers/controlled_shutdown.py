"""ControlledShutdown: a broker that stops asks the controller to move its leaderships first."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE
from cluster.model import BrokerId

API = "ControlledShutdown"

_EPOCH = 2
"""From this version on the broker names the epoch of its registration."""


async def handle(context: Context, request: Request) -> Body:
    """Returns the partitions that the broker still leads although others have replicas."""
    body = request.body
    epoch = body["broker_epoch"] if request.api_version >= _EPOCH else -1
    remaining = await context.controller.shut_down(BrokerId(body["broker_id"]), epoch)
    return {
        "error_code": NONE,
        "remaining_partitions": [
            {"topic_name": topic, "partition_index": number} for topic, number in sorted(remaining)
        ],
    }


def failure(request: Request, code: int) -> Body:
    """No partitions, and the error."""
    return {"error_code": code, "remaining_partitions": []}
