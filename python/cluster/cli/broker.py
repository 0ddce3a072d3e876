"""`logcore broker server.properties`: the arguments of kafka-server-start.sh."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.cli._common import CommandError, Parser, metrics_line, pairs


def parser() -> Parser:
    options = Parser(
        "broker", "Runs a broker with the settings of a server.properties file, until Ctrl-C or SIGTERM."
    )
    options.add_argument(
        "properties", type=Path, metavar="server.properties", help="a file with Kafka's broker settings"
    )
    options.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that overrides the file's; may be repeated",
    )
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    overrides = pairs(options.override, "--override")

    from cluster.broker import Broker, BrokerStartError, BrokerStopError, run_properties

    def ready(broker: Broker) -> None:
        print(
            f"logcore is ready\n  broker  {broker.bootstrap}\n{metrics_line(broker)}Ctrl-C stops it.",
            flush=True,
        )

    try:
        asyncio.run(run_properties(options.properties, overrides=overrides, ready=ready))
    except BrokerStartError as error:
        raise CommandError(str(error)) from None
    except BrokerStopError as error:
        raise CommandError(f"stopped, but not cleanly (exit status 1): {error}") from None
    print("logcore has stopped; every log was closed cleanly", flush=True)
    return 0
