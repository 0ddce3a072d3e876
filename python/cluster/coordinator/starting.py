"""What a server starts on: its directories, and its replication, a log of its own or an ensemble's.

Called by whoever runs a coordinator by its configuration. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ._quorum import open_quorum
from .apache_names import VERSIONED, has_data
from .configuration import Configuration
from .ensemble import EnsembleReplication
from .errors import CoordinatorError, DataDirectoryError
from .own_data import DIRECTORY, OwnData, has_member, is_there
from .replication import Replication, Service


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
        if directory is not None and not is_begun and has_data(directory / VERSIONED):
            logs = f" --log-dir {log_dir}" if log_dir is not None else ""
            raise DataDirectoryError(
                f"{directory / VERSIONED} has the data of Apache ZooKeeper, and this server would begin without it: name in dataDir what "
                f"`logcore coordinator import {data_dir} DIR{logs}` makes of it; to begin without it, move {directory / VERSIONED} away"
            )
    if configuration.makes_directories:
        return
    if not is_begun and not (data_dir / VERSIONED).is_dir():
        raise DataDirectoryError(
            f"{data_dir} has no data of a coordinator, and datadir.autocreate is false: mount the disk that has it; for a server that is "
            f"to begin with nothing make {data_dir / VERSIONED}, as zkServer-initialize.sh does, or leave the setting out"
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
            directory=data_dir / DIRECTORY,
            exports=data_dir / "exports",
            config=configuration.path if settings.reconfigurable else None,
        )

    return replicate
