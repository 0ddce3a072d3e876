"""Measures each stage of the demo: records, bytes and time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Stage:
    """One stage; `payload` is the bytes of keys and values, before compression."""

    name: str
    records: int = 0
    payload: int = 0
    seconds: float = 0.0

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.payload / 1e6 / self.seconds if self.seconds else 0.0


@contextmanager
def timed(stages: list[Stage], name: str) -> Iterator[Stage]:
    """Adds a stage to `stages` and measures the time of the body, which sets its records and payload."""
    stage = Stage(name)
    started = time.perf_counter()
    yield stage
    stage.seconds = time.perf_counter() - started
    stages.append(stage)
