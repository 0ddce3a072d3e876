"""The way to the controller, when the controller hangs and another broker takes its office.

If this failed, a leader would wait for a controller that hangs until `request.timeout.ms` is over, and its
in-sync replicas would stay as they are, or would never change again.
"""

from __future__ import annotations

import asyncio

import pytest

from cluster.broker.controller_link import ControllerLink
from cluster.broker.replicas import MetadataCache
from cluster.model import BrokerId
from cluster.peer import Body

from .configs import run

METADATA, VERSION = 3, 1
NEVER_MS = 600_000
LOCAL, HUNG = BrokerId(0), BrokerId(1)


async def answer_here(_api_key: int, _version: int, _body: Body) -> Body:
    return {"from": "here"}


def test_a_request_to_a_controller_that_hangs_fails_once_there_is_another() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            asked.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(never_answers, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            metadata = MetadataCache("cluster")
            endpoint = {"host": "127.0.0.1", "port": port, "listener": "PLAINTEXT", "security_protocol": 0}
            metadata.set_brokers([{"id": HUNG, "rack": None, "endpoints": [endpoint]}])
            link = ControllerLink(metadata, LOCAL, "PLAINTEXT", NEVER_MS, answer_here)
            metadata.set_controller(HUNG)
            under_way = asyncio.create_task(link.request(METADATA, VERSION, {"topics": []}))
            await asked.wait()
            metadata.set_controller(LOCAL)
            with pytest.raises(OSError, match="was closed"):
                await under_way
            assert await link.request(METADATA, VERSION, {"topics": []}) == {"from": "here"}

    run(main)


def test_a_controller_here_that_waits_for_its_coordinator_ends_no_request_later_than_another() -> None:
    """Otherwise a broker that is the controller would never stop without its coordinator."""

    async def never(_api_key: int, _version: int, _body: Body) -> Body:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        metadata = MetadataCache("cluster")
        metadata.set_controller(LOCAL)
        link = ControllerLink(metadata, LOCAL, "PLAINTEXT", 10, never)
        with pytest.raises(TimeoutError):
            await link.request(METADATA, VERSION, {"topics": []})

    run(main)
