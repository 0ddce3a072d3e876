"""JoinGroup: answered when the group's join phase ends."""

from __future__ import annotations

from operator import itemgetter

from cluster.broker.context import Body, Context, Request
from cluster.groups import Join, JoinResult

API = "JoinGroup"

_KNOWN_ID_REQUIRED = 4
_NULL_PROTOCOL = 7
_SKIPS_ASSIGNMENT = 9


async def handle(context: Context, request: Request) -> Body:
    """Joins a member and waits for the end of the join phase."""
    body, version = request.body, request.api_version
    error = context.groups.status(body["group_id"])
    if error:
        return _answer(request, JoinResult(error, body["member_id"]))
    session = body["session_timeout_ms"]
    result = await context.groups.join(
        Join(
            group=body["group_id"],
            member=body["member_id"],
            instance=body["group_instance_id"],
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",
            rebalance_timeout_ms=body["rebalance_timeout_ms"] if version >= 1 else session,
            session_timeout_ms=session,
            protocol_type=body["protocol_type"],
            protocols=tuple(map(itemgetter("name", "metadata"), body["protocols"])),
            known_id_required=version >= _KNOWN_ID_REQUIRED,
            skips_assignment=version >= _SKIPS_ASSIGNMENT,
        )
    )
    return _answer(request, result)


def _answer(request: Request, result: JoinResult) -> Body:
    protocol = result.protocol if request.api_version >= _NULL_PROTOCOL else result.protocol or ""
    return {
        "error_code": result.error,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": protocol,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member,
        "members": [
            {"member_id": member.id, "group_instance_id": member.instance, "metadata": member.metadata}
            for member in result.members
        ],
    }


def failure(request: Request, code: int) -> Body:
    """No generation, and the error."""
    return _answer(request, JoinResult(code, request.body["member_id"]))
