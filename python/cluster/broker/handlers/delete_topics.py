"""DeleteTopics, by name or (version 6) by id: answered by the controller once the topics are gone."""

from __future__ import annotations

import asyncio

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import outcome_of
from cluster.errors import (
    NONE,
    InvalidRequest,
    KafkaProtocolError,
    NotController,
    RequestTimedOut,
    TopicDeletionDisabled,
    UnknownTopicId,
)
from cluster.model import NO_TOPIC_ID, TopicId

API_KEY = 20
VERSIONS = (0, 6)

_STRUCTS = 6
_DISABLED_CODE = 3
_STRICT = 5
"""From this version on a client is refused what is above its quota (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Deletes each topic by itself."""
    if not context.controller.active:
        return failure(request, NotController.code)
    if not context.config.flag("delete.topic.enable"):
        new = request.api_version >= _DISABLED_CODE
        return failure(request, TopicDeletionDisabled.code if new else InvalidRequest.code)
    quota = mutation_quota(context, request, _STRICT)
    deletions = [_delete(context, request, *item, quota) for item in _asked(request)]
    return {"responses": list(await asyncio.gather(*deletions)), "throttle_time_ms": quota.throttle_ms()}


def _asked(request: Request) -> list[tuple[str | None, TopicId]]:
    if request.api_version < _STRUCTS:
        return [(name, NO_TOPIC_ID) for name in dict.fromkeys(request.body["topic_names"])]
    return list(dict.fromkeys((item["name"], TopicId(item["topic_id"])) for item in request.body["topics"]))


async def _delete(
    context: Context, request: Request, name: str | None, topic_id: TopicId, quota: MutationQuota
) -> Body:
    if (name is None) == (topic_id == NO_TOPIC_ID):
        return _result(name, topic_id, InvalidRequest("A topic's name or its id is needed, and not both."))
    if name is None:
        name = context.metadata.name_of(topic_id)
        if name is None:
            return _result(None, topic_id, UnknownTopicId())
    topic = context.metadata.topic(name)
    timeout = request.body["timeout_ms"]
    error = await outcome_of(context.controller.delete_topic(name, quota.record), timeout)
    if error is None and timeout <= 0:
        error = RequestTimedOut()
    return _result(name, topic.id if topic is not None else topic_id, error)


def _result(name: str | None, topic_id: TopicId, error: KafkaProtocolError | None) -> Body:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": NONE if error is None else error.code,
        "error_message": None if error is None else str(error),
    }


def failure(request: Request, code: int) -> Body:
    """Each topic has the error."""
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, "error_code": code, "error_message": None}
            for name, topic_id in _asked(request)
        ]
    }
