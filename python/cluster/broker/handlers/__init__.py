"""The APIs that are answered in Python, one file each, and what ApiVersions advertises.

A handler module has `API_KEY`, `VERSIONS` (first, last), `async handle(context, request)` which returns the
answer's body, and `failure(request, code)`, the body of an answer that only says what went wrong. A handler
changes nothing itself: it asks the controller, the group coordinator or the dynamic settings.
"""

from __future__ import annotations

from typing import Protocol

from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers import (
    alter_client_quotas,
    alter_configs,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_user_scram_credentials,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    metadata,
    offset_commit,
    offset_fetch,
    sync_group,
)


class Handler(Protocol):
    """What a handler module offers."""

    API_KEY: int
    VERSIONS: tuple[int, int]

    async def handle(self, context: Context, request: Request) -> Body:
        """The body of the answer."""

    def failure(self, request: Request, code: int) -> Body:
        """The body of an answer that says nothing but `code`."""


_MODULES: tuple[Handler, ...] = (
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    create_topics,
    delete_topics,
    init_producer_id,
    describe_configs,
    create_partitions,
    delete_groups,
    describe_cluster,
    alter_configs,
    incremental_alter_configs,
    describe_client_quotas,
    alter_client_quotas,
    describe_user_scram_credentials,
    delete_records,
    describe_log_dirs,
    alter_replica_log_dirs,
    describe_producers,
)

HANDLERS: dict[int, Handler] = {module.API_KEY: module for module in _MODULES}

WAITING_APIS = frozenset(
    handler.API_KEY
    for handler in (
        alter_client_quotas,
        alter_configs,
        create_partitions,
        create_topics,
        delete_topics,
        find_coordinator,
        incremental_alter_configs,
        init_producer_id,
        join_group,
        metadata,
        sync_group,
    )
)
"""Answered when a group's members have come or the coordinator has answered, if they have to wait at all: their handlers do
not work meanwhile.
"""

ANSWERED_BY_THE_DATA_PLANE = ((0, 0, 11), (1, 0, 17), (2, 0, 9), (18, 0, 4), (23, 0, 4))
"""Produce, Fetch, ListOffsets, ApiVersions, OffsetForLeaderEpoch: key, first and last version."""


def advertised() -> list[tuple[int, int, int]]:
    """Key, first and last version of everything this broker serves."""
    return sorted(
        [*ANSWERED_BY_THE_DATA_PLANE, *((key, *module.VERSIONS) for key, module in HANDLERS.items())]
    )
