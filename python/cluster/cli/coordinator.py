"""`logcore coordinator zoo.cfg`: the arguments of zkServer.sh start-foreground."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli._common import CommandError, Parser
from cluster.properties import parse_properties

if TYPE_CHECKING:
    from cluster.coordinator import Configuration


def parser() -> Parser:
    options = Parser(
        "coordinator",
        "Runs a ZooKeeper-compatible server with the settings of a zoo.cfg file, until Ctrl-C or SIGTERM.",
    )
    options.add_argument("configuration", type=Path, metavar="zoo.cfg")
    return options


def run(arguments: list[str]) -> int:
    path = parser().parse_args(arguments).configuration

    from cluster.coordinator import CoordinatorError, parse_configuration

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        configuration = parse_configuration(parse_properties(text))
    except CoordinatorError as error:
        raise CommandError(f"{path}: {error}", status=2) from None
    for warning in configuration.warnings:
        logging.getLogger(__name__).warning("%s: %s", path, warning)
    try:
        asyncio.run(_serve(configuration))
    except CoordinatorError as error:
        raise CommandError(str(error)) from None
    print("the coordinator has stopped; what it answered is on disk", flush=True)
    return 0


async def _serve(configuration: Configuration) -> None:
    """Serves until a signal; raises CoordinatorError when it cannot start or its disk fails."""
    from cluster.coordinator import CoordinatorServer

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = CoordinatorServer(
        configuration.data_dir, configuration.host, configuration.port, settings=configuration.settings
    )
    port = await server.start()
    print(f"the coordinator is ready\n  clients  {configuration.host}:{port}\nCtrl-C stops it.", flush=True)
    signalled = asyncio.create_task(stopped.wait())
    assert server.failed is not None
    try:
        await asyncio.wait((signalled, server.failed), return_when=asyncio.FIRST_COMPLETED)
        if server.failed.done():
            server.failed.result()
    finally:
        signalled.cancel()
        await server.stop()
