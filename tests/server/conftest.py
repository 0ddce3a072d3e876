"""Fixtures with a Rust server in a temporary directory, without the broker's Python."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.broker.replicas import PartitionSpec
from logcore._native import Request, Server
from tests.ports import free_port

from . import wire

NODE = 1
TOPIC_ID = bytes(range(16))
CLUSTER = "abcdefghijklmnopqrstug"


def open_server(path: Path, config: dict[str, int | str | bool] | None = None) -> Server:
    return Server(node_id=NODE, cluster_id=CLUSTER, log_dirs=[str(path)], config=config or {})


class Running:
    """A server that serves partition 0 of topic `t`."""

    def __init__(self, path: Path, config: dict[str, int | str | bool]) -> None:
        self.path = path
        self.server = open_server(path, config)
        self.server.create_partition(PartitionSpec("t", TOPIC_ID, 0, 0, NODE, {}))
        (self.port,) = self.server.start([("PLAINTEXT", "127.0.0.1", free_port())])

    def client(self) -> wire.Client:
        return wire.Client(self.port)

    def wait(self) -> None:
        """Waits for requests or log lines."""
        readable, _, _ = select.select([self.server.wake_fd], [], [], wire.TIMEOUT)
        assert readable, "no request and no log line"

    def take(self, count: int) -> list[Request]:
        """Waits for `count` requests and takes them."""
        taken: list[Request] = []
        while len(taken) < count:
            self.wait()
            taken += self.server.take_requests(100)
        return taken

    def wait_for_line(self, part: str) -> str:
        """Waits for a log line that contains `part`."""
        while True:
            self.wait()
            self.server.take_requests(100)
            for _, line, _ in self.server.take_log_lines():
                if part in line:
                    return line


StartServer = Callable[..., Running]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    running: list[Running] = []

    def start(**config: int | str | bool) -> Running:
        properties = {name.replace("_", "."): value for name, value in config.items()}
        running.append(Running(tmp_path / f"logs{len(running)}", properties))
        return running[-1]

    yield start
    for each in running:
        each.server.stop()


@pytest.fixture
def running(start_server: StartServer) -> Running:
    return start_server()
