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
    print_stacks_on_quit,
    raise_descriptor_limit,
    stop_signal,
    unless_stopped,
    until_stopped,
)

from .admin.prometheus import PrometheusProvider
from .admin.server import AdminServer
from .admin.view import view
from .admin.words import all_gauges
from .configuration import Configuration
from .durability.directories import APACHE_VERSIONED, MEMBER_DIRECTORY, has_apache_data, has_member, is_there
from .ensemble.engine import open_quorum
from .ensemble.own_data import OwnData
from .ensemble.replication import EnsembleReplication
from .errors import CoordinatorError, DataDirectoryError
from .replication import Replication, Service
from .server import CoordinatorServer

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
    print_stacks_on_quit()
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


def require_directories(configuration: Configuration) -> None:
    """Raises DataDirectoryError where a server would begin without the data that it is to have: there is Apache ZooKeeper's and
    none of ours, or, with ``datadir.autocreate=false``, no data or no directory; and where it may not look."""
    try:
        _require_directories(configuration)
    except CoordinatorError:
        raise
    except OSError as error:
        raise DataDirectoryError(
            f"cannot look at {error.filename}: {error.strerror}; mend that, or name other directories in dataDir and dataLogDir"
        ) from error


def _require_directories(configuration: Configuration) -> None:
    data_dir, log_dir = configuration.data_dir, configuration.settings.log_dir
    is_begun = is_there(data_dir) or has_member(data_dir)
    for directory in (data_dir, log_dir):
        if directory is not None and not is_begun and has_apache_data(directory / APACHE_VERSIONED):
            logs = f" --log-dir {log_dir}" if log_dir is not None else ""
            raise DataDirectoryError(
                f"{directory / APACHE_VERSIONED} has the data of Apache ZooKeeper, and this server would begin without it: name in dataDir what "
                f"`logcore coordinator import {data_dir} DIR{logs}` makes of it; to begin without it, move {directory / APACHE_VERSIONED} away"
            )
    if configuration.makes_directories:
        return
    if not is_begun and not (data_dir / APACHE_VERSIONED).is_dir():
        raise DataDirectoryError(
            f"{data_dir} has no data of a coordinator, and datadir.autocreate is false: mount the disk that has it; for a server that is "
            f"to begin with nothing make {data_dir / APACHE_VERSIONED}, as zkServer-initialize.sh does, or leave the setting out"
        )
    if log_dir is not None and not log_dir.is_dir():
        raise DataDirectoryError(
            f"the dataLogDir {log_dir} is not there, and datadir.autocreate is false: mount its disk, make it, or leave the setting out"
        )


def replication_of(configuration: Configuration) -> Callable[[Service], Replication] | None:
    """For :class:`.server.CoordinatorServer`; None for a server by itself."""
    settings, data_dir = configuration.ensemble, configuration.data_dir
    if settings is None:
        return None
    tick_ms = configuration.settings.tick_time_ms

    def replicate(service: Service) -> Replication:
        log_dir = configuration.settings.log_dir
        own = OwnData(data_dir, settings.members, log_dir)
        return EnsembleReplication(
            service,
            lambda: open_quorum(data_dir, log_dir, settings, tick_ms, own),
            own_data=own,
            server_id=settings.server_id,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            directory=data_dir / MEMBER_DIRECTORY,
            exports=data_dir / "exports",
            config=configuration.path if settings.reconfigurable else None,
        )

    return replicate
