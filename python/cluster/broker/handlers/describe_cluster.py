"""DescribeCluster: brokers, controller and cluster id."""

from __future__ import annotations

from cluster.broker.context import CLUSTER_OPERATIONS, OPERATIONS_NOT_REQUESTED, Body, Context, Request
from cluster.errors import NONE, MismatchedEndpointType, UnsupportedEndpointType
from cluster.model import NO_BROKER

API = "DescribeCluster"

_BROKERS = 1
_CONTROLLERS = 2


async def handle(context: Context, request: Request) -> Body:
    """Answers at once."""
    body = request.body
    kind = body["endpoint_type"]
    if kind == _CONTROLLERS:
        return failure(request, MismatchedEndpointType.code) | {
            "error_message": "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER"
        }
    if kind != _BROKERS:
        return failure(request, UnsupportedEndpointType.code) | {
            "error_message": f"Unsupported endpoint type {kind}"
        }
    brokers = [
        {"broker_id": info.id, "host": endpoint.host, "port": endpoint.port, "rack": info.rack}
        for info in context.metadata.brokers.values()
        if (endpoint := info.endpoint(request.listener)) is not None
    ]
    controller = context.metadata.controller_id
    asked = body["include_cluster_authorized_operations"]
    return {
        "error_code": NONE,
        "error_message": None,
        "cluster_id": context.metadata.cluster_id,
        # A client gets no controller that its listener does not reach.
        "controller_id": controller
        if any(item["broker_id"] == controller for item in brokers)
        else NO_BROKER,
        "brokers": brokers,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_REQUESTED,
    }


def failure(request: Request, code: int) -> Body:
    """The error, without brokers."""
    return {"error_code": code, "cluster_id": "", "brokers": []}
