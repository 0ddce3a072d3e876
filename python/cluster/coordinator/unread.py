"""What clients leave unread, all of them together.

Owns the sum and its bound: one client may leave some, and many would be a multiple of it. When there is too much, those that
leave most lose their connections. Runs on the event loop.
"""

from __future__ import annotations

import logging
from typing import Protocol

UNREAD_BYTES_MAX = 256 << 20
"""Of all clients; more than ZooKeeper's own clients leave when they are stopped for a while."""

_logger = logging.getLogger(__name__)


class Reader(Protocol):
    """A client that is told something."""

    address: str

    @property
    def unread_bytes(self) -> int:
        """What it left unread until now."""

    def abort(self) -> None:
        """Ends its connection at once."""


class Unread:
    """The sum of what was left when it was looked at last: never less than there is, but for what was not told of."""

    def __init__(self, most: int = UNREAD_BYTES_MAX) -> None:
        self.most = most
        self._left: dict[Reader, int] = {}
        self._total = 0

    def look(self, reader: Reader, left: int) -> None:
        """This client leaves so much now. It may lose its connection, or another."""
        known = self._left.pop(reader, 0)
        if left:
            self._left[reader] = left
        self._total += left - known
        if self._total > self.most:
            self._cut_off()

    def _cut_off(self) -> None:
        # Some may have read since.
        self._left = {reader: left for reader in self._left if (left := reader.unread_bytes)}
        self._total = sum(self._left.values())
        for reader in sorted(self._left, key=self._left.__getitem__, reverse=True):
            if self._total <= self.most:
                return
            self._total -= self._left.pop(reader)
            _logger.warning(
                "cutting off %s: all clients together have left more than %d bytes unread, and it the most",
                reader.address,
                self.most,
            )
            reader.abort()
