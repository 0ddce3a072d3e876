"""Snapshots that an administrator asks of a member of an ensemble, in the format of a standalone server.

Owns their directory, ``<dataDir>/exports``. The newest stay, as many as a standalone server keeps. A download
that has begun goes on when its file is removed. A crash leaves an unfinished ``snapshot.*.tmp``, which the
next start removes. All calls block, and one at a time writes.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from ..durability.snapshot import SNAPSHOT_PREFIX, SnapshotFile

_logger = logging.getLogger(__name__)


class Exports:
    """Keeps the newest ``retained`` ones."""

    def __init__(self, directory: Path, retained: int) -> None:
        self._directory = directory
        self._retained = retained

    def clean(self) -> None:
        """Removes unfinished files. Called before anything is written."""
        with contextlib.suppress(OSError):
            for leftover in self._directory.glob(f"{SNAPSHOT_PREFIX}*.tmp"):
                _remove(leftover)

    def begin(self, zxid: int) -> SnapshotFile:
        """Returns a file for the state with this zxid. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return SnapshotFile(self._directory, zxid)

    def keep(self, file: SnapshotFile) -> Path:
        """Finishes a snapshot, then removes older ones. Raises OSError only if it cannot be finished."""
        made = file.finish()
        with contextlib.suppress(OSError):
            # Ordered by time: a new ensemble has smaller zxids than the one before.
            others = [(path.stat().st_mtime_ns, path) for path in self._finished() if path != made]
            for _made_ns, path in sorted(others, reverse=True)[self._retained - 1 :]:
                _remove(path)
        return made

    def _finished(self) -> list[Path]:
        names = f"{SNAPSHOT_PREFIX}{'[0-9a-f]' * 16}"
        return list(self._directory.glob(names))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _logger.warning("%s is not needed any more, and cannot be removed: %s", path, error.strerror)
