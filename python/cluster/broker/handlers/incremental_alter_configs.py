"""IncrementalAlterConfigs: sets, deletes, appends to or subtracts from single settings of topics, brokers and
loggers.
"""

from __future__ import annotations

from functools import partial

from cluster.broker.context import Body, Context, Request
from cluster.broker.dynamic import loggers
from cluster.broker.dynamic.alteration import BROKER_LOGGER, TOPIC, Change, check_changes, increments
from cluster.broker.dynamic.broker_rules import described_settings
from cluster.broker.handlers._alter import alter_each, alter_stored, failure
from cluster.broker.handlers._own_id import require_own_id
from cluster.broker.settings import topic_settings
from cluster.time_slice import in_thread_if_long

__all__ = ["API", "failure", "handle"]

API = "IncrementalAlterConfigs"


async def handle(context: Context, request: Request) -> Body:
    """Answers when the settings are in force on this broker."""

    async def alter(item: Body) -> None:
        changes = await in_thread_if_long(len(item["configs"]), partial(_changes, item))
        if item["resource_type"] == BROKER_LOGGER:
            require_own_id(context, item["resource_name"])
            loggers.alter(changes, request.body["validate_only"])
            return
        table = topic_settings() if item["resource_type"] == TOPIC else described_settings()
        await alter_stored(context, request, item, increments(changes, table))

    return await alter_each(request, alter)


def _changes(item: Body) -> list[Change]:
    changes = [
        Change(config["name"], config["config_operation"], config["value"]) for config in item["configs"]
    ]
    check_changes(changes)
    return changes
