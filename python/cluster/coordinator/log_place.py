"""Where logs are that are not in ``dataDir``: in ``dataLogDir``, and linked to from where they would be.

A start goes by the links: with another ``dataLogDir``, or none, the logs that there are stay in use where they are, and only new
ones are made elsewhere. A crash leaves at most an empty directory that nobody links to, which is taken, or, of what was to be
removed, a log that nobody links to. All calls block; whoever calls has the lock of ``dataDir``.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

from .errors import CoordinatorError, DataDirectoryError, DiskFullError
from .snapshot import sync_directory

FULL = (errno.ENOSPC, errno.EDQUOT)
"""A full disk, and a quota that is used up."""
UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
"""What is no directory, or none that this process may write to."""

_logger = logging.getLogger(__name__)


def require(path: Path) -> None:
    """Raises CoordinatorError when a log is elsewhere, and not there."""
    if path.is_symlink() and not path.exists():
        raise CoordinatorError(
            f"the log {path} is in {os.readlink(path)}, which is not there: mount that disk, or restore the directory"
        )


def prepare(path: Path, elsewhere: Path | None) -> None:
    """Makes a directory in ``elsewhere`` for a log that is about to be made at ``path``, unless it is there already. Raises
    CoordinatorError: DataDirectoryError where it cannot be made, DiskFullError for want of room."""
    require(path)
    if elsewhere is None or path.is_symlink():
        return
    place = elsewhere.absolute() / path.name
    if path.exists():
        _logger.warning(
            "the log %s stays where it is; to have it in %s, move it there while the server is stopped and leave a link to it",
            path,
            place,
        )
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise CoordinatorError(
                f"{place} has a log that {path.parent} does not know: move it away, or name another dataLogDir"
            )
        sync_directory(place.parent)
        path.symlink_to(place, target_is_directory=True)
        sync_directory(path.parent)
    except CoordinatorError:
        raise
    except OSError as error:
        kind = DiskFullError if error.errno in FULL else DataDirectoryError
        raise kind(f"a log cannot be made in {place}: {error.strerror}") from error


def remove(path: Path) -> None:
    """Removes a log, wherever it is; what cannot be removed stays."""
    place = path.resolve()
    if path.is_symlink():
        path.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
