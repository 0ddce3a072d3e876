"""Several brokers on one machine, each in a process of its own, with their coordinator in this process.

For a laptop, a test or a demo. Ports and data are under one directory: `coordinator`, `kafka-logs` of broker
0, `kafka-logs-N` of broker N, and `broker-N.properties`, which is written anew at each start. Runs on the
event loop. A broker that ends by itself is named, and the others go on; when this process ends, they end.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster.broker._run import bracketed, sole_use, start_coordinator, stop_at_exit
from cluster.broker.errors import BrokerStartError, BrokerStopError
from cluster.process import (
    log_to_stderr,
    print_stacks_on_quit,
    raise_descriptor_limit,
    stop_signal,
    unless_stopped,
    until_stopped,
)
from cluster.properties import escape
from logcore._paths import LOGS_INSIDE

log = logging.getLogger(__name__)

_STOP_SECONDS = 60.0
"""How long a stop waits for one broker before it is killed."""
_LINES_KEPT = 20
_LINE_BYTES_MAX = 16 << 20
"""Of a broker's log: far above the longest line, because a longer one would end the copying."""
_READY = "  broker  "
"""What the line of `logcore broker` begins with that names its address."""
_PR_SET_PDEATHSIG = 1

BrokersReady = Callable[[Sequence[str]], None]
"""Called with the brokers' addresses when clients are served."""


@dataclass(slots=True)
class _Broker:
    """One broker's process."""

    number: int
    properties: Path
    process: asyncio.subprocess.Process
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))
    """Its last lines on standard error."""
    copying: asyncio.Task[None] | None = None


async def run_brokers(
    data_dir: Path,
    count: int,
    *,
    host: str,
    port: int,
    overrides: Mapping[str, str],
    ready: BrokersReady,
) -> None:
    """Runs `count` brokers and their coordinator until SIGINT or SIGTERM. Their ports follow each other; with
    port 0 each chooses a free one.

    Raises BrokerStartError, and BrokerStopError if one did not stop cleanly or ended by itself.
    """
    log_to_stderr(overrides.get("log.format"))
    print_stacks_on_quit()
    raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        stopped = stop_signal(stack)
        stack.enter_context(sole_use(data_dir))
        coordinator, coordinator_port = await start_coordinator(stack, data_dir / "coordinator")
        brokers: list[_Broker] = []
        stop_at_exit(stack, lambda: _stop(brokers))
        for number in range(count):
            settings = _settings(data_dir, count, number, host, port, coordinator_port)
            settings |= _of_broker(number, overrides)
            properties = data_dir / f"broker-{number}.properties"
            properties.write_text("".join(f"{name}={escape(value)}\n" for name, value in settings.items()))
            brokers.append(await _spawn(number, properties))
        addresses = await unless_stopped(stopped, _addresses(brokers))
        if addresses is None:
            return
        ready(addresses)
        watching = [asyncio.create_task(_name_end(broker)) for broker in brokers]
        try:
            await until_stopped(stopped, coordinator.failed)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)


def _settings(
    data_dir: Path, count: int, number: int, host: str, port: int, coordinator_port: int
) -> dict[str, str]:
    logs = LOGS_INSIDE if number == 0 else f"{LOGS_INSIDE}-{number}"
    return {
        "broker.id": str(number),
        "listeners": f"PLAINTEXT://{bracketed(host)}:{port and port + number}",
        "log.dirs": str((data_dir / logs).resolve()),
        "zookeeper.connect": f"127.0.0.1:{coordinator_port}",
        "offsets.topic.replication.factor": str(min(3, count)),
        "transaction.state.log.replication.factor": str(min(3, count)),
        "transaction.state.log.min.isr": str(min(2, count)),
        "group.initial.rebalance.delay.ms": "0",
    }


def _of_broker(number: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """The settings with the port of the metrics of this broker. As those of the listeners, their ports follow
    each other, and 0 chooses a free one.
    """
    host, colon, port = overrides.get("metrics.listener", "").rpartition(":")
    if not colon or not port.isdecimal() or int(port) == 0:
        return dict(overrides)
    return {**overrides, "metrics.listener": f"{host}:{int(port) + number}"}


# Loaded before the first fork: other threads may hold the loader's lock at a fork.
_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the new process: SIGTERM comes when this process ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _spawn(number: int, properties: Path) -> _Broker:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cluster.cli",
        "broker",
        str(properties),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
        # A terminal's Ctrl-C comes to this process only, which stops the brokers one after the other.
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    broker = _Broker(number, properties, process)
    broker.copying = asyncio.create_task(_copy_log(broker), name=f"log of broker {number}")
    return broker


async def _copy_log(broker: _Broker) -> None:
    """Copies the broker's standard error to this process's, with its number before each line."""
    assert broker.process.stderr is not None
    async for line in broker.process.stderr:
        text = line.decode(errors="replace").rstrip("\n")
        broker.lines.append(text)
        print(f"broker {broker.number}: {text}", file=sys.stderr, flush=True)


async def _addresses(brokers: Sequence[_Broker]) -> list[str]:
    """Waits until every broker serves clients. Raises BrokerStartError if one ends instead."""
    return await asyncio.gather(*map(_address, brokers))


async def _address(broker: _Broker) -> str:
    assert broker.process.stdout is not None
    async for line in broker.process.stdout:
        text = line.decode(errors="replace")
        if text.startswith(_READY):
            return text.removeprefix(_READY).strip()
    await broker.process.wait()
    if broker.copying is not None:
        await broker.copying
    reason = broker.lines[-1] if broker.lines else f"its process ended with {_ending(broker)}"
    raise BrokerStartError(f"broker {broker.number} did not start: {reason}")


async def _name_end(broker: _Broker) -> None:
    await broker.process.wait()
    log.error(
        "broker %d has ended by itself with %s; the others go on. Start it again with: logcore broker %s",
        broker.number,
        _ending(broker),
        broker.properties,
    )


def _ending(broker: _Broker) -> str:
    status = broker.process.returncode
    return f"signal {-status}" if status is not None and status < 0 else f"status {status}"


async def _stop(brokers: Sequence[_Broker]) -> None:
    """Stops the brokers one after the other, so that each hands its leaderships to those that are left."""
    failures = []
    for broker in brokers:
        ended_before = broker.process.returncode is not None
        with suppress(ProcessLookupError):
            broker.process.terminate()
        try:
            await asyncio.wait_for(broker.process.wait(), _STOP_SECONDS)
        except TimeoutError:
            broker.process.kill()
            await broker.process.wait()
        if broker.copying is not None:
            await broker.copying
        if broker.process.returncode != 0:
            when = "had ended" if ended_before else "ended"
            failures.append(f"broker {broker.number} {when} with {_ending(broker)}")
    if failures:
        raise BrokerStopError("; ".join(failures))
