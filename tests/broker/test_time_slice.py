"""Requests that name very many things.

If one failed, a single request of a megabyte would block all other requests in Python, and group members
whose heartbeats are not read would be removed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cluster import time_slice
from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers import HANDLERS, Handler
from logcore._native import decode_request, encode_request

from .test_embedded import create, embedded
from .wire import KEYS, Wire

MANY = 5000
NUMBERS = range(MANY)
NAMES = [f"t_{number}" for number in NUMBERS]

TOPICS = {
    "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in NAMES],
    "timeout_ms": 60_000,
    "validate_only": True,
}
COUNTS = {"topics": [{"name": name, "count": 2} for name in NAMES], "timeout_ms": 60_000}
CONFIGS = [{"name": "retention.ms", "config_operation": 0, "value": "1"}]
LADEN = [
    {"resource_type": 2, "resource_name": "t", "configs": [{"name": name, "value": ""} for name in NAMES]}
]
THROTTLED = ",".join(["0:0"] * MANY)
LIST = [{"name": "leader.replication.throttled.replicas", "config_operation": 2, "value": THROTTLED}]
LISTED = [{"resource_type": 2, "resource_name": "there", "configs": LIST}]
PLAIN = [{"resource_type": 2, "resource_name": name, "configs": []} for name in NAMES]
RESOURCES = [{"resource_type": 2, "resource_name": name, "configs": CONFIGS} for name in NAMES]
COMMITS = [{"partition_index": number, "committed_offset": 0} for number in NUMBERS]
DELETIONS = [{"partition_index": number, "offset": 0} for number in NUMBERS]
NAMED = [{"name": "there", "partition_indexes": NUMBERS}]
MOVES = [{"path": "/elsewhere", "topics": [{"name": "there", "partitions": NUMBERS}]}]
IDS = [{"topic_id": number.to_bytes(16, "big"), "name": None} for number in range(1, MANY + 1)]
QUOTAS = [{"entity": [{"entity_type": "nobody", "entity_name": name}], "ops": []} for name in NAMES]

REASSIGNED = [{"partition_index": number, "replicas": [0]} for number in NUMBERS]
ELECTED = [{"topic": "there", "partitions": NUMBERS}]
TRANSACTION = {"producer_id": 1, "producer_epoch": 0, "topics": [{"name": "there", "partitions": [0]}]}
TRANSACTIONS = [{"transactional_id": name, "verify_only": False} | TRANSACTION for name in NAMES]
ENDED = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
REPEATED = [{"name": "there", "partitions": [0] * MANY}]
MARKED = [
    {"name": "unknown", "partition_indexes": NUMBERS},
    {"name": "there", "partition_indexes": [0] * MANY},
]

REQUESTS: list[tuple[str, int, dict[str, Any]]] = [
    ("CreateTopics", 4, TOPICS),
    ("DeleteTopics", 6, {"topics": [{"name": name} for name in NAMES], "timeout_ms": 60_000}),
    ("CreatePartitions", 3, COUNTS),
    ("IncrementalAlterConfigs", 1, {"resources": RESOURCES, "validate_only": True}),
    ("Metadata", 4, {"topics": [{"name": name} for name in NAMES], "allow_auto_topic_creation": False}),
    ("DeleteGroups", 1, {"groups_names": NAMES}),
    ("LeaveGroup", 3, {"group_id": "g", "members": [{"member_id": name} for name in NAMES]}),
    ("DescribeGroups", 0, {"groups": NAMES}),
    ("FindCoordinator", 4, {"coordinator_keys": NAMES}),
    ("OffsetCommit", 5, {"group_id": "g", "topics": [{"name": "unknown", "partitions": COMMITS}]}),
    ("OffsetFetch", 8, {"groups": [{"group_id": name, "topics": None} for name in NAMES]}),
    ("OffsetFetch", 5, {"group_id": "g", "topics": NAMED}),
    ("OffsetFetch", 9, {"groups": [{"group_id": "g", "topics": NAMED}]}),
    (
        "OffsetFetch",
        5,
        {"group_id": "g", "topics": [{"name": name, "partition_indexes": [0]} for name in NAMES]},
    ),
    (
        "TxnOffsetCommit",
        3,
        {"transactional_id": "x", "group_id": "g", "topics": [{"name": "unknown", "partitions": COMMITS}]},
    ),
    ("AddPartitionsToTxn", 4, {"transactions": TRANSACTIONS}),
    (
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_topics": [{"name": "there", "partitions": NUMBERS}],
        },
    ),
    (
        "AddPartitionsToTxn",
        4,
        {"transactions": [TRANSACTION | {"transactional_id": "x", "verify_only": True, "topics": REPEATED}]},
    ),
    ("WriteTxnMarkers", 1, {"markers": [ENDED | {"topics": MARKED}]}),
    ("WriteTxnMarkers", 1, {"markers": [ENDED | {"topics": []}] * MANY}),
    ("DescribeTransactions", 0, {"transactional_ids": NAMES}),
    ("ConsumerGroupDescribe", 0, {"group_ids": NAMES}),
    ("DeleteRecords", 1, {"topics": [{"name": "there", "partitions": DELETIONS}], "timeout_ms": 60_000}),
    ("DescribeProducers", 0, {"topics": NAMED}),
    ("AlterReplicaLogDirs", 1, {"dirs": MOVES}),
    ("AlterPartitionReassignments", 0, {"topics": [{"name": "there", "partitions": REASSIGNED}]}),
    ("ElectLeaders", 2, {"election_type": 0, "topic_partitions": ELECTED}),
    ("Metadata", 12, {"topics": IDS, "allow_auto_topic_creation": False}),
    ("AlterClientQuotas", 0, {"entries": QUOTAS, "validate_only": True}),
    ("DescribeUserScramCredentials", 0, {"users": [{"name": name} for name in NAMES]}),
    ("DescribeConfigs", 1, {"resources": [{"resource_type": 2, "resource_name": name} for name in NAMES]}),
    ("AlterConfigs", 1, {"resources": PLAIN, "validate_only": True}),
    ("AlterConfigs", 1, {"resources": LADEN, "validate_only": True}),
    ("IncrementalAlterConfigs", 1, {"resources": LISTED, "validate_only": False}),
    ("IncrementalAlterConfigs", 1, {"resources": LADEN, "validate_only": True}),
]


def lengths(said: object) -> Iterator[int]:
    """The elements of all lists in a response."""
    if isinstance(said, list):
        yield len(said)
    for part in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        yield from lengths(part)


def during(work: asyncio.Future[Any], look: Callable[[], None]) -> None:
    """Calls `look` in each step of the event loop until the work is done."""
    loop = asyncio.get_running_loop()

    def turn() -> None:
        look()
        if not work.done():
            loop.call_soon(turn)

    loop.call_soon(turn)


class Watched:
    """Counts the lines that the event loop's thread runs in a handler between two steps of other tasks."""

    def __init__(self, handler: Handler) -> None:
        self.API, self.failure = handler.API, handler.failure
        self._handler = handler
        self._lines: Counter[str] = Counter()
        self.longest: Counter[str] = Counter()

    async def handle(self, context: Context, request: Request) -> Body:
        work = asyncio.ensure_future(self._handler.handle(context, request))
        during(work, self._count)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return await work
        finally:
            sys.settrace(before)
            self._count()

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._lines[frame.f_code.co_qualname] += 1
        return self._trace

    def _count(self) -> None:
        self.longest = max(self.longest, self._lines, key=Counter.total)
        self._lines = Counter()


@pytest.mark.parametrize(("name", "version", "body"), REQUESTS, ids=[name for name, _, _ in REQUESTS])
def test_other_tasks_run_before_all_items_are_processed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: int, body: dict[str, Any]
) -> None:
    """A slice is zero here, so that the number of slices does not depend on the machine."""
    watched = Watched(HANDLERS[KEYS[name]])

    async def run() -> None:
        async with embedded(tmp_path / "data") as broker, Wire(broker.bootstrap) as wire:
            assert await create(wire, "there") == "ok"
            await wire.ask("FindCoordinator", 1, key="g", key_type=0)
            monkeypatch.setattr(time_slice, "_SLICE_SECONDS", 0.0)
            monkeypatch.setitem(HANDLERS, KEYS[watched.API], watched)
            answer = await wire.ask(name, version, **body)
            assert MANY in lengths(answer) or body.get("resources") in (LADEN, LISTED)

    asyncio.run(run())
    assert watched.longest.total() < MANY, watched.longest.most_common(3)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_a_thread_that_converts_a_long_message_releases_the_interpreter() -> None:
    message = {"groups_names": [str(number) for number in range(300_000)]}
    frames: list[bytes] = []

    def others(work: Callable[[], None]) -> int:
        """How often this thread had the interpreter during `work`."""
        turns, thread = 0, threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            # Releases it, and gets it back when the other thread releases it.
            os.sched_yield()
            turns += 1
        thread.join()
        return turns

    assert others(lambda: frames.append(encode_request(KEYS["DeleteGroups"], 2, message))) > 8
    assert others(lambda: message.update(decode_request(KEYS["DeleteGroups"], 2, frames[0]))) > 8
    assert len(message["groups_names"]) == 300_000


def test_heartbeats_are_answered_while_topics_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slice, "_SLICE_SECONDS", 0.0)

    async def run() -> None:
        async with (
            embedded(tmp_path / "data") as broker,
            Wire(broker.bootstrap) as heavy,
            Wire(broker.bootstrap) as member,
        ):
            await member.ask("FindCoordinator", 1, key="g", key_type=0)
            work = asyncio.create_task(heavy.ask("CreateTopics", 4, **TOPICS))
            beat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
            answered = 0
            while not work.done():
                await member.ask("Heartbeat", 3, **beat)
                answered += 1
            assert len((await work)["topics"]) == MANY
            assert answered > 20, "without slices there are three, and those of reading and sending"

    asyncio.run(run())


def test_concurrent_loops_yield_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise many loops would block the event loop for as many slices at once."""
    monkeypatch.setattr(time_slice, "_SLICE_SECONDS", 0.0)
    steps: list[int] = []

    async def loop(number: int) -> None:
        own = time_slice.TimeSlice()
        for _ in range(10):
            steps.append(number)
            await own.yield_if_over()

    async def run() -> list[int]:
        work = asyncio.gather(*(loop(number) for number in range(50)))
        seen: list[int] = []
        during(work, lambda: seen.append(len(steps)))
        await work
        return [after - before for before, after in pairwise(seen)]

    counts = asyncio.run(run())
    # All loops begin in the first step.
    assert counts[0] <= 50
    assert max(counts[1:]) <= 2
    assert len(steps) == 500
