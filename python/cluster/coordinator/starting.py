"""Which replication a server has: a log of its own, or an ensemble's.

Called by whoever runs a coordinator by its configuration. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ._quorum import open_quorum
from .configuration import Configuration
from .ensemble import EnsembleReplication
from .own_data import DIRECTORY, OwnData
from .replication import Replication, Service


def replication_of(configuration: Configuration) -> Callable[[Service], Replication] | None:
    """For :class:`.server.CoordinatorServer`; None for a server by itself."""
    settings, data_dir = configuration.ensemble, configuration.data_dir
    if settings is None:
        return None
    tick_ms = configuration.settings.tick_time_ms

    def replicate(service: Service) -> Replication:
        own = OwnData(data_dir, settings.members)
        return EnsembleReplication(
            service,
            lambda: open_quorum(data_dir, configuration.settings.log_dir, settings, tick_ms, own),
            own_data=own,
            server_id=settings.server_id,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            directory=data_dir / DIRECTORY,
            exports=data_dir / "exports",
            config=configuration.path if settings.reconfigurable else None,
        )

    return replicate
