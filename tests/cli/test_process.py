"""What servers do with their process. If this failed, an operator who asks a server what it does, as he asks a JVM, would end it."""

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


def _answers_zookeepers_clients(address: str) -> None:
    client = RawClient(int(address.rpartition(":")[2]))
    assert client.connect()[1] != 0
    client.close()


def _answers_kafkas_clients(address: str) -> None:
    assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=WAIT_SECONDS).brokers


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "place", "answers"),
    [
        (["coordinator", "zoo.cfg"], "clients", _answers_zookeepers_clients),
        (["start", "--data-dir", "data", "--port", "0"], "broker", _answers_kafkas_clients),
    ],
)
def test_a_quit_tells_the_stacks_of_all_threads_and_ends_nothing(
    arguments: list[str], place: str, answers: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "zoo.cfg").write_text(
        "dataDir=data\nclientPort=0\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    command = [sys.executable, "-m", "cluster.cli", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        unasked = threading.Timer(WAIT_SECONDS, process.kill)
        unasked.start()
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            address = next(line.split()[1] for line in process.stdout if line.startswith(f"  {place} "))
            for _time in range(2):
                process.send_signal(signal.SIGQUIT)
                stacks = (
                    line for line in process.stderr if line.startswith(("Current thread 0x", "Thread 0x"))
                )
                assert next(stacks, None) is not None, "it has ended"
                assert " in " in next(process.stderr)
                answers(address)
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=WAIT_SECONDS)
        finally:
            unasked.cancel()
            process.kill()
    assert process.returncode == 0, errors
    assert "stopped" in said
