"""Four-letter words: the questions an administrator asks with ``nc``.

Owns the texts of ``ruok``, ``srvr``, ``stat``, ``isro`` and ``envi`` as ZooKeeper's tools expect them. Pure.
"""

from __future__ import annotations

from .machine import Machine

VERSION = "3.9.0-logcore"
"""The ZooKeeper whose protocol is spoken, and by whom."""


class Statistics:
    """Packets since the start."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


def four_letter_word(
    word: bytes, machine: Machine, connections: int, watches: int, statistics: Statistics
) -> str | None:
    """The answer, or None for what is no word."""
    if word == b"ruok":
        return "imok"
    if word == b"isro":
        return "rw"
    if word == b"envi":
        return f"Environment:\nzookeeper.version={VERSION}\n"
    if word in (b"srvr", b"stat"):
        lines = [
            f"Zookeeper version: {VERSION}",
            "Latency min/avg/max: 0/0.0/0",
            f"Received: {statistics.received}",
            f"Sent: {statistics.sent}",
            f"Connections: {connections}",
            "Outstanding: 0",
            f"Zxid: {machine.last_zxid:#x}",
            "Mode: standalone",
            f"Node count: {len(machine.tree)}",
        ]
        if word == b"stat":
            lines.insert(1, f"Watches: {watches}")
        return "\n".join(lines) + "\n"
    return None
