"""CreatePartitions: answered when the new partitions are open, or when they were only checked."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import NewPartitions, Outcomes, outcome_of
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, NotController, RequestTimedOut
from cluster.time_slice import TimeSlice

API = "CreatePartitions"

_STRICT = 3
"""From this version on requests above the client's quota are refused (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Adds partitions to each topic. A failure affects only its own topic."""
    if not context.controller.active:
        raise NotController
    asked = request.body["topics"]
    counts = Counter(map(itemgetter("name"), asked))
    news, time_slice = [], TimeSlice()
    for item in asked:
        if counts[item["name"]] == 1:
            news.append(_new(item))
        await time_slice.yield_if_over()
    quota = mutation_quota(context, request, _STRICT)
    results = await _add_each(context, request, news, quota)
    double = InvalidRequest("The request has several entries for this topic.")
    for name, count in counts.items():
        if count > 1:
            results.append(_result(name, double))
        await time_slice.yield_if_over()
    return {"results": results, "throttle_time_ms": quota.throttle_ms()}


async def _add_each(
    context: Context, request: Request, news: list[NewPartitions], quota: MutationQuota
) -> list[Body]:
    body, time_slice = request.body, TimeSlice()
    outcomes: Outcomes = []
    work = context.controller.topics.create_partitions(news, outcomes, body["validate_only"], quota.record)
    # As in Kafka, a check does not wait for its timeout.
    late = await outcome_of(work, 0 if body["validate_only"] else body["timeout_ms"])
    known = iter(outcomes[:])
    results = []
    for new in news:
        error = next(known, late)
        if body["timeout_ms"] <= 0 and error is None and not body["validate_only"]:
            error = RequestTimedOut()
        results.append(_result(new.name, error))
        await time_slice.yield_if_over()
    return results


def _new(item: Body) -> NewPartitions:
    assignments = item["assignments"]
    brokers = None if assignments is None else [entry["broker_ids"] for entry in assignments]
    return NewPartitions(item["name"], item["count"], brokers)


def _result(name: str, error: KafkaProtocolError | None) -> Body:
    if error is None:
        return {"name": name, "error_code": NONE, "error_message": None}
    return {"name": name, "error_code": error.code, "error_message": str(error)}


def failure(request: Request, code: int) -> Body:
    """Each topic has the error."""
    names = dict.fromkeys(item["name"] for item in request.body["topics"])
    return {"results": [{"name": name, "error_code": code, "error_message": None} for name in names]}
