"""ListGroups: the groups that this broker coordinates, optionally only those of some states and types."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, CoordinatorLoadInProgress
from cluster.time_slice import TimeSlice

API = "ListGroups"


async def handle(context: Context, request: Request) -> Body:
    """Answers at once. While groups are being loaded, the response has those that are loaded and an error
    code.
    """
    body = request.body
    groups = context.groups.list_groups(body["states_filter"], body["types_filter"])
    code = CoordinatorLoadInProgress.code if context.groups.loading else NONE
    entries, time_slice = [], TimeSlice()
    for group in groups:
        entry = {
            "group_id": group.group,
            "protocol_type": group.protocol_type,
            "group_state": group.state,
            "group_type": group.type,
        }
        entries.append(entry)
        await time_slice.yield_if_over()
    return {"error_code": code, "groups": entries}


def failure(request: Request, code: int) -> Body:
    """No groups, and the error."""
    return {"error_code": code, "groups": []}
