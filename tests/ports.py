"""Free ports for tests."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator

WORKERS = 64


def _candidates() -> Iterator[int]:
    """Ports that no other process takes between the check and the use, or while a server is down.

    They are below the ephemeral ports, and each worker of pytest-xdist has its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    numbers = list(range(10_000 + worker, 32_000, WORKERS))
    while True:
        random.SystemRandom().shuffle(numbers)
        yield from numbers


_next = _candidates()


def free_port() -> int:
    """A port that is free on all IPv4 addresses of this machine."""
    for port in _next:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
            return port
    raise AssertionError("candidates never end")


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
