"""LeaveGroup: one member, or (version 3) several, which an operator may name by their instance ids alone."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE
from cluster.groups import Leaving

API_KEY = 13
VERSIONS = (0, 5)

_BATCHED = 3


async def handle(context: Context, request: Request) -> Body:
    """Answers at once; the others learn of it by their heartbeats."""
    body = request.body
    error = context.groups.status(body["group_id"])
    if error:
        return failure(request, error)
    if request.api_version < _BATCHED:
        result = context.groups.leave(body["group_id"], [Leaving(body["member_id"])])
        return {"error_code": result.error or result.members[0]}
    leaving = [Leaving(item["member_id"], item["group_instance_id"]) for item in body["members"]]
    result = context.groups.leave(body["group_id"], leaving)
    return {
        "error_code": result.error,
        "members": [
            {"member_id": item.member, "group_instance_id": item.instance, "error_code": code}
            for item, code in zip(leaving, result.members or (NONE,) * len(leaving), strict=True)
        ],
    }


def failure(request: Request, code: int) -> Body:
    """The error; nobody left."""
    return {"error_code": code}
