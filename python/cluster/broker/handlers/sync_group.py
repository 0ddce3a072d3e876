"""SyncGroup: answered when the leader's assignment is written."""

from __future__ import annotations

from operator import itemgetter

from cluster.broker.context import Body, Context, Request
from cluster.errors import CoordinatorLoadInProgress, InconsistentGroupProtocol, RebalanceInProgress
from cluster.groups import Sync, SyncResult

API = "SyncGroup"

_NAMES_PROTOCOL = 5


async def handle(context: Context, request: Request) -> Body:
    """Takes the leader's assignment, or waits for it."""
    body = request.body
    error = context.groups.status(body["group_id"])
    if error == CoordinatorLoadInProgress.code:
        # The rebalance was lost with the coordinator's state: the member must join again.
        error = RebalanceInProgress.code
    if error:
        return failure(request, error)
    named = body["protocol_type"] is not None and body["protocol_name"] is not None
    if request.api_version >= _NAMES_PROTOCOL and not named:
        return failure(request, InconsistentGroupProtocol.code)
    result = await context.groups.sync(
        Sync(
            group=body["group_id"],
            generation=body["generation_id"],
            member=body["member_id"],
            instance=body["group_instance_id"],
            protocol_type=body["protocol_type"],
            protocol=body["protocol_name"],
            assignments=dict(map(itemgetter("member_id", "assignment"), body["assignments"])),
        )
    )
    return _answer(result)


def _answer(result: SyncResult) -> Body:
    return {
        "error_code": result.error,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "assignment": result.assignment,
    }


def failure(request: Request, code: int) -> Body:
    """No assignment, and the error."""
    return _answer(SyncResult(code))
