"""Three processes of `logcore coordinator zoo.cfg`. If these fail, an ensemble loses what it answered, or a session, with one of its
servers, or does not come back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient, KazooState

pytestmark = pytest.mark.timeout(180)
WAIT_SECONDS = 60.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Processes:
    """Members 1 to 3 below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = free_ports(9)
        self.clients = dict(zip((1, 2, 3), ports, strict=False))
        lines = [f"server.{n}=127.0.0.1:{ports[2 + n]}:{ports[5 + n]}" for n in (1, 2, 3)]
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        for number, port in self.clients.items():
            (directory / str(number)).mkdir()
            (directory / str(number) / "myid").write_text(f"{number}\n")
            settings = [
                f"dataDir={directory / str(number)}",
                f"clientPort={port}",
                "clientPortAddress=127.0.0.1",
                "tickTime=1000",
                "initLimit=20",
                "syncLimit=5",
                "maxClientCnxns=0",
                "snapCount=100",
                "admin.enableServer=false",
                "4lw.commands.whitelist=*",
                *lines,
            ]
            (directory / f"zoo{number}.cfg").write_text("\n".join(settings) + "\n")

    def start(self, number: int) -> None:
        command = [
            sys.executable,
            "-m",
            "cluster.cli",
            "coordinator",
            str(self.directory / f"zoo{number}.cfg"),
        ]
        with open(self.directory / f"{number}.log", "ab") as output:
            self.running[number] = subprocess.Popen(command, stdout=output, stderr=output)

    def end(self, number: int, how: signal.Signals) -> None:
        process = self.running.pop(number)
        process.send_signal(how)
        process.wait(WAIT_SECONDS)

    def ask(self, number: int, word: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.clients[number]), 5) as asked:
                asked.sendall(word.encode())
                with asked.makefile() as answer:
                    return answer.read()
        except OSError:
            return ""

    def mode(self, number: int) -> str:
        found = re.search(r"^Mode: (.*)$", self.ask(number, "srvr"), re.MULTILINE)
        return found[1] if found is not None else ""

    def modes(self) -> list[str]:
        return sorted(self.mode(number) for number in self.clients)

    def leader(self) -> int:
        self.wait(lambda: "leader" in self.modes())
        return next((number for number in self.clients if self.mode(number) == "leader"), 0) or self.leader()

    def wait(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not what():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.directory.glob("*.log")))

    def hosts(self, *numbers: int) -> str:
        return ",".join(f"127.0.0.1:{self.clients[number]}" for number in numbers or self.clients)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    for number in processes.clients:
        processes.start(number)
    yield processes
    for process in processes.running.values():
        process.kill()
        process.wait(WAIT_SECONDS)


@pytest.fixture
def connect(processes: Processes) -> Iterator[Callable[..., KazooClient]]:
    clients: list[KazooClient] = []

    def start(*numbers: int) -> KazooClient:
        clients.append(KazooClient(hosts=processes.hosts(*numbers), timeout=20.0))
        clients[-1].start(timeout=WAIT_SECONDS)
        return clients[-1]

    yield start
    for client in clients:
        client.stop()
        client.close()


def test_an_ensemble_survives_its_servers(processes: Processes, connect: Callable[..., KazooClient]) -> None:
    processes.wait(lambda: processes.modes() == ["follower", "follower", "leader"])
    leader = processes.leader()
    survivors = [number for number in processes.clients if number != leader]
    client, watcher = connect(*survivors), connect(survivors[0])
    session = client.client_id[0]
    client.create("/e", b"", ephemeral=True)
    client.create("/n", b"")
    gone = threading.Event()
    watcher.sync("/")
    assert watcher.exists("/e", watch=lambda _event: gone.set())

    # The leader is killed while writes are on their way: each counts once.
    pending = [client.set_async("/n", str(number).encode()) for number in range(100)]
    processes.end(leader, signal.SIGKILL)
    pending += [client.set_async("/n", str(number).encode()) for number in range(100, 200)]
    assert [each.get(timeout=WAIT_SECONDS).version for each in pending] == list(range(1, 201))
    assert client.client_id[0] == session
    assert not gone.is_set()

    # It comes back with nothing, and gets everything.
    shutil.rmtree(processes.directory / str(leader) / "quorum")
    processes.start(leader)
    processes.wait(lambda: processes.mode(leader) == "follower")
    late = connect(leader)
    late.sync("/")
    assert late.get("/n")[0] == b"199"
    assert late.get("/e")[1].ephemeralOwner == session

    # All of them are killed, and come back with what was answered and whose sessions go on.
    states: list[str] = []
    client.add_listener(states.append)
    for number in list(processes.running):
        processes.end(number, signal.SIGKILL)
    for number in processes.clients:
        processes.start(number)
    processes.wait(lambda: states and states[-1] == KazooState.CONNECTED)
    assert client.client_id[0] == session
    assert client.get("/n")[0] == b"199"
    assert client.exists("/e")

    # A leader that is told to stop hands over.
    leader = processes.leader()
    processes.end(leader, signal.SIGTERM)
    assert processes.logs().count("the coordinator has stopped; what it answered is on disk") == 1
    survivor = next(number for number in processes.clients if number != leader)
    assert connect(survivor).set("/n", b"last").version == 201


def test_a_frozen_leader_is_replaced_and_follows(
    processes: Processes, connect: Callable[..., KazooClient]
) -> None:
    processes.wait(lambda: processes.modes() == ["follower", "follower", "leader"])
    leader = processes.leader()
    others = [number for number in processes.clients if number != leader]
    client = connect(*others)
    client.create("/e", b"", ephemeral=True)
    os.kill(processes.running[leader].pid, signal.SIGSTOP)
    try:
        assert client.set("/e", b"while it is frozen").version == 1
    finally:
        os.kill(processes.running[leader].pid, signal.SIGCONT)
    processes.wait(lambda: processes.mode(leader) == "follower")
    thawed = connect(leader)
    thawed.sync("/")
    assert thawed.get("/e")[0] == b"while it is frozen"
