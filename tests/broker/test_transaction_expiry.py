"""Transactional ids that nobody uses are forgotten.

If it failed, __transaction_state and the broker's memory would grow with every transactional id ever used.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    NotCoordinator,
    TransactionalIdNotFound,
)

from .test_embedded import embedded
from .wire import Wire

PASSING = (CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code, NotCoordinator.code)
TIMEOUT = 60.0


async def producer(wire: Wire) -> dict[str, int]:
    """A producer of the transactional id `x`."""
    while (await wire.ask("FindCoordinator", 3, key="x", key_type=1))["error_code"] in PASSING:
        pass
    body = {
        "transactional_id": "x",
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    while (answer := await wire.ask("InitProducerId", 4, **body))["error_code"] in PASSING:
        pass
    assert answer["error_code"] == NONE
    return {key: answer[key] for key in ("producer_id", "producer_epoch")}


async def described(wire: Wire, *passing: int) -> int:
    """The code of `x` in DescribeTransactions, once it is none of those that pass by themselves."""
    while True:
        [found] = (await wire.ask("DescribeTransactions", 0, transactional_ids=["x"]))["transaction_states"]
        if found["error_code"] not in passing:
            return int(found["error_code"])


def test_an_unused_transactional_id_expires_for_good(tmp_path: Path) -> None:
    async def first() -> int:
        settings = {
            "transactional_id_expiration_ms": "1",
            "transaction_remove_expired_transaction_cleanup_interval_ms": "50",
        }
        async with embedded(tmp_path, **settings) as broker, Wire(broker.bootstrap) as wire:
            of = await producer(wire)
            assert await described(wire, NONE) == TransactionalIdNotFound.code
            ended = await wire.ask("EndTxn", 3, transactional_id="x", committed=True, **of)
            assert ended["error_code"] == InvalidProducerIdMapping.code
            return of["producer_id"]

    async def second(before: int) -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert await described(wire, *PASSING) == TransactionalIdNotFound.code, "the tombstone is read"
            of = await producer(wire)
            assert of["producer_epoch"] == 0
            assert of["producer_id"] != before
            assert await described(wire) == NONE

    async def run() -> None:
        await second(await first())

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))
