"""A topic's znode that cannot be read.

If one failed, a mistake in a shell or another program's bug would stop every topic of the cluster.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.controller import znodes
from cluster.errors import LeaderNotAvailable

from ..controller.cutting_proxy import coordinator, running
from ..controller.requests import create, filled, produce, shown, until_shown
from .wire import Wire

LEADER_NOT_AVAILABLE = LeaderNotAvailable.code
SERVED = {0: 0, 1: 0}
STATE = znodes.state_path("bad", 0)


@pytest.mark.parametrize(
    ("path", "data", "served"),
    [
        (znodes.topic_path("bad"), b"garbage", {}),
        (znodes.topic_path("bad"), b"", {}),
        (znodes.topic_path("bad"), b'{"version":3,"partitions":{"0":7}}', {}),
        (STATE, b"", {0: LEADER_NOT_AVAILABLE, 1: 0}),
        (STATE, b'{"leader":', {0: LEADER_NOT_AVAILABLE, 1: 0}),
        (STATE, b'{"leader":0}', {0: LEADER_NOT_AVAILABLE, 1: 0}),
        (znodes.topic_config_path("bad"), b"{oops", SERVED),
        (znodes.topic_config_path("bad"), b'{"version":1,"config":7}', SERVED),
    ],
)
def test_every_other_topic_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, data: bytes, served: dict[int, int]
) -> None:
    async def main() -> None:
        async with coordinator(tmp_path) as (cutter, client):
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                assert await filled(wire, "good") == await filled(wire, "bad") == 0
            sound, _ = await asyncio.to_thread(client.get, path)
            await asyncio.to_thread(client.set, path, data)
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                assert await shown(wire, "good") == SERVED
                assert await shown(wire, "bad") == served
                assert await produce(wire, "good", 0) == 0
                assert await create(wire, "other") == 0
                assert f"znode {path} cannot be read" in caplog.text
                assert "write it as Kafka does" in caplog.text
                assert (await asyncio.to_thread(client.get, path))[0] == data
                await asyncio.to_thread(client.set, path, sound)
                if path == znodes.topic_path("bad"):
                    await until_shown(wire, "bad", SERVED)
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                assert await shown(wire, "bad") == SERVED
                assert broker._server is not None
                assert broker._server.offsets("bad", 0) == (0, 1, 1)

    asyncio.run(main())
