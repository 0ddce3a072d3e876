"""SIGQUIT to a server, which operators send to a JVM to see its threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.coordinator.support import WAIT_SECONDS, RawClient


def _check_zookeeper(address: str) -> None:
    client = RawClient(int(address.rpartition(":")[2]))
    assert client.connect()[1] != 0
    client.close()


def _check_kafka(address: str) -> None:
    assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=WAIT_SECONDS).brokers


# Broken if it failed: an operator who wants to see a server's threads would end the server.
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "listener", "check"),
    [
        (["coordinator", "zoo.cfg"], "clients", _check_zookeeper),
        (["start", "--data-dir", "data", "--port", "0"], "broker", _check_kafka),
    ],
)
def test_sigquit_prints_the_stacks_of_all_threads_and_ends_nothing(
    arguments: list[str], listener: str, check: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "zoo.cfg").write_text(
        "dataDir=data\nclientPort=0\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    command = [sys.executable, "-m", "cluster.cli", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        deadline = threading.Timer(WAIT_SECONDS, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            address = next(line.split()[1] for line in process.stdout if line.startswith(f"  {listener} "))
            for _time in range(2):
                process.send_signal(signal.SIGQUIT)
                stacks = (
                    line for line in process.stderr if line.startswith(("Current thread 0x", "Thread 0x"))
                )
                assert next(stacks, None) is not None, "the process has ended"
                assert " in " in next(process.stderr)
                check(address)
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=WAIT_SECONDS)
        finally:
            deadline.cancel()
            process.kill()
    assert process.returncode == 0, errors
    assert "stopped" in output
