"""FindCoordinator: the broker that coordinates a group or a transactional id. The first request creates the
state topic.
"""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaProtocolError,
)
from cluster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Endpoint
from cluster.state_topics import partition_of
from cluster.time_slice import TimeSlice

API = "FindCoordinator"

_GROUP = 0
_TRANSACTION = 1
_TOPICS = {_GROUP: GROUP_METADATA_TOPIC, _TRANSACTION: TRANSACTION_STATE_TOPIC}
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
    topic = _TOPICS.get(kind)
    if topic is None:
        return _failed(InvalidRequest(f"The key type {kind} is unknown."))
    if kind == _TRANSACTION and not key:
        return _failed(InvalidRequest("The transactional id is empty."))
    try:
        await context.auto_topics.ensure_state_topic(topic)
        broker, endpoint = _coordinator(context, request, topic, key)
    except KafkaProtocolError as error:
        return _failed(CoordinatorNotAvailable(str(error)))
    return {
        "error_code": NONE,
        "error_message": None,
        "node_id": broker,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _coordinator(context: Context, request: Request, name: str, key: str) -> tuple[int, Endpoint]:
    """The leader of the key's partition of a state topic."""
    topic = context.metadata.topic(name)
    if topic is None:
        raise CoordinatorNotAvailable
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
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
