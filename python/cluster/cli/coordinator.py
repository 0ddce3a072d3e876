"""`logcore coordinator zoo.cfg`: the arguments of zkServer.sh start-foreground. With `import` or `export` in front of its
arguments, what :mod:`cluster.cli._coordinator_data` does; a file of such a name is `./import`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli._common import CommandError, Parser

if TYPE_CHECKING:
    from cluster.coordinator import Configuration


def parser() -> Parser:
    options = Parser(
        "coordinator",
        "Runs a ZooKeeper-compatible server with the settings of a zoo.cfg file, until Ctrl-C or SIGTERM. `logcore coordinator "
        "import --help` and `logcore coordinator export --help` tell how data comes from Apache ZooKeeper, and goes back.",
    )
    options.add_argument("configuration", type=Path, metavar="zoo.cfg")
    return options


def run(arguments: list[str]) -> int:
    if arguments[:1] in (["import"], ["export"]):
        from cluster.cli import _coordinator_data as data

        return (data.run_import if arguments[0] == "import" else data.run_export)(arguments[1:])
    configuration = read_configuration(parser().parse_args(arguments).configuration)

    from cluster.broker import run_coordinator
    from cluster.coordinator import CoordinatorError

    def ready(port: int) -> None:
        print(
            f"the coordinator is ready\n  clients  {configuration.host}:{port}\nCtrl-C stops it.", flush=True
        )

    try:
        asyncio.run(run_coordinator(configuration, ready))
    except CoordinatorError as error:
        raise CommandError(str(error)) from None
    print("the coordinator has stopped; what it answered is on disk", flush=True)
    return 0


def read_configuration(path: Path) -> Configuration:
    """The configuration of a zoo.cfg; what is wrong with it is a one-line error."""
    from cluster.coordinator import CoordinatorError, parse_configuration
    from cluster.properties import parse_properties

    try:
        return parse_configuration(parse_properties(path.read_text(encoding="utf-8")))
    except CoordinatorError as error:
        raise CommandError(f"{path}: {error}", status=2) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
