"""ConsumerGroupDescribe (KIP-848): groups of the consumer protocol, with what their members have and should
have.
"""

from __future__ import annotations

from functools import cache, partial

from cluster.broker.context import GROUP_OPERATIONS, OPERATIONS_NOT_REQUESTED, Body, Context, Request
from cluster.broker.group_settings import consumer_protocol
from cluster.broker.handlers._repeats import describe_each
from cluster.errors import NONE, KafkaProtocolError, UnsupportedVersion
from cluster.groups import Assignment, ConsumerMemberView

API = "ConsumerGroupDescribe"

_CLASSIC, _CONSUMER = 0, 1
"""The types of members."""


async def handle(context: Context, request: Request) -> Body:
    """Answers at once. A group that is named repeatedly is described once and repeated."""
    if not consumer_protocol(context.config):
        return failure(request, UnsupportedVersion.code)
    describe = cache(partial(_group, context, request))
    return {"groups": await describe_each(request.body["group_ids"], describe, _failed)}


def _group(context: Context, request: Request, name: str) -> Body:
    error = context.groups.status(name)
    if error:
        return _failed(name, error)
    try:
        group = context.groups.describe_consumer(name)
    except KafkaProtocolError as refused:
        return _failed(name, refused.code, str(refused))
    asked = request.body["include_authorized_operations"]
    return {
        "error_code": NONE,
        "group_id": name,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(context, member) for member in group.members],
        "authorized_operations": GROUP_OPERATIONS if asked else OPERATIONS_NOT_REQUESTED,
    }


def _member(context: Context, member: ConsumerMemberView) -> Body:
    subscription = member.subscription
    return {
        "member_id": member.id,
        "instance_id": subscription.instance,
        "rack_id": subscription.rack,
        "member_epoch": member.current.epoch,
        "client_id": subscription.client_id,
        "client_host": subscription.client_host,
        "subscribed_topic_names": sorted(subscription.topics),
        "subscribed_topic_regex": subscription.regex or "",
        "assignment": _assignment(context, member.current.assigned),
        "target_assignment": _assignment(context, member.target),
        "member_type": _CONSUMER if subscription.classic is None else _CLASSIC,
    }


def _assignment(context: Context, assignment: Assignment) -> Body:
    """Partitions of topics that exist."""
    found = []
    for topic, numbers in assignment.items():
        name = context.metadata.name_of(topic)
        if name is not None:
            found.append({"topic_id": topic, "topic_name": name, "partitions": sorted(numbers)})
    return {"topic_partitions": found}


def _failed(name: str, code: int, message: str | None = None) -> Body:
    nothing: Body = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": ""}
    return {"error_code": code, "error_message": message, "group_id": name, "members": [], **nothing}


def failure(request: Request, code: int) -> Body:
    """Each group has the error."""
    return {"groups": [_failed(name, code) for name in request.body["group_ids"]]}
