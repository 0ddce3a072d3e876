"""Metadata: brokers, topics and leaders. Creates requested topics that do not exist, if that is allowed.

Kafka answers LEADER_NOT_AVAILABLE for a topic that it has just created. This broker waits until the topic is
open.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.broker.context import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_REQUESTED,
    TOPIC_OPERATIONS,
    Body,
    Context,
    Request,
)
from cluster.controller import NewTopic, outcome_of
from cluster.controller.names import is_internal, validate_topic_name
from cluster.errors import (
    NONE,
    InvalidRequest,
    InvalidTopicException,
    KafkaProtocolError,
    LeaderNotAvailable,
    ListenerNotFound,
    ReplicaNotAvailable,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from cluster.model import (
    NO_LEADER,
    NO_TOPIC_ID,
    BrokerId,
    PartitionState,
    TopicId,
    TopicInfo,
)
from cluster.time_slice import TimeSlice

API = "Metadata"

_BY_ID = 12
"""Requests have fields for ids and null names since version 10; Kafka accepts them since this version
(KIP-516).
"""


async def handle(context: Context, request: Request) -> Body:
    """Answers for the requested topics, or for all."""
    body, version = request.body, request.api_version
    asked = body["topics"]
    if asked is None or (version == 0 and not asked):
        topics, time_slice = [], TimeSlice()
        for topic in context.metadata.snapshot():
            topics.append(_topic(context, request, topic))
            await time_slice.yield_if_over()
    else:
        names, ids = await _named(asked, version)
        # As in Kafka, a request with ids gets no topics by name.
        topics = await (_by_ids(context, request, ids) if ids else _by_names(context, request, names))
    return _frame(context, request, topics)


async def _named(asked: list[Body], version: int) -> tuple[list[str | None], list[TopicId]]:
    """The names, and the ids, each once."""
    names: dict[str | None, None] = {}
    ids: dict[TopicId, None] = {}
    time_slice = TimeSlice()
    for item in asked:
        name, topic_id = item["name"], item["topic_id"]
        if version < _BY_ID and (name is None or topic_id != NO_TOPIC_ID):
            raise InvalidRequest(f"version {version} supports only topic names, not ids")
        if topic_id == NO_TOPIC_ID:
            names[name] = None
        else:
            ids[topic_id] = None
        await time_slice.yield_if_over()
    return list(names), list(ids)


def _frame(context: Context, request: Request, topics: list[Body]) -> Body:
    endpoints = [
        (info, endpoint)
        for info in context.metadata.brokers.values()
        if (endpoint := info.endpoint(request.listener)) is not None
    ]
    answer: Body = {
        "brokers": [
            {"node_id": info.id, "host": endpoint.host, "port": endpoint.port, "rack": info.rack}
            for info, endpoint in endpoints
        ],
        "cluster_id": context.metadata.cluster_id,
        "controller_id": context.metadata.controller_id,
        "topics": topics,
    }
    if request.body["include_cluster_authorized_operations"]:
        answer["cluster_authorized_operations"] = CLUSTER_OPERATIONS
    return answer


def _by_id(context: Context, request: Request, topic_id: TopicId) -> Body:
    name = context.metadata.name_of(topic_id)
    topic = None if name is None else context.metadata.topic(name)
    if topic is None:
        return _unknown(None, UnknownTopicId.code, topic_id)
    return _topic(context, request, topic)


async def _by_ids(context: Context, request: Request, ids: list[TopicId]) -> list[Body]:
    topics, time_slice = [], TimeSlice()
    for topic_id in ids:
        topics.append(_by_id(context, request, topic_id))
        await time_slice.yield_if_over()
    return topics


async def _by_names(context: Context, request: Request, names: list[str | None]) -> list[Body]:
    time_slice = TimeSlice()
    refused: dict[str, int] = {}
    news = []
    for name in names:
        await time_slice.yield_if_over()
        if name is None or context.metadata.topic(name) is not None:
            continue
        code = _refusal(context, request, name)
        if code == NONE:
            news.append(context.auto_topics.new_topic(name))
        else:
            refused[name] = code
    if news:
        refused |= await _create(context, news)
    topics = []
    for name in names:
        topics.append(_by_name(context, request, name, refused))
        await time_slice.yield_if_over()
    return topics


def _by_name(context: Context, request: Request, name: str | None, refused: dict[str, int]) -> Body:
    if name is None:
        return _unknown(None, InvalidTopicException.code)
    topic = context.metadata.topic(name)
    if topic is not None:
        return _topic(context, request, topic)
    # A topic that existed when the request was checked may have been deleted since.
    unknown = _unknown(name, refused.get(name, UnknownTopicOrPartition.code))
    # Who may do what goes by the name, whether there is a topic or not.
    return unknown | {"topic_authorized_operations": _operations(request)}


def _refusal(context: Context, request: Request, name: str) -> int:
    """Why a topic is not created for being asked for; nothing when it is."""
    try:
        validate_topic_name(name)
    except InvalidTopicException as error:
        return error.code
    allowed = request.body["allow_auto_topic_creation"] and context.config.flag("auto.create.topics.enable")
    return NONE if allowed else UnknownTopicOrPartition.code


async def _create(context: Context, news: list[NewTopic]) -> dict[str, int]:
    """Creates topics. Returns the error codes to use for those that do not exist afterwards."""
    made: list[TopicInfo | KafkaProtocolError] = []

    async def work() -> None:
        made.extend(await context.auto_topics.create(news))

    failed = await outcome_of(work(), context.config.number("request.timeout.ms"))
    outcomes: Sequence[TopicInfo | KafkaProtocolError | None] = made or [failed] * len(news)
    return {new.name: _creation_code(outcome) for new, outcome in zip(news, outcomes, strict=True)}


def _creation_code(outcome: TopicInfo | KafkaProtocolError | None) -> int:
    if not isinstance(outcome, KafkaProtocolError) or isinstance(
        outcome, TopicAlreadyExists | RequestTimedOut
    ):
        return LeaderNotAvailable.code
    return outcome.code


def _unknown(name: str | None, code: int, topic_id: TopicId = NO_TOPIC_ID) -> Body:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name is not None and is_internal(name),
        "partitions": [],
    }


def _operations(request: Request) -> int:
    asked = request.body["include_topic_authorized_operations"]
    return TOPIC_OPERATIONS if asked else OPERATIONS_NOT_REQUESTED


def _topic(context: Context, request: Request, topic: TopicInfo) -> Body:
    return {
        "error_code": NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": is_internal(topic.name),
        "partitions": [
            _partition(context, request, topic, number, state)
            for number, state in sorted(topic.partitions.items())
        ],
        "topic_authorized_operations": _operations(request),
    }


def _partition(
    context: Context, request: Request, topic: TopicInfo, number: int, state: PartitionState
) -> Body:
    code, leader = NONE, state.leader
    assigned, offline = topic.assignment[number], topic.offline.get(number, ())
    replicas, isr = list(assigned.replicas), list(state.isr)
    if request.api_version == 0:
        replicas, isr = _reached(context, request, replicas), _reached(context, request, isr)
    if state.leader == NO_LEADER or state.leader not in context.metadata.brokers:
        code = LeaderNotAvailable.code
    elif context.endpoint_of(state.leader, request.listener) is None:
        code = ListenerNotFound.code if request.api_version >= 6 else LeaderNotAvailable.code
    if code != NONE:
        leader = NO_LEADER
    elif len(replicas) < len(assigned.replicas) or len(isr) < len(state.isr):
        code = ReplicaNotAvailable.code
    return {
        "error_code": code,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "offline_replicas": list(offline),
    }


def _reached(context: Context, request: Request, brokers: list[BrokerId]) -> list[BrokerId]:
    """The brokers that the client's listener reaches. Version 0 lists only these, with an error if there are
    others (`ZkMetadataCache.getPartitionMetadata`).
    """
    return [item for item in brokers if context.endpoint_of(item, request.listener) is not None]


def failure(request: Request, code: int) -> Body:
    """Each requested topic has the error. As in Kafka, a missing name is empty and no topic is internal
    (`MetadataRequest.getErrorResponse`).
    """
    return {
        "brokers": [],
        "topics": [
            _unknown(item["name"] or "", code, TopicId(item["topic_id"])) | {"is_internal": False}
            for item in request.body["topics"] or ()
        ],
    }
