"""DescribeClientQuotas: the quotas of the users, clients and addresses that a filter finds."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request, error_message
from cluster.broker.dynamic import quotas
from cluster.errors import NONE, KafkaProtocolError
from cluster.time_slice import TimeSlice

API = "DescribeClientQuotas"


async def handle(context: Context, request: Request) -> Body:
    """Answers at once. As in Kafka, the message is empty, not null, if there is no error."""
    try:
        wanted = _filter(request.body["components"])
    except KafkaProtocolError as error:
        return failure(request, error.code) | {"error_message": error_message(error)}
    entries, time_slice = [], TimeSlice()
    for path, config in list(context.dynamic.quotas.items()):
        if (
            (entity := quotas.entity_of(path)) is not None
            and (values := quotas.values_of(path, config))
            and quotas.matches(wanted, request.body["strict"], entity)
        ):
            entries.append(_entry(entity, values))
        await time_slice.yield_if_over()
    return {"error_code": NONE, "error_message": "", "entries": entries}


def _filter(components: list[Body]) -> dict[str, quotas.Component]:
    quotas.check_filter([item["entity_type"] for item in components])
    return {item["entity_type"]: quotas.component(item["match_type"], item["match"]) for item in components}


def _entry(entity: quotas.Entity, values: dict[str, float]) -> Body:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "values": [{"key": key, "value": value} for key, value in values.items()],
    }


def failure(request: Request, code: int) -> Body:
    """The error, without entries."""
    return {"error_code": code, "error_message": None, "entries": None}
