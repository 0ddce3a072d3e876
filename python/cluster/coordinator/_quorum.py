"""A member's log on the consensus of :mod:`logcore`: where its files are, and what must not be there."""

from __future__ import annotations

from pathlib import Path

import logcore
from logcore import quorum as engine

from .ensemble_settings import EnsembleSettings
from .errors import CoordinatorError
from .quorum import Quorum
from .snapshot import NAME_PREFIX

DIRECTORY = "quorum"
"""Below ``dataDir``."""


def open_quorum(data_dir: Path, settings: EnsembleSettings, tick_ms: int) -> Quorum:
    """Opens a member's files below its ``dataDir``, made if missing; blocks. Raises CoordinatorError."""
    alone = next(data_dir.glob(f"{NAME_PREFIX}*"), None)
    if alone is not None or any(data_dir.glob("log.*")):
        raise CoordinatorError(
            f"{data_dir} has the data of a server by itself, which does not become an ensemble's: name an empty dataDir, or "
            "leave the lines server.N out to run it by itself"
        )
    try:
        return engine.Quorum(
            data_dir=str(data_dir / DIRECTORY),
            server_id=settings.server_id,
            servers=settings.members,
            tick_ms=tick_ms,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            listen_on_all=settings.listen_on_all,
            reconfigurable=settings.reconfigurable,
        )
    except (logcore.LogError, engine.QuorumError, ValueError, OSError) as error:
        raise CoordinatorError(f"this member of the ensemble cannot start: {error}") from error
