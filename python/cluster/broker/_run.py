"""Runs a broker until SIGINT or SIGTERM, with or without its own coordinator. The command line calls this.

`run` uses a coordinator in another process. `run_embedded` runs the coordinator in this process on a loopback
port; its data is in one directory, in `kafka-logs` and `coordinator`. A signal during the start ends the
start.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cluster.broker._broker import Broker
from cluster.broker.config import BrokerConfig
from cluster.broker.errors import BrokerStartError, BrokerStopError
from cluster.broker.settings import ConfigError
from cluster.process import (
    log_to_stderr,
    print_stacks_on_quit,
    raise_descriptor_limit,
    stop_signal,
    unless_stopped,
    until_stopped,
)
from cluster.properties import PropertiesError
from logcore._paths import LOGS_INSIDE

if TYPE_CHECKING:
    from cluster.coordinator import CoordinatorServer

log = logging.getLogger(__name__)

T = TypeVar("T")

Ready = Callable[[Broker], None]
"""Called when clients are served."""

_EMBEDDED_DEFAULTS = {
    "broker.id": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""As in Kafka's server.properties for a single broker."""


async def run(config: BrokerConfig, ready: Ready) -> None:
    """Runs a broker until SIGINT or SIGTERM.

    Raises BrokerStartError. Raises BrokerStopError if it did not stop cleanly, or stopped because every log
    directory failed.
    """
    log_to_stderr(config.text("log.format"))
    print_stacks_on_quit()
    raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        stopped = stop_signal(stack)
        broker = await unless_stopped(stopped, _start_broker(stack, config))
        if broker is not None:
            ready(broker)
            await _stopped_or_failed(stopped, broker)


async def run_properties(path: Path, overrides: Mapping[str, str], ready: Ready) -> None:
    """Runs a broker with the settings of a server.properties file."""
    try:
        config = BrokerConfig.load(path, overrides)
    except OSError as error:
        raise BrokerStartError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ConfigError, PropertiesError) as error:
        raise BrokerStartError(f"{path}: {error}") from None
    await run(config, ready)


async def run_embedded(
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 9092,
    overrides: Mapping[str, str] | None = None,
    ready: Ready = lambda broker: None,
) -> None:
    """Runs a broker and its coordinator until SIGINT or SIGTERM.

    Raises BrokerStartError. Raises BrokerStopError if they did not stop cleanly, or stopped because the
    coordinator or every log directory failed.
    """
    log_to_stderr((overrides or {}).get("log.format"))
    print_stacks_on_quit()
    raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        stopped = stop_signal(stack)
        started = await unless_stopped(stopped, _start_both(stack, data_dir, host, port, overrides))
        if started is not None:
            broker, coordinator = started
            ready(broker)
            await _stopped_or_failed(stopped, broker, coordinator)


async def start_embedded(
    stack: AsyncExitStack,
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 9092,
    overrides: Mapping[str, str] | None = None,
) -> Broker:
    """Starts a broker and its coordinator; leaving `stack` stops them. Raises BrokerStartError.

    It changes no signal handler and no limit of the process.
    """
    broker, _ = await _start_both(stack, data_dir, host, port, overrides)
    return broker


async def _start_both(
    stack: AsyncExitStack, data_dir: Path, host: str, port: int, overrides: Mapping[str, str] | None
) -> tuple[Broker, CoordinatorServer]:
    stack.enter_context(sole_use(data_dir))
    coordinator, coordinator_port = await start_coordinator(stack, data_dir / "coordinator")
    settings = _EMBEDDED_DEFAULTS | {
        "listeners": f"PLAINTEXT://{bracketed(host)}:{port}",
        "log.dirs": str(data_dir / LOGS_INSIDE),
        **dict(overrides or {}),
        "zookeeper.connect": f"127.0.0.1:{coordinator_port}",
    }
    try:
        config = BrokerConfig.parse(settings)
    except ConfigError as error:
        raise BrokerStartError(str(error)) from None
    return await _start_broker(stack, config), coordinator


async def _start_broker(stack: AsyncExitStack, config: BrokerConfig) -> Broker:
    broker = Broker(config)
    await broker.start()
    stop_at_exit(stack, broker.stop)
    return broker


async def start_coordinator(stack: AsyncExitStack, directory: Path) -> tuple[CoordinatorServer, int]:
    """Starts a coordinator; leaving `stack` stops it. Returns it with its port. Raises BrokerStartError."""
    from cluster.coordinator import CoordinatorServer

    # Only brokers of this directory had sessions, and their earlier processes are gone.
    coordinator = CoordinatorServer(directory, "127.0.0.1", 0, expire_sessions_at_start=True)
    try:
        port = await coordinator.start()
    except OSError as error:
        raise BrokerStartError(
            f"the coordinator's data in {directory} cannot be used: {error}; repair the directory, or choose "
            "another"
        ) from None
    stop_at_exit(stack, coordinator.stop)
    return coordinator, int(port)


def stop_at_exit(stack: AsyncExitStack, stop: Callable[[], Awaitable[None]]) -> None:
    """Calls `stop` when `stack` is left. Its failure and an earlier BrokerStopError become one
    BrokerStopError.
    """

    async def stop_and_report(_kind: object, before: BaseException | None, _trace: object) -> bool:
        try:
            await stop()
        except Exception as error:
            text = str(error)
            if not isinstance(error, BrokerStopError):
                text = f"the coordinator did not stop cleanly: {text}"
            if isinstance(before, BrokerStopError):
                text = f"{before}; {text}"
            elif before is not None:
                log.error("%s", text)
                return False
            raise BrokerStopError(text) from None
        return False

    stack.push_async_exit(stop_and_report)


async def _stopped_or_failed(
    stopped: asyncio.Event, broker: Broker, coordinator: CoordinatorServer | None = None
) -> None:
    """Waits for the signal to stop. Raises BrokerStopError if the coordinator or every log directory fails
    first.

    Without the coordinator no topic can be created. Without a log directory nothing is served, and a
    supervisor would not notice.
    """
    from cluster.coordinator import CoordinatorError

    signalled = stopped.wait() if coordinator is None else until_stopped(stopped, coordinator.failed)
    ending = asyncio.ensure_future(signalled)
    failing = asyncio.ensure_future(broker.failed())
    try:
        await asyncio.wait((ending, failing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        failing.cancel()
    try:
        if ending.done():
            ending.result()
            return
    except CoordinatorError as error:
        raise BrokerStopError(f"{error}, so the broker stopped; repair that disk and start again") from None
    raise BrokerStopError(
        f"every log directory has failed ({failing.result()}), so the broker stopped; repair the disk, or "
        "set log.dirs to another, and start again"
    )


@contextmanager
def sole_use(data_dir: Path) -> Iterator[None]:
    """Creates the directory and locks it against a second process. The lock ends with the process."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerStartError(
            f"data directory {data_dir} cannot be used: {reason}; "
            "give this user access to it, or choose another directory"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BrokerStartError(
                f"data directory {data_dir} is in use by another logcore; "
                "stop it, or choose another directory"
            ) from None
        yield
    finally:
        os.close(descriptor)


def bracketed(host: str) -> str:
    """The host as in an address with a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
