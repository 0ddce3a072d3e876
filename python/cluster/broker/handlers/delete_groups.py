"""DeleteGroups: deletes groups without members, with their committed offsets."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.time_slice import TimeSlice

API = "DeleteGroups"


async def handle(context: Context, request: Request) -> Body:
    """Deletes each group. A failure affects only its own group."""
    results, time_slice = [], TimeSlice()
    for name in _names(request):
        results.append({"group_id": name, "error_code": context.groups.delete(name)})
        await time_slice.yield_if_over()
    return {"results": results}


def _names(request: Request) -> list[str]:
    return list(dict.fromkeys(request.body["groups_names"]))


def failure(request: Request, code: int) -> Body:
    """Each group has the error."""
    return {"results": [{"group_id": name, "error_code": code} for name in _names(request)]}
