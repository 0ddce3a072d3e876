"""Writes of a state topic's partition that are reported out of order.

If one failed, an older commit of an offset would replace a newer one until the coordinator moves.
"""

from __future__ import annotations

import asyncio

import pytest

from cluster.errors import NONE
from cluster.groups import Commit, CommittedOffset, GroupCoordinator, GroupLimits
from cluster.model import TopicPartition
from cluster.state_topics import Batch
from tests.groups.logs import NoLog

ITEM = TopicPartition("t", 0)


class SlowLog(NoLog):
    """A log whose appends wait for replicas that the test plays."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None] | None] = []
        self.at_once = False
        self.appended = asyncio.Event()

    def append(  # type: ignore[override]
        self, topic: str, partition: int, batch: Batch, now_ms: int, timeout_ms: int
    ) -> asyncio.Future[None] | None:
        self.appended.set()
        self.waiting.append(None if self.at_once else asyncio.get_running_loop().create_future())
        return self.waiting[-1]


@pytest.mark.parametrize("at_once", [False, True], ids=["both wait", "the second is replicated at once"])
def test_the_later_of_two_commits_counts(at_once: bool) -> None:
    async def run() -> None:
        log = SlowLog()
        coordinator = GroupCoordinator(GroupLimits(), log, 600_000)
        coordinator.partitions.led(0, 0, new=True)
        commits = []
        for offset in (1, 2):
            log.appended.clear()
            log.at_once = at_once and offset == 2
            offsets = {ITEM: CommittedOffset(offset)}
            commits.append(asyncio.create_task(coordinator.commit(Commit("g", -1, "", None, offsets))))
            await log.appended.wait()
        for future in reversed(log.waiting):
            if future is not None:
                future.set_result(None)
        for commit in commits:
            assert (await commit).error == NONE
        assert coordinator.committed("g")[ITEM].offset == 2
        await coordinator.stop()

    asyncio.run(asyncio.wait_for(run(), 30))
