"""StopReplica: the controller ends the serving of partitions, or deletes their logs."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request

API = "StopReplica"

_TOPICS, _STATES = 1, 3
"""The first versions with partitions by topic, and with a leader's epoch for each."""

_NO_EPOCH = -1


async def handle(context: Context, request: Request) -> Body:
    """Passes the request to the replica manager."""
    body, version = request.body, request.api_version
    if version < _STATES:
        if version < _TOPICS:
            named = [(item["topic_name"], [item["partition_index"]]) for item in body["ungrouped_partitions"]]
        else:
            named = [(item["name"], item["partition_indexes"]) for item in body["topics"]]
        body = body | {
            "topic_states": [
                {
                    "topic_name": name,
                    "partition_states": [
                        {
                            "partition_index": number,
                            "leader_epoch": _NO_EPOCH,
                            "delete_partition": body["delete_partitions"],
                        }
                        for number in numbers
                    ],
                }
                for name, numbers in named
            ]
        }
    return await context.replicas.stop_replica(body)


def failure(request: Request, code: int) -> Body:
    """The whole request has the error."""
    return {"error_code": code, "partition_errors": []}
