"""A coordinator by itself, until it is told to stop.

Owns the order in which its parts start and end. Imports no broker: a coordinator has no use for one, and starts sooner without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from cluster.process import (
    log_to_stderr,
    raise_descriptor_limit,
    stop_signal,
    tell_stacks_on_quit,
    unless_stopped,
    until_stopped,
)

from .admin import AdminServer
from .configuration import Configuration
from .prometheus import PrometheusProvider
from .server import CoordinatorServer
from .starting import replication_of, require_directories
from .view import view
from .words import all_gauges

_logger = logging.getLogger(__name__)


class CoordinatorPorts(NamedTuple):
    """Where a coordinator listens, -1 for what there is not."""

    clients: int
    secure_clients: int
    admin: int
    metrics: int


async def run_coordinator(
    configuration: Configuration, ready: Callable[[CoordinatorPorts], None], text: str = ""
) -> None:
    """Runs a coordinator by itself until SIGINT or SIGTERM, with its admin server and metrics; `ready` is told the ports once
    clients are served. `text` is that of the `zoo.cfg`. CoordinatorError when it cannot start or its disk fails.
    """
    log_to_stderr(None)
    tell_stacks_on_quit()
    raise_descriptor_limit()
    for warning in configuration.warnings:
        _logger.warning("%s", warning)
    require_directories(configuration)
    async with AsyncExitStack() as stack:
        stopped = stop_signal(stack)
        server = CoordinatorServer(
            configuration.data_dir,
            configuration.host,
            configuration.port,
            settings=configuration.settings,
            secure=configuration.secure,
            unified=configuration.unified,
            replicate=replication_of(configuration),
        )
        if await unless_stopped(stopped, server.start()) is None:
            return
        stack.push_async_callback(server.stop)
        metrics = admin = -1
        if configuration.metrics is not None:
            provider = PrometheusProvider(
                configuration.metrics, server.metrics, lambda: all_gauges(view(server))
            )
            stack.push_async_callback(provider.stop)
            metrics = await provider.start()
        if configuration.admin is not None:
            commands = AdminServer(server, configuration.admin, text, configuration.properties)
            stack.push_async_callback(commands.stop)
            admin = await commands.start()
        ready(CoordinatorPorts(server.port, server.secure_port, admin, metrics))
        await until_stopped(stopped, server.failed)
