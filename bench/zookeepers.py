"""The coordinators that bench/coordinator.py loads: logcore's and Apache ZooKeeper 3.9.4, as one server or as
an ensemble on loopback. Both start with the same `zoo.cfg`, except for directories and ports.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from servers import PEERS, Server, free_port
from sessions import Session, SessionFailed

OURS, ZOOKEEPER = "logcore", "Apache ZooKeeper 3.9.4"
JARS = PEERS / "zookeeper-3.9.4"
HEAP = "-Xmx1000m"  # zkEnv.sh's own default


class Ensemble:
    """The members of one ensemble, or one server."""

    def __init__(self, name: str, directory: Path, size: int) -> None:
        self.name = name
        self.ports = [free_port() for _ in range(size)]
        self._size = size
        self._configs = self._write(directory)
        self.members: list[Server] = []
        self.seconds_to_answer = 0.0
        self.by_role: list[int] = []
        """The ports after the start, the leader's last."""

    def _write(self, directory: Path) -> list[Path]:
        lines = [
            "tickTime=2000",
            "initLimit=10",
            "syncLimit=5",
            "maxClientCnxns=0",
            "maxSessionTimeout=600000",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
        ]
        if self._size > 1:
            lines += [
                f"server.{number}=127.0.0.1:{free_port()}:{free_port()}"
                for number in range(1, self._size + 1)
            ]
        configs = []
        for number, port in enumerate(self.ports, 1):
            data = directory / f"member-{number}"
            data.mkdir(parents=True)
            (data / "myid").write_text(f"{number}\n")
            config = directory / f"zoo-{number}.cfg"
            config.write_text("\n".join([*lines, f"dataDir={data}", f"clientPort={port}", ""]))
            configs.append(config)
        return configs

    def start(self) -> None:
        """Starts the members, and returns when each has opened a session.

        Raises:
            RuntimeError: a member ended, or opened no session within two minutes.
        """
        began = time.monotonic()
        try:
            with ThreadPoolExecutor(self._size) as together:  # a member may wait for another
                started = [
                    together.submit(self._member, config, port)
                    for config, port in zip(self._configs, self.ports, strict=True)
                ]
            for future in started:
                future.result()
            for member in self.members:
                _wait_for_session(member, began + 120)
        except BaseException:
            self.stop()
            raise
        self.seconds_to_answer = time.monotonic() - began
        self.by_role = sorted(self.ports, key=_is_leader)

    def _member(self, config: Path, port: int) -> None:
        output = config.with_suffix(".out")
        self.members.append(Server(self.name, self._command(config), port, output, kafka=False))

    def _command(self, config: Path) -> list[str]:
        if self.name == OURS:
            return [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
        if not (JARS / ".complete").exists():
            raise RuntimeError(
                "the jars of Apache ZooKeeper 3.9.4 are missing: run `make peers` (it needs java and mvn)"
            )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", HEAP, "-cp", f"{JARS}/*", main, str(config)]

    def stop(self) -> None:
        for member in self.members:
            member.stop()
        self.members.clear()

    def kill(self, port: int) -> None:
        """Kills the member at this port. The others stay."""
        member = next(member for member in self.members if member.port == port)
        member.kill()
        self.members.remove(member)

    def resident_mb(self) -> float:
        """The resident memory of the largest member."""
        return max(member.resident_mb() for member in self.members)


def _is_leader(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as asking:
        asking.sendall(b"srvr")
        text_shown = b"".join(iter(lambda: asking.recv(4096), b""))
    return b"\nMode: leader" in text_shown


def _wait_for_session(member: Server, end: float) -> None:
    pause = threading.Event()
    while True:
        with contextlib.suppress(OSError, SessionFailed):
            Session(member.port, patience=1).close()
            return
        member.pids()
        if time.monotonic() > end:
            raise RuntimeError(f"{member.name} opened no session; it said:\n{member.last_output()}")
        pause.wait(0.01)


@contextlib.contextmanager
def running(name: str, directory: Path, size: int) -> Iterator[Ensemble]:
    ensemble = Ensemble(name, directory, size)
    ensemble.start()
    try:
        yield ensemble
    finally:
        ensemble.stop()
