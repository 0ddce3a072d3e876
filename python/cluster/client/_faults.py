"""When a failure that is tried again is reported: once it has lasted, and again when it changes.

Pure. The extension follows the same rule for connections and fetches (`rust/crates/client/src/reporter.rs`).
"""

from __future__ import annotations

from ._errors import KafkaError

REPORT_AFTER = 10.0
"""Seconds without a success after which a failure is reported."""


class LastingFault:
    """The failures of one operation that is tried again until it succeeds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._reported: set[int] = set()
        self.times = 0
        """Failures since the last success."""

    def lasts(self, error: KafkaError, now: float) -> bool:
        """Notes a failure that may pass; whether to report it."""
        if self._since is None:
            self._since = now
        self.times += 1
        return now - self._since >= REPORT_AFTER and self.is_new(error)

    def is_new(self, error: KafkaError) -> bool:
        """Notes a failure to report; False when it has been reported since the last success."""
        if error.code() in self._reported:
            return False
        self._reported.add(error.code())
        return True

    def passed(self) -> None:
        """Notes a success."""
        self._since = None
        self.times = 0
        self._reported.clear()
