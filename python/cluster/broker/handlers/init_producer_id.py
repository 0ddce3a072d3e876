"""InitProducerId: a producer id for an idempotent producer, or the producer of a transactional id."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, InvalidProducerEpoch, InvalidRequest, KafkaProtocolError, ProducerFenced
from cluster.state_topics import Producer

API = "InitProducerId"

_NONE = -1
"""No id, or no epoch."""

_KNOWS_FENCED = 4


async def handle(context: Context, request: Request) -> Body:
    """A new producer id with epoch 0; or the next producer of a transactional id, once it is stored. A
    request has both or neither of an earlier id and epoch.
    """
    body = request.body
    if (body["producer_id"] == _NONE) != (body["producer_epoch"] == _NONE):
        return failure(request, InvalidRequest.code)
    transactional_id = body["transactional_id"]
    try:
        if transactional_id is None:
            producer = Producer(await context.producer_ids.take(), 0)
        else:
            had = Producer(body["producer_id"], body["producer_epoch"])
            result = await context.transactions.init_producer(
                transactional_id, body["transaction_timeout_ms"], None if had.id == _NONE else had
            )
            if result.error:
                return failure(request, result.error)
            producer = result.producer
    except KafkaProtocolError as error:
        return failure(request, error.code)
    return {"error_code": NONE, "producer_id": producer.id, "producer_epoch": producer.epoch}


def failure(request: Request, code: int) -> Body:
    """No producer id, and the error."""
    if code == ProducerFenced.code and request.api_version < _KNOWS_FENCED:
        code = InvalidProducerEpoch.code
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
