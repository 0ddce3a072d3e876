"""The memory of a broker while it gets requests of very many tiny things.

If one failed, a client could take the machine's memory with a few megabytes.
"""

from __future__ import annotations

import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.errors import InvalidReplicaAssignment
from logcore._native import encode_request, encode_request_header

from ..conftest import BrokerProcess, StartBroker
from ..server import wire

CREATE_TOPICS, VERSION = 19, 4
INVALID_REPLICA_ASSIGNMENT = InvalidReplicaAssignment.code
MEGABYTE = 1 << 20
LEGAL, LEGAL_CLIENTS = 40_000, 8
"""Assignments of a request, eight bytes each. They take 18 MB of memory, so only one request fits into 24
MiB.
"""
BOMBS = 4
QUEUED_BYTES = 32 * MEGABYTE
LIMITS = (
    "--override",
    f"queued.max.request.bytes={QUEUED_BYTES}",
    "--override",
    f"socket.request.max.bytes={4 * MEGABYTE}",
)
HANDLERS = 24 * MEGABYTE
"""Memory that handlers take for a request, and that Python's and glibc's allocators keep."""


def peak_resident(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def request(assignments: int) -> bytes:
    """A topic with this many empty assignments of the same partition, which is one short error."""
    empty = {"partition_index": 0, "broker_ids": []}
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": [empty]}
    body = encode_request(CREATE_TOPICS, VERSION, {"topics": [topic], "timeout_ms": 1000})
    # Encoding so many dicts would take longer than the test.
    before, entry, after = body.partition(struct.pack(">iii", 1, 0, 0))
    assert entry
    frame = encode_request_header(CREATE_TOPICS, VERSION, 1, "test")
    frame += before + struct.pack(">i", assignments) + bytes(8 * assignments) + after
    return struct.pack(">i", len(frame)) + frame


def test_requests_of_tiny_things_stay_within_the_configured_memory(start_broker: StartBroker) -> None:
    """If this failed, a few requests of four megabytes would take gigabytes, or allowed requests would not be
    served.
    """
    broker = start_broker(None, 0, *LIMITS)
    legal, bomb = request(LEGAL), request(4 * MEGABYTE // 8 - 100)
    before = peak_resident(broker)

    def ask(frame: bytes) -> int:
        with wire.Client(broker.port) as client:
            client.socket.settimeout(60)
            client.socket.sendall(frame)
            _, answer = client.receive(CREATE_TOPICS, VERSION)
            return int(answer["topics"][0]["error_code"])

    def is_refused(frame: bytes) -> bool:
        with wire.Client(broker.port) as client:
            client.socket.sendall(frame)
            client.socket.shutdown(socket.SHUT_WR)
            return client.is_closed()

    with ThreadPoolExecutor(LEGAL_CLIENTS + BOMBS) as pool:
        codes = [pool.submit(ask, legal) for _ in range(LEGAL_CLIENTS)]
        refused = [pool.submit(is_refused, bomb) for _ in range(BOMBS)]
        # A usual client beside them.
        with wire.Client(broker.port) as client:
            while not all(future.done() for future in codes + refused):
                assert client.call(wire.METADATA, 9, {"topics": []})["controller_id"] == 0
        assert [future.result() for future in codes] == [INVALID_REPLICA_ASSIGNMENT] * LEGAL_CLIENTS
        assert all(future.result() for future in refused)
    broker.wait_output("CreateTopicsRequest version 4: .* raise queued.max.request.bytes or send less")
    grown = peak_resident(broker) - before
    # Frames and decoded requests may each take this much.
    print(f"{grown / MEGABYTE:.0f} MiB more")
    assert grown <= 2 * QUEUED_BYTES + HANDLERS
    assert broker.stop() == 0
