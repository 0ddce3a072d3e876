"""ListTransactions: the transactional ids that this broker coordinates (KIP-664, KIP-994)."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, CoordinatorLoadInProgress
from cluster.time_slice import TimeSlice
from cluster.transactions import TransactionState

API = "ListTransactions"

_STATES = {state.text: state for state in TransactionState}


async def handle(context: Context, request: Request) -> Body:
    """Lists them by state, producer id and how long their transaction is open."""
    body = request.body
    if context.transactions.partitions.loading:
        return failure(request, CoordinatorLoadInProgress.code)
    asked = body["state_filters"]
    known = [_STATES[name] for name in asked if name in _STATES]
    unknown = [name for name in asked if name not in _STATES]
    duration = body.get("duration_filter", -1)
    found: list[Body] = []
    if known or not asked:
        time_slice = TimeSlice()
        for one in context.transactions.list_transactions(known, body["producer_id_filters"], duration):
            found.append(
                {
                    "transactional_id": one.transactional_id,
                    "producer_id": one.producer_id,
                    "transaction_state": one.state.text,
                }
            )
            await time_slice.yield_if_over()
    return {"error_code": NONE, "unknown_state_filters": unknown, "transaction_states": found}


def failure(request: Request, code: int) -> Body:
    """No transactional ids, and the error."""
    return {"error_code": code, "unknown_state_filters": [], "transaction_states": []}
