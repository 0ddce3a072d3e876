"""Snapshots that somebody asked a member of an ensemble for, in the format of a server by itself.

Owns their directory, ``<dataDir>/exports``: the newest stay, as many as a server by itself keeps, with the one that was made last
among them. Who is being sent one has its file open, and goes on without its name. A crash leaves an unfinished ``snapshot.*.tmp``, which
the next start removes. All calls block; one at a time writes.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from ..durability.snapshot import SNAPSHOT_PREFIX, SnapshotFile

_logger = logging.getLogger(__name__)


class Exports:
    """``retained`` of them stay."""

    def __init__(self, directory: Path, retained: int) -> None:
        self._directory = directory
        self._retained = retained

    def clean(self) -> None:
        """Removes what is unfinished. No server writes there."""
        with contextlib.suppress(OSError):
            for leftover in self._directory.glob(f"{SNAPSHOT_PREFIX}*.tmp"):
                _remove(leftover)

    def begin(self, zxid: int) -> SnapshotFile:
        """A file for the state with this zxid. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return SnapshotFile(self._directory, zxid)

    def keep(self, file: SnapshotFile) -> Path:
        """Finishes a snapshot, then removes those that it makes superfluous. Raises OSError of the former."""
        made = file.finish()
        with contextlib.suppress(OSError):
            # By the time, for an ensemble that began anew has smaller zxids than the one before.
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
        _logger.warning("%s is of no use any more and cannot be removed: %s", path, error.strerror)
