"""The common parts of AlterConfigs and IncrementalAlterConfigs: resources, errors and the response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from operator import itemgetter

from cluster.broker.context import Body, Context, Request, error_message
from cluster.broker.dynamic.alteration import BROKER, CLIENT_METRICS, TOPIC, Alteration
from cluster.broker.handlers._own_id import require_own_id
from cluster.controller.names import validate_topic_name
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, UnknownTopicOrPartition
from cluster.time_slice import TimeSlice


async def alter_each(request: Request, alter: Callable[[Body], Awaitable[None]]) -> Body:
    """Calls `alter` for each resource of the request. A failure affects only its own resource.

    A resource that appears twice is refused, and the response repeats the error.
    """
    resources = request.body["resources"]
    keys = list(map(_resource, resources))
    counts = Counter(keys)
    responses: dict[tuple[int, str], Body] = {}
    time_slice = TimeSlice()
    for key, item in dict(zip(keys, resources, strict=True)).items():
        await time_slice.yield_if_over()
        error: KafkaProtocolError | None = None
        try:
            if counts[key] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            await alter(item)
        except KafkaProtocolError as failed:
            error = failed
        responses[key] = _response(
            item, error.code if error else NONE, error_message(error) if error else None
        )
    return {"responses": list(map(responses.__getitem__, keys))}


_resource = itemgetter("resource_type", "resource_name")


def _response(item: Body, code: int, message: str | None) -> Body:
    kind, name = _resource(item)
    return {"error_code": code, "error_message": message, "resource_type": kind, "resource_name": name}


async def alter_stored(context: Context, request: Request, item: Body, alter: Alteration) -> None:
    """Changes the settings of a topic or of brokers in the coordinator."""
    kind, name = _resource(item)
    validate_only = request.body["validate_only"]
    if kind == TOPIC:
        _require_topic(context, name)
        await context.dynamic.alter_topic(name, alter, validate_only)
    elif kind == BROKER:
        if name:
            require_own_id(context, name)
        await context.dynamic.alter_broker(alter, bool(name), validate_only)
    elif kind == CLIENT_METRICS:
        raise InvalidRequest(
            "AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS"
        )
    else:
        raise InvalidRequest(f"Unknown resource type {kind}")


def _require_topic(context: Context, name: str) -> None:
    if not name:
        raise InvalidRequest("Default topic resources are not allowed.")
    if context.metadata.topic(name) is None:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    validate_topic_name(name)


def failure(request: Request, code: int) -> Body:
    """Each resource has the error."""
    return {"responses": [_response(item, code, None) for item in request.body["resources"]]}
