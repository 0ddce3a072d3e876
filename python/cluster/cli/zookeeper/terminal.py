"""Reads lines: from a terminal with a prompt, line editing and completion, or from a file or pipe without
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from cluster.cli.zookeeper.console import Console
from cluster.cli.zookeeper.errors import ShellError
from cluster.cli.zookeeper.shell import COMMANDS, OWN, Shell


def interact(shell: Shell, console: Console) -> None:
    """Runs the lines of standard input, to its end. Raises Quit."""
    console.out("Welcome to ZooKeeper!")
    editing = sys.stdin.isatty() and _edit_lines(shell)
    console.out(f"JLine support is {'enabled' if editing else 'disabled'}")
    for line in _prompted(shell) if editing else sys.stdin:
        shell.line(line.rstrip("\r\n"))


def _edit_lines(shell: Shell) -> bool:
    """Sets up readline; False if Python was built without it."""
    try:
        import readline
    except ImportError:
        return False
    readline.set_completer_delims(" \t\n")
    readline.set_completer(Completer(lambda path: children(shell, path)))
    readline.parse_and_bind("tab: complete")
    return True


def _prompted(shell: Shell) -> Iterator[str]:
    while True:
        try:
            yield input(shell.prompt)
        except EOFError:
            print()
            return


def children(shell: Shell, path: str) -> list[str]:
    """The names below a node; empty without a connection, or when they cannot be read."""
    session = shell.session
    if session is None or not session.connected:
        return []
    try:
        return session.children(path)[0]
    except ShellError:
        return []


class Completer:
    """readline's completer: of paths if a word begins with a slash, else of commands
    (JLineZNodeCompleter).
    """

    def __init__(self, names_below: Callable[[str], list[str]]) -> None:
        self._names_below = names_below
        self._found: list[str] = []

    def __call__(self, text: str, number: int) -> str | None:
        if number == 0:
            self._found = self.completions(text)
        return self._found[number] if number < len(self._found) else None

    def completions(self, text: str) -> list[str]:
        """All completions of a word."""
        if not text.startswith("/"):
            return [f"{name} " for name in sorted([*COMMANDS, *OWN]) if name.startswith(text)]
        parent, _slash, start = text.rpartition("/")
        names = self._names_below(parent or "/")
        return [f"{parent}/{name}" for name in sorted(names) if name.startswith(start)]
