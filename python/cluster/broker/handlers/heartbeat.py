"""Heartbeat: keeps a member's session alive. The response tells the member to join again."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, CoordinatorLoadInProgress

API = "Heartbeat"


async def handle(context: Context, request: Request) -> Body:
    """As `answer`."""
    return answer(context, request)


def answer(context: Context, request: Request) -> Body:
    """Answers at once."""
    body = request.body
    error = context.groups.heartbeat(
        body["group_id"], body["generation_id"], body["member_id"], body["group_instance_id"]
    )
    # No session ends while the group is being loaded.
    return {"error_code": NONE if error == CoordinatorLoadInProgress.code else error}


def failure(request: Request, code: int) -> Body:
    """The error."""
    return {"error_code": code}
