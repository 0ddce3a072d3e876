"""EndTxn: commits or aborts a producer's transaction. It is answered once that is decided; the markers
follow. From version 5 on the response has the producer of the next transaction (KIP-890).
"""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._fenced import client_version, known_code
from cluster.state_topics import Producer

API = "EndTxn"

_EPOCH_A_TRANSACTION = 5


async def handle(context: Context, request: Request) -> Body:
    """Asks the transaction coordinator."""
    body = request.body
    producer = Producer(body["producer_id"], body["producer_epoch"])
    result = await context.transactions.end(
        body["transactional_id"], producer, body["committed"], client_version(request, _EPOCH_A_TRANSACTION)
    )
    following = {"producer_id": result.producer.id, "producer_epoch": result.producer.epoch}
    return failure(request, result.error) | following


def failure(request: Request, code: int) -> Body:
    """The error code."""
    return {"error_code": known_code(request, code)}
