"""The transaction log's store: an embedded log of :mod:`logcore`.

Owns how commands become batches; the only module of the coordinator that knows the log engine. Called from
the server's writer thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import logcore

READ_BYTES = 1 << 20
"""How much of the log one read of recovery takes, at least one batch."""
APPEND_BYTES_MAX = 512 << 10
"""Commands that go into one batch, unless a single one is larger."""


class EngineLog:
    """A :class:`.log.RecordLog` on the log engine."""

    def __init__(self, path: Path) -> None:
        self._log = logcore.open(path)

    def append(self, records: Sequence[bytes]) -> None:
        batch: list[tuple[bytes | None, bytes | None]] = []
        size = 0
        for record in records:
            if batch and size + len(record) > APPEND_BYTES_MAX:
                self._log.append_records(batch)
                batch, size = [], 0
            batch.append((None, record))
            size += len(record)
        if batch:
            self._log.append_records(batch)
        self._log.flush()

    def records(self) -> Iterator[bytes]:
        offset = self._log.start_offset
        while offset < self._log.end_offset:
            for record in self._log.fetch(offset, READ_BYTES).records():
                yield bytes(record.value or b"")
                offset = record.offset + 1

    def close(self) -> None:
        self._log.close()


def open_engine_log(path: Path) -> EngineLog:
    """Opens a log, made if missing; a torn tail is cut."""
    return EngineLog(path)
