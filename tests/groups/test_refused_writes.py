"""A coordinator whose log refuses every write, because of missing replicas or a failed disk.

If one failed, clients that retry at once would fill the broker's log with thousands of lines a second.
"""

from __future__ import annotations

import asyncio

import pytest

from cluster.errors import (
    CoordinatorNotAvailable,
    KafkaProtocolError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
)
from cluster.groups import Commit, CommittedOffset, GroupCoordinator, GroupLimits
from cluster.model import TopicPartition
from cluster.state_topics import Batch

from .logs import NoLog


class RefusingLog(NoLog):
    """A log that refuses every write and is empty."""

    error: KafkaProtocolError = NotEnoughReplicas("too few")

    def append(self, topic: str, partition: int, batch: Batch, now_ms: int, timeout_ms: int) -> None:
        raise self.error


def test_the_reason_of_a_refused_write_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        log, now = RefusingLog(), 0
        coordinator = GroupCoordinator(GroupLimits(), log, 600_000)
        coordinator._clock.now = lambda: now  # type: ignore[method-assign]
        coordinator.start()
        coordinator.partitions.led(0, 0, new=True)

        async def lines(code: int) -> int:
            caplog.clear()
            for number in range(3):
                offsets = {TopicPartition("t", 0): CommittedOffset(7)}
                committed = await coordinator.commit(Commit(f"g{number}", -1, "", None, offsets))
                assert committed.error == code
            return len(caplog.records)

        assert [await lines(CoordinatorNotAvailable.code) for _ in range(2)] == [1, 0]
        log.error = KafkaStorageError("no disk")
        assert [await lines(NotCoordinator.code) for _ in range(2)] == [1, 0]
        now = 60_000
        assert [await lines(NotCoordinator.code) for _ in range(2)] == [1, 0]
        await coordinator.stop()

    asyncio.run(asyncio.wait_for(run(), 30))
