"""`logcore zookeeper-shell host:port[,host:port ...][/chroot] [command ...]`.

The arguments, commands and output are those of zkCli.sh (ZooKeeper 3.9), and of Kafka's zookeeper-shell.sh,
whose first argument are the servers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from cluster.cli._common import CommandError, Parser
from cluster.cli.zookeeper.tls import client_arguments

DEFAULT_SERVER = "localhost:2181"
DEFAULT_TIMEOUT = "30000"


@dataclass
class Start:
    """The arguments of the shell; times are in milliseconds."""

    server: str = DEFAULT_SERVER
    timeout: str = DEFAULT_TIMEOUT
    read_only: bool = False
    wait: bool = False
    configuration: str | None = None
    command: list[str] = field(default_factory=list)
    complaint: str | None = None
    """zkCli's message for an option without its value, after which it continues."""


def parser() -> Parser:
    """Only used for --help: zkCli's options have one dash, and all words after the command belong to the
    command.
    """
    options = Parser(
        "zookeeper-shell",
        "Reads and changes ZooKeeper's nodes. Runs one command, or without one a shell that reads commands "
        "from standard input. An unknown command lists all commands. `quit` and `close` end the session; "
        "otherwise the server ends it at its timeout.",
    )
    options.add_argument(
        "server", nargs="?", metavar="HOST:PORT[,HOST:PORT ...][/CHROOT]", help=f"default: {DEFAULT_SERVER}"
    )
    options.add_argument("-server", dest="again", metavar="HOSTS", help="the same, as an option of zkCli.sh")
    options.add_argument("-timeout", metavar="MS", help=f"the session's timeout (default: {DEFAULT_TIMEOUT})")
    options.add_argument("-r", action="store_true", help="also connect to a read-only server")
    options.add_argument(
        "-waitforconnection", action="store_true", help="wait for a connection, at most the session's timeout"
    )
    options.add_argument(
        "-client-configuration",
        "-zk-tls-config-file",
        metavar="FILE",
        help="properties for TLS, with keys and certificates as PEM",
    )
    options.add_argument("command", nargs="*", metavar="command")
    return options


def parse_start(arguments: list[str]) -> Start:
    """Parses the options before the command. Unknown options are ignored, as by zkCli.sh."""
    start = Start()
    words = iter(arguments)
    if arguments and not arguments[0].startswith("-"):
        start.server = next(words)
    valued = {
        "-server": "server",
        "-timeout": "timeout",
        "-client-configuration": "configuration",
        "-zk-tls-config-file": "configuration",
    }
    for word in words:
        if word in valued:
            value = next(words, None)
            if value is None:
                start.complaint = f"Error: no argument found for option {word}"
                break
            setattr(start, valued[word], value)
        elif word == "-r":
            start.read_only = True
        elif word == "-waitforconnection":
            start.wait = True
        elif not word.startswith("-"):
            start.command = [word, *words]
    return start


def run(arguments: list[str]) -> int:
    if not arguments:
        raise CommandError(
            "name the servers, for example localhost:2181 (--help lists the options)", status=2
        )
    if arguments[0] in ("-h", "--help", "--version"):
        parser().parse_args(arguments[:1])
    # As in Java, bytes of an argument that are not UTF-8 are replaced.
    start = parse_start(
        [each.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for each in arguments]
    )
    tls: dict[str, Any] = {}
    if start.configuration is not None:
        tls, unknown = client_arguments(start.configuration)
        for name in unknown:
            print(f"logcore zookeeper-shell: {start.configuration}: {name} has no effect", file=sys.stderr)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # In tests, a stream may be of another class.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    return shell(start, tls)


def shell(start: Start, tls: dict[str, Any]) -> int:
    """Runs the command, or the lines of standard input; returns the exit code of the last one."""
    from cluster.cli.zookeeper.console import Console
    from cluster.cli.zookeeper.errors import ShellError, integer
    from cluster.cli.zookeeper.session import Session
    from cluster.cli.zookeeper.shell import Quit, Shell
    from cluster.cli.zookeeper.terminal import interact

    console = Console()
    try:
        if start.complaint:
            console.error(start.complaint)
        console.out(f"Connecting to {start.server}")
        try:
            timeout_ms = integer(start.timeout)
        except ShellError:
            raise ShellError(f"-timeout takes milliseconds, not {start.timeout!r}") from None
        made = Shell(lambda host: Session(host, timeout_ms, console.event, start.read_only, tls), console)
        made.connect(start.server)
        assert made.session is not None
        if start.wait and not made.session.wait_connected(timeout_ms / 1000):
            raise ShellError("KeeperErrorCode = ConnectionLoss")
        try:
            if start.command:
                made.process(start.command)
            else:
                interact(made, console)
        except Quit:
            pass
        return made.exit_code
    except ShellError as error:
        console.error(str(error))
        return error.status
    finally:
        console.close()
