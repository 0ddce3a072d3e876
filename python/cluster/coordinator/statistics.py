"""What a server and each of its connections have done, as ZooKeeper counts it (``ServerStats``, ``ServerCnxn``).

Plain numbers, changed on the event loop; a latency is from a request's last byte to its answer, in whole
milliseconds.
"""

from __future__ import annotations

UNUSED = -1


class Latency:
    """Least, most and mean of some latencies."""

    __slots__ = ("count", "last", "least", "most", "total")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = self.total = self.most = self.last = 0
        self.least = UNUSED

    def add(self, milliseconds: int) -> None:
        self.last = milliseconds
        self.count += 1
        self.total += milliseconds
        if milliseconds > self.most:
            self.most = milliseconds
        if milliseconds < self.least or self.least == UNUSED:
            self.least = milliseconds

    @property
    def shortest(self) -> int:
        """The least, 0 before there is any."""
        return max(self.least, 0)

    @property
    def mean(self) -> float:
        """To four decimals, 0 before there is any."""
        return round(self.total / self.count, 4) if self.count else 0.0


class Traffic:
    """Packets of a connection, or of all together."""

    __slots__ = ("latency", "received", "sent")

    def __init__(self) -> None:
        self.latency = Latency()
        self.received = 0
        self.sent = 0

    def reset(self) -> None:
        self.latency.reset()
        self.received = self.sent = 0


class ClientTraffic(Traffic):
    """Of one connection: its last request, too. ``last_operation`` is ``NA`` before there is any."""

    __slots__ = ("last_cxid", "last_operation", "last_response_ms", "last_zxid")

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def reset(self) -> None:
        super().reset()
        self._forget()

    def _forget(self) -> None:
        self.last_operation = "NA"
        self.last_cxid = self.last_zxid = UNUSED
        self.last_response_ms = 0
