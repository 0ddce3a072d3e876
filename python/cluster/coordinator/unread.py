"""The output that clients leave unread, all clients together.

Owns the sum and its limit. The limit of one connection bounds that connection; many connections need a limit
of their own. Above it, the connections that leave most unread are ended. Runs on the event loop.
"""

from __future__ import annotations

import logging
from typing import Protocol

UNREAD_BYTES_MAX = 256 << 20
"""The limit for all clients. ZooKeeper's own clients leave less when they are stopped for a while."""

_logger = logging.getLogger(__name__)


class OutputReader(Protocol):
    """A client that gets output."""

    address: str

    @property
    def unread_bytes(self) -> int:
        """The bytes that it leaves unread now."""

    def abort(self) -> None:
        """Ends its connection at once."""


class Unread:
    """The sum of the bytes that clients reported last."""

    def __init__(self, most: int = UNREAD_BYTES_MAX) -> None:
        self.most = most
        self._left: dict[OutputReader, int] = {}
        self._total = 0

    def report(self, reader: OutputReader, left: int) -> None:
        """This client leaves so many bytes unread now.

        Above the limit this client or another is disconnected.
        """
        known = self._left.pop(reader, 0)
        if left:
            self._left[reader] = left
        self._total += left - known
        if self._total > self.most:
            self._disconnect()

    def _disconnect(self) -> None:
        # Some clients may have read since they reported.
        self._left = {reader: left for reader in self._left if (left := reader.unread_bytes)}
        self._total = sum(self._left.values())
        for reader in sorted(self._left, key=self._left.__getitem__, reverse=True):
            if self._total <= self.most:
                return
            self._total -= self._left.pop(reader)
            _logger.warning(
                "disconnecting %s: all clients left more than %d bytes unread, and this one the most",
                reader.address,
                self.most,
            )
            reader.abort()
