"""The names of log directories and of the directories in them, as `logcore start` and brokers make them."""

from __future__ import annotations

import os
from pathlib import Path

from logcore._native import LogNotFoundError, partition_of_directory

LOGS_INSIDE = "kafka-logs"
"""`logcore start --data-dir DIR` keeps the broker's logs in this directory of DIR."""

_SEGMENTS = "*.log"


def log_directory(path: str | os.PathLike[str]) -> Path:
    """The log directory at `path`: `path` itself, or the directory of logs in it that `logcore start
    --data-dir` made.

    Every function and tool of this package that takes a log directory finds it with this one. A directory
    that has a `meta.properties` file is a log directory itself. The result need not exist.

    >>> import logcore, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp())
    >>> logcore.log_directory(path) == path
    True
    >>> (path / "kafka-logs").mkdir()
    >>> logcore.log_directory(path) == path / "kafka-logs"
    True
    """
    given = Path(path)
    inside = given / LOGS_INSIDE
    return inside if inside.is_dir() and not (given / "meta.properties").exists() else given


def existing_log_directory(path: str | os.PathLike[str]) -> Path:
    """`log_directory`. Raises LogNotFoundError if it is a file or does not exist."""
    root = log_directory(path)
    if not root.is_dir():
        problem = "it is a file" if root.exists() else "it does not exist"
        raise LogNotFoundError(f"{root} is no log directory: {problem}")
    return root


def find_logs(path: str | os.PathLike[str]) -> dict[tuple[str, int], Path]:
    """The directory of each log at `path`, by topic and partition; empty when there is none.

    `path` is a log directory, the data directory of `logcore start`, or the directory `<topic>-<partition>`
    of one log. Directories without a segment file are left out.

    Raises LogNotFoundError when `path` is not a directory.

    >>> import logcore, tempfile
    >>> path = tempfile.mkdtemp()
    >>> with logcore.open_dir(path) as directory:
    ...     _ = directory.create("flights", 3)
    >>> {key: found.name for key, found in logcore.find_logs(path).items()}
    {('flights', 3): 'flights-3'}
    """
    root = existing_log_directory(path)
    alone = partition_of_directory(root.resolve().name)
    if alone is not None and _has_segments(root):
        return {alone: root}
    return {key: found for key, found in partition_directories(root).items() if _has_segments(found)}


def partition_directories(root: Path) -> dict[tuple[str, int], Path]:
    """The directories in `root` that are named `<topic>-<partition>`, whatever is in them, sorted by name.

    The number in a name may have leading zeros, as in `flights-03`.
    """
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    found = ((partition_of_directory(name), root / name) for name in names)
    return {key: directory for key, directory in found if key is not None}


def topic_and_partition(directory: Path) -> tuple[str, int]:
    """Topic and partition of a log's directory. A directory with another name than `<topic>-<partition>`
    is the topic.
    """
    return partition_of_directory(directory.name) or (directory.name, 0)


def _has_segments(directory: Path) -> bool:
    return any(directory.glob(_SEGMENTS))
