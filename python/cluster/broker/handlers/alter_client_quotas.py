"""AlterClientQuotas: sets and removes quotas of users, clients and addresses."""

from __future__ import annotations

from cluster.broker.context import Body, Context, Request, error_message
from cluster.broker.dynamic.quotas import QuotaOp
from cluster.errors import NONE, KafkaProtocolError
from cluster.time_slice import TimeSlice

API = "AlterClientQuotas"


async def handle(context: Context, request: Request) -> Body:
    """Answers when the quotas are in force on this broker. A failure affects only its own entry.

    As in Kafka, the last of several entries for an entity is answered (`ZkAdminManager.alterClientQuotas`).
    """
    entries: dict[frozenset[tuple[str, str | None]], Body] = {}
    time_slice = TimeSlice()
    async with context.dynamic.quotas_together():
        for item in request.body["entries"]:
            entity = {part["entity_type"]: part["entity_name"] for part in item["entity"]}
            ops = [QuotaOp(op["key"], None if op["remove"] else op["value"]) for op in item["ops"]]
            code, message = NONE, None
            try:
                await context.dynamic.alter_quotas(entity, ops, request.body["validate_only"])
            except KafkaProtocolError as error:
                code, message = error.code, error_message(error)
            entries[frozenset(entity.items())] = _entry(item, code, message)
            await time_slice.yield_if_over()
    return {"entries": list(entries.values())}


def _entry(item: Body, code: int, message: str | None) -> Body:
    return {"error_code": code, "error_message": message, "entity": item["entity"]}


def failure(request: Request, code: int) -> Body:
    """Each entry has the error."""
    return {"entries": [_entry(item, code, None) for item in request.body["entries"]]}
