"""AddPartitionsToTxn: adds partitions to a transaction, or (from version 4 on, by brokers) to several, or
only asks whether they are in it. Brokers add those of clients that have an epoch a transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._fenced import client_version, known_code
from cluster.errors import NONE, KafkaProtocolError, OperationNotAttempted, UnknownTopicOrPartition
from cluster.model import TopicPartition
from cluster.state_topics import Producer
from cluster.time_slice import TimeSlice, in_thread_if_long

API = "AddPartitionsToTxn"

_BATCHED = 4

_Codes = Mapping[TopicPartition, int]


async def handle(context: Context, request: Request) -> Body:
    """Asks the transaction coordinator, for one transaction after the other. Only brokers send several, to
    verify them, and a verification does not wait.
    """
    transactions, codes, time_slice = _transactions(request), [], TimeSlice()
    parts = 0
    for one in transactions:
        codes.append(await _add(context, request, one))
        parts += 1 + sum(map(len, map(itemgetter("partitions"), one["topics"])))
        await time_slice.yield_if_over()
    return await in_thread_if_long(parts, partial(_answer, request, transactions, codes))


def _transactions(request: Request) -> list[Body]:
    """The transactions as a request of version 4 has them."""
    body = request.body
    if request.api_version >= _BATCHED:
        found: list[Body] = body["transactions"]
        return found
    return [
        {
            "transactional_id": body["v3_and_below_transactional_id"],
            "producer_id": body["v3_and_below_producer_id"],
            "producer_epoch": body["v3_and_below_producer_epoch"],
            "verify_only": False,
            "topics": body["v3_and_below_topics"],
        }
    ]


def _partitions(transaction: Body) -> Iterator[TopicPartition]:
    for topic in transaction["topics"]:
        for number in topic["partitions"]:
            yield TopicPartition(topic["name"], number)


async def _add(context: Context, request: Request, transaction: Body) -> _Codes:
    known: dict[TopicPartition, None] = {}
    unknown: dict[TopicPartition, int] = {}
    time_slice = TimeSlice()
    for one in _partitions(transaction):
        if context.has_partition(*one):
            known[one] = None
        else:
            unknown[one] = UnknownTopicOrPartition.code
        await time_slice.yield_if_over()
    if unknown:
        # One bad partition fails all: none was added.
        return unknown | dict.fromkeys(known, OperationNotAttempted.code)
    partitions = list(known)
    name = transaction["transactional_id"]
    producer = Producer(transaction["producer_id"], transaction["producer_epoch"])
    try:
        if transaction["verify_only"]:
            return context.transactions.verify(name, producer, partitions)
        version = client_version(request, _BATCHED)
        code = await context.transactions.add_partitions(name, producer, partitions, version)
    except KafkaProtocolError as error:
        code = error.code
    return dict.fromkeys(partitions, known_code(request, code))


def _answer(request: Request, transactions: list[Body], codes: list[_Codes]) -> Body:
    results = [
        [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {
                        "partition_index": number,
                        "partition_error_code": found[TopicPartition(topic["name"], number)],
                    }
                    for number in topic["partitions"]
                ],
            }
            for topic in transaction["topics"]
        ]
        for transaction, found in zip(transactions, codes, strict=True)
    ]
    if request.api_version < _BATCHED:
        return {"results_by_topic_v3_and_below": results[0]}
    return {
        "error_code": NONE,
        "results_by_transaction": [
            {"transactional_id": transaction["transactional_id"], "topic_results": topics}
            for transaction, topics in zip(transactions, results, strict=True)
        ],
    }


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    transactions = _transactions(request)
    code = known_code(request, code)
    return _answer(request, transactions, [dict.fromkeys(_partitions(one), code) for one in transactions])
