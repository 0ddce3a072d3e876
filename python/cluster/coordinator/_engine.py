"""The transaction log's store: an embedded log of :mod:`logcore`.

Owns how commands become records; the only module of the coordinator that knows the log engine. Called from
the server's writer thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import logcore

from .errors import CoordinatorError

BATCH_BYTES_MAX = 2 << 20
"""The largest command is a frame of 1 MiB and its client's identities; the engine's default has no room for
them."""


class EngineLog:
    """A :class:`.log.RecordLog` on the log engine."""

    def __init__(self, path: Path) -> None:
        self._log = logcore.open(path, max_message_bytes=BATCH_BYTES_MAX, retention_ms=-1)

    def append(self, records: Sequence[bytes]) -> None:
        self._log.append_records(records)
        self._log.flush()

    def records(self) -> Iterator[bytes]:
        return (record.value or b"" for record in self._log.records())

    def close(self) -> None:
        self._log.close()


def open_engine_log(path: Path) -> EngineLog:
    """Opens a log, made if missing; a torn tail is cut. Raises CoordinatorError."""
    try:
        return EngineLog(path)
    except logcore.LogError as error:
        raise CoordinatorError(
            f"the coordinator's transaction log {path} cannot be opened: {error}"
        ) from error
