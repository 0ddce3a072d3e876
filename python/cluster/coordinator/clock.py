"""Time, as the server takes it; tests bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks, both in milliseconds."""

    def wall_ms(self) -> int:
        """Since the epoch: goes into znodes."""

    def monotonic_ms(self) -> int:
        """Never goes back: decides when sessions expire."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
