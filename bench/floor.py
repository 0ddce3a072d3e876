"""A set in an ensemble whose members do nothing with it: what consensus and the event loop cost without the
coordinator's work.

usage: floor.py [--rounds 5]

Beside the coordinator and Apache ZooKeeper 3.9.4, alternately, run three processes with the coordinator's
event loop and its consensus. They propose what a client sends without decoding it, and answer with as many
bytes as a set has once it is agreed on. All have served enough sets before for Java's compiler. Writes
bench/results/coordinator-floor.md.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from broker import RESULTS, machine, revision
from cluster.coordinator import event_loop
from cluster.coordinator.ensemble.replication import UNWATCHED_MS
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.replies import connected, reply
from cluster.coordinator.server import STAT_BYTES
from cluster.coordinator.state.sessions import PASSWORD_BYTES
from coordinator import DATA, WARM_UPS, prepared, shares_of
from figures import Figure, shown_spread, spread, table
from logcore.quorum import Quorum
from scenarios import say
from servers import Server, free_port
from sessions import Session, close_sessions, latencies, open_sessions, run, set_data
from zookeepers import OURS, ZOOKEEPER, running

NOTHING = "no coordinator"
SETS = 10_000
SETS_BEFORE, CLIENTS_BEFORE = 200_000, 50
CONNECTED = connected(10_000, 5, bytes(PASSWORD_BYTES), True)


class Client(asyncio.Protocol):
    """A client that sends one request at a time, the handshake first."""

    def __init__(self, quorum: Quorum, waiting: deque[tuple[asyncio.Transport, int]]) -> None:
        self._quorum = quorum
        self._waiting = waiting
        self._transport: asyncio.Transport | None = None
        self._is_new = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._is_new:
            self._is_new = False
            self._transport.write(CONNECTED)
            return
        (xid,) = struct.unpack_from(">i", data, 4)
        self._waiting.append((self._transport, xid))
        self._quorum.propose([data])


def serve(number: int, port: int, directory: str, quorum_ports: Sequence[int]) -> None:
    """Runs a member. It prints a line when it leads."""
    pairs = list(zip(quorum_ports[::2], quorum_ports[1::2], strict=True))
    servers = [(server, "127.0.0.1", *pair, "", False) for server, pair in enumerate(pairs, 1)]
    quorum = Quorum(
        data_dir=directory, server_id=number, servers=servers, tick_ms=2000, init_limit=10, sync_limit=5
    )
    quorum.start()
    quorum.set_wake_interval(UNWATCHED_MS)
    waiting: deque[tuple[asyncio.Transport, int]] = deque()
    stat = bytes(STAT_BYTES)

    def take() -> None:
        for kind, *details in quorum.take(64 << 10):
            if kind == "leading":
                print("leads", flush=True)
            if kind != "entries":
                continue
            entries: list[Any] = details[0]
            for index, _term, _time_ms, commands, _members in entries:
                for mine, _ticket, _data in commands:
                    if mine:
                        transport, xid = waiting.popleft()
                        transport.write(reply(xid, index, Code.OK, stat))
                quorum.applied(index)

    loop = event_loop()
    asyncio.set_event_loop(loop)
    loop.add_reader(quorum.wake_fd, take)
    loop.run_until_complete(loop.create_server(lambda: Client(quorum, waiting), "127.0.0.1", port))
    loop.run_forever()


@contextmanager
def members(directory: Path) -> Iterator[list[int]]:
    """Starts three members. Yields their ports, the leader's last."""
    ports, quorum_ports = [free_port() for _ in range(3)], [str(free_port()) for _ in range(6)]
    started: list[Server] = []
    try:
        for number, port in enumerate(ports, 1):
            data = directory / f"nothing-{number}"
            data.mkdir()
            command = [sys.executable, __file__, "--serve", str(number), str(port), str(data), *quorum_ports]
            started.append(Server(NOTHING, command, port, directory / f"nothing-{number}.log", kafka=False))
        pause, end = Event(), time.monotonic() + 30
        while not (leaders := [each.port for each in started if "leads" in each.last_output()]):
            if time.monotonic() > end:
                raise RuntimeError("there is no leader after half a minute")
            pause.wait(0.05)
        yield sorted(ports, key=lambda port: port == leaders[-1])
    finally:
        for each in started:
            each.kill()


def warm(by_role: list[int], path: str) -> None:
    sessions = open_sessions(by_role, CLIENTS_BEFORE)
    run(sessions, shares_of([set_data(f"{path}/0", DATA)] * SETS_BEFORE, CLIENTS_BEFORE), 1)
    close_sessions(sessions)


def measure(name: str, by_role: list[int], path: str, figures: dict[str, Figure], number: int) -> None:
    for role, port in (("the leader", by_role[-1]), ("a follower", by_role[0])):
        session = Session(port)
        messages = [set_data(f"{path}/0", DATA)] * SETS
        taken = sorted(latencies(session, messages))
        session.close()
        for percent in (50, 99):
            what = f"one set at a time at {role}, p{percent}"
            figure = figures.setdefault(what, Figure(what, "ms", (), False))
            if number >= 0:
                figure.add(name, number, taken[len(taken) * percent // 100] * 1000)


def row(figure: Figure) -> list[str]:
    nothing, theirs = figure.of(NOTHING), figure.of(ZOOKEEPER)
    ratio = spread(value / theirs[number] for number, value in nothing.items())
    cells = [figure.cell(name) for name in (NOTHING, OURS, ZOOKEEPER)]
    return [figure.what, figure.unit, *cells, shown_spread(ratio), shown_spread(figure.ratio(ZOOKEEPER))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs="+", metavar="ARGUMENT", help="run a member")
    options = parser.parse_args()
    if options.serve:
        number, port, directory, *quorum_ports = options.serve
        serve(int(number), int(port), directory, [int(each) for each in quorum_ports])
    figures: dict[str, Figure] = {}
    directory = Path(tempfile.mkdtemp(prefix="logcore-bench-", dir="/dev/shm"))
    try:
        with ExitStack() as stack:
            measured = [(NOTHING, stack.enter_context(members(directory)), "/none")]
            for name in (OURS, ZOOKEEPER):
                ensemble = stack.enter_context(running(name, directory / name.split()[-1], 3))
                measured.append((name, ensemble.by_role, prepared(ensemble, "floor", 1)))
            for name, by_role, path in measured:
                say(f"floor: {SETS_BEFORE:,} sets that do not count, {name}")
                warm(by_role, path)
            for number in range(-WARM_UPS, options.rounds):
                say(f"floor: round {number + 1} of {options.rounds}")
                for name, by_role, path in measured if number % 2 == 0 else measured[::-1]:
                    measure(name, by_role, path, figures, number)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    heads = ["what", "unit", NOTHING, OURS, ZOOKEEPER, "none ÷ ZooKeeper", "ours ÷ ZooKeeper"]
    text = "\n".join(
        [
            "# A set in an ensemble whose members do nothing with it",
            "",
            f"`bench/floor.py` on {datetime.now(UTC):%Y-%m-%d} at {revision()}: {machine()}; client and "
            "servers share them, and one ensemble at a time has work. Its data is on tmpfs. Median "
            f"(minimum–maximum) of {options.rounds} rounds of {SETS:,} sets, after {WARM_UPS} rounds and "
            f"{SETS_BEFORE:,} sets of {CLIENTS_BEFORE} clients that do not count. Ratios are computed for "
            "each round, in alternating order. “No coordinator” is the coordinator's event loop and its "
            "consensus, which propose what a client sends, and answer once it is agreed on.",
            "",
            *table(heads, [row(figure) for figure in figures.values()]),
        ]
    )
    (RESULTS / "coordinator-floor.md").write_text(f"{text}\n")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
