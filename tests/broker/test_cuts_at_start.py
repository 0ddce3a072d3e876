"""The connection to the coordinator breaks during the start of the broker.

If one failed, a network that drops one connection would end the start, or a missing coordinator would be
reported as a traceback.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.broker import Broker, BrokerConfig, BrokerStartError
from cluster.controller import ZooKeeper
from cluster.model import Milliseconds

from ..controller.cutting_proxy import coordinator, properties, running
from ..controller.requests import filled, produce, shown
from .wire import Wire


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_start_continues_whichever_request_loses_the_connection(tmp_path: Path, after: bool) -> None:
    async def main() -> None:
        async with coordinator(tmp_path) as (cutter, _):
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                assert await filled(wire, "t") == 0
            cutter.arm(0)
            async with running(tmp_path, cutter.port):
                requests = cutter.seen
            assert requests > 20
            for at in range(1, requests + 1):
                cutter.arm(at, after)
                async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                    assert cutter.cuts == 1 or at > requests - 5
                    cutter.arm(0)
                    assert await shown(wire, "t") == {0: 0, 1: 0}
                    assert await produce(wire, "t", 0) == 0
                    assert broker._server is not None
                    assert broker._server.offsets("t", 0) == (0, at + 1, at + 1)

    asyncio.run(main())


# The first request, the last before the logs, the registration, and one of the controller.
@pytest.mark.parametrize("at", [1, 16, 20, 24])
def test_a_coordinator_that_never_comes_back_ends_the_start_with_one_sentence(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = ZooKeeper.connect

    async def patient(hosts: str, session_timeout_ms: Milliseconds, _: Milliseconds) -> ZooKeeper:
        """The first connection may take long; the coordinator goes after it."""
        return await connect(hosts, session_timeout_ms, Milliseconds(60_000))

    monkeypatch.setattr(ZooKeeper, "connect", patient)

    async def main() -> None:
        async with coordinator(tmp_path) as (cutter, _):
            cutter.arm(at)
            cutter.away = True
            settings = properties(tmp_path, cutter.port) | {"zookeeper.connection.timeout.ms": "700"}
            with pytest.raises(
                BrokerStartError, match=r"none could be made for 700 ms; is the coordinator running"
            ):
                await Broker(BrokerConfig.parse(settings)).start()
            assert cutter.cuts == 1
            cutter.away = False
            monkeypatch.undo()
            async with running(tmp_path, cutter.port) as broker, Wire(broker.bootstrap) as wire:
                assert await filled(wire, "t") == 0

    asyncio.run(main())
