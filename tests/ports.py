"""Ports for servers that a test starts, or that it wants nobody to listen on."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator

WORKERS = 64


def _candidates() -> Iterator[int]:
    """Below those that systems give to connections and to listeners that ask for any, and no other worker's: between the look and
    the use, and while a server is down, nobody else takes them."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    numbers = list(range(10_000 + worker, 32_000, WORKERS))
    while True:
        random.SystemRandom().shuffle(numbers)
        yield from numbers


_next = _candidates()


def free_port() -> int:
    """One that nobody has on any of this machine's IPv4 addresses."""
    for port in _next:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
            return port
    raise AssertionError("candidates never end")


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
