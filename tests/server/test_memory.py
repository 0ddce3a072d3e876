"""The memory of a decoded request in Python is at most the size that the server counts for it.

If one failed, the memory of requests would be unbounded: the server admits requests by their counted size.
"""

from __future__ import annotations

import select
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logcore._native import Request

from . import wire
from .conftest import open_server

BUDGET = 12 << 20
"""The budget of requests decoded for Python: three quarters of the smallest total."""
DESCRIBE_GROUPS, CREATE_TOPICS, JOIN_GROUP, OFFSET_COMMIT = 15, 19, 11, 8


def assignments(count: int, brokers: int) -> dict[str, Any]:
    entries = [
        {"partition_index": 1000 + index, "broker_ids": list(range(300, 300 + brokers))}
        for index in range(count)
    ]
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": entries}
    return {"topics": [topic], "timeout_ms": 1000}


def offsets(count: int) -> dict[str, Any]:
    partition = {"committed_offset": 1 << 60, "committed_metadata": "some", "committed_leader_epoch": 1 << 29}
    partitions = [{"partition_index": 1000 + index, **partition} for index in range(count)]
    return {"group_id": "g", "topics": [{"name": "t", "partitions": partitions}]}


def protocols(size: int) -> dict[str, Any]:
    return {"group_id": "g", "protocols": [{"name": "range", "metadata": bytes(size)}]}


Shape = tuple[int, int, Callable[[int], dict[str, Any]]]
SHAPES: dict[str, Shape] = {
    "empty strings": (DESCRIBE_GROUPS, 0, lambda count: {"groups": [""] * count}),
    "short strings": (DESCRIBE_GROUPS, 0, lambda count: {"groups": ["ab"] * count}),
    "wide strings": (DESCRIBE_GROUPS, 5, lambda count: {"groups": ["🦀" + "a" * 60] * count}),
    "structs": (
        wire.METADATA,
        1,
        lambda count: {"topics": [{"name": ""}] * count},
    ),
    "ids": (
        wire.METADATA,
        12,
        lambda count: {"topics": [{"topic_id": bytes(range(16)), "name": None}] * count},
    ),
    "empty arrays": (CREATE_TOPICS, 5, lambda count: assignments(count, 0)),
    "numbers": (CREATE_TOPICS, 5, lambda count: assignments(1, count)),
    "arrays of arrays": (CREATE_TOPICS, 4, lambda count: assignments(count, 3)),
    "large numbers": (OFFSET_COMMIT, 6, offsets),
    "bytes": (JOIN_GROUP, 5, protocols),
}


class Taker:
    """A server that takes requests, or refuses them as too large."""

    def __init__(self, path: Path) -> None:
        self.logged: set[int] = set()
        """The keys of APIs whose refusal was logged."""
        self.server = open_server(
            path, {"queued.max.request.bytes": 1 << 23, "socket.request.max.bytes": 1 << 23}
        )
        (self.port,) = self.server.start([("PLAINTEXT", "127.0.0.1", 0)])

    def take(self, key: int, version: int, body: dict[str, Any]) -> Request | None:
        """The request, or None if the server refused it."""
        with wire.Client(self.port) as client:
            client.send(key, version, body)
            while True:
                ends = [self.server.wake_fd, client.socket]
                readable, _, _ = select.select(ends, [], [], wire.TIMEOUT)
                assert readable, "the request is neither taken nor refused"
                for request in self.server.take_requests(1):
                    return request
                # Each line is logged once a minute. Other lines are about requests that this test drops.
                lines = [line for _, line, _ in self.server.take_log_lines()]
                if any("raise queued.max.request.bytes" in line for line in lines):
                    self.logged.add(key)
                if client.socket in readable:
                    assert client.is_closed()
                    assert key in self.logged
                    return None


def largest(taker: Taker, shape: Shape) -> int:
    """The largest number of elements that is taken. A twentieth more is refused."""
    key, version, body = shape
    taken, refused = 0, 1000
    while taker.take(key, version, body(refused)) is not None:
        taken, refused = refused, 2 * refused
    while refused - taken > refused // 20:
        middle = (taken + refused) // 2
        if taker.take(key, version, body(middle)) is None:
            refused = middle
        else:
            taken = middle
    return taken


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[Taker]:
    taker = Taker(tmp_path)
    yield taker
    taker.server.stop()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_request_needs_no_more_memory_than_counted(taker: Taker, shape: Shape) -> None:
    """If this failed, many small elements of one type would use more memory than the server counts."""
    key, version, body = shape
    request = taker.take(key, version, body(largest(taker, shape)))
    assert request is not None
    tracemalloc.start()
    try:
        decoded = request.body
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded
    print(f"{peak / BUDGET:.2f} of the budget")
    assert peak <= BUDGET
