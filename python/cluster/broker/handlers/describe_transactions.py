"""DescribeTransactions: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from functools import partial

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._repeats import describe_each
from cluster.errors import NONE, KafkaProtocolError, TransactionalIdNotFound

API = "DescribeTransactions"


async def handle(context: Context, request: Request) -> Body:
    """Describes each transactional id. One that is named repeatedly is described once and repeated."""
    names = request.body["transactional_ids"]
    return {"transaction_states": await describe_each(names, partial(_describe, context), _failed)}


def _describe(context: Context, name: str) -> Body:
    try:
        stored = context.transactions.describe(name)
    except KafkaProtocolError as error:
        return _failed(name, error.code)
    if stored is None:
        return _failed(name, TransactionalIdNotFound.code)
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(stored.partitions):
        topics.setdefault(topic, []).append(number)
    return {
        "error_code": NONE,
        "transactional_id": name,
        "transaction_state": stored.state.text,
        "transaction_timeout_ms": stored.timeout_ms,
        "transaction_start_time_ms": stored.start_ms,
        "producer_id": stored.producer.id,
        "producer_epoch": stored.producer.epoch,
        "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
    }


def _failed(name: str, code: int) -> Body:
    return {
        "error_code": code,
        "transactional_id": name,
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


def failure(request: Request, code: int) -> Body:
    """Each transactional id has the error."""
    return {"transaction_states": [_failed(name, code) for name in request.body["transactional_ids"]]}
