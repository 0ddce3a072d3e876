"""All checkers on one history."""

from __future__ import annotations

from .ephemerals import check_ephemerals
from .history import History
from .linearizability import check_linearizability
from .locks import check_locks
from .order import ordered
from .watches import check_watches
from .zxids import check_zxids


def problems(
    history: History,
    sync_is_linearizable: bool = True,
    strict_locks: bool = True,
    counts_outstanding: bool = False,
) -> list[str]:
    """Every problem of the history. Raises TooLongError."""
    order = ordered(history, counts_outstanding)
    return [
        *check_zxids(history, order, sync_is_linearizable),
        *check_watches(history, order),
        *check_linearizability(history, sync_is_linearizable),
        *check_ephemerals(history, sync_is_linearizable),
        *check_locks(history, strict_locks),
    ]
