"""Running a broker until it is told to stop: the two entrances of the command line.

`run` takes a configuration whose coordinator runs elsewhere; `run_embedded` runs the coordinator too, in the
same process and on a loopback port, with all data below one directory: `kafka-logs` and `coordinator`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from cluster.broker._broker import Broker
from cluster.broker.config import BrokerConfig
from cluster.broker.settings import ConfigError
from cluster.broker.start_error import BrokerStartError

Ready = Callable[[str], None]
"""Called with the bootstrap address once clients are served."""

_EMBEDDED_DEFAULTS = {
    "broker.id": "0",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""As in the server.properties that Kafka ships for a single broker."""


async def run(config: BrokerConfig, ready: Ready) -> None:
    """Runs a broker until SIGINT or SIGTERM; BrokerStartError when it cannot start."""
    _log_to_stderr()
    async with AsyncExitStack() as stack:
        stopped = _stop_signal(stack)
        broker = Broker(config)
        await broker.start()
        stack.push_async_callback(broker.stop)
        ready(broker.bootstrap)
        await stopped.wait()


async def run_properties(path: Path, overrides: Mapping[str, str], ready: Ready) -> None:
    """Runs a broker with the settings of a server.properties file."""
    try:
        config = BrokerConfig.load(path, overrides)
    except OSError as error:
        raise BrokerStartError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise BrokerStartError(f"{path}: {error}") from None
    await run(config, ready)


async def run_embedded(
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 9092,
    overrides: Mapping[str, str] | None = None,
    ready: Ready = lambda address: None,
) -> None:
    """Runs a broker and its coordinator until SIGINT or SIGTERM; BrokerStartError when they cannot start."""
    _log_to_stderr()
    async with AsyncExitStack() as stack:
        stopped = _stop_signal(stack)
        broker = await start_embedded(stack, data_dir, host=host, port=port, overrides=overrides)
        ready(broker.bootstrap)
        await stopped.wait()


async def start_embedded(
    stack: AsyncExitStack,
    data_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 9092,
    overrides: Mapping[str, str] | None = None,
) -> Broker:
    """Starts a broker and its coordinator; leaving `stack` stops them. BrokerStartError says what to do."""
    stack.enter_context(_sole_use(data_dir))
    coordinator_port = await _start_coordinator(stack, data_dir / "coordinator")
    settings = _EMBEDDED_DEFAULTS | {
        "listeners": f"PLAINTEXT://{_bracketed(host)}:{port}",
        "log.dirs": str(data_dir / "kafka-logs"),
        **dict(overrides or {}),
        "zookeeper.connect": f"127.0.0.1:{coordinator_port}",
    }
    try:
        broker = Broker(BrokerConfig.parse(settings))
    except ConfigError as error:
        raise BrokerStartError(str(error)) from None
    await broker.start()
    stack.push_async_callback(broker.stop)
    return broker


async def _start_coordinator(stack: AsyncExitStack, directory: Path) -> int:
    from cluster.coordinator import CoordinatorServer

    # The sessions of an earlier process are dead, and this broker was the only one that had any.
    coordinator = CoordinatorServer(directory, "127.0.0.1", 0, expire_sessions_at_start=True)
    try:
        port = await coordinator.start()
    except OSError as error:
        raise BrokerStartError(f"the coordinator's data in {directory} cannot be used: {error}") from None
    stack.push_async_callback(coordinator.stop)
    return int(port)


@contextmanager
def _sole_use(data_dir: Path) -> Iterator[None]:
    """Makes the directory and keeps a second process out of it; the lock ends with the process, however it
    ends.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerStartError(
            f"data directory {data_dir} cannot be used: {reason}; "
            "give the user the right to, or choose another"
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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stop_signal(stack: AsyncExitStack) -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
        stack.callback(loop.remove_signal_handler, number)
    return stopped


def _log_to_stderr() -> None:
    """Warnings and errors on standard error, unless the program has set up its logging itself."""
    # What kazoo has to say (each attempt to connect) is of use only to those who ask for it.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    logger = logging.getLogger("cluster")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
