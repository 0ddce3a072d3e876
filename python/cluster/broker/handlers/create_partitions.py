"""CreatePartitions: answered by the controller once the new partitions are open, or were only checked."""

from __future__ import annotations

import asyncio
from collections import Counter

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import NewPartitions, outcome_of
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, NotController, RequestTimedOut

API_KEY = 37
VERSIONS = (0, 3)

_STRICT = 3
"""From this version on a client is refused what is above its quota (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Adds partitions to each topic by itself."""
    if not context.controller.active:
        return failure(request, NotController.code)
    asked = request.body["topics"]
    counts = Counter(item["name"] for item in asked)
    once = [item for item in asked if counts[item["name"]] == 1]
    quota = mutation_quota(context, request, _STRICT)
    results = await asyncio.gather(*(_add(context, request, item, quota) for item in once))
    double = InvalidRequest("The request has several entries for this topic.")
    return {
        "results": [*results, *(_result(name, double) for name, count in counts.items() if count > 1)],
        "throttle_time_ms": quota.throttle_ms(),
    }


async def _add(context: Context, request: Request, item: Body, quota: MutationQuota) -> Body:
    body = request.body
    assignments = item["assignments"]
    new = NewPartitions(
        item["name"],
        item["count"],
        None if assignments is None else [entry["broker_ids"] for entry in assignments],
    )
    work = context.controller.create_partitions(new, body["validate_only"], quota.record)
    error = await outcome_of(work, body["timeout_ms"])
    if body["timeout_ms"] <= 0 and error is None and not body["validate_only"]:
        error = RequestTimedOut()
    return _result(item["name"], error)


def _result(name: str, error: KafkaProtocolError | None) -> Body:
    if error is None:
        return {"name": name, "error_code": NONE, "error_message": None}
    return {"name": name, "error_code": error.code, "error_message": str(error)}


def failure(request: Request, code: int) -> Body:
    """Each topic has the error."""
    names = dict.fromkeys(item["name"] for item in request.body["topics"])
    return {"results": [{"name": name, "error_code": code, "error_message": None} for name in names]}
