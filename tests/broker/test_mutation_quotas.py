"""The quota of creations and deletions of partitions (KIP-599).

If one failed, a client could keep the controller busy without a limit, or would be refused or throttled
within its quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from cluster.broker.dynamic import mutations
from cluster.broker.dynamic.mutations import KEY, MutationQuotas
from cluster.broker.dynamic.quotas import ClientQuota
from cluster.errors import NONE, ThrottlingQuotaExceeded

from .configs import embedded, limit
from .wire import Wire


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def quotas(*bounds: ClientQuota, clock: Clock | None = None) -> MutationQuotas:
    """With a window of 11 seconds."""
    found = MutationQuotas(11, clock or Clock())
    found.replace(bounds)
    return found


def bound(user: str | None, client: str | None, per_second: float) -> ClientQuota:
    return user, client, {KEY: per_second}


def test_a_strict_quota_refuses_changes_once_it_is_used_up() -> None:
    clock = Clock()
    all_of = quotas(bound(None, "", 5.0), clock=clock)
    quota = all_of.of("u", "c", strict=True)
    quota.record(50)
    # 55 were saved: five are left, and the change that takes the last of them may be larger.
    quota.record(50)
    assert quota.throttle_ms() == 0
    for waits in (9000, 5000):
        with pytest.raises(ThrottlingQuotaExceeded):
            quota.record(1)
        assert quota.throttle_ms() == waits
        clock.now += 4
    assert quota.throttle_ms() == 1000
    clock.now += 1
    again = all_of.of("u", "c", strict=True)
    again.record(1)
    assert again.throttle_ms() == quota.throttle_ms() == 0
    # No other client waits.
    all_of.of("u", "d", strict=True).record(55)


def test_a_permissive_quota_accepts_everything_and_throttles_its_client() -> None:
    quota = quotas(bound("u", None, 5.0)).of("u", "c", strict=False)
    quota.record(55)
    assert quota.throttle_ms() == 0
    quota.record(5)
    assert quota.throttle_ms() == 1000
    quota.record(5)
    assert quota.throttle_ms() == 2000


def test_the_most_specific_quota_counts_and_says_who_shares_it() -> None:
    # From the weakest to the strongest (`ClientQuotaManager`).
    order: list[tuple[str | None, str | None, tuple[str, str]]] = [
        (None, "", ("", "c")),
        (None, "c", ("", "c")),
        ("", None, ("u", "")),
        ("", "", ("u", "c")),
        ("", "c", ("u", "c")),
        ("u", None, ("u", "")),
        ("u", "", ("u", "c")),
        ("u", "c", ("u", "c")),
    ]
    others = [bound("other", None, 100.0), bound("other", "c", 101.0), bound(None, "other", 102.0)]
    assert quotas(*others).bound("u", "c") is None
    for rank, (_, _, shared) in enumerate(order):
        given = [bound(user, client, float(at)) for at, (user, client, _) in enumerate(order[: rank + 1])]
        assert quotas(*others, *given).bound("u", "c") == (rank, shared)


def test_a_rate_of_zero_is_an_endless_wait() -> None:
    all_of = quotas(bound(None, "", 0.0))
    all_of.of("u", "c", strict=True).record(1)
    quota = all_of.of("u", "c", strict=True)
    with pytest.raises(ThrottlingQuotaExceeded):
        quota.record(1)
    assert quota.throttle_ms() == 2**31 - 1


def test_new_rates_apply_at_once_and_removing_them_resets_buckets() -> None:
    all_of = quotas(bound(None, "", 1.0))
    all_of.of("u", "c", strict=True).record(111)
    all_of.replace([bound(None, "", 100.0)])
    quota = all_of.of("u", "c", strict=True)
    with pytest.raises(ThrottlingQuotaExceeded):
        quota.record(1)
    assert quota.throttle_ms() == 1000
    all_of.replace([])
    all_of.of("u", "c", strict=True).record(1)
    all_of.replace([bound(None, "", 1.0)])
    all_of.of("u", "c", strict=True).record(1)


def test_the_buckets_of_endless_clients_have_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "_BUCKETS_MAX", 8)
    clock = Clock()
    all_of = quotas(bound(None, "", 1.0), clock=clock)
    for number in range(100):
        clock.now += 2
        all_of.of("u", str(number), strict=True).record(100)
        assert len(all_of._buckets) <= 8
    with pytest.raises(ThrottlingQuotaExceeded):
        all_of.of("u", "99", strict=True).record(1)


# ---- over the wire ----


@asynccontextmanager
async def used_up(data: Path) -> AsyncIterator[tuple[str, Wire, Clock]]:
    """A broker whose clients have used two seconds of their quota, with a topic `t` of 30 partitions, and the
    quota's clock.
    """
    window = {"controller_quota_window_num": "1"}
    async with embedded(data, **window) as broker, Wire(broker.bootstrap) as admin:
        assert broker._dynamic is not None
        clock = broker._dynamic.mutations.clock = Clock()
        assert await limit(admin, {"client-id": "test"}, controller_mutation_rate=10.0) == "ok"
        answer = await create(admin, 6, "t", 30)
        assert outcome(answer["topics"]) == [("t", NONE)]
        assert answer["throttle_time_ms"] == 0
        yield broker.bootstrap, admin, clock


async def create(wire: Wire, version: int, name: str, partitions: int, check: bool = False) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    return await wire.ask("CreateTopics", version, topics=[topic], timeout_ms=30_000, validate_only=check)


def outcome(results: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(result["name"], result["error_code"]) for result in results]


Ask = Callable[[Wire], Awaitable[dict[str, Any]]]

STRICT: dict[str, Ask] = {
    "topics": lambda wire: create(wire, 6, "u", 1),
    "responses": lambda wire: wire.ask("DeleteTopics", 5, topic_names=["t"], timeout_ms=30_000),
    "results": lambda wire: wire.ask(
        "CreatePartitions", 3, topics=[{"name": "t", "count": 31, "assignments": None}], timeout_ms=30_000
    ),
}
PERMISSIVE: dict[str, Ask] = {
    "topics": lambda wire: create(wire, 5, "u", 1),
    "responses": lambda wire: wire.ask("DeleteTopics", 4, topic_names=["t"], timeout_ms=30_000),
    "results": lambda wire: wire.ask(
        "CreatePartitions", 2, topics=[{"name": "t", "count": 31, "assignments": None}], timeout_ms=30_000
    ),
}


@pytest.mark.parametrize("field", STRICT)
def test_newer_versions_are_refused_above_the_quota(tmp_path: Path, field: str) -> None:
    async def work() -> None:
        async with used_up(tmp_path) as (bootstrap, admin, clock), Wire(bootstrap) as wire:
            # Checks and unknown topics are answered as always.
            assert outcome((await create(admin, 6, "u", 1, check=True))["topics"]) == [("u", NONE)]
            before = monotonic()
            answer = await STRICT[field](wire)
            [(_, code)] = outcome(answer[field])
            assert code == ThrottlingQuotaExceeded.code
            assert answer["throttle_time_ms"] == 2000
            # The connection is not read for that time.
            await wire.ask("ApiVersions", 0)
            assert (monotonic() - before) * 1000 >= answer["throttle_time_ms"]
            # Then the bucket has tokens again.
            clock.now += 2
            [(_, code)] = outcome((await STRICT[field](wire))[field])
            assert code == NONE

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("field", PERMISSIVE)
def test_older_versions_are_served_above_the_quota_and_wait(tmp_path: Path, field: str) -> None:
    async def work() -> None:
        async with used_up(tmp_path) as (bootstrap, _, _), Wire(bootstrap) as wire:
            answer = await PERMISSIVE[field](wire)
            [(_, code)] = outcome(answer[field])
            assert code == NONE
            assert answer["throttle_time_ms"] > 0

    asyncio.run(asyncio.wait_for(work(), 60))
