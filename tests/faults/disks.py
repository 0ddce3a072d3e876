"""Slow disks: strace delays system calls of a process. Needs `strace` and permission to trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence

import pytest

_SECONDS = 20.0


def slow_disks(pids: Sequence[int], calls: str, seconds: float) -> Callable[[], None]:
    """Delays each of the system calls of these processes. Returns a function that ends this."""
    inject = f"inject={calls}:delay_enter={int(seconds * 1_000_000)}"
    command = ["strace", "-f", "-q", "-e", f"trace={calls}", "-e", inject]
    tracers = [
        subprocess.Popen(
            [*command, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for pid in pids
    ]

    def heal() -> None:
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(_SECONDS)

    return heal


def traceable() -> None:
    """Skips the test, with the reason, if strace cannot delay calls here; fails it under CI=true."""
    reason = _cannot_trace()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def _cannot_trace() -> str:
    """Why strace cannot delay calls here; empty if it can."""
    if shutil.which("strace") is None:
        return "peer missing: strace (apt-get install strace)"
    tried = subprocess.run(
        ["strace", "-o", os.devnull, "-e", "inject=fsync:delay_enter=1", "true"],
        capture_output=True,
        timeout=_SECONDS,
    )
    return "" if tried.returncode == 0 else f"strace is not permitted here: {tried.stderr.decode().strip()}"
