"""AddOffsetsToTxn: adds a group's partition of __consumer_offsets to a transaction."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._fenced import known_code
from cluster.errors import CoordinatorNotAvailable
from cluster.model import GROUP_METADATA_TOPIC, TopicPartition
from cluster.state_topics import Producer

API = "AddOffsetsToTxn"


async def handle(context: Context, request: Request) -> Body:
    """Asks the transaction coordinator."""
    body = request.body
    await context.auto_topics.ensure_state_topic(GROUP_METADATA_TOPIC)
    number = context.groups.partitions.partition_of(body["group_id"])
    if number is None:
        return failure(request, CoordinatorNotAvailable.code)
    producer = Producer(body["producer_id"], body["producer_epoch"])
    partition = TopicPartition(GROUP_METADATA_TOPIC, number)
    code = await context.transactions.add_partitions(body["transactional_id"], producer, [partition])
    return failure(request, code)


def failure(request: Request, code: int) -> Body:
    """The error code."""
    return {"error_code": known_code(request, code)}
