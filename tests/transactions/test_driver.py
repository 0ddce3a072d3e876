"""The transaction coordinator on an event loop that others use.

If one failed, a broker would answer nothing while it ends or lists very many transactions, and its session at
the coordinator could end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster import time_slice
from cluster.broker.handlers import list_transactions
from cluster.errors import NONE
from cluster.model import BrokerId
from cluster.transactions import TransactionCoordinator, TransactionLimits, TransactionState
from tests.groups.logs import NoLog

MANY = 300
TIMEOUT = 30.0


def very_many(**settings: int) -> tuple[TransactionCoordinator, Callable[[], Awaitable[None]]]:
    """A coordinator, and what gives it the transactional ids."""
    ids = iter(range(MANY))

    async def new_id() -> int:
        return next(ids)

    coordinator = TransactionCoordinator(
        TransactionLimits(expiration_ms=0),
        NoLog(),
        cast(Any, None),
        BrokerId(0),
        new_id,
        lambda: 0,
        **settings,
    )
    coordinator.partitions.led(0, 0, new=True)

    async def fill() -> None:
        for number in range(MANY):
            made = await coordinator.init_producer(f"id-{number}", 1, None)
            assert made.error == NONE
            if "abort_interval_ms" in settings:
                assert await coordinator.add_partitions(f"id-{number}", made.producer, []) == NONE

    return coordinator, fill


@pytest.mark.parametrize(
    ("interval", "states"),
    [("expiry_interval_ms", ()), ("abort_interval_ms", (TransactionState.ONGOING,))],
    ids=["expiry", "timeouts"],
)
def test_other_tasks_run_while_very_many_transactional_ids_end(
    interval: str, states: Sequence[TransactionState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice is zero here, so that the number of slices does not depend on the machine."""

    async def run() -> list[int]:
        coordinator, fill = very_many(**{interval: 10})
        await fill()
        monkeypatch.setattr(time_slice, "_SLICE_SECONDS", 0.0)
        coordinator.start()
        left, ended = [MANY], asyncio.Event()

        def look() -> None:
            left.append(len(list(coordinator.list_transactions(states, (), -1))))
            if left[-1]:
                asyncio.get_running_loop().call_soon(look)
            else:
                ended.set()

        look()
        await ended.wait()
        await coordinator.stop()
        return left

    left = asyncio.run(asyncio.wait_for(run(), TIMEOUT))
    assert max(before - after for before, after in pairwise(left)) <= MANY // 10


def test_other_tasks_run_while_very_many_transactional_ids_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> int:
        coordinator, fill = very_many()
        await fill()
        monkeypatch.setattr(time_slice, "_SLICE_SECONDS", 0.0)
        body = {"state_filters": [], "producer_id_filters": []}
        request, context = SimpleNamespace(body=body), SimpleNamespace(transactions=coordinator)
        listing = asyncio.ensure_future(list_transactions.handle(cast(Any, context), cast(Any, request)))
        turns = 0

        def turn() -> None:
            nonlocal turns
            if not listing.done():
                turns += 1
                asyncio.get_running_loop().call_soon(turn)

        turn()
        assert len((await listing)["transaction_states"]) == MANY
        await coordinator.stop()
        return turns

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT)) >= MANY
