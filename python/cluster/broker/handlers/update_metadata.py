"""UpdateMetadata: the controller changes the metadata that clients see."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers._ungrouped import grouped
from cluster.errors import UnsupportedVersion
from cluster.model import NO_TOPIC_ID

API = "UpdateMetadata"

_LISTENERS, _IDS = 3, 7
"""The first versions that name listeners, and topics by id."""


async def handle(context: Context, request: Request) -> Body:
    """Passes the request to the replica manager."""
    version = request.api_version
    if version < _LISTENERS:
        raise UnsupportedVersion("A controller before Kafka 0.10.2 does not name listeners; upgrade it.")
    body = grouped(request.body, "ungrouped_partition_states")
    for topic in body["topic_states"] if version < _IDS else ():
        topic["topic_id"] = NO_TOPIC_ID
    return await context.replicas.update_metadata(body)


def failure(request: Request, code: int) -> Body:
    """The whole request has the error."""
    return {"error_code": code}
