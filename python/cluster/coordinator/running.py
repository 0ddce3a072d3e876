"""A coordinator that runs in a process of its own, until a signal stops it.

Owns the order in which its parts start and stop, and what each server starts on: its directories, and its
replication. Imports no broker, so it starts sooner. Runs on the event loop of `logcore coordinator`.
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
from .durability.directories import APACHE_VERSIONED, MEMBER_DIRECTORY, Directories, has_apache_data
from .ensemble.engine import open_quorum
from .ensemble.own_data import OwnData
from .ensemble.replication import EnsembleReplication
from .errors import CoordinatorError, DataDirectoryError
from .replication import Replication, Service
from .server import CoordinatorServer

_logger = logging.getLogger(__name__)


class CoordinatorPorts(NamedTuple):
    """The ports on which a coordinator listens; -1 for one that is not configured."""

    clients: int
    secure_clients: int
    admin: int
    metrics: int


async def run_coordinator(
    configuration: Configuration, ready: Callable[[CoordinatorPorts], None], text: str = ""
) -> None:
    """Runs a coordinator until SIGINT or SIGTERM, with its admin server and metrics.

    Calls ``ready`` once clients are served. ``text`` is that of the `zoo.cfg`. Raises CoordinatorError if the
    coordinator cannot start, or its disk fails.
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
    """Raises DataDirectoryError if a server would start without the data that the operator expects.

    That is so where there is data of Apache ZooKeeper and none of a coordinator, and, with
    ``datadir.autocreate=false``, where there is no data or no directory.
    """
    try:
        _require_directories(configuration)
    except CoordinatorError:
        raise
    except OSError as error:
        raise DataDirectoryError(
            f"{error.filename} cannot be read: {error.strerror}; correct that, or name other directories in "
            "dataDir and dataLogDir"
        ) from error


def _require_directories(configuration: Configuration) -> None:
    data_dir, log_dir = configuration.data_dir, configuration.settings.log_dir
    directories = Directories.of(data_dir, log_dir)
    has_data = directories.has_standalone_data() or directories.has_member_data()
    for directory in dict.fromkeys(directories):
        if not has_data and has_apache_data(directory / APACHE_VERSIONED):
            logs = f" --log-dir {log_dir}" if log_dir is not None else ""
            raise DataDirectoryError(
                f"{directory / APACHE_VERSIONED} has the data of Apache ZooKeeper, and this server would "
                f"start without it: run `logcore coordinator import {data_dir} DIR{logs}`, then name DIR in "
                f"dataDir; to start without the data, move {directory / APACHE_VERSIONED} away"
            )
    if configuration.makes_directories:
        return
    if not has_data and not (data_dir / APACHE_VERSIONED).is_dir():
        raise DataDirectoryError(
            f"{data_dir} has no data of a coordinator, and datadir.autocreate is false: mount the disk that "
            f"has the data; to start with no data make {data_dir / APACHE_VERSIONED}, as "
            "zkServer-initialize.sh does, or leave the setting out"
        )
    if log_dir is not None and not log_dir.is_dir():
        raise DataDirectoryError(
            f"the dataLogDir {log_dir} is not there, and datadir.autocreate is false: mount its disk, make "
            "it, or leave the setting out"
        )


def replication_of(configuration: Configuration) -> Callable[[Service], Replication] | None:
    """Returns what makes the replication of a member of an ensemble; None for a standalone server."""
    settings, data_dir = configuration.ensemble, configuration.data_dir
    if settings is None:
        return None
    tick_ms = configuration.settings.tick_time_ms

    def replicate(service: Service) -> Replication:
        own = OwnData(data_dir, settings.members, configuration.settings.log_dir)
        return EnsembleReplication(
            service,
            lambda: open_quorum(settings, tick_ms, own),
            own_data=own,
            server_id=settings.server_id,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            directory=data_dir / MEMBER_DIRECTORY,
            exports=data_dir / "exports",
            config=configuration.path if settings.reconfigurable else None,
        )

    return replicate
