"""OffsetFetch of very many partitions.

If one failed, a few requests of four megabytes would take gigabytes, or a consumer would get offsets of
different times.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster import time_slice
from cluster.broker.context import Body, Context
from cluster.broker.handlers import APIS, offset_fetch
from cluster.errors import CoordinatorLoadInProgress
from cluster.groups import CommittedOffset
from cluster.model import TopicPartition
from logcore._native import decode_response, encode_response

from .test_handlers import FakeRequest

KEY = APIS[offset_fetch.API].key
MANY = 100_000
PER_PARTITION = 120
"""Bytes: an entry of a dict, which grows by doubling. A dict of its own would have 184 more."""


def context(committed: dict[TopicPartition, CommittedOffset], error: int = 0) -> Context:
    groups = SimpleNamespace(
        status=lambda group, empty_allowed: error,
        committed=lambda group: committed,
        check_fetch=lambda group, member, epoch: 0,
    )
    return cast(Context, SimpleNamespace(groups=groups))


GROUP = {"group_id": "g", "member_id": None, "member_epoch": -1}


def fetch(version: int, topics: list[dict[str, Any]] | None) -> FakeRequest:
    if version < 8:
        return FakeRequest(KEY, version, {"group_id": "g", "topics": topics})
    return FakeRequest(KEY, version, {"groups": [GROUP | {"topics": topics}]})


def decoded(version: int, answer: Body) -> dict[str, Any]:
    body = decode_response(KEY, version, encode_response(KEY, version, answer))
    return cast(dict[str, Any], body if version < 8 else body["groups"][0])


@pytest.mark.parametrize("version", [1, 5, 9])
def test_a_partition_has_no_objects_of_its_own(version: int) -> None:
    request = fetch(version, [{"name": "t", "partition_indexes": list(range(MANY))}])
    tracemalloc.start()
    try:
        answer = asyncio.run(offset_fetch.handle(context({}), request))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PER_PARTITION * MANY
    [topic] = decoded(version, answer)["topics"]
    assert [entry["partition_index"] for entry in topic["partitions"]] == list(range(MANY))
    assert {entry["committed_offset"] for entry in topic["partitions"]} == {-1}


@pytest.mark.parametrize("everything", [True, False])
def test_all_offsets_are_of_one_time(monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    monkeypatch.setattr(time_slice, "_SLICE_SECONDS", 0.0)
    numbers = range(2000)
    committed = {TopicPartition("t", number): CommittedOffset(1) for number in numbers}
    request = fetch(5, None if everything else [{"name": "t", "partition_indexes": list(numbers)}])

    async def run() -> Body:
        work = asyncio.create_task(offset_fetch.handle(context(committed), request))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not work.done()
        committed.update({TopicPartition("t", number): CommittedOffset(2) for number in range(3000)})
        return await work

    [topic] = decoded(5, asyncio.run(run()))["topics"]
    assert [entry["partition_index"] for entry in topic["partitions"]] == list(numbers)
    assert {entry["committed_offset"] for entry in topic["partitions"]} == {1}


def test_all_partitions_are_in_order() -> None:
    names = [("u", 1), ("t", 3), ("u", 0), ("t", 10)]
    committed = {TopicPartition(*name): CommittedOffset(7, metadata="m", leader_epoch=4) for name in names}
    answer = decoded(9, asyncio.run(offset_fetch.handle(context(committed), fetch(9, None))))
    found = [
        (topic["name"], entry["partition_index"])
        for topic in answer["topics"]
        for entry in topic["partitions"]
    ]
    assert found == [("t", 3), ("t", 10), ("u", 0), ("u", 1)]
    entry = answer["topics"][0]["partitions"][0]
    assert (entry["committed_offset"], entry["metadata"], entry["committed_leader_epoch"]) == (7, "m", 4)


def test_old_clients_get_an_error_for_each_partition() -> None:
    code = CoordinatorLoadInProgress.code
    topics = [{"name": "t", "partition_indexes": [2, 1]}]
    answer = decoded(1, asyncio.run(offset_fetch.handle(context({}, code), fetch(1, topics))))
    [topic] = answer["topics"]
    assert [(entry["partition_index"], entry["error_code"]) for entry in topic["partitions"]] == [
        (2, code),
        (1, code),
    ]


def test_the_encoding_thread_sleeps_between_runs_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, it would take the interpreter again before the event loop is awake, during the whole
    encoding.
    """
    naps: list[float] = []
    monkeypatch.setattr("cluster.time_slice.time.sleep", naps.append)
    partitions = offset_fetch.Partitions(5, dict.fromkeys(range(MANY)))
    assert sum(1 for _ in partitions) == MANY
    assert len(naps) >= 100
    assert min(naps) > 0
    naps.clear()
    assert len(list(offset_fetch.Partitions(5, dict.fromkeys(range(100))))) == 100
    assert not naps
