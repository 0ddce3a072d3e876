"""A server under test as a process: started in its network, suspended, killed.

A test calls it from its own thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .network import Network

STOP_SECONDS = 30.0


class Server:
    """A directory, and at most one process at a time. ``number`` is its place in the network."""

    def __init__(self, name: str, number: int, directory: Path, network: Network) -> None:
        self.name, self.number, self.directory = name, number, directory
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None
        self.suspended = False

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Its process ended, and not by :meth:`end`."""
        return self._process is not None and self._process.poll() is not None

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts its process, which adds its output to the file ``output``."""
        assert not self.runs, f"{self.name} runs already"
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._network.command(self.number, command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    def ends_within(self, seconds: float) -> bool:
        """Waits up to ``seconds`` for its process to end. Returns True if it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(seconds)
                return True
        return False

    def output(self) -> str:
        """The end of its processes' output."""
        path = self.directory / "output"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def suspend(self) -> None:
        """Sends SIGSTOP and waits until all threads have stopped, which takes a moment."""
        os.kill(self.pid, signal.SIGSTOP)
        self.suspended = True
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        if self.suspended and self.runs:
            os.kill(self.pid, signal.SIGCONT)
        self.suspended = False

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int | None:
        """Signals its process, waits for its end and returns its exit status; None without a process."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(how)
            self.resume()
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} ignored {how.name}; its output:\n{self.output()}") from None
        self._process, self.suspended = None, False
        return status
