"""LeaveGroup: removes one member, or (version 3) several. An operator can name members by their instance ids
alone.
"""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE
from cluster.groups import Leaving
from cluster.time_slice import TimeSlice

API = "LeaveGroup"

_BATCHED = 3


async def handle(context: Context, request: Request) -> Body:
    """Removes each member. A failure affects only its own member."""
    body = request.body
    error = context.groups.status(body["group_id"])
    if error:
        return failure(request, error)
    if request.api_version < _BATCHED:
        return {"error_code": context.groups.leave(body["group_id"], Leaving(body["member_id"]))}
    members, time_slice = [], TimeSlice()
    for item in body["members"]:
        member, instance = item["member_id"], item["group_instance_id"]
        error = context.groups.leave(body["group_id"], Leaving(member, instance))
        members.append({"member_id": member, "group_instance_id": instance, "error_code": error})
        await time_slice.yield_if_over()
    return {"error_code": NONE, "members": members}


def failure(request: Request, code: int) -> Body:
    """The error; no member left."""
    return {"error_code": code}
