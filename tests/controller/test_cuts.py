"""The connection to the coordinator breaks at each request of each change of topics, before it is forwarded
or before it is answered. The change is carried out, as in Apache Kafka.

If one failed, a network that drops one connection would leave a topic that lost its records, one that exists
only in part, or a partition in Metadata that is not served.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from cluster.broker import Broker
from cluster.controller import znodes
from cluster.errors import (
    InvalidPartitions,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

from ..broker.wire import Wire
from .cutting_proxy import Cutter, coordinator, running, serving
from .requests import CONFIG, WAIT_SECONDS, below, create, delete, filled, grow, logs, produce, shown, until

TOPIC_ALREADY_EXISTS = TopicAlreadyExists.code
INVALID_PARTITIONS = InvalidPartitions.code
UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartition.code
REQUEST_TIMED_OUT = RequestTimedOut.code
NOT_CONTROLLER = NotController.code
_MULTI = 14
_REQUESTS_MAX = 8
"""The coordinator's requests for a change of one topic, and some of its watches."""


async def nothing(wire: Wire, name: str) -> int:
    return 0


async def assert_there(
    wire: Wire, broker: Broker, client: KazooClient, directory: Path, name: str, partitions: int, records: int
) -> None:
    """The topic is whole: znodes, settings, logs, Metadata; each partition accepts records."""
    numbers = range(partitions)
    found = await asyncio.to_thread(below, client, znodes.topic_path(name))
    states = [f"{znodes.partition_path(name, number)}" for number in numbers]
    expected = [znodes.topic_path(name), znodes.partitions_path(name), *states]
    assert sorted(found) == sorted([*expected, *(znodes.state_path(name, number) for number in numbers)])
    [config, _] = await asyncio.to_thread(client.get, znodes.topic_config_path(name))
    assert json.loads(config)["config"] == CONFIG
    assert logs(directory, name) == [f"{name}-{number}" for number in numbers]
    assert await shown(wire, name) == dict.fromkeys(numbers, 0)
    assert broker._server is not None
    assert broker._server.offsets(name, 0) == (0, records, records)
    for number in numbers:
        assert await produce(wire, name, number) == 0


async def assert_gone(
    wire: Wire, broker: Broker, client: KazooClient, directory: Path, name: str, *_: int
) -> None:
    """Nothing is left of the topic."""
    assert await asyncio.to_thread(below, client, znodes.topic_path(name)) == []
    assert await asyncio.to_thread(client.exists, znodes.topic_config_path(name)) is None
    assert logs(directory, name) == []
    assert await shown(wire, name) == {}
    assert await create(wire, name) == 0
    assert broker._server is not None
    assert broker._server.offsets(name, 0) == (0, 0, 0)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("prepare", "change", "check", "partitions", "records"),
    [
        (nothing, create, assert_there, 2, 0),
        (filled, grow, assert_there, 3, 1),
        (filled, delete, assert_gone, 0, 0),
    ],
    ids=["create", "grow", "delete"],
)
def test_a_change_is_carried_out_whichever_request_loses_the_connection(
    tmp_path: Path,
    prepare: Callable[[Wire, str], Awaitable[int]],
    change: Callable[[Wire, str], Awaitable[int]],
    check: Callable[..., Awaitable[None]],
    partitions: int,
    records: int,
    after: bool,
) -> None:
    async def changed(wire: Wire, cutter: Cutter, broker: Broker, name: str, at: int) -> int:
        """Changes a topic and loses the connection at a request. Returns the number of requests."""
        assert await prepare(wire, name) == 0
        assert broker._controller is not None
        # Events of a new connection are done before work that is queued after them.
        await broker._controller.topic_config_changed(name)
        cutter.arm(at, after)
        assert await change(wire, name) == 0
        # Requests of watches may come after the response.
        assert cutter.cuts == (at > 0) or at > 2
        seen = cutter.seen
        cutter.arm(0)
        return seen

    async def run(cutter: Cutter, client: KazooClient, broker: Broker) -> None:
        async with Wire(broker.bootstrap) as wire:
            requests = await changed(wire, cutter, broker, "t0", 0)
            assert requests >= 2
            for at in range(1, requests + 1):
                name = f"t{at}"
                await changed(wire, cutter, broker, name, at)
                assert await asyncio.to_thread(client.get_children, znodes.DELETE_TOPICS) == []
                await check(wire, broker, client, tmp_path, name, partitions, records)

    async def main() -> None:
        async with coordinator(tmp_path) as (cutter, client), running(tmp_path, cutter.port) as broker:
            await run(cutter, client, broker)
        # The next start finds the same.
        async with serving(tmp_path) as (cutter, _, broker, wire):
            assert set((await shown(wire, "t1")).values()) == {0}

    asyncio.run(main())


# If this failed, a piece of work that a lost session interrupts would stay half done.
@pytest.mark.parametrize(
    ("prepare", "change", "there_already", "check", "partitions", "records"),
    [
        (nothing, create, TOPIC_ALREADY_EXISTS, assert_there, 2, 0),
        (filled, grow, INVALID_PARTITIONS, assert_there, 3, 1),
        (filled, delete, UNKNOWN_TOPIC_OR_PARTITION, assert_gone, 0, 0),
    ],
    ids=["create", "grow", "delete"],
)
def test_a_change_whose_session_ends_is_whole_once_it_is_repeated(
    tmp_path: Path,
    prepare: Callable[[Wire, str], Awaitable[int]],
    change: Callable[[Wire, str], Awaitable[int]],
    there_already: int,
    check: Callable[..., Awaitable[None]],
    partitions: int,
    records: int,
) -> None:
    def elected(client: KazooClient, broker: Broker) -> bool:
        """The broker's current session is the controller's."""
        assert broker._controller is not None
        assert broker._zk is not None
        office = client.exists(znodes.CONTROLLER)
        owner = None if office is None else office.ephemeralOwner
        return owner == broker._zk.session_id and broker._controller.active

    async def repeated(wire: Wire, name: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while (code := await change(wire, name)) in (REQUEST_TIMED_OUT, NOT_CONTROLLER):
                # A client does so after that error.
                await asyncio.sleep(0.02)
        assert code in (0, there_already)

    async def main() -> None:
        async with coordinator(tmp_path) as (cutter, client), running(tmp_path, cutter.port) as broker:
            cutter.expires = True
            async with Wire(broker.bootstrap) as wire:
                for at in range(1, _REQUESTS_MAX + 1):
                    name = f"t{at}"
                    assert await prepare(wire, name) == 0
                    assert broker._controller is not None
                    await broker._controller.topic_config_changed(name)
                    cutter.arm(at)
                    await repeated(wire, name)
                    cutter.at = 0
                    await until(lambda: cutter.ended or not cutter.cuts)
                    # The reads of an election are done before work that is queued after them.
                    await until(lambda: elected(client, broker))
                    await broker._controller.topic_config_changed(name)
                    assert await asyncio.to_thread(client.get_children, znodes.DELETE_TOPICS) == []
                    await check(wire, broker, client, tmp_path, name, partitions, records)

    asyncio.run(main())


# If this failed, a broker that dies during a deletion would find half a topic and no request to delete it.
def test_the_request_to_delete_a_topic_goes_last(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (cutter, _, _broker, wire):
            assert await filled(wire, "t") == 0
            cutter.arm(0)
            assert await delete(wire, "t") == 0
            writes = [item for item in cutter.requests if struct.unpack_from(">i", item, 8)[0] == _MULTI]
            assert znodes.delete_topic_path("t").encode() in writes[-1]

    asyncio.run(main())
