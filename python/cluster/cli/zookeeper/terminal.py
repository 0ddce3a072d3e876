"""Where lines come from: a terminal, with a prompt, line editing and completion of commands and paths, or a file or pipe, without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from cluster.cli.zookeeper.console import Console
from cluster.cli.zookeeper.errors import ShellError
from cluster.cli.zookeeper.shell import COMMANDS, OWN, Shell


def interact(shell: Shell, console: Console) -> None:
    """Runs lines of standard input to its end. Raises Quit."""
    console.out("Welcome to ZooKeeper!")
    editing = sys.stdin.isatty() and _edit_lines(shell)
    console.out(f"JLine support is {'enabled' if editing else 'disabled'}")
    for line in _asked(shell) if editing else sys.stdin:
        shell.line(line.rstrip("\r\n"))


def _edit_lines(shell: Shell) -> bool:
    """Sets up readline; False where Python has none."""
    try:
        import readline
    except ImportError:
        return False
    readline.set_completer_delims(" \t\n")
    readline.set_completer(Completer(lambda path: children(shell, path)))
    readline.parse_and_bind("tab: complete")
    return True


def _asked(shell: Shell) -> Iterator[str]:
    while True:
        try:
            yield input(shell.prompt)
        except EOFError:
            print()
            return


def children(shell: Shell, path: str) -> list[str]:
    """The names below a node; none without a connection, or where they cannot be read."""
    session = shell.session
    if session is None or not session.connected:
        return []
    try:
        return session.children(path)[0]
    except ShellError:
        return []


class Completer:
    """readline's completer: paths where a word begins with a slash, and commands (JLineZNodeCompleter)."""

    def __init__(self, names_below: Callable[[str], list[str]]) -> None:
        self._names_below = names_below
        self._found: list[str] = []

    def __call__(self, text: str, number: int) -> str | None:
        if number == 0:
            self._found = self.completions(text)
        return self._found[number] if number < len(self._found) else None

    def completions(self, text: str) -> list[str]:
        """All that a word may become."""
        if not text.startswith("/"):
            return [f"{name} " for name in sorted([*COMMANDS, *OWN]) if name.startswith(text)]
        parent, _slash, start = text.rpartition("/")
        names = self._names_below(parent or "/")
        return [f"{parent}/{name}" for name in sorted(names) if name.startswith(start)]
