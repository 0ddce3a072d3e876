"""`logcore start`: one broker and its coordinator in this process, for a laptop, a test or a demo."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.cli._common import CommandError, Parser, directory, metrics_line, pairs

DEFAULT_PORT = 9092
DEFAULT_DATA_DIR = "logcore-data"


def parser() -> Parser:
    options = Parser("start", "Runs one broker and its coordinator in this process, until Ctrl-C or SIGTERM.")
    options.add_argument(
        "--data-dir",
        type=directory,
        default=Path(DEFAULT_DATA_DIR),
        metavar="DIR",
        help="the directory of the logs and the coordinator's data (default: ./%(default)s)",
    )
    options.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help="the port to listen on; 0 chooses a free one (default: %(default)s)",
    )
    options.add_argument(
        "--host", default="localhost", metavar="NAME", help="the address to listen on (default: %(default)s)"
    )
    options.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a broker setting, with its name in server.properties; may be repeated",
    )
    return options


def _data_lines(data_dir: Path, log_dirs: list[str]) -> str:
    """The directories that the other tools take. An override of log.dirs puts the logs elsewhere than the
    coordinator's data."""
    from logcore._paths import LOGS_INSIDE

    if log_dirs == [str(data_dir / LOGS_INSIDE)]:
        return f"  data    {data_dir.resolve()}\n"
    logs = "".join(f"  data    {Path(each).resolve()}\n" for each in log_dirs)
    return f"{logs}  znodes  {data_dir.resolve()}\n"


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if not 0 <= options.port <= 65535:
        raise CommandError(f"--port takes a number from 0 to 65535, not {options.port}", status=2)
    overrides = pairs(options.override, "--override")

    from cluster.broker import Broker, BrokerStartError, BrokerStopError, run_embedded

    def ready(broker: Broker) -> None:
        address = broker.bootstrap
        print(
            "logcore is ready\n"
            f"  broker  {address}\n"
            f"{_data_lines(options.data_dir, broker.config.log_dirs)}"
            f"{metrics_line(broker)}  next    logcore topics --create --topic hello --bootstrap-server "
            f"{address}\n"
            f"          logcore console-producer --topic hello --bootstrap-server {address}\n"
            "          logcore console-consumer --topic hello --from-beginning --bootstrap-server "
            f"{address}\n"
            "Ctrl-C stops it.",
            flush=True,
        )

    try:
        asyncio.run(
            run_embedded(
                options.data_dir, host=options.host, port=options.port, overrides=overrides, ready=ready
            )
        )
    except BrokerStartError as error:
        raise CommandError(str(error)) from None
    except BrokerStopError as error:
        raise CommandError(f"stopped, but not cleanly (exit status 1): {error}") from None
    print("logcore has stopped; every log was closed cleanly", flush=True)
    return 0
