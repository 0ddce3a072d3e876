"""`logcore coordinator zoo.cfg`: the arguments of zkServer.sh start-foreground, and ZooKeeper's exit
statuses.

`logcore coordinator import` and `export` are in `_coordinator_data`. A zoo.cfg with such a name is written
`./import`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli import _coordinator_data
from cluster.cli._common import CommandError, Parser
from cluster.cli._coordinator_config import read_configuration

if TYPE_CHECKING:
    from cluster.coordinator import CoordinatorPorts

# ZooKeeper's exit statuses; `_coordinator_config` has that of a bad configuration.
NO_DATA_DIRECTORY = 3
NO_ADMIN_SERVER = 4


def parser() -> Parser:
    options = Parser(
        "coordinator",
        "Runs a ZooKeeper-compatible server with the settings of a zoo.cfg file, until Ctrl-C or SIGTERM. "
        "`logcore coordinator import` and `logcore coordinator export` move data from and to Apache "
        "ZooKeeper; each has a --help of its own.",
    )
    options.add_argument(
        "configuration", type=Path, metavar="zoo.cfg", help="a file with ZooKeeper's server settings"
    )
    return options


def run(arguments: list[str]) -> int:
    if arguments[:1] in (["import"], ["export"]):
        move = _coordinator_data.run_import if arguments[0] == "import" else _coordinator_data.run_export
        return move(arguments[1:])
    configuration, text = read_configuration(parser().parse_args(arguments).configuration)

    from cluster.coordinator import (
        AdminServerError,
        CoordinatorError,
        DataDirectoryError,
        event_loop,
        run_coordinator,
    )
    from cluster.coordinator.state.members import host_and_port

    def ready(ports: CoordinatorPorts) -> None:
        lines = ["the coordinator is ready"]
        if ports.clients >= 0:
            lines.append(f"  clients  {host_and_port(configuration.host, ports.clients)}")
        if configuration.secure is not None:
            lines.append(f"  secure   {host_and_port(configuration.secure.host, ports.secure_clients)}")
        if configuration.admin is not None:
            scheme = "http" if configuration.admin.tls is None else "https"
            address = host_and_port(configuration.admin.host, ports.admin)
            lines.append(f"  admin    {scheme}://{address}{configuration.admin.url}")
        if configuration.metrics is not None:
            address = host_and_port(configuration.metrics.host, ports.metrics)
            lines.append(f"  metrics  http://{address}/metrics")
        print("\n".join([*lines, "Ctrl-C stops it."]), flush=True)

    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(run_coordinator(configuration, ready, text))
    except AdminServerError as error:
        raise CommandError(str(error), status=NO_ADMIN_SERVER) from None
    except DataDirectoryError as error:
        raise CommandError(str(error), status=NO_DATA_DIRECTORY) from None
    except CoordinatorError as error:
        raise CommandError(str(error)) from None
    print("the coordinator has stopped; every write that it confirmed is on disk", flush=True)
    return 0
