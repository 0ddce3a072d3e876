"""The names that Apache ZooKeeper gives to what it keeps (``FileTxnSnapLog``, ``FileSnap``, ``FileTxnLog``)."""

from __future__ import annotations

import os
import re
from pathlib import Path

VERSIONED = "version-2"
"""Below ``dataDir`` and ``dataLogDir``: where its data is."""
SNAPSHOT = re.compile(r"snapshot\.([0-9a-fA-F]{1,16})(?:\.gz|\.snappy)?")
"""With the zxid of which it was begun."""
LOG = re.compile(r"log\.([0-9a-fA-F]{1,16})")
"""With the zxid of its first transaction."""


def has_data(versioned: Path) -> bool:
    """Whether there is a snapshot or a transaction log in a directory, or none. Raises OSError where that cannot be told."""
    try:
        names = os.listdir(versioned)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(SNAPSHOT.fullmatch(name) or LOG.fullmatch(name) for name in names)
