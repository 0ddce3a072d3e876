"""TxnOffsetCommit: a group's offsets, committed with a producer's transaction (KIP-98, KIP-447).

From version 5 on it adds the group's partition of __consumer_offsets to the transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cluster.broker.context import Body, Context, Request
from cluster.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    NetworkException,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
    for_code,
)
from cluster.groups import Commit, CommittedOffset
from cluster.model import GROUP_METADATA_TOPIC, TopicPartition
from cluster.state_topics import Producer
from cluster.time_slice import TimeSlice, in_thread_if_long

API = "TxnOffsetCommit"

_KNOWS_ABORTABLE, _ADDS = 4, 5
_CODES = {
    NetworkException.code: CoordinatorLoadInProgress.code,
    ProducerFenced.code: InvalidProducerEpoch.code,
}
_ATTEMPTS = 2
"""How often the transaction's coordinator is asked when a marker comes meanwhile. Kafka asks once and answers
INVALID_TXN_STATE, at which a Java producer ends.
"""
_KNOWS_LOADING = 2
"""Older producers fail at COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""


async def handle(context: Context, request: Request) -> Body:
    """Answers when the offsets are written. They count once the transaction commits."""
    body = request.body
    error = context.groups.status(body["group_id"])
    if error:
        raise for_code(error)
    codes: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now, time_slice = context.groups.now(), TimeSlice()
    for topic in body["topics"]:
        for entry in topic["partitions"]:
            item = TopicPartition(topic["name"], entry["partition_index"])
            if context.has_partition(*item):
                offsets[item] = CommittedOffset(
                    offset=entry["committed_offset"],
                    leader_epoch=entry.get("committed_leader_epoch", -1),
                    metadata=entry["committed_metadata"] or "",
                    commit_ms=now,
                )
            else:
                codes[item] = UnknownTopicOrPartition.code
            await time_slice.yield_if_over()
    if offsets:
        # Nothing is awaited between the verification and the append.
        code = await _verified(context, request)
        if code != NONE:
            codes |= dict.fromkeys(offsets, code)
            return await in_thread_if_long(len(codes), partial(_answer, request, codes, NONE))
        result = await context.groups.commit(
            Commit(
                group=body["group_id"],
                generation=body.get("generation_id", -1),
                member=body.get("member_id", ""),
                instance=body.get("group_instance_id"),
                offsets=offsets,
                producer=Producer(body["producer_id"], body["producer_epoch"]),
            )
        )
        codes |= {item: result.errors.get(item, result.error) for item in offsets}
    return await in_thread_if_long(len(codes), partial(_answer, request, codes, NONE))


async def _verified(context: Context, request: Request) -> int:
    """The error code if the group's partition of __consumer_offsets is not in the transaction, else 0."""
    adds = request.api_version >= _ADDS
    if not adds and not context.config.flag("transaction.partition.verification.enable"):
        return NONE
    body = request.body
    number = context.groups.partitions.partition_of(body["group_id"])
    if number is None:
        return CoordinatorNotAvailable.code
    producer = Producer(body["producer_id"], body["producer_epoch"])
    partition = TopicPartition(GROUP_METADATA_TOPIC, number)
    for _ in range(_ATTEMPTS):
        with context.verification.guard(producer.id, partition) as guard:
            code = await context.verification.verify(body["transactional_id"], producer, partition, adds=adds)
        if code != NONE or not guard.ended:
            break
        # The coordinator's next answer tells which transaction the marker ended.
    else:
        return InvalidTxnState.code
    if code == TransactionAbortable.code and request.api_version < _KNOWS_ABORTABLE:
        return InvalidTxnState.code
    # A producer repeats its request at this code without another look for the coordinator.
    return _CODES.get(code, code)


def _answer(request: Request, codes: Mapping[TopicPartition, int], default: int) -> Body:
    def code(topic: str, number: int) -> int:
        found = codes.get(TopicPartition(topic, number), default)
        if found == CoordinatorLoadInProgress.code and request.api_version < _KNOWS_LOADING:
            return CoordinatorNotAvailable.code
        return found

    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": entry["partition_index"],
                        "error_code": code(topic["name"], entry["partition_index"]),
                    }
                    for entry in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
    }


def failure(request: Request, code: int) -> Body:
    """Each partition has the error."""
    return _answer(request, {}, code)
