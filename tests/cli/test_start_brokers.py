"""`logcore start --brokers 3`: a cluster of processes on one machine.

If one failed, a developer would get brokers that are no cluster, processes that stay behind, or no word of a
broker that crashed.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.broker._processes import _of_broker
from cluster.client import AdminClient, NewTopic, Producer

WAIT_SECONDS = 60.0

pytestmark = pytest.mark.timeout(180)


def started(data_dir: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
    """The process, and the brokers' addresses."""
    command = [sys.executable, "-m", "cluster.cli", "start", "--data-dir", str(data_dir), "--port", "0"]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    addresses = []
    for line in process.stdout:
        if line.startswith("  broker  "):
            addresses.append(line.split()[1])
        if line.startswith("Ctrl-C"):
            break
    return process, addresses


def pid_of(properties: Path) -> int:
    found = subprocess.run(
        ["pgrep", "-f", f"cluster.cli broker {properties}"], capture_output=True, text=True
    )
    return int(found.stdout.split()[0])


PARTITIONS = 3


def produce(addresses: list[str], topic: str, count: int) -> None:
    """Produces to each partition. Every record must be acknowledged, so every partition has a leader."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": ",".join(addresses), "acks": "all"})
    for number in range(count):
        partition = number % PARTITIONS
        producer.produce(
            topic, str(number), partition=partition, on_delivery=lambda error, _: failures.append(error)
        )
    producer.flush(WAIT_SECONDS)
    producer.close()
    assert failures == [None] * count


def test_three_processes_are_one_cluster_and_a_crash_is_named(tmp_path: Path) -> None:
    process, addresses = started(tmp_path, "--brokers", "3")
    try:
        assert len(addresses) == 3
        admin = AdminClient({"bootstrap.servers": ",".join(addresses)})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(WAIT_SECONDS)
        produce(addresses, "t", 100)
        crashed = tmp_path / "broker-1.properties"
        os.kill(pid_of(crashed), signal.SIGKILL)
        produce(addresses, "t", 100)
        admin.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert "broker 1 has ended by itself with signal 9; the others go on." in errors
    assert f"Start it again with: logcore broker {crashed}" in errors
    assert re.search(r"stopped, but not cleanly.*: broker 1 had ended with signal 9\n", errors)
    assert process.returncode == 1


def test_one_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    process, addresses = started(tmp_path, "--brokers", "2")
    try:
        assert len(addresses) == 2
        pids = [pid_of(tmp_path / f"broker-{number}.properties") for number in range(2)]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "every log was closed cleanly" in output
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_every_process_ends_with_the_terminal_or_a_killed_start(tmp_path: Path, number: int) -> None:
    """The brokers lose their coordinator too after SIGKILL. One of them is the controller."""
    process, addresses = started(tmp_path, "--brokers", "2")
    try:
        assert len(addresses) == 2
        ends = [os.pidfd_open(pid_of(tmp_path / f"broker-{n}.properties")) for n in range(2)]
        process.send_signal(number)
        for end in ends:
            assert select.select([end], [], [], WAIT_SECONDS)[0], "a broker stayed behind"
            os.close(end)
        process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.wait()


def test_each_broker_has_a_port_for_its_metrics() -> None:
    """With one port for all only the first broker would start."""
    first = _of_broker(0, {"metrics.listener": "127.0.0.1:9404", "num.partitions": "2"})
    assert first == {"metrics.listener": "127.0.0.1:9404", "num.partitions": "2"}
    assert _of_broker(2, first)["metrics.listener"] == "127.0.0.1:9406"
    assert _of_broker(2, {"metrics.listener": "[::1]:0"})["metrics.listener"] == "[::1]:0"
    assert _of_broker(2, {"metrics.listener": "wrong"})["metrics.listener"] == "wrong"
    assert _of_broker(2, {}) == {}


def test_a_port_with_too_few_above_it_is_named() -> None:
    command = [sys.executable, "-m", "cluster.cli", "start", "--brokers", "3", "--port", "65534"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 2
    assert "--port 65534 leaves no port up to 65535 for 3 brokers" in done.stderr


def test_a_broker_that_cannot_start_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    process, addresses = started(tmp_path, "--brokers", "2", "--override", "num.partitions=none")
    try:
        _, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert addresses == []
    assert process.returncode == 1
    assert "did not start" in errors
    assert "num.partitions" in errors
