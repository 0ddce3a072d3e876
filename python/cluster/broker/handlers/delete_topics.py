"""DeleteTopics, by name or (version 6) by id: answered by the controller once the topics are gone."""

from __future__ import annotations

from itertools import repeat
from operator import itemgetter

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import Outcomes, TopicToDelete, outcome_of
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
from cluster.pace import Pace

API_KEY = 20
VERSIONS = (0, 6)

_STRUCTS = 6
_DISABLED_CODE = 3
_STRICT = 5
"""From this version on a client is refused what is above its quota (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Deletes each topic by itself."""
    if not context.controller.active:
        raise NotController
    if not context.config.flag("delete.topic.enable"):
        raise TopicDeletionDisabled if request.api_version >= _DISABLED_CODE else InvalidRequest
    quota = mutation_quota(context, request, _STRICT)
    return {
        "responses": await _delete_each(context, request, quota),
        "throttle_time_ms": quota.throttle_ms(),
    }


def _asked(request: Request) -> list[tuple[str | None, TopicId]]:
    if request.api_version < _STRUCTS:
        return list(zip(dict.fromkeys(request.body["topic_names"]), repeat(NO_TOPIC_ID)))
    return list(dict.fromkeys(map(itemgetter("name", "topic_id"), request.body["topics"])))


async def _delete_each(context: Context, request: Request, quota: MutationQuota) -> list[Body]:
    """Those that are not done when the time is up are deleted all the same, as in Kafka."""
    timeout = request.body["timeout_ms"]
    found, topics, pace = [], [], Pace()
    for item in _asked(request):
        name, topic_id, refused = _find(context, *item)
        found.append((name, topic_id, refused))
        if refused is None and name is not None:
            topics.append(TopicToDelete(name, item[1]))
        await pace.step()
    outcomes: Outcomes = []
    late = await outcome_of(context.controller.delete_topics(topics, outcomes, quota.record), timeout)
    known = iter(outcomes[:])
    results = []
    for name, topic_id, refused in found:
        error = next(known, late) if refused is None else refused
        if error is None and timeout <= 0:
            error = RequestTimedOut()
        results.append(_result(name, topic_id, error))
        await pace.step()
    return results


def _find(
    context: Context, name: str | None, topic_id: TopicId
) -> tuple[str | None, TopicId, KafkaProtocolError | None]:
    """A topic's name and id, or why it cannot be one."""
    if (name is None) == (topic_id == NO_TOPIC_ID):
        error = InvalidRequest("A topic's name or its id is needed, and not both.")
        return name, topic_id, error
    if name is None:
        name = context.metadata.name_of(topic_id)
        return name, topic_id, UnknownTopicId() if name is None else None
    topic = context.metadata.topic(name)
    return name, topic.id if topic is not None else topic_id, None


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
