"""ConsumerGroupHeartbeat (KIP-848): a member joins, keeps its session, says what it has, gets what it should
have, or leaves. Answered when the change is written.
"""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.broker.group_settings import consumer_protocol
from cluster.errors import InvalidRequest, UnsupportedVersion
from cluster.groups import Assignment, Heartbeat, HeartbeatResult
from cluster.model import TopicId

API = "ConsumerGroupHeartbeat"

_KNOWS_ITS_ID = 1


async def handle(context: Context, request: Request) -> Body:
    """Asks the group's coordinator."""
    body = request.body
    if not consumer_protocol(context.config):
        return failure(request, UnsupportedVersion.code)
    if not body["group_id"].strip():
        return _answer(HeartbeatResult(InvalidRequest.code, "GroupId can't be empty."))
    error = context.groups.status(body["group_id"])
    if error:
        return failure(request, error)
    topics = body["subscribed_topic_names"]
    result = await context.groups.consumer_heartbeat(
        Heartbeat(
            group=body["group_id"],
            member=body["member_id"],
            epoch=body["member_epoch"],
            instance=body["instance_id"],
            rack=body["rack_id"],
            rebalance_timeout_ms=body["rebalance_timeout_ms"],
            topics=None if topics is None else frozenset(topics),
            regex=body["subscribed_topic_regex"],
            assignor=body["server_assignor"],
            owned=_owned(body["topic_partitions"]),
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",
            knows_its_id=request.api_version >= _KNOWS_ITS_ID,
        )
    )
    return _answer(result)


def _owned(topics: list[Body] | None) -> Assignment | None:
    if topics is None:
        return None
    owned: dict[TopicId, frozenset[int]] = {}
    for topic in topics:
        topic_id = TopicId(topic["topic_id"])
        owned[topic_id] = owned.get(topic_id, frozenset()).union(topic["partitions"])
    return {topic_id: numbers for topic_id, numbers in owned.items() if numbers}


def _answer(result: HeartbeatResult) -> Body:
    assignment = None
    if result.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic, "partitions": sorted(numbers)}
                for topic, numbers in result.assignment.items()
            ]
        }
    return {
        "error_code": result.error,
        "error_message": result.message,
        "member_id": result.member,
        "member_epoch": result.epoch,
        "heartbeat_interval_ms": result.interval_ms,
        "assignment": assignment,
    }


def failure(request: Request, code: int) -> Body:
    """The error."""
    return _answer(HeartbeatResult(code))
