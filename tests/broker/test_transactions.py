"""Transactions on one broker, over the wire: every API, the codes of wrong requests, timeouts and restarts.

If one failed, a transactional producer would get an error that it does not expect, or a transaction would be
lost or stay open after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import (
    NONE,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    OperationNotAttempted,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from logcore._native import build_batch

from .test_embedded import create, embedded
from .wire import Wire

Body = dict[str, Any]
TIMEOUT = 30.0
NEW = {"producer_id": -1, "producer_epoch": -1}
IN_TRANSACTION = 0x10
ATTRIBUTES_AT = 21


def play(data: Path, script: Callable[[Wire], Awaitable[None]], **settings: str) -> None:
    """Runs the script against a broker with a topic `t` of two partitions."""

    async def run() -> None:
        async with embedded(data, **settings) as broker, Wire(broker.bootstrap) as wire:
            await create(wire, "t", 2)
            await script(wire)

    asyncio.run(asyncio.wait_for(run(), 90))


async def settled(ask: Callable[[], Awaitable[int]], *passing: int) -> int:
    """Asks until the code is none of those that pass by themselves."""
    async with asyncio.timeout(TIMEOUT):
        while (code := await ask()) in passing:
            pass
    return code


async def coordinator(wire: Wire, name: str = "x") -> None:
    """Creates __transaction_state, and waits until it is led."""

    async def ask() -> int:
        return int((await wire.ask("FindCoordinator", 3, key=name, key_type=1))["error_code"])

    assert await settled(ask, 15) == NONE


async def init(wire: Wire, name: str | None = "x", version: int = 4, **changed: Any) -> Body:
    await coordinator(wire)
    body = {"transactional_id": name, "transaction_timeout_ms": 60_000, **NEW, **changed}
    answer: Body = {}

    async def ask() -> int:
        nonlocal answer
        answer = await wire.ask("InitProducerId", version, **body)
        return int(answer["error_code"])

    await settled(ask, CoordinatorLoadInProgress.code, 16)
    return answer


async def producer(wire: Wire, name: str = "x") -> Body:
    """A new producer of a transactional id."""
    while (answer := await init(wire, name))["error_code"] == ConcurrentTransactions.code:
        pass
    assert answer["error_code"] == NONE
    return {key: answer[key] for key in ("producer_id", "producer_epoch")}


async def add(
    wire: Wire, of: Body, *partitions: int, name: str = "x", topic: str = "t", version: int = 3
) -> list[int]:
    body = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": of["producer_id"],
        "v3_and_below_producer_epoch": of["producer_epoch"],
        "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
    }

    async def ask() -> list[int]:
        [found] = (await wire.ask("AddPartitionsToTxn", version, **body))["results_by_topic_v3_and_below"]
        return [one["partition_error_code"] for one in found["results_by_partition"]]

    while (codes := await ask()) and set(codes) == {ConcurrentTransactions.code}:
        pass
    return codes


async def end(wire: Wire, of: Body, committed: bool, name: str = "x", version: int = 3) -> int:
    answer = await wire.ask("EndTxn", version, transactional_id=name, committed=committed, **of)
    return int(answer["error_code"])


async def write(wire: Wire, of: Body, sequence: int, partition: int = 0, version: int = 9) -> int:
    """One record in a transaction."""
    batch = bytearray(
        build_batch([(b"k", b"v")], producer=(of["producer_id"], of["producer_epoch"], sequence))
    )
    batch[ATTRIBUTES_AT + 1] |= IN_TRANSACTION
    data = [{"name": "t", "partition_data": [{"index": partition, "records": with_crc(batch)}]}]
    answer = await wire.ask(
        "Produce", version, transactional_id="x", acks=-1, timeout_ms=30_000, topic_data=data
    )
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


def with_crc(batch: bytearray) -> bytes:
    """The batch with the CRC-32C of what follows it."""
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    crc = 0xFFFFFFFF
    for byte in batch[21:]:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    batch[17:21] = (crc ^ 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(batch)


async def ends(wire: Wire, isolation: int, partition: int = 0) -> int:
    """The end of the log for readers of this isolation."""
    asked = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
    answer = await wire.ask(
        "ListOffsets",
        5,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": "t", "partitions": [asked]}],
    )
    return int(answer["topics"][0]["partitions"][0]["offset"])


async def until_stable(wire: Wire, offset: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        while await ends(wire, 1) < offset:
            pass


async def describe(wire: Wire, name: str = "x") -> Body:
    [found] = (await wire.ask("DescribeTransactions", 0, transactional_ids=[name]))["transaction_states"]
    return dict(found)


def test_a_transaction_is_seen_once_it_is_committed(tmp_path: Path) -> None:
    async def script(wire: Wire) -> None:
        of = await producer(wire)
        assert await add(wire, of, 0, 1) == [NONE, NONE]
        assert await write(wire, of, 0) == NONE
        assert (await ends(wire, 0), await ends(wire, 1)) == (1, 0)
        found = await describe(wire)
        assert found["transaction_state"] == "Ongoing"
        assert found["topics"] == [{"topic": "t", "partitions": [0, 1]}]
        listed = await wire.ask(
            "ListTransactions",
            1,
            state_filters=["Ongoing", "Odd"],
            producer_id_filters=[],
            duration_filter=-1,
        )
        assert [one["transactional_id"] for one in listed["transaction_states"]] == ["x"]
        assert listed["unknown_state_filters"] == ["Odd"]
        described = await wire.ask("DescribeProducers", 0, topics=[{"name": "t", "partition_indexes": [0]}])
        [state] = described["topics"][0]["partitions"][0]["active_producers"]
        assert state["current_txn_start_offset"] == 0
        assert await end(wire, of, committed=True) == NONE
        await until_stable(wire, 2)
        assert await ends(wire, 0) == 2, "the record and the marker"

    play(tmp_path, script)


def test_wrong_requests_get_kafkas_codes(tmp_path: Path) -> None:
    async def script(wire: Wire) -> None:
        assert (await init(wire, ""))["error_code"] == InvalidRequest.code
        assert (await init(wire, transaction_timeout_ms=0))["error_code"] == InvalidTransactionTimeout.code
        assert (await init(wire, transaction_timeout_ms=900_001))[
            "error_code"
        ] == InvalidTransactionTimeout.code
        old = await producer(wire)
        of = await producer(wire)
        assert of == old | {"producer_epoch": 1}
        assert await add(wire, old, 0) == [ProducerFenced.code]
        assert await add(wire, old, 0, version=1) == [InvalidProducerEpoch.code]
        assert await add(wire, of | {"producer_id": 77}, 0) == [InvalidProducerIdMapping.code]
        assert await add(wire, of, 0, name="nobody") == [InvalidProducerIdMapping.code]
        assert await add(wire, of, 0, 9) == [OperationNotAttempted.code, UnknownTopicOrPartition.code]
        assert await add(wire, of, 0, topic="nowhere") == [UnknownTopicOrPartition.code]
        assert await end(wire, of, committed=True) == InvalidTxnState.code, "it has no partition"
        assert await end(wire, old, committed=True) == ProducerFenced.code
        assert await end(wire, old, committed=True, version=1) == InvalidProducerEpoch.code
        fenced = await init(wire, version=4, **old)
        assert fenced["error_code"] == ProducerFenced.code
        assert (await init(wire, version=3, **old))["error_code"] == InvalidProducerEpoch.code
        found = await describe(wire, "nobody")
        assert found["error_code"] == TransactionalIdNotFound.code

    play(tmp_path, script)


def test_a_batch_of_no_transaction_is_refused(tmp_path: Path) -> None:
    """The leader asks the coordinator before the first batch (KIP-890)."""

    async def script(wire: Wire) -> None:
        of = await producer(wire)
        assert await write(wire, of, 0) == InvalidTxnState.code
        assert await write(wire, of, 0, version=11) == TransactionAbortable.code
        assert await add(wire, of, 0) == [NONE]
        assert await write(wire, of, 0, partition=1) == InvalidTxnState.code
        assert await write(wire, of, 0) == NONE
        assert await write(wire, of, 1) == NONE
        assert await end(wire, of, committed=False) == NONE
        await until_stable(wire, 3)
        assert await write(wire, of, 2) == InvalidTxnState.code
        assert await ends(wire, 0) == 3

    play(tmp_path, script)


def test_without_verification_a_batch_begins_a_transaction(tmp_path: Path) -> None:
    async def script(wire: Wire) -> None:
        assert await write(wire, await producer(wire), 0) == NONE

    play(tmp_path, script, transaction_partition_verification_enable="false")


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    async def script(wire: Wire) -> None:
        await coordinator(wire)
        answer = await init(wire, transaction_timeout_ms=50)
        of = {key: answer[key] for key in NEW}
        assert await add(wire, of, 0) == [NONE]
        assert await write(wire, of, 0) == NONE
        await until_stable(wire, 2)
        assert await end(wire, of, committed=True) == ProducerFenced.code

    play(tmp_path, script, transaction_abort_timed_out_transaction_cleanup_interval_ms="50")


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_count_with_their_transaction(tmp_path: Path, committed: bool) -> None:
    async def script(wire: Wire) -> None:
        of = await producer(wire)
        added = await wire.ask("AddOffsetsToTxn", 3, transactional_id="x", group_id="g", **of)
        while added["error_code"] in (15, 16, ConcurrentTransactions.code):
            added = await wire.ask("AddOffsetsToTxn", 3, transactional_id="x", group_id="g", **of)
        assert added["error_code"] == NONE
        entry = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"}
        topics = [{"name": "t", "partitions": [entry]}, {"name": "nowhere", "partitions": [entry]}]

        async def ask() -> int:
            answer = await wire.ask(
                "TxnOffsetCommit", 3, transactional_id="x", group_id="g", member_id="", topics=topics, **of
            )
            first, second = answer["topics"]
            assert second["partitions"][0]["error_code"] in (UnknownTopicOrPartition.code, 14, 16)
            return int(first["partitions"][0]["error_code"])

        assert await settled(ask, CoordinatorLoadInProgress.code, 16) == NONE

        async def fetched(stable: bool) -> tuple[int, int]:
            asked = [{"name": "t", "partition_indexes": [0]}]
            answer = await wire.ask("OffsetFetch", 7, group_id="g", topics=asked, require_stable=stable)
            one = answer["topics"][0]["partitions"][0]
            return one["error_code"], one["committed_offset"]

        assert await fetched(stable=False) == (NONE, -1)
        assert await fetched(stable=True) == (UnstableOffsetCommit.code, -1)
        assert await end(wire, of, committed) == NONE
        async with asyncio.timeout(TIMEOUT):
            while (found := await fetched(stable=True))[0] == UnstableOffsetCommit.code:
                pass
        assert found == (NONE, 5 if committed else -1)

    play(tmp_path, script)

    async def after(wire: Wire) -> None:
        answer: Body = {}

        async def ask() -> int:
            nonlocal answer
            asked = [{"name": "t", "partition_indexes": [0]}]
            answer = await wire.ask("OffsetFetch", 7, group_id="g", topics=asked, require_stable=True)
            return int(answer["error_code"])

        assert await settled(ask, CoordinatorLoadInProgress.code, 16) == NONE
        assert answer["topics"][0]["partitions"][0]["committed_offset"] == (5 if committed else -1)

    play(tmp_path, after)


def test_an_open_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    of: Body = {}

    async def first(wire: Wire) -> None:
        of.update(await producer(wire))
        assert await add(wire, of, 0) == [NONE]
        assert await write(wire, of, 0) == NONE

    async def second(wire: Wire) -> None:
        assert await ends(wire, 1) == 0

        async def ask() -> int:
            return await end(wire, of, committed=True)

        assert await settled(ask, CoordinatorLoadInProgress.code, 16) == NONE
        await until_stable(wire, 2)

    play(tmp_path, first)
    play(tmp_path, second)


def test_a_hanging_transaction_is_aborted_by_an_operator(tmp_path: Path) -> None:
    """WriteTxnMarkers, as kafka-transactions abort sends it."""

    async def script(wire: Wire) -> None:
        of = await producer(wire)
        assert await write(wire, of, 0) == NONE

        def marker(epoch: int, topic: str = "t") -> list[Body]:
            where = [{"name": topic, "partition_indexes": [0]}]
            return [{**of, "transaction_result": False, "coordinator_epoch": epoch, "topics": where}]

        async def marked(markers: list[Body]) -> int:
            answer = await wire.ask("WriteTxnMarkers", 1, markers=markers)
            return int(answer["markers"][0]["topics"][0]["partitions"][0]["error_code"])

        assert await marked(marker(5, "nowhere")) == UnknownTopicOrPartition.code
        assert await marked(marker(5)) == NONE
        assert await ends(wire, 1) == 2
        fenced = 52
        assert await marked(marker(4)) == fenced, "an older coordinator"
        stale = [marker(6)[0] | {"producer_epoch": -1}]
        assert await marked(stale) != NONE
        assert await ends(wire, 0) == 2

    play(tmp_path, script, transaction_partition_verification_enable="false")
