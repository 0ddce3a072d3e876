"""Znodes that an operator deletes in the coordinator: a topic's, the controller's.

If one failed, a mistake in a shell would delete records, or leave a cluster without a controller.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from cluster.broker import Broker
from cluster.controller import znodes
from cluster.errors import LeaderNotAvailable, NotLeaderOrFollower

from ..broker.wire import Wire
from .cutting_proxy import coordinator, running, serving
from .requests import below, create, delete, filled, logs, produce, shown, until, until_shown

LEADER_NOT_AVAILABLE = LeaderNotAvailable.code
NOT_LEADER_OR_FOLLOWER = NotLeaderOrFollower.code


def saved(client: KazooClient, path: str) -> list[tuple[str, bytes]]:
    return [(name, client.get(name)[0]) for name in below(client, path)]


def restore(client: KazooClient, nodes: list[tuple[str, bytes]]) -> None:
    """All in one transaction, as a backup is restored."""
    transaction = client.transaction()
    for path, data in nodes:
        transaction.create(path, data)
    transaction.commit()


def ends(broker: Broker, name: str) -> tuple[int, int, int]:
    assert broker._server is not None
    return broker._server.offsets(name, 0)


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_topic_whose_znode_is_deleted_keeps_its_records(tmp_path: Path, restarted: bool) -> None:
    async def vanish(wire: Wire, client: KazooClient) -> list[tuple[str, bytes]]:
        nodes = await asyncio.to_thread(saved, client, znodes.topic_path("t"))
        await asyncio.to_thread(client.delete, znodes.topic_path("t"), recursive=True)
        await until_shown(wire, "t", {})
        assert await produce(wire, "t", 0) == NOT_LEADER_OR_FOLLOWER
        assert logs(tmp_path, "t") == ["t-0", "t-1"]
        return nodes

    async def back(wire: Wire, broker: Broker) -> None:
        await until_shown(wire, "t", {0: 0, 1: 0})
        assert ends(broker, "t") == (0, 1, 1)
        assert await produce(wire, "t", 0) == 0

    async def main() -> None:
        async with coordinator(tmp_path) as (cutter, client):
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                assert await filled(wire, "t") == 0
                nodes = await vanish(wire, client)
                if not restarted:
                    await asyncio.to_thread(restore, client, nodes)
                    await back(wire, broker)
                    return
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                await asyncio.to_thread(restore, client, nodes)
                await back(wire, broker)

    asyncio.run(main())


def test_another_topic_of_the_name_does_not_get_the_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (_cutter, client, broker, wire):
            assert await filled(wire, "t") == 0
            await asyncio.to_thread(client.delete, znodes.topic_path("t"), recursive=True)
            await until_shown(wire, "t", {})
            assert await create(wire, "t") == 0
            assert await shown(wire, "t") == {0: LEADER_NOT_AVAILABLE, 1: LEADER_NOT_AVAILABLE}
            assert await produce(wire, "t", 0) == NOT_LEADER_OR_FOLLOWER
            assert ends(broker, "t") == (0, 1, 1)
            assert "these partitions are offline: t-0, t-1" in caplog.text
            assert await delete(wire, "t") == 0
            assert await create(wire, "t") == 0
            assert await produce(wire, "t", 0) == 0
            assert ends(broker, "t") == (0, 1, 1)

    asyncio.run(main())


def test_a_controller_whose_znode_is_deleted_is_elected_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (_cutter, client, broker, wire):
            assert await filled(wire, "t") == 0

            def epoch() -> int:
                return int(client.get(znodes.CONTROLLER_EPOCH)[0])

            for _ in range(2):
                before = await asyncio.to_thread(epoch)
                await asyncio.to_thread(client.delete, znodes.CONTROLLER)
                await until(lambda before=before: epoch() == before + 1)  # type: ignore[misc]
                assert await asyncio.to_thread(client.exists, znodes.CONTROLLER) is not None
            assert await create(wire, "u") == 0
            assert await produce(wire, "t", 0) == 0
            assert ends(broker, "t") == (0, 2, 2)

    asyncio.run(main())
