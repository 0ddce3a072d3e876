"""`logcore coordinator zoo.cfg`: the arguments of zkServer.sh start-foreground."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.cli._common import CommandError, Parser
from cluster.properties import parse_properties


def parser() -> Parser:
    options = Parser(
        "coordinator",
        "Runs a ZooKeeper-compatible server with the settings of a zoo.cfg file, until Ctrl-C or SIGTERM.",
    )
    options.add_argument("configuration", type=Path, metavar="zoo.cfg")
    return options


def run(arguments: list[str]) -> int:
    path = parser().parse_args(arguments).configuration

    from cluster.broker import run_coordinator
    from cluster.coordinator import CoordinatorError, parse_configuration

    try:
        configuration = parse_configuration(parse_properties(path.read_text(encoding="utf-8")))
    except CoordinatorError as error:
        raise CommandError(f"{path}: {error}", status=2) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None

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
