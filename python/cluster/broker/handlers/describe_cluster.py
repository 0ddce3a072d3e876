"""DescribeCluster: brokers, controller and cluster id."""

from __future__ import annotations

from cluster.broker.context import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED, Body, Context, Request
from cluster.errors import NONE, MismatchedEndpointType, UnsupportedEndpointType

API_KEY = 60
VERSIONS = (0, 1)

_BROKERS = 1
_CONTROLLERS = 2


async def handle(context: Context, request: Request) -> Body:
    """Answers at once."""
    body = request.body
    if body["endpoint_type"] == _CONTROLLERS:
        return failure(request, MismatchedEndpointType.code)
    if body["endpoint_type"] != _BROKERS:
        return failure(request, UnsupportedEndpointType.code)
    asked = body["include_cluster_authorized_operations"]
    return {
        "error_code": NONE,
        "error_message": None,
        "cluster_id": context.metadata.cluster_id,
        "controller_id": context.metadata.controller_id,
        "brokers": [
            {"broker_id": info.id, "host": endpoint.host, "port": endpoint.port, "rack": info.rack}
            for info in context.metadata.brokers.values()
            if (endpoint := info.endpoint(request.listener)) is not None
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    }


def failure(request: Request, code: int) -> Body:
    """Nothing but the error."""
    return {"error_code": code, "cluster_id": "", "brokers": []}
