"""ListPartitionReassignments: the partitions that are reassigned now (KIP-455)."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.errors import NONE, for_code
from cluster.model import TopicPartition
from cluster.time_slice import TimeSlice

API = "ListPartitionReassignments"


async def handle(context: Context, request: Request) -> Body:
    """Lists those of the named partitions, or of all, that are reassigned."""
    named = request.body["topics"]
    time_slice = TimeSlice()
    partitions: dict[TopicPartition, None] = {}
    for topic in named or ():
        for number in topic["partition_indexes"]:
            partitions[TopicPartition(topic["name"], number)] = None
            await time_slice.yield_if_over()
    found = await context.controller.operations.list_reassignments(None if named is None else partitions)
    topics: dict[str, list[Body]] = {}
    for partition, assigned in found.items():
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.partition,
                "replicas": list(assigned.replicas),
                "adding_replicas": list(assigned.adding),
                "removing_replicas": list(assigned.removing),
            }
        )
        await time_slice.yield_if_over()
    return {
        "error_code": NONE,
        "error_message": None,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def failure(request: Request, code: int) -> Body:
    """The whole request has the error."""
    return {"error_code": code, "error_message": for_code(code).message, "topics": []}
