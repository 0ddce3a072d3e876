"""A member's log on the consensus of :mod:`logcore`: where its files are, and what it begins with."""

from __future__ import annotations

from pathlib import Path

import logcore
from logcore import quorum as engine

from ..durability import log_place
from ..durability.directories import MEMBER_DIRECTORY, MEMBER_LOG
from ..errors import CoordinatorError, DataDirectoryError
from ..settings.ensemble import EnsembleSettings
from .own_data import OwnData
from .quorum import Quorum

ENTRIES_KEPT = 10_000
"""Entries, of a transaction at least, that stay in a member's log behind a snapshot; who lacks more is given the snapshot."""


def open_quorum(
    data_dir: Path, log_dir: Path | None, settings: EnsembleSettings, tick_ms: int, own: OwnData
) -> Quorum:
    """Opens a member's files below its ``dataDir``, made if missing, with its log below its ``dataLogDir`` if it has one; blocks.
    If they know of no ensemble and there is data of a server by itself, an ensemble can only begin with that; otherwise that is
    put away. Raises CoordinatorError."""
    has_state = own.take()
    directory = data_dir / MEMBER_DIRECTORY
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataDirectoryError.of(directory, error) from error
        log_place.prepare(directory / MEMBER_LOG, log_dir and log_dir / MEMBER_DIRECTORY)
        quorum = engine.Quorum(
            data_dir=str(directory),
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
        is_unusable = isinstance(error, logcore.LogIOError) and error.errno in log_place.UNUSABLE
        kind = DataDirectoryError if is_unusable else CoordinatorError
        raise kind(f"this member of the ensemble cannot start: {error}") from error
    if not quorum.awaits_state:
        own.put_away()
    return quorum
