"""`logcore zookeeper-shell host:port[,host:port ...][/chroot] [command ...]`: the arguments, commands and output of ZooKeeper 3.9's
zkCli.sh and of Kafka's zookeeper-shell.sh, which puts the servers first."""

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
    """What the shell is started with; times in milliseconds."""

    server: str = DEFAULT_SERVER
    timeout: str = DEFAULT_TIMEOUT
    read_only: bool = False
    wait: bool = False
    configuration: str | None = None
    command: list[str] = field(default_factory=list)
    complaint: str | None = None
    """What zkCli says of an option without its value, and goes on."""


def parser() -> Parser:
    """Only for its help: zkCli's options have one dash, and what follows the command is the command's."""
    options = Parser(
        "zookeeper-shell",
        "Asks and changes a ZooKeeper's nodes: with a command once, without one as a shell, which takes lines of standard input; "
        "an unknown command lists all. The session is left to its timeout unless `quit` or `close` ends it.",
    )
    options.add_argument(
        "server", nargs="?", metavar="HOST:PORT[,HOST:PORT ...][/CHROOT]", help=f"default: {DEFAULT_SERVER}"
    )
    options.add_argument("-server", dest="again", metavar="HOSTS", help="the same, as zkCli.sh has it")
    options.add_argument("-timeout", metavar="MS", help=f"the session's timeout (default: {DEFAULT_TIMEOUT})")
    options.add_argument("-r", action="store_true", help="a server that is read-only will do")
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
    """Options up to the command, whose all the rest is; unknown ones are passed over, as zkCli.sh does."""
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
            "the servers are missing, as in localhost:2181 (--help lists the options)", status=2
        )
    if arguments[0] in ("-h", "--help", "--version"):
        parser().parse_args(arguments[:1])
    # What is not UTF-8 in an argument is replaced, as Java does.
    start = parse_start(
        [each.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for each in arguments]
    )
    tls: dict[str, Any] = {}
    if start.configuration is not None:
        tls, unknown = client_arguments(start.configuration)
        for name in unknown:
            print(f"logcore zookeeper-shell: {start.configuration}: {name} has no effect", file=sys.stderr)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # A test's stream may be of another kind.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    return shell(start, tls)


def shell(start: Start, tls: dict[str, Any]) -> int:
    """Runs the command or the lines of standard input; the exit code of the last."""
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
