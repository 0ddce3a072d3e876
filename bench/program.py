"""Parts of every benchmark program: its arguments, its limits, and what its tables say of the machine."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers import ROOT

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(
        (line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown processor"
    )
    return f"{cpu}, {os.cpu_count()} cores, Linux {platform.release()}"


def revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "an unversioned tree"


def names(known: Any) -> Callable[[str], list[str]]:
    """Reads an argument that is a list of names, each one of `known`."""

    def read(text: str) -> list[str]:
        given = text.split(",")
        if wrong := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(known)}")
        return given

    return read


def prepare_process() -> None:
    """On SIGTERM, servers are stopped and the figures so far are written. Child processes may open as many
    files as the system allows.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
