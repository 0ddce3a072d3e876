"""Shared fixtures: a broker in a process of its own, started by the command that a person would use."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.ports import free_port

START_TIMEOUT = 30.0

# A shell makes background jobs ignore SIGINT. The tests of Ctrl-C need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


class CommandProcess:
    """One `logcore` command that serves, as a child process. A thread collects its output, so no full pipe
    blocks it.
    """

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._bootstrap: str | None = None
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    found = re.match(r"\s+broker\s+(\S+:\d+)\s*$", line)
                    if found and self._bootstrap is None:
                        self._bootstrap = found[1]
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_ready(self, timeout: float = START_TIMEOUT) -> Self:
        with self._changed:
            self._changed.wait_for(lambda: self._bootstrap is not None or self._ended, timeout)
        if self._bootstrap is None:
            self.kill()
            raise AssertionError(f"the broker did not come up; it said:\n{self.output()}")
        return self

    def wait_output(self, pattern: str, timeout: float = START_TIMEOUT) -> str:
        """Waits until a line matches `pattern`, and returns it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._find(pattern) is not None, timeout)
            found = self._find(pattern)
        if found is None:
            raise AssertionError(f"no line like {pattern!r}; the broker said:\n{self.output()}")
        return found

    def _find(self, pattern: str) -> str | None:
        return next((line for line in self._lines if re.search(pattern, line)), None)

    @property
    def bootstrap(self) -> str:
        assert self._bootstrap is not None
        return self._bootstrap

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def output(self) -> str:
        return "".join(self._lines)

    def kill(self) -> None:
        """Sends SIGKILL. Unlike a power cut it keeps the page cache."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Sends `sig` and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        status = self.process.wait(timeout)
        self._reader.join(10)
        return status


class BrokerProcess(CommandProcess):
    """One `logcore start`."""

    def __init__(self, data_dir: Path, port: int, extra: tuple[str, ...]) -> None:
        self.data_dir = data_dir
        super().__init__("start", "--data-dir", str(data_dir), "--port", str(port), *extra)


StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers, and kills those that still run at the end of the test."""
    running: list[BrokerProcess] = []

    def start(
        data_dir: Path | None = None, port: int | None = None, *extra: str, ready: bool = True
    ) -> BrokerProcess:
        # A port that no other test takes while the broker is down.
        broker = BrokerProcess(data_dir or tmp_path / "data", free_port() if port is None else port, extra)
        running.append(broker)
        return broker.wait_ready() if ready else broker

    yield start
    for broker in running:
        if broker.process.poll() is None:
            broker.kill()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the tests of a module. It must stop cleanly at their end."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", 0, ())
    process.wait_ready()
    yield process
    status = process.stop()
    assert status == 0, f"the broker stopped with status {status}; it said:\n{process.output()}"


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on."""
    return free_port()
