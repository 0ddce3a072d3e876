"""Standard output and error of the shell: commands write from its thread, events come from the session's."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TextIO

from cluster.cli.zookeeper.printing import Event, event_text


class Console:
    """Whole lines, one at a time. Raises BrokenPipeError when the reader went away, but not for an event."""

    def __init__(self) -> None:
        self.print_watches = True
        self._lock = threading.Lock()
        self._closed = False

    def out(self, text: str, end: str = "\n") -> None:
        self._write(sys.stdout, text + end)

    def error(self, text: str) -> None:
        self._write(sys.stderr, text + "\n")

    def event(self, event: Event) -> None:
        """What the default watcher of zkCli prints, unless it is switched off."""
        if self.print_watches:
            with contextlib.suppress(BrokenPipeError):
                self.out(event_text(event))

    def close(self) -> None:
        """Nothing is written after it: a thread that writes while the interpreter ends would hold its streams."""
        with self._lock:
            self._closed = True

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            if not self._closed:
                stream.write(text)
                stream.flush()
