"""Heartbeat: keeps a member's session alive. The response tells the member to join again."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, CoordinatorLoadInProgress

API = "Heartbeat"


async def handle(context: Context, request: Request) -> Body:
    """Answers at once."""
    body = request.body
    error = context.groups.status(body["group_id"])
    if error == CoordinatorLoadInProgress.code:
        # No session ends while the group is being loaded.
        error = NONE
    elif not error:
        error = context.groups.heartbeat(
            body["group_id"], body["generation_id"], body["member_id"], body["group_instance_id"]
        )
    return {"error_code": error}


def failure(request: Request, code: int) -> Body:
    """The error."""
    return {"error_code": code}
