"""AlterConfigs: replaces all settings of a topic or broker."""

from __future__ import annotations

from functools import partial

from cluster.broker.context import Body, Context, Request
from cluster.broker.dynamic.alteration import Alteration, Change, Op, check_changes, replacement
from cluster.broker.handlers._alter import alter_each, alter_stored, failure
from cluster.time_slice import in_thread_if_long

__all__ = ["API", "failure", "handle"]

API = "AlterConfigs"


async def handle(context: Context, request: Request) -> Body:
    """Answers when the settings are in force on this broker."""

    async def alter(item: Body) -> None:
        alteration = await in_thread_if_long(len(item["configs"]), partial(_replacement, item))
        await alter_stored(context, request, item, alteration)

    return await alter_each(request, alter)


def _replacement(item: Body) -> Alteration:
    changes = [Change(config["name"], Op.SET, config["value"]) for config in item["configs"]]
    check_changes(changes)
    return replacement(changes)
