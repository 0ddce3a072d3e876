"""AlterPartition: the leader of partitions asks the controller for other in-sync replicas (KIP-497)."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.controller import NewIsr
from cluster.errors import NONE, KafkaProtocolError
from cluster.model import NO_TOPIC_ID, BrokerId, LeaderEpoch, PartitionState, TopicId

API = "AlterPartition"

_BY_ID, _WITH_EPOCHS = 2, 3
"""The first versions that name topics by id, and that name a broker's epoch with it."""


async def handle(context: Context, request: Request) -> Body:
    """Passes the wishes to the controller, in order."""
    body, version = request.body, request.api_version
    wishes = [
        NewIsr(
            topic["topic_name"] if version < _BY_ID else "",
            TopicId(topic["topic_id"]) if version >= _BY_ID else NO_TOPIC_ID,
            item["partition_index"],
            LeaderEpoch(item["leader_epoch"]),
            _isr(item, version),
            item["partition_epoch"],
            item["leader_recovery_state"],
        )
        for topic in body["topics"]
        for item in topic["partitions"]
    ]
    answers = iter(
        await context.controller.alter_isr(BrokerId(body["broker_id"]), body["broker_epoch"], wishes)
    )
    return {
        "error_code": NONE,
        "topics": [
            {
                ("topic_id" if version >= _BY_ID else "topic_name"): topic[
                    "topic_id" if version >= _BY_ID else "topic_name"
                ],
                "partitions": [_answer(item, next(answers)) for item in topic["partitions"]],
            }
            for topic in body["topics"]
        ],
    }


def _isr(item: Body, version: int) -> tuple[BrokerId, ...]:
    if version < _WITH_EPOCHS:
        return tuple(map(BrokerId, item["new_isr"]))
    return tuple(BrokerId(member["broker_id"]) for member in item["new_isr_with_epochs"])


def _answer(item: Body, answer: PartitionState | KafkaProtocolError) -> Body:
    number = {"partition_index": item["partition_index"]}
    if isinstance(answer, KafkaProtocolError):
        return number | {"error_code": answer.code, "isr": []}
    return number | {
        "error_code": NONE,
        "leader_id": answer.leader,
        "leader_epoch": answer.leader_epoch,
        "isr": list(answer.isr),
        "leader_recovery_state": answer.recovery,
        "partition_epoch": answer.zk_version,
    }


def failure(request: Request, code: int) -> Body:
    """The whole request has the error."""
    return {"error_code": code, "topics": []}
