"""What Python makes of requests, beside what the server takes it for.

If one failed, the memory of requests would have no bound: the server lets in what weighs little, and Python makes more of it.
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

SHARED = 12 << 20
"""Three quarters of the least that decoded requests may have."""
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
    "texts without a letter": (DESCRIBE_GROUPS, 0, lambda count: {"groups": [""] * count}),
    "short texts": (DESCRIBE_GROUPS, 0, lambda count: {"groups": ["ab"] * count}),
    "wide texts": (DESCRIBE_GROUPS, 5, lambda count: {"groups": ["🦀" + "a" * 60] * count}),
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
    """A server that says which requests are too large."""

    def __init__(self, path: Path) -> None:
        self.said: set[int] = set()
        self.server = open_server(
            path, {"queued.max.request.bytes": 1 << 23, "socket.request.max.bytes": 1 << 23}
        )
        (self.port,) = self.server.start([("PLAINTEXT", "127.0.0.1", 0)])

    def take(self, key: int, version: int, body: dict[str, Any]) -> Request | None:
        """The request, or None if its connection is closed for it."""
        with wire.Client(self.port) as client:
            client.send(key, version, body)
            while True:
                ends = [self.server.wake_fd, client.socket]
                readable, _, _ = select.select(ends, [], [], wire.PATIENCE)
                assert readable, "the request is neither taken nor refused"
                for request in self.server.take_requests(1):
                    return request
                # Other lines tell of requests that were taken and dropped; each is said once a minute.
                lines = [line for _, line, _ in self.server.take_log_lines()]
                if any("raise queued.max.request.bytes" in line for line in lines):
                    self.said.add(key)
                if client.socket in readable:
                    assert client.is_closed()
                    assert key in self.said
                    return None


def largest(taker: Taker, shape: Shape) -> int:
    """So many elements are taken, and a twentieth more are not."""
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
def test_python_makes_no_more_of_a_request_than_it_weighs(taker: Taker, shape: Shape) -> None:
    """If this failed, many small things of one kind would have more memory than they are charged for."""
    key, version, body = shape
    request = taker.take(key, version, body(largest(taker, shape)))
    assert request is not None
    tracemalloc.start()
    try:
        made = request.body
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made
    print(f"{peak / SHARED:.2f} of what it may have")
    assert peak <= SHARED
