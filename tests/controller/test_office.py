"""The end of a controller: another broker's wait for it. If these failed, a cluster would have no controller
until the session of a killed one ends, or would depose one that is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from cluster.controller import znodes
from cluster.controller.channel import Transport
from cluster.controller.office import give_up_when_refused
from cluster.controller.zookeeper import BadVersionError, Check, Delete, ZooKeeper
from cluster.model import BrokerId

pytestmark = pytest.mark.timeout(30)


class Way:
    """The way to the controller: what each attempt to connect gives. A connection ends at once. After all
    attempts the next one waits.
    """

    def __init__(self, *attempts: Exception | None) -> None:
        self._attempts = list(attempts)
        self.closed = False
        self.used_up = asyncio.Event()

    @property
    def left(self) -> int:
        """The attempts that were not made."""
        return len(self._attempts)

    async def connect(self) -> None:
        if not self._attempts:
            self.used_up.set()
            await asyncio.Event().wait()
        attempt = self._attempts.pop(0)
        if attempt is not None:
            raise attempt

    async def lost(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Nodes:
    """The coordinator."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.done: list[Sequence[Any]] = []
        self._failure = failure

    async def transaction(self, operations: Sequence[Any]) -> None:
        self.done.append(operations)
        if self._failure is not None:
            raise self._failure


def wait(nodes: Nodes, way: Way) -> None:
    zk, transport = cast(ZooKeeper, nodes), cast(Transport, way)
    asyncio.run(give_up_when_refused(zk, BrokerId(1), 7, transport))


def test_a_controller_is_deposed_when_it_refuses_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.controller.office._PAUSE_SECONDS", 0)
    nodes, way = Nodes(), Way(None, TimeoutError(), ConnectionRefusedError())
    wait(nodes, way)
    assert nodes.done == [[Check(znodes.CONTROLLER_EPOCH, 7), Delete(znodes.CONTROLLER)]]
    assert way.closed


def test_a_newer_election_is_left_alone() -> None:
    nodes, way = Nodes(BadVersionError()), Way(None, ConnectionRefusedError())
    wait(nodes, way)
    assert len(nodes.done) == 1


def test_a_controller_that_does_not_listen_yet_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.controller.office._PAUSE_SECONDS", 0)
    refused = ConnectionRefusedError()
    nodes, way = Nodes(), Way(refused, refused, None, refused)
    wait(nodes, way)
    assert (len(nodes.done), way.left) == (1, 0)


def test_nothing_is_deleted_while_the_controller_answers_or_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.controller.office._PAUSE_SECONDS", 0)

    async def cancelled() -> None:
        way = Way(None, TimeoutError(), None, TimeoutError())
        waiting = asyncio.create_task(
            give_up_when_refused(cast(ZooKeeper, nodes), BrokerId(1), 7, cast(Transport, way))
        )
        await way.used_up.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert way.closed

    nodes = Nodes()
    asyncio.run(cancelled())
    assert nodes.done == []
