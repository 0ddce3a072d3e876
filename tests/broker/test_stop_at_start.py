"""A signal during the start of a broker or a coordinator ends the start.

If one failed, Ctrl-C would do nothing until a waiting start gives up, or the start would leave open logs,
which the next one would have to recover.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from cluster.broker import Broker, BrokerConfig, BrokerStopError, run_embedded
from cluster.controller import Controller, ZooKeeper, zookeeper
from cluster.coordinator import CoordinatorServer, parse_configuration, run_coordinator
from cluster.coordinator.durability.log import TransactionLog
from cluster.model import Milliseconds

from ..controller.requests import until
from .wire import Wire

WAIT_SECONDS = 30.0
SOON_SECONDS = 10.0
"""Far below the time that the start would wait by itself."""
NEVER_MS = "600000"

STOPPED = "logcore has stopped; every log was closed cleanly\n"


def properties(directory: Path, coordinator_port: int) -> dict[str, str]:
    return {
        "broker.id": "0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / "kafka-logs"),
        "zookeeper.connect": f"127.0.0.1:{coordinator_port}/kafka",
        "zookeeper.connection.timeout.ms": NEVER_MS,
        "zookeeper.session.timeout.ms": NEVER_MS,
    }


# If this failed, a broker whose coordinator is down would have to be killed, or its next start would fail.
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_waits_for_its_coordinator_can_be_stopped(tmp_path: Path, sig: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_SECONDS)
        settings = properties(tmp_path, silent.getsockname()[1])
        file = tmp_path / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [sys.executable, "-m", "cluster.cli", "broker", str(file)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(sig)
                try:
                    said, _ = process.communicate(timeout=SOON_SECONDS)
                finally:
                    process.kill()
    assert said == STOPPED
    assert process.returncode == 0
    asyncio.run(serves(tmp_path))


async def serves(directory: Path) -> None:
    """Starts a broker and its coordinator on the directory."""
    async with AsyncExitStack() as stack:
        coordinator = CoordinatorServer(directory / "coordinator", "127.0.0.1", 0)
        port = await coordinator.start()
        stack.push_async_callback(coordinator.stop)
        broker = Broker(BrokerConfig.parse(properties(directory, port)))
        await broker.start()
        stack.push_async_callback(broker.stop)
        assert broker.bootstrap


# If this failed, a stop would wait for a stuck coordinator as long as a session timeout.
def test_a_session_whose_end_is_not_confirmed_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zookeeper, "_CLOSE_SECONDS", 0.1)

    reply = struct.pack(">iiqi", 0, int(NEVER_MS), 77, 16) + bytes(16)
    never = Milliseconds(int(NEVER_MS))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as stuck:
            stuck.setblocking(False)
            address = f"127.0.0.1:{stuck.getsockname()[1]}"
            connecting = asyncio.create_task(ZooKeeper.connect(address, never, never))
            connection, _ = await asyncio.wait_for(loop.sock_accept(stuck), WAIT_SECONDS)
            with connection:
                await loop.sock_sendall(connection, struct.pack(">i", len(reply)) + reply)
                zk = await connecting
                await asyncio.wait_for(zk.close(), SOON_SECONDS)

    asyncio.run(run())
    for thread in threading.enumerate():
        if thread.name == "coordinator's end":
            thread.join(WAIT_SECONDS)
    assert "the session 0x4d is left to its timeout" in caplog.text


# If this failed, a start that is stopped while it opens the logs would leave them to the next start's
# recovery.
def test_logs_that_are_being_opened_are_closed_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[object] = []
    with stopped_during(monkeypatch, Broker, "_open", "stopping once the logs are open"):
        asyncio.run(run_embedded(tmp_path, port=0, ready=ready.append))
    assert not ready
    assert (tmp_path / "kafka-logs" / ".kafka_cleanshutdown").exists()


# If this failed, clients that come during a start would delay the end of one that fails or is stopped.
def test_the_end_of_a_start_does_not_wait_for_unanswered_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def waits(controller: Controller) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Controller, "start", waits)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            coordinator = CoordinatorServer(tmp_path / "coordinator", "127.0.0.1", 0)
            given = properties(tmp_path, await coordinator.start())
            stack.push_async_callback(coordinator.stop)
            broker = Broker(BrokerConfig.parse(given))
            starting = asyncio.create_task(broker.start())
            await reached.wait()
            assert broker.endpoints
            async with Wire(broker.bootstrap) as wire:
                asked = asyncio.create_task(wire.ask("ListGroups", 0))
                bridge = broker._bridge
                assert bridge is not None
                await until(lambda: bool(bridge._tasks))
                starting.cancel()
                await asyncio.wait([starting], timeout=SOON_SECONDS)
                assert starting.cancelled()
                with pytest.raises(EOFError):
                    await asked

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_SECONDS))


# If this failed, a coordinator's log would stay open, and its threads alive, after its start was stopped.
def test_a_coordinator_that_reads_its_log_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready: list[int] = []
    configuration = parse_configuration(
        {"dataDir": str(tmp_path), "clientPort": "0", "clientPortAddress": "127.0.0.1"}
    )
    with stopped_during(monkeypatch, TransactionLog, "recover", "stopping once the log in"):
        asyncio.run(run_coordinator(configuration, ready.append))
    assert not ready
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("coordinator-")]


# If this failed, a disk error during the stop would be lost, and the logs would be reported as closed
# cleanly.
def test_failures_while_a_start_is_stopped_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = ZooKeeper.close

    async def fails(zk: ZooKeeper) -> None:
        await close(zk)
        raise OSError("no session")

    monkeypatch.setattr(ZooKeeper, "close", fails)
    with (
        stopped_during(monkeypatch, Broker, "_open", "stopping once the logs are open"),
        pytest.raises(BrokerStopError, match="the coordinator's session did not stop cleanly: OSError"),
    ):
        asyncio.run(run_embedded(tmp_path, port=0))


@contextmanager
def stopped_during(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, line: str) -> Iterator[None]:
    """Stops this process while `method` runs in its thread. The method continues once `line` is in the log;
    by then the process got a second signal.
    """
    go_on = threading.Event()
    original = getattr(owner, method)

    def held(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        assert go_on.wait(WAIT_SECONDS), f"{line!r} was not logged"
        return original(*arguments)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith(line):
                os.kill(os.getpid(), signal.SIGINT)
                go_on.set()

    handler, logger = Lines(), logging.getLogger("cluster")
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, held)
        patch.setattr(resource, "setrlimit", lambda *_: None)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
    assert go_on.is_set()
