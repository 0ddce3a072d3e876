"""A member's log, on the consensus of :mod:`logcore`.

Owns where its files are (:mod:`cluster.coordinator.durability.directories`), and how it is opened.
"""

from __future__ import annotations

import logcore
from logcore import quorum as engine

from ..durability.directories import Directories
from ..errors import UNUSABLE_ERRNOS, CoordinatorError, DataDirectoryError
from ..settings.ensemble import EnsembleSettings
from .own_data import OwnData
from .quorum import Quorum

ENTRIES_KEPT = 10_000
"""Entries that stay in a member's log behind a snapshot. An entry is one transaction or more. A member that
lacks more of them is sent the snapshot."""


def open_quorum(settings: EnsembleSettings, tick_ms: int, own: OwnData) -> Quorum:
    """Opens a member's files, which are made if missing. Blocks.

    If the files do not know of an ensemble, and there is the data of a standalone server, an ensemble can
    only begin with that data. Otherwise that data is moved away. Raises CoordinatorError.
    """
    has_state = own.take()
    directories: Directories = own.directories
    try:
        try:
            directories.quorum.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataDirectoryError.of(directories.quorum, error) from error
        directories.pair()
        directories.link_member_log()
        quorum = engine.Quorum(
            data_dir=str(directories.quorum),
            server_id=settings.server_id,
            servers=settings.members,
            tick_ms=tick_ms,
            init_limit=settings.init_limit,
            sync_limit=settings.sync_limit,
            listen_on_all=settings.listen_on_all,
            entries_kept=ENTRIES_KEPT,
            reconfigurable=settings.reconfigurable,
            has_state=has_state,
        )
    except CoordinatorError:
        own.release()
        raise
    except (logcore.LogError, engine.QuorumError, ValueError, OSError) as error:
        own.release()
        is_unusable = isinstance(error, logcore.LogIOError) and error.errno in UNUSABLE_ERRNOS
        kind = DataDirectoryError if is_unusable else CoordinatorError
        raise kind(f"this member of the ensemble cannot start: {error}") from error
    if not quorum.awaits_state:
        own.put_away()
    return quorum
