"""The shell's standard output and error. The shell's thread writes output, the session's thread writes
events.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TextIO

from cluster.cli.zookeeper.printing import Event, event_text


class Console:
    """Writes whole lines, one at a time. Raises BrokenPipeError when standard output is closed, except for
    an event.
    """

    def __init__(self) -> None:
        self.print_watches = True
        self._lock = threading.Lock()
        self._closed = False

    def out(self, text: str, end: str = "\n") -> None:
        self._write(sys.stdout, text + end)

    def error(self, text: str) -> None:
        self._write(sys.stderr, text + "\n")

    def event(self, event: Event) -> None:
        """Prints an event as zkCli's default watcher does, unless `printwatches off` was given."""
        if self.print_watches:
            with contextlib.suppress(BrokenPipeError):
                self.out(event_text(event))

    def close(self) -> None:
        """Ignores later writes. A thread that wrote while the interpreter ends would hold its streams'
        locks.
        """
        with self._lock:
            self._closed = True

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            if not self._closed:
                stream.write(text)
                stream.flush()
