"""DescribeGroups: members with their subscriptions and assignments. An unknown group has the state Dead."""

from __future__ import annotations

from functools import cache, partial

from cluster.broker.context import GROUP_OPERATIONS, OPERATIONS_NOT_REQUESTED, Body, Context, Request
from cluster.broker.handlers._repeats import describe_each
from cluster.errors import NONE

API = "DescribeGroups"


async def handle(context: Context, request: Request) -> Body:
    """Answers at once. A group that is named repeatedly is described once and repeated."""
    describe = cache(partial(_group, context, request))
    return {"groups": await describe_each(request.body["groups"], describe, _failed)}


def _group(context: Context, request: Request, name: str) -> Body:
    error = context.groups.status(name, empty_allowed=True)
    if error:
        return _failed(name, error)
    group = context.groups.describe(name)
    asked = request.body["include_authorized_operations"]
    return {
        "error_code": NONE,
        "group_id": name,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": GROUP_OPERATIONS if asked else OPERATIONS_NOT_REQUESTED,
    }


def _failed(name: str, code: int) -> Body:
    return {
        "error_code": code,
        "group_id": name,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }


def failure(request: Request, code: int) -> Body:
    """Each group has the error."""
    return {"groups": [_failed(name, code) for name in request.body["groups"]]}
