"""InitProducerId for idempotent producers. A transactional id is refused, because transactions are not built
yet.
"""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, InvalidRequest, KafkaProtocolError, TransactionalIdAuthorizationFailed

API = "InitProducerId"

_NONE = -1
"""No id, or no epoch."""


async def handle(context: Context, request: Request) -> Body:
    """Returns a new producer id with epoch 0. A request has both or neither of an earlier id and epoch."""
    if (request.body["producer_id"] == _NONE) != (request.body["producer_epoch"] == _NONE):
        return failure(request, InvalidRequest.code)
    transactional_id = request.body["transactional_id"]
    if transactional_id is not None:
        # Every client stops at this code. At others some clients retry for ever.
        refused = TransactionalIdAuthorizationFailed.code if transactional_id else InvalidRequest.code
        return failure(request, refused)
    try:
        producer_id = await context.producer_ids.take()
    except KafkaProtocolError as error:
        return failure(request, error.code)
    return {"error_code": NONE, "producer_id": producer_id, "producer_epoch": 0}


def failure(request: Request, code: int) -> Body:
    """No producer id, and the error."""
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
