"""Whole-system scenario: our broker, Apache Kafka 3.9.1 and the bare loops in turn on the same tmpfs, as ratios.

usage: system.py [--rounds N] [--seconds S] [--directory DIR]

Writes bench/results/system.md (the table below, with the machine it ran on) and prints it. "Wire" is what bench/wire
sends: pre-encoded Produce requests, five in flight on each of two connections, one partition each; or raw Fetch requests.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from servers import ROOT, Server, apache_kafka, bare, cpu_seconds, ours, resident_mb, wire

RESULTS = Path(__file__).resolve().parent / "results" / "system.md"
CONNECTIONS = 2
WARM_UPS = 3
FASTEST_WRITE = 3.3e9  # bytes/s that the bare loop writes at most on the machines seen so far


@dataclass
class Row:
    """One figure of each server over the rounds."""

    what: str
    unit: str
    goal: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, server: str, value: float) -> None:
        self.values.setdefault(server, []).append(value)

    def cell(self, server: str) -> str:
        values = self.values.get(server)
        if not values:
            return ""
        middle = statistics.median(values)
        digits = 2 if middle < 10 else 0
        if len(values) == 1:
            return f"{middle:.{digits}f}"
        return f"{middle:.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"

    def ratio(self, server: str, other: str) -> str:
        """The ratio of `server` to `other`, round by round: median and spread."""
        pairs = list(zip(self.values.get(server, []), self.values.get(other, []), strict=False))
        if not pairs:
            return ""
        ratios = [ours / theirs for ours, theirs in pairs]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


@contextmanager
def fresh_topic(server: Server, name: str, partitions: int) -> Iterator[str]:
    """A topic that is gone, with all its files, at the end."""
    server.create_topic(name, partitions)
    try:
        yield name
    finally:
        server.delete_topic(name)
        server.wait_for_deletions()


def touch_memory(directory: Path, size: int) -> None:
    """Makes a virtual machine's host give it `size` bytes of memory, or a third of what tmpfs has left, and frees them.

    The host takes back what a guest leaves free for a few seconds, and giving it again costs more than all a broker does:
    the first write to such a page takes 70% of the time of a produce. Whoever writes after another that just freed its
    logs would have the memory for nothing. So each produce is given the same, just before.
    """
    room = os.statvfs(directory)
    blocks = min(size, room.f_bavail * room.f_frsize // 3) >> 20
    path = directory / "touched"
    block = b"x" * (1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(blocks):
            file.write(block)
    path.unlink()


def produce(
    server: Server, directory: Path, number: int, seconds: float, record: int, batch: int
) -> dict[str, float]:
    touch_memory(directory, int(seconds * FASTEST_WRITE))
    load = {
        "partitions": CONNECTIONS,
        "connections": CONNECTIONS,
        "in_flight": 5,
        "record_size": record,
        "batch_size": batch,
        "acks": 1,
        "seconds": seconds,
    }
    if server.name.startswith("bare"):
        return wire("produce", server, topic="bench", **load)
    with fresh_topic(server, f"produce-{record}-{batch}-{number}", CONNECTIONS) as topic:
        return wire("produce", server, topic=topic, **load)


def say(text: str) -> None:
    print(text, flush=True)


def run(rounds: int, seconds: float, directory: Path) -> list[Row]:
    rows: dict[str, Row] = {}

    def row(what: str, unit: str, goal: str) -> Row:
        return rows.setdefault(what, Row(what, unit, goal))

    with ExitStack() as stack:
        say("starting logcore and Apache Kafka 3.9.1 with its ZooKeeper")
        mine = ours(directory)
        stack.callback(mine.stop)
        row("start to first answer", "s", "≤ 1 s").add(mine.name, mine.seconds_to_answer)
        row("resident memory, idle", "MB", "≤ 90 MB").add(mine.name, resident_mb(mine.process))
        kafka = stack.enter_context(apache_kafka(directory))
        row("start to first answer", "s", "").add(kafka.name, kafka.seconds_to_answer)
        row("resident memory, idle", "MB", "").add(kafka.name, resident_mb(kafka.process))
        loop = bare("bare-broker", directory, "--dir", str(directory / "bare"))
        stack.callback(loop.stop)
        servers = [mine, kafka, loop]

        say("warming up (the JVM compiles while it serves)")
        for number in range(WARM_UPS):
            for server in servers:
                produce(server, directory, 1000 + number, seconds, 1024, 131072)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            # Whoever goes first in one round goes last in the next.
            servers.reverse()
            for server in servers:
                figures = produce(server, directory, number, seconds, 1024, 131072)
                row("wire produce, 1 KiB records, 128 KiB batches, acks=1", "MB/s", "≥ 1x Kafka").add(
                    server.name, figures["mb_per_s"]
                )
            for server in servers:
                figures = produce(server, directory, number, seconds, 100, 16384)
                row("wire produce, 100 B records, 16 KiB batches, acks=1", "M rec/s", "≥ 1x Kafka").add(
                    server.name, figures["records_per_s"] / 1e6
                )
            measure_latency(row, number, servers, seconds)
        measure_fetch(row, rounds, seconds, mine, kafka, directory, stack)
        for server in (mine, kafka):
            row("resident memory, after the load", "MB", "").add(server.name, resident_mb(server.process))
            row("CPU seconds in all", "s", "").add(server.name, cpu_seconds(server.process))
    return list(rows.values())


def measure_latency(
    row: Callable[[str, str, str], Row], number: int, servers: list[Server], seconds: float
) -> None:
    for server in servers:
        if server.name.startswith("bare"):
            figures = wire("latency", server, topic="bench", seconds=seconds)
        else:
            with fresh_topic(server, f"latency-{number}", 1) as topic:
                figures = wire("latency", server, topic=topic, seconds=seconds)
        for quantile in ("p50", "p99"):
            row(f"single-record produce round trip, acks=1, {quantile}", "µs", "").add(
                server.name, figures[f"{quantile}_us"]
            )


def measure_fetch(
    row: Callable[[str, str, str], Row],
    rounds: int,
    seconds: float,
    mine: Server,
    kafka: Server,
    directory: Path,
    stack: ExitStack,
) -> None:
    say("filling a partition for the fetches")
    for server in (mine, kafka):
        server.create_topic("fetch", 1)
        wire(
            "produce",
            server,
            topic="fetch",
            partitions=1,
            connections=1,
            in_flight=5,
            record_size=1024,
            batch_size=131072,
            acks=1,
            seconds=1,
        )
    segment = next((directory / "ours").rglob("fetch-0/00000000000000000000.log"))
    limit = bare("bare-sendfile", directory, "--file", str(segment))
    stack.callback(limit.stop)
    for _ in range(rounds):
        for server in (mine, kafka, limit):
            figures = wire("fetch", server, topic="fetch", partition=0, max_bytes=4 << 20, seconds=seconds)
            row("wire fetch, 1 KiB records, 4 MiB a request", "GB/s", "≥ 0.5x bare sendfile").add(
                "bare-broker" if server is limit else server.name, figures["gb_per_s"]
            )


def table(rows: list[Row], rounds: int, seconds: float) -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    lines = [
        "# Whole-system scenario",
        "",
        f"`bench/system.py` on {datetime.now(UTC):%Y-%m-%d} at {revision or 'an unversioned tree'}: {cpu}, {os.cpu_count()} cores, Linux "
        f"{platform.release()}, load generator and servers sharing them, log directories on tmpfs. Median (minimum–maximum) of "
        f"{rounds} interleaved rounds of {seconds:g} s, after {WARM_UPS} more to warm up. The bare loop of a fetch is "
        "`sendfile` from a file of ours, that of a produce reads, checks CRC-32C, writes once and sends a canned answer. "
        "The order of the servers turns round with each round, and before each produce the memory it will fill is touched: see "
        "`touch_memory`.",
        "",
        "| what | unit | logcore | Apache Kafka 3.9.1 | bare loop | logcore ÷ Kafka | logcore ÷ bare | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.what} | {row.unit} | {row.cell('logcore')} | {row.cell('Apache Kafka 3.9.1')} | {row.cell('bare-broker')} "
            f"| {row.ratio('logcore', 'Apache Kafka 3.9.1')} | {row.ratio('logcore', 'bare-broker')} | {row.goal} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument(
        "--directory", type=Path, help="where the logs go (default: a new directory on /dev/shm)"
    )
    arguments = options.parse_args()
    parent = arguments.directory or Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="logcore-bench-", dir=parent))
    try:
        rows = run(arguments.rounds, arguments.seconds, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    text = table(rows, arguments.rounds, arguments.seconds)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
