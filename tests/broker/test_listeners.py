"""Listeners as Apache Kafka accepts them. If one failed, a file on which Kafka starts would not start this
broker.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cluster.broker import Broker, BrokerConfig
from cluster.errors import NONE
from tests.ports import free_port

from .test_jbod import settings
from .wire import Wire


def port_of_both() -> int:
    """A port that is free on both loopback addresses."""
    while True:
        port = free_port()
        try:
            socket.create_server(("::1", port), family=socket.AF_INET6).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                pytest.skip(f"there is no IPv6 loopback here: {error}")
            continue
        return port


def test_one_port_for_both_ip_versions_and_names_in_any_case(tmp_path: Path) -> None:
    port = port_of_both()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            given = await settings(stack, tmp_path) | {
                "listeners": f"V4://127.0.0.1:{port},V6://[::1]:{port}",
                "listener.security.protocol.map": "V4:plaintext,V6:PLAINTEXT",
                "inter.broker.listener.name": "v4",
            }
            broker = Broker(BrokerConfig.parse(given))
            await broker.start()
            stack.push_async_callback(broker.stop)
            for host in ("127.0.0.1", "::1"):
                async with Wire(f"{host}:{port}") as wire:
                    [broker_info] = (await wire.ask("Metadata", 8, topics=[]))["brokers"]
                    assert (broker_info["host"], broker_info["port"]) == (host, port)
                    assert (await wire.ask("ApiVersions", 0))["error_code"] == NONE

    asyncio.run(asyncio.wait_for(run(), 60))
