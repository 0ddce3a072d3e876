"""AllocateProducerIds: a broker asks the controller for a block of producer ids (KIP-730)."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.controller import PRODUCER_IDS
from cluster.errors import NONE
from cluster.model import BrokerId

API = "AllocateProducerIds"


async def handle(context: Context, request: Request) -> Body:
    """Returns a new block."""
    operations = context.controller.operations
    broker = BrokerId(request.body["broker_id"])
    first = await operations.allocate_producer_ids(broker, request.body["broker_epoch"])
    return {"error_code": NONE, "producer_id_start": first, "producer_id_len": PRODUCER_IDS}


def failure(request: Request, code: int) -> Body:
    """No block, and the error."""
    return {"error_code": code, "producer_id_start": -1, "producer_id_len": 0}
