"""DeleteTopics, by name or (version 6) by id: answered when the topics are gone."""

from __future__ import annotations

from collections import Counter
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
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    UnknownTopicId,
)
from cluster.model import NO_TOPIC_ID, TopicId
from cluster.time_slice import TimeSlice

API = "DeleteTopics"

_STRUCTS = 6
_DISABLED_CODE = 3
_STRICT = 5
"""From this version on requests above the client's quota are refused (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Deletes each topic. A failure affects only its own topic."""
    if not context.controller.active:
        raise NotController
    if not context.config.flag("delete.topic.enable"):
        raise TopicDeletionDisabled if request.api_version >= _DISABLED_CODE else InvalidRequest
    quota = mutation_quota(context, request, _STRICT)
    return {
        "responses": await _delete_each(context, request, quota),
        "throttle_time_ms": quota.throttle_ms(),
    }


_Named = tuple[str | None, TopicId]
"""A topic as the request names it: by its name or its id."""


def _asked(request: Request) -> list[_Named]:
    if request.api_version < _STRUCTS:
        return list(zip(request.body["topic_names"], repeat(NO_TOPIC_ID)))
    return list(map(itemgetter("name", "topic_id"), request.body["topics"]))


async def _delete_each(context: Context, request: Request, quota: MutationQuota) -> list[Body]:
    """Deletes topics. As in Kafka, deletions continue after the timeout, and a repeated topic has repeated
    results.
    """
    timeout, asked = request.body["timeout_ms"], _asked(request)
    counts, time_slice = Counter(asked), TimeSlice()
    found: dict[_Named, tuple[str | None, KafkaProtocolError | None]] = {}
    wanted: dict[str, TopicToDelete] = {}
    for item in counts:
        name, refused = found[item] = _find(context, *item)
        if name is not None and refused is None and (item[0] is not None or name not in wanted):
            wanted[name] = TopicToDelete(name, item[1])
        await time_slice.yield_if_over()
    outcomes: Outcomes = []
    deletion = context.controller.topics.delete(list(wanted.values()), outcomes, quota.record)
    late = await outcome_of(deletion, timeout)
    known = dict(zip(wanted, outcomes[:], strict=False))
    results = {}
    for item, (name, refused) in found.items():
        error = refused if refused is not None or name is None else known.get(name, late)
        if error is None and timeout <= 0:
            error = RequestTimedOut()
        # Repeated results have no text, to bound the response.
        results[item] = _result(name, item[1], error, with_text=counts[item] == 1)
        await time_slice.yield_if_over()
    return list(map(results.__getitem__, asked))


def _find(
    context: Context, name: str | None, topic_id: TopicId
) -> tuple[str | None, KafkaProtocolError | None]:
    """A topic's name, or its error. A topic with both a name and an id fails the whole request with
    InvalidRequest.
    """
    if name is not None and topic_id != NO_TOPIC_ID:
        raise InvalidRequest("A topic is named by its name or by its id, not by both.")
    if name is None and topic_id == NO_TOPIC_ID:
        # Kafka's code for a topic without a name.
        return None, TopicAuthorizationFailed("A topic's name or its id is needed.")
    if name is None:
        name = context.metadata.name_of(topic_id)
        return name, UnknownTopicId() if name is None else None
    return name, None


def _result(name: str | None, topic_id: TopicId, error: KafkaProtocolError | None, with_text: bool) -> Body:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": NONE if error is None else error.code,
        "error_message": str(error) if error is not None and with_text else None,
    }


def failure(request: Request, code: int) -> Body:
    """Each topic has the error."""
    asked = _asked(request)
    results = {
        (name, topic_id): {"name": name, "topic_id": topic_id, "error_code": code, "error_message": None}
        for name, topic_id in asked
    }
    return {"responses": list(map(results.__getitem__, asked))}
