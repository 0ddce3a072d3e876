"""CreateTopics: answered by the controller once the topics are there, or were only checked."""

from __future__ import annotations

import asyncio
from collections import Counter

from cluster.broker.context import Body, Context, Request
from cluster.broker.settings import topic_settings
from cluster.broker.topic_policy import topic_source, topic_value
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

API_KEY = 19
VERSIONS = (0, 7)


async def handle(context: Context, request: Request) -> Body:
    """Creates each topic by itself: one that cannot be does not keep the others from it."""
    if not context.controller.active:
        return failure(request, NotController.code)
    asked = request.body["topics"]
    counts = Counter(item["name"] for item in asked)
    once = [item for item in asked if counts[item["name"]] == 1]
    results = await asyncio.gather(*(_create(context, request, item) for item in once))
    doubles = [
        _failed(name, InvalidRequest("The request has several entries for this topic."))
        for name, count in counts.items()
        if count > 1
    ]
    return {"topics": [*results, *doubles]}


async def _create(context: Context, request: Request, item: Body) -> Body:
    body, name = request.body, item["name"]
    assignment = {entry["partition_index"]: entry["broker_ids"] for entry in item["assignments"]}
    if len(assignment) < len(item["assignments"]):
        return _failed(name, InvalidReplicaAssignment("A partition is assigned twice."))
    new = NewTopic(
        name,
        item["num_partitions"],
        item["replication_factor"],
        assignment,
        {entry["name"]: entry["value"] for entry in item["configs"]},
    )
    made: list[TopicInfo] = []

    async def work() -> None:
        made.append(await context.controller.create_topic(new, body["validate_only"]))

    error = await outcome_of(work(), body["timeout_ms"])
    if body["timeout_ms"] <= 0 and error is None and not body["validate_only"]:
        error = RequestTimedOut()
    if error is not None:
        return _failed(name, error)
    return _created(context, made[0], body["validate_only"])


def _created(context: Context, topic: TopicInfo, validate_only: bool) -> Body:
    return {
        "name": topic.name,
        "topic_id": NO_TOPIC_ID if validate_only else topic.id,
        "error_code": NONE,
        "error_message": None,
        "num_partitions": len(topic.assignment),
        "replication_factor": len(topic.assignment[0].replicas),
        "configs": [
            {
                "name": setting.name,
                "value": topic_value(setting, topic.config, context.config),
                "read_only": False,
                "config_source": topic_source(setting, topic.config, context.config),
                "is_sensitive": setting.sensitive,
            }
            for setting in topic_settings().values()
        ],
    }


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
