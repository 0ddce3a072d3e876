"""`logcore start`: one or several brokers and their coordinator, for a laptop, a test or a demo."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cluster.cli._common import CommandError, Parser, directory, metrics_line, pairs

DEFAULT_PORT = 9092
DEFAULT_DATA_DIR = "logcore-data"
_BROKERS_MAX = 100


def parser() -> Parser:
    options = Parser("start", "Runs brokers and their coordinator until Ctrl-C or SIGTERM.")
    options.add_argument(
        "--data-dir",
        type=directory,
        default=Path(DEFAULT_DATA_DIR),
        metavar="DIR",
        help="the directory of the logs and the coordinator's data (default: ./%(default)s)",
    )
    options.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help="how many brokers, each in a process of its own if there are several (default: %(default)s)",
    )
    options.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help="the port to listen on; the next brokers take the ports after it; 0 chooses free ones "
        "(default: %(default)s)",
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


def _print_ready(addresses: Sequence[str], where: str) -> None:
    servers = "--bootstrap-server " + ",".join(addresses)
    replicas = f" --replication-factor {min(3, len(addresses))}" if len(addresses) > 1 else ""
    brokers = "".join(f"  broker  {address}\n" for address in addresses)
    print(
        f"logcore is ready\n{brokers}{where}"
        f"  next    logcore topics --create --topic hello{replicas} {servers}\n"
        f"          logcore console-producer --topic hello {servers}\n"
        f"          logcore console-consumer --topic hello --from-beginning {servers}\n"
        "Ctrl-C stops it.",
        flush=True,
    )


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if not 0 <= options.port <= 65535:
        raise CommandError(f"--port takes a number from 0 to 65535, not {options.port}", status=2)
    if not 1 <= options.brokers <= _BROKERS_MAX:
        raise CommandError(
            f"--brokers takes a number from 1 to {_BROKERS_MAX}, not {options.brokers}", status=2
        )
    if options.port + options.brokers - 1 > 65535:
        raise CommandError(
            f"--port {options.port} leaves no port up to 65535 for {options.brokers} brokers", status=2
        )
    overrides = pairs(options.override, "--override")

    from cluster.broker import Broker, BrokerStartError, BrokerStopError, run_brokers, run_embedded

    def ready(broker: Broker) -> None:
        lines = f"{_data_lines(options.data_dir, broker.config.log_dirs)}{metrics_line(broker)}"
        _print_ready([broker.bootstrap], lines)

    def all_ready(addresses: Sequence[str]) -> None:
        _print_ready(addresses, f"  data    {options.data_dir.resolve()}\n")

    where = {"host": options.host, "port": options.port, "overrides": overrides}
    try:
        if options.brokers == 1:
            asyncio.run(run_embedded(options.data_dir, ready=ready, **where))
        else:
            asyncio.run(run_brokers(options.data_dir, options.brokers, ready=all_ready, **where))
    except BrokerStartError as error:
        raise CommandError(str(error)) from None
    except BrokerStopError as error:
        raise CommandError(f"stopped, but not cleanly (exit status 1): {error}") from None
    print("logcore has stopped; every log was closed cleanly", flush=True)
    return 0
