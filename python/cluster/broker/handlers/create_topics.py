"""CreateTopics: answered by the controller once the topics are there, or were only checked."""

from __future__ import annotations

from collections import Counter
from functools import cache
from operator import itemgetter

from cluster.broker.context import Body, Context, Request, mutation_quota
from cluster.broker.dynamic.description import topic_entries
from cluster.broker.dynamic.mutations import MutationQuota
from cluster.controller import NewTopic, outcome_of
from cluster.errors import (
    NONE,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaProtocolError,
    NotController,
    RequestTimedOut,
)
from cluster.model import NO_TOPIC_ID, TopicInfo
from cluster.pace import Pace

API_KEY = 19
VERSIONS = (0, 7)

_CONFIGS = 5
"""From this version on an answer tells the topics' settings; what is not told is not made."""

_STRICT = 6
"""From this version on a client is refused what is above its quota (KIP-599)."""


async def handle(context: Context, request: Request) -> Body:
    """Creates each topic by itself: one that cannot be does not keep the others from it."""
    if not context.controller.active:
        raise NotController
    asked = request.body["topics"]
    counts = Counter(map(itemgetter("name"), asked))
    results, news, pace = [], [], Pace()
    for name, count in counts.items():
        await pace.step()
        if count > 1:
            results.append(_failed(name, InvalidRequest("The request has several entries for this topic.")))
    for item in asked:
        await pace.step()
        if counts[item["name"]] > 1:
            continue
        if len({entry["partition_index"] for entry in item["assignments"]}) < len(item["assignments"]):
            results.append(_failed(item["name"], InvalidReplicaAssignment("A partition is assigned twice.")))
        else:
            news.append(_new(item))
    quota = mutation_quota(context, request, _STRICT)
    results += await _create(context, request, news, quota)
    return {"topics": results, "throttle_time_ms": quota.throttle_ms()}


def _new(item: Body) -> NewTopic:
    return NewTopic(
        item["name"],
        item["num_partitions"],
        item["replication_factor"],
        {entry["partition_index"]: entry["broker_ids"] for entry in item["assignments"]},
        {entry["name"]: entry["value"] for entry in item["configs"]},
    )


async def _create(
    context: Context, request: Request, news: list[NewTopic], quota: MutationQuota
) -> list[Body]:
    timeout, only_check = request.body["timeout_ms"], request.body["validate_only"]
    made: list[TopicInfo | KafkaProtocolError] = []

    async def work() -> None:
        made.extend(await context.controller.create_topics(news, only_check, quota.record))

    # As in Kafka, a check is not waited for, but made.
    error = await outcome_of(work(), 0 if only_check else timeout)
    if error is None and timeout <= 0 and not only_check:
        error = RequestTimedOut()
    outcomes = made if error is None else [error] * len(news)

    # Topics with the same settings share what is said of them: a check of many topics has nothing else that is large.
    @cache
    def configs(own: tuple[tuple[str, str], ...]) -> list[Body]:
        return _configs(context, dict(own))

    results, pace = [], Pace()
    for new, topic in zip(news, outcomes, strict=True):
        if isinstance(topic, KafkaProtocolError):
            results.append(_failed(new.name, topic))
        else:
            told = configs(tuple(topic.config.items())) if request.api_version >= _CONFIGS else []
            results.append(_created(topic, only_check, told))
        await pace.step()
    return results


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
    return {
        "topics": [
            {"name": name, "error_code": code, "error_message": None, "configs": []}
            for name in {item["name"]: None for item in request.body["topics"]}
        ]
    }
