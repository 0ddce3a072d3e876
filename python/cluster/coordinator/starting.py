"""Which replication a server has: a log of its own, or an ensemble's.

Called by whoever runs a coordinator by its configuration. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ._quorum import DIRECTORY, open_quorum
from .configuration import Configuration
from .ensemble import EnsembleReplication
from .errors import CoordinatorError
from .replication import Replication, Service


def replication_of(configuration: Configuration) -> Callable[[Service], Replication] | None:
    """For :class:`.server.CoordinatorServer`; None for a server by itself. Raises CoordinatorError when its directory is a
    member's."""
    settings, data_dir = configuration.ensemble, configuration.data_dir
    if settings is None:
        if (data_dir / DIRECTORY).exists():
            raise CoordinatorError(
                f"{data_dir} has the data of a member of an ensemble, and the file names no ensemble: add its lines server.N, or "
                "name another dataDir"
            )
        return None
    tick_ms = configuration.settings.tick_time_ms

    def replicate(service: Service) -> Replication:
        return EnsembleReplication(
            service,
            lambda: open_quorum(data_dir, settings, tick_ms),
            server_id=settings.server_id,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            directory=data_dir / DIRECTORY,
            exports=data_dir / "exports",
            config=configuration.path if settings.reconfigurable else None,
        )

    return replicate
