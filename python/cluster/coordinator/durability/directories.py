"""The names of what is in a ``dataDir``: a single server's files, an ensemble member's, and Apache ZooKeeper's.

Owns the names and the questions about them. All calls block and only read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import CoordinatorError

MEMBER_DIRECTORY = "quorum"
"""A member's own, below ``dataDir``."""
MEMBER_LOG = "log"
"""Its log's name there, which the engine gives it."""
KEPT_PREFIX = "standalone."
MOVING = KEPT_PREFIX + "tmp"
_FILE = re.compile(r"(?:snapshot|log)\.([0-9a-fA-F]{16})")

APACHE_VERSIONED = "version-2"
"""Below ``dataDir`` and ``dataLogDir``: where its data is."""
APACHE_SNAPSHOT = re.compile(r"snapshot\.([0-9a-fA-F]{1,16})(?:\.gz|\.snappy)?")
"""With the zxid of which it was begun."""
APACHE_LOG = re.compile(r"log\.([0-9a-fA-F]{1,16})")
"""With the zxid of its first transaction."""


def has_apache_data(versioned: Path) -> bool:
    """Whether there is a snapshot or a transaction log in a directory, or none. Raises OSError where that cannot be told."""
    try:
        names = os.listdir(versioned)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(APACHE_SNAPSHOT.fullmatch(name) or APACHE_LOG.fullmatch(name) for name in names)


def is_there(data_dir: Path) -> bool:
    """Whether a directory has data of a server by itself."""
    return bool(files_alone(data_dir))


def require_alone(data_dir: Path) -> None:
    """Raises CoordinatorError when a server by itself cannot have the directory: it is a member's, or has half of the data."""
    if has_member(data_dir):
        raise CoordinatorError(
            f"{data_dir} has the data of a member of an ensemble, and this server is to run by itself: add the lines server.N of the "
            "ensemble (of one server with standaloneEnabled=false), or name another dataDir; with what `logcore coordinator export` "
            f"makes of {data_dir} and `logcore coordinator import` of that, a server by itself goes on"
        )
    require_whole(data_dir)


def require_whole(data_dir: Path) -> None:
    """Raises CoordinatorError when some of the data was moved away, and the member that it was moved for is gone."""
    moving = data_dir / MOVING
    if moving.exists():
        raise CoordinatorError(
            f"{moving} has some of the data of {data_dir}, which a member of an ensemble was moving when it ended, and there is no "
            "member: move its files back, or remove it"
        )


def has_member(data_dir: Path) -> bool:
    """Whether a directory has a member's files. One that never was part of an ensemble is none, if there is data of a server by
    itself: it would have begun with that."""
    quorum = data_dir / MEMBER_DIRECTORY
    if not is_there(data_dir):
        return quorum.exists()
    logs = (path for path in (quorum / MEMBER_LOG).glob("*.log") if path.stat().st_size)
    known = (quorum / "vote", quorum / "purged", *(quorum / "snapshots").glob("*.snapshot"), *logs)
    return any(path.exists() for path in known)


def files_alone(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*.*") if _FILE.fullmatch(path.name)]
