"""Data directories of ours, begun with a state and read without a server.

A directory that is begun has one snapshot, which is there whole or not at all; a server starts on it and
continues at its zxid.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import CoordinatorError
from ..log import LOG_PREFIX, TransactionLog
from ..machine import State
from ..snapshot import NAME_PREFIX, sync_directory, write_snapshot

_MAY_BE_THERE = frozenset({".lock", "myid"})


def require_empty(directory: Path) -> None:
    """Raises CoordinatorError when a directory has anything in it but a member's ``myid``, or is none."""
    try:
        there = sorted({path.name for path in directory.iterdir()} - _MAY_BE_THERE)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise CoordinatorError(f"{directory} is a file; name a directory") from None
    if there:
        raise CoordinatorError(
            f"{directory} is not empty, it has {there[0]} in it; name another directory, or move away what is there"
        )


def begin_directory(directory: Path, state: State) -> Path:
    """Makes a coordinator's data directory with a state, and returns its snapshot. Raises CoordinatorError when there is
    data or a server, OSError."""
    require_empty(directory)
    log = TransactionLog(directory)
    try:
        require_empty(directory)
        path = write_snapshot(directory, state)
    finally:
        log.close()
    sync_directory(directory.absolute().parent)
    return path


def load_directory(directory: Path) -> State:
    """The state a coordinator would start with. Leaves the directory as a start would: a torn tail is cut. Raises
    CoordinatorError when it is none, is damaged, or is in use."""
    if not any(directory.glob(f"{NAME_PREFIX}*")) and not any(directory.glob(f"{LOG_PREFIX}*")):
        raise CoordinatorError(
            f"{directory} is no data directory of a coordinator: it has neither snapshots nor logs"
        )
    log = TransactionLog(directory)
    try:
        machine, _behind = log.recover()
        return machine.export()
    finally:
        log.close()
