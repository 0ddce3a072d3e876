"""AlterPartitionReassignments: answered when the reassignments are recorded, not when they are complete
(KIP-455).
"""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, KafkaProtocolError, for_code
from cluster.model import BrokerId, TopicPartition
from cluster.time_slice import TimeSlice

API = "AlterPartitionReassignments"


async def handle(context: Context, request: Request) -> Body:
    """Begins, replaces or cancels the reassignment of each partition. Of a partition that is named twice the
    last counts.
    """
    wanted: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
    time_slice = TimeSlice()
    for topic in request.body["topics"]:
        for item in topic["partitions"]:
            replicas = item["replicas"]
            target = None if replicas is None else tuple(map(BrokerId, replicas))
            wanted[TopicPartition(topic["name"], item["partition_index"])] = target
            await time_slice.yield_if_over()
    results = await context.controller.operations.alter_reassignments(wanted)
    responses: dict[str, list[Body]] = {}
    for partition, error in results.items():
        responses.setdefault(partition.topic, []).append(_result(partition.partition, error))
        await time_slice.yield_if_over()
    return {
        "error_code": NONE,
        "error_message": None,
        "responses": [{"name": name, "partitions": partitions} for name, partitions in responses.items()],
    }


def _result(number: int, error: KafkaProtocolError | None) -> Body:
    return {
        "partition_index": number,
        "error_code": NONE if error is None else error.code,
        "error_message": None if error is None else str(error),
    }


def failure(request: Request, code: int) -> Body:
    """The whole request has the error."""
    return {"error_code": code, "error_message": for_code(code).message, "responses": []}
