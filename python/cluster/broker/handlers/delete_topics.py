"""DeleteTopics, by name or (version 6) by id: answered by the controller once the topics are gone."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import Outcomes, outcome_of
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
        return failure(request, NotController.code)
    if not context.config.flag("delete.topic.enable"):
        new = request.api_version >= _DISABLED_CODE
        return failure(request, TopicDeletionDisabled.code if new else InvalidRequest.code)
    quota = mutation_quota(context, request, _STRICT)
    return {
        "responses": await _delete_each(context, request, quota),
        "throttle_time_ms": quota.throttle_ms(),
    }


def _asked(request: Request) -> list[tuple[str | None, TopicId]]:
    if request.api_version < _STRUCTS:
        return [(name, NO_TOPIC_ID) for name in dict.fromkeys(request.body["topic_names"])]
    return list(dict.fromkeys((item["name"], TopicId(item["topic_id"])) for item in request.body["topics"]))


async def _delete_each(context: Context, request: Request, quota: MutationQuota) -> list[Body]:
    """Those that are not done when the time is up are deleted all the same, as in Kafka."""
    timeout = request.body["timeout_ms"]
    found, pace = [], Pace()
    for item in _asked(request):
        found.append(_find(context, *item))
        await pace.step()
    names = [name for name, _, refused in found if refused is None and name is not None]
    outcomes: Outcomes = []
    late = await outcome_of(context.controller.delete_topics(names, outcomes, quota.record), timeout)
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
