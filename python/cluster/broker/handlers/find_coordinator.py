"""FindCoordinator: the broker that coordinates a group. The first request creates __consumer_offsets."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.controller.names import GROUP_METADATA_TOPIC
from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaProtocolError,
    TransactionalIdAuthorizationFailed,
)
from cluster.groups.records import partition_of
from cluster.model import Endpoint
from cluster.time_slice import TimeSlice

API = "FindCoordinator"

_GROUP = 0
_TRANSACTION = 1
_BATCHED = 4


async def handle(context: Context, request: Request) -> Body:
    """Finds the coordinator of one key, or (version 4) of several. A repeated key is looked up once."""
    body = request.body
    if request.api_version < _BATCHED:
        return await _find(context, request, body["key"], body["key_type"])
    keys = body["coordinator_keys"]
    found, time_slice = {}, TimeSlice()
    for key in dict.fromkeys(keys):
        found[key] = {"key": key, **await _find(context, request, key, body["key_type"])}
        await time_slice.yield_if_over()
    return {"coordinators": list(map(found.__getitem__, keys))}


async def _find(context: Context, request: Request, key: str, kind: int) -> Body:
    if kind == _TRANSACTION:
        return _failed(TransactionalIdAuthorizationFailed("This broker does not support transactions yet."))
    if kind != _GROUP:
        return _failed(InvalidRequest(f"Key type {kind} is unknown."))
    try:
        await context.auto_topics.ensure_offsets_topic()
        broker, endpoint = _coordinator(context, request, key)
    except KafkaProtocolError as error:
        return _failed(CoordinatorNotAvailable(str(error)))
    return {
        "error_code": NONE,
        "error_message": None,
        "node_id": broker,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _coordinator(context: Context, request: Request, group: str) -> tuple[int, Endpoint]:
    """The leader of the group's partition of __consumer_offsets."""
    topic = context.metadata.topic(GROUP_METADATA_TOPIC)
    if topic is None:
        raise CoordinatorNotAvailable
    leader = topic.partitions[partition_of(group, len(topic.partitions))].leader
    endpoint = context.endpoint_of(leader, request.listener)
    if endpoint is None:
        raise CoordinatorNotAvailable
    return leader, endpoint


def _failed(error: KafkaProtocolError) -> Body:
    return {"error_code": error.code, "error_message": str(error), "node_id": -1, "host": "", "port": -1}


def failure(request: Request, code: int) -> Body:
    """No coordinator, and the error."""
    failed = {"error_code": code, "error_message": None, "node_id": -1, "host": "", "port": -1}
    if request.api_version < _BATCHED:
        return failed
    return {"coordinators": [{"key": key, **failed} for key in request.body["coordinator_keys"]]}
