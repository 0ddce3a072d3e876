"""CreateTopics: answered when the topics are open, or when they were only checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from operator import itemgetter

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.description import topic_entries
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import NewTopic, outcome_of
from cluster.controller.names import CLUSTER_METADATA_TOPIC
from cluster.controller.topics import DEFAULT
from cluster.errors import (
    NONE,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaProtocolError,
    NotController,
    RequestTimedOut,
)
from cluster.model import NO_TOPIC_ID, TopicInfo
from cluster.time_slice import TimeSlice

API = "CreateTopics"

_CONFIGS = 5
"""From this version on a response has the topics' settings."""

_STRICT = 6
"""From this version on requests above the client's quota are refused (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Creates each topic. A failure affects only its own topic. The response repeats a topic that is named
    twice.
    """
    if not context.controller.active:
        raise NotController
    asked = request.body["topics"]
    counts = Counter(_names(request))
    results: dict[str, Body] = {}
    news, time_slice = [], TimeSlice()
    for item in asked:
        await time_slice.yield_if_over()
        name = item["name"]
        if name in results:
            continue
        refused = _refusal(item, counts[name])
        if refused is None:
            news.append(_new(item))
        else:
            results[name] = _failed(name, refused)
    quota = mutation_quota(context, request, _STRICT)
    await _create(context, request, news, quota, results)
    return {
        "topics": list(map(results.__getitem__, _names(request))),
        "throttle_time_ms": quota.throttle_ms(),
    }


def _names(request: Request) -> Iterable[str]:
    return map(itemgetter("name"), request.body["topics"])


def _refusal(item: Body, count: int) -> KafkaProtocolError | None:
    """The error for a topic that the request names `count` times; None if the request is valid."""
    if item["name"] == CLUSTER_METADATA_TOPIC:
        return InvalidRequest(f"{CLUSTER_METADATA_TOPIC} is reserved for KRaft; choose another name.")
    if count > 1:
        return InvalidRequest("The request has several entries for this topic.")
    counted = item["num_partitions"] != DEFAULT or item["replication_factor"] != DEFAULT
    partitions = [entry["partition_index"] for entry in item["assignments"]]
    if not counted and len(set(partitions)) < len(partitions):
        return InvalidReplicaAssignment("A partition is assigned twice.")
    return None


def _new(item: Body) -> NewTopic:
    return NewTopic(
        item["name"],
        item["num_partitions"],
        item["replication_factor"],
        {entry["partition_index"]: entry["broker_ids"] for entry in item["assignments"]},
        {entry["name"]: entry["value"] for entry in item["configs"]},
    )


async def _create(
    context: Context, request: Request, news: list[NewTopic], quota: MutationQuota, results: dict[str, Body]
) -> None:
    """Creates topics and adds each one's result to `results`."""
    timeout, only_check = request.body["timeout_ms"], request.body["validate_only"]
    made: list[TopicInfo | KafkaProtocolError] = []

    async def work() -> None:
        made.extend(await context.controller.topics.create(news, only_check, quota.record))

    # As in Kafka, a check does not wait for its timeout.
    error = await outcome_of(work(), 0 if only_check else timeout)
    outcomes = made if error is None else [error] * len(news)

    # Topics with equal settings share their entries, which are the largest part of a response.
    @cache
    def configs(own: tuple[tuple[str, str], ...]) -> list[Body]:
        return _configs(context, dict(own))

    time_slice = TimeSlice()
    for new, topic in zip(news, outcomes, strict=True):
        if isinstance(topic, KafkaProtocolError):
            results[new.name] = _failed(new.name, topic)
        elif timeout <= 0 and not only_check:
            # Without a timeout a client gets its request's errors, but no success.
            results[new.name] = _failed(new.name, RequestTimedOut()) | {"topic_id": topic.id}
        else:
            entries = configs(tuple(topic.config.items())) if request.api_version >= _CONFIGS else []
            results[new.name] = _created(topic, only_check, entries)
        await time_slice.yield_if_over()


def _created(topic: TopicInfo, validate_only: bool, configs: list[Body]) -> Body:
    return {
        "name": topic.name,
        "topic_id": NO_TOPIC_ID if validate_only else topic.id,
        "error_code": NONE,
        "error_message": None,
        "num_partitions": len(topic.assignment),
        "replication_factor": len(topic.assignment[0].replicas),
        "configs": configs,
    }


def _configs(context: Context, own: dict[str, str]) -> list[Body]:
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "read_only": entry.read_only,
            "config_source": entry.source,
            "is_sensitive": entry.sensitive,
        }
        for entry in topic_entries(own, context.dynamic.live)
    ]


def _failed(name: str, error: KafkaProtocolError) -> Body:
    return {"name": name, "error_code": error.code, "error_message": str(error), "configs": []}


def failure(request: Request, code: int) -> Body:
    """Each topic has the error."""
    results: dict[str, Body] = {
        name: {"name": name, "error_code": code, "error_message": None, "configs": []}
        for name in _names(request)
    }
    return {"topics": list(map(results.__getitem__, _names(request)))}
