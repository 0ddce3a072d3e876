"""The shell: runs commands in the current session, and keeps the history and the exit code
(ZooKeeperMain).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cluster.cli.zookeeper import commands, quotas, reconfig
from cluster.cli.zookeeper.arguments import split
from cluster.cli.zookeeper.commands import Command, Context
from cluster.cli.zookeeper.console import Console
from cluster.cli.zookeeper.errors import NOT_FOUND, ShellError, integer
from cluster.cli.zookeeper.session import Session

COMMANDS: dict[str, Command] = {
    each.name: each for each in (*commands.COMMANDS, *quotas.COMMANDS, *reconfig.COMMANDS)
}

# The commands that need no session, with their usage.
OWN = {"connect": "host:port", "history": "", "printwatches": "on|off", "quit": "", "redo": "cmdno"}

USAGE = "ZooKeeper -server host:port -client-configuration properties-file cmd args"
HISTORY_SHOWN = 10
"""How many lines before the last one `history` prints."""


class Quit(Exception):
    """Ends the shell, with the exit code of the command before."""


class Shell:
    """A session, the history of commands, and the last one's exit code: 0 done, 1 failed, 127 unknown
    command.

    `open_session` makes a session with the servers of a connect string.
    """

    def __init__(self, open_session: Callable[[str], Session], console: Console) -> None:
        self._open_session = open_session
        self._console = console
        self._history: dict[int, str] = {}
        self.session: Session | None = None
        self.host = ""
        self.count = 0
        self.exit_code = 0

    @property
    def prompt(self) -> str:
        state = "NOT_CONNECTED" if self.session is None else self.session.state
        return f"[zk: {self.host}({state}) {self.count}] "

    def connect(self, host: str) -> None:
        """Replaces the session by a new one. Raises ShellError for a bad connect string."""
        if self.session is not None:
            self.session.close()
        self.host = host
        self.session = self._open_session(host)

    def line(self, line: str) -> None:
        """Runs a line, unless it is empty. Raises Quit."""
        if not line.strip():
            return
        self._history[self.count] = line
        self.process(split(line))
        self.count += 1

    def process(self, words: list[str]) -> None:
        """Runs a command and prints its error. Raises Quit."""
        try:
            self._run(words)
            self.exit_code = 0
        except ShellError as error:
            self.exit_code = error.status
            self._console.error(str(error))

    def _run(self, words: list[str]) -> None:
        if not words:
            self._console.error(usage())
            raise ShellError("No command entered")
        name, *rest = words
        if name not in COMMANDS and name not in OWN:
            self._console.error(usage())
            raise ShellError(f"Command not found: Command not found {name}", NOT_FOUND)
        if name in OWN:
            self._run_own(name, rest)
        if self.session is None or not self.session.alive:
            self._console.out("Not connected")
        elif name in COMMANDS:
            COMMANDS[name].execute(Context(self.session, self._console), rest)

    def _run_own(self, name: str, rest: list[str]) -> None:
        match name:
            case "quit":
                if self.session is not None:
                    self.session.close()
                raise Quit
            case "connect":
                self.connect(rest[0] if rest else self.host)
            case "history":
                for number in range(max(self.count - HISTORY_SHOWN, 0), self.count + 1):
                    self._console.out(f"{number} - {self._history.get(number, 'null')}")
            case "printwatches" if rest:
                self._console.print_watches = rest[0] == "on"
            case "printwatches":
                self._console.out(f"printwatches is {'on' if self._console.print_watches else 'off'}")
            case "redo" if rest:
                self._redo(decode(rest[0]))

    def _redo(self, number: int) -> None:
        if not 0 <= number < self.count:
            raise ShellError("Command index out of range")
        line = self._history[number]
        words = split(line)
        if words[:1] == ["redo"]:
            raise ShellError("No redoing redos")
        self._history[self.count] = line
        self.process(words)


def usage() -> str:
    """Every command with its arguments, in Java's order (by code point)."""
    lines = OWN | {name: command.usage for name, command in COMMANDS.items()}
    return "\n".join([USAGE, *(f"\t{name} {lines[name]}" for name in sorted(lines))])


def decode(text: str) -> int:
    """Parses a number as Java's Integer.decode: decimal, hexadecimal after 0x or #, octal after 0."""
    found = re.fullmatch(r"([+-]?)(0[xX]|#|0(?=\d))?([0-9a-fA-F]+)", text)
    try:
        if found is not None:
            sign, prefix, digits = found.groups()
            return integer(sign + digits, radix={None: 10, "0": 8}.get(prefix, 16))
    except ShellError:
        pass
    raise ShellError(f"redo takes the number of a command in the history, not {text!r}")
