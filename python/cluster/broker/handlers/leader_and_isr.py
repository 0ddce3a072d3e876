"""LeaderAndIsr: the controller sets the leaders and replicas of partitions."""

from __future__ import annotations

from typing import Any

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._ungrouped import grouped
from cluster.model import NO_TOPIC_ID

API = "LeaderAndIsr"

_BY_ID = 5
"""From this version on the response names topics by id."""


async def handle(context: Context, request: Request) -> Body:
    """Passes the request to the replica manager."""
    body, version = grouped(request.body, "ungrouped_partition_states"), request.api_version
    if version < _BY_ID:
        for topic in body["topic_states"]:
            topic["topic_id"] = NO_TOPIC_ID
    answer = await context.replicas.leader_and_isr(body)
    if version >= _BY_ID:
        return answer
    # The topics of the answer are in the request's order.
    named = zip(body["topic_states"], answer["topics"], strict=False)
    errors: list[dict[str, Any]] = [
        error | {"topic_name": asked["topic_name"]}
        for asked, topic in named
        for error in topic["partition_errors"]
    ]
    return {"error_code": answer["error_code"], "partition_errors": errors}


def failure(request: Request, code: int) -> Body:
    """The whole request has the error."""
    return {"error_code": code}
