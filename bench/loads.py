"""The loads of the scenarios: those of bench/wire, and Apache Kafka's performance tests.

Every load returns its figures, and `peak_mb` and `cpu_s_per_gb` of the server (see `Server.used`). It deletes
the topics that it wrote.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from servers import BARE, WIRE, Server, jars

FASTEST_WRITE = 3.3e9  # bytes/s that the bare loop wrote at most, on the machines used so far
MOST_REQUESTS = 110e3  # requests/s that it answered at most
CONNECTIONS = 2
FIRST_APPENDS = 0.2  # seconds over which the first requests to the partitions are spread
FETCHED = "fetch"

Figures = dict[str, float]


@dataclass(frozen=True)
class Medium:
    """A directory on tmpfs or on a disk, for the servers' logs."""

    name: str
    directory: Path

    def prepare(self, size: float) -> None:
        """Makes conditions equal for the next load: memory for what it writes, and an idle disk."""
        if self.name != "tmpfs":
            os.sync()
        memory = Path("/dev/shm")
        touch_memory(memory if memory.is_dir() else self.directory, int(size))


def touch_memory(directory: Path, size: int) -> None:
    """Writes and frees `size` bytes of memory, but at most a third of the free space of the tmpfs.

    On a virtual machine, the host takes back memory that was free for a few seconds. The first write to such
    a page takes 70% of the time of a produce, more than the broker's work. A load that follows another one,
    which just freed its logs, would get memory without this cost. So the memory for each produce is touched
    just before.
    """
    free = os.statvfs(directory)
    blocks = min(size, free.f_bavail * free.f_frsize // 3) >> 20
    path = directory / f"logcore-bench-touched-{os.getpid()}"
    block = b"x" * (1 << 20)
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(blocks):
                file.write(block)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def fresh_topic(server: Server, name: str, partitions: int) -> Iterator[str]:
    """A topic that is deleted at the end, with its files. The bare loop has no topics and accepts any."""
    if server.name == BARE:
        yield name
        return
    server.create_topic(name, partitions)
    try:
        yield name
    finally:
        server.delete_topic(name)
        server.wait_for_deletions()


class Loaded(Protocol):
    """What bench/wire sends a load to: a server, or a cluster."""

    @property
    def wire_flags(self) -> list[str]: ...

    def used(self) -> AbstractContextManager[dict[str, float]]: ...


def wire(command: str, server: Loaded, seconds: float, **options: object) -> Figures:
    """Runs one load of bench/wire against a server.

    Raises:
        RuntimeError: it failed; the text has its output.
    """
    arguments = [str(WIRE), command, *server.wire_flags, "--seconds", f"{seconds:g}"]
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    with server.used() as used:
        output = run_program(arguments, seconds + 120)
    figures: Figures = json.loads(output.splitlines()[-1])
    per_gb = {"cpu_s_per_gb": used["cpu_s"] * 1e9 / figures["bytes"]}
    if command == "produce":
        payload = figures["payload_mb_per_s"] * figures["seconds"] * 1e6
        per_gb["cpu_s_per_payload_gb"] = used["cpu_s"] * 1e9 / payload
    return figures | used | per_gb


def run_program(arguments: list[str], timeout: float) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(
            done.stderr.strip()[-500:] or f"{arguments[0]} ended with status {done.returncode}"
        )
    return done.stdout.strip()


def produce(
    server: Server,
    medium: Medium,
    topic: str,
    seconds: float,
    *,
    record: int,
    batch: int,
    partitions: int = CONNECTIONS,
    connections: int = CONNECTIONS,
    in_flight: int = 5,
    threads: int = 0,
    codec: str = "none",
    after_first_appends: bool = False,
) -> Figures:
    """Requests as fast as they are answered. With `after_first_appends`, none of them is the first to its
    partition.
    """
    size = seconds * min(FASTEST_WRITE, MOST_REQUESTS * batch)
    if not after_first_appends:
        medium.prepare(size)
    with fresh_topic(server, topic, partitions):
        if after_first_appends:
            append_to_each(server, topic, partitions, record=record, batch=batch)
            medium.prepare(size)
        return wire(
            "produce",
            server,
            seconds,
            topic=topic,
            partitions=partitions,
            connections=connections,
            in_flight=in_flight,
            record_size=record,
            batch_size=batch,
            threads=threads,
            codec=codec,
        )


def append_to_each(server: Server, topic: str, partitions: int, *, record: int, batch: int) -> None:
    """Sends one request to each partition and waits for all answers, because a log's first append costs
    extra.

    Raises:
        RuntimeError: there were fewer answers than partitions.
    """
    # bench/wire sends request n to partition n % partitions.
    answered = wire(
        "paced",
        server,
        FIRST_APPENDS,
        topic=topic,
        rate=f"{partitions / FIRST_APPENDS:.3f}",
        partitions=partitions,
        connections=CONNECTIONS,
        record_size=record,
        batch_size=batch,
    )["requests"]
    if answered < partitions:
        raise RuntimeError(
            f"{server.name} answered {answered:g} first requests to the {partitions} partitions of {topic}"
        )


def paced(
    server: Server,
    medium: Medium,
    topic: str,
    seconds: float,
    *,
    rate: float,
    record: int,
    batch: int,
    partitions: int,
    connections: int,
) -> Figures:
    """Requests at a fixed rate; their latencies are in `p50_us`, `p99_us` and `p999_us`."""
    medium.prepare(seconds * rate * batch)
    with fresh_topic(server, topic, partitions):
        return wire(
            "paced",
            server,
            seconds,
            topic=topic,
            rate=f"{rate:.3f}",
            partitions=partitions,
            connections=connections,
            record_size=record,
            batch_size=batch,
        )


def latency(server: Server, medium: Medium, topic: str, seconds: float) -> Figures:
    medium.prepare(0)
    with fresh_topic(server, topic, 1):
        return wire("latency", server, seconds, topic=topic)


def fill(server: Server, medium: Medium, _topic: str, seconds: float) -> Figures:
    """Creates the topic that `fetch` reads, with one partition of 1 KiB records. `drop` deletes it."""
    medium.prepare(seconds * FASTEST_WRITE)
    server.create_topic(FETCHED, 1)
    return wire("produce", server, seconds, topic=FETCHED, record_size=1024, batch_size=131072)


def fetch(server: Server, _medium: Medium, _topic: str, seconds: float) -> Figures:
    return wire("fetch", server, seconds, topic=FETCHED, max_bytes=4 << 20)


def drop(server: Server, _medium: Medium, _topic: str, _seconds: float) -> Figures:
    server.delete_topic(FETCHED)
    server.wait_for_deletions()
    return {}


def perf_tests(
    server: Server, medium: Medium, topic: str, _seconds: float, *, records: int, record: int, batch: int
) -> Figures:
    """Apache's producer test, then its consumer test: `produced_per_s` and `consumed_per_s`, records a
    second.

    The CPU seconds are the server's for both tests; a GB counts twice, when it is written and when it is
    read.
    """
    medium.prepare(1.2 * records * record)
    with fresh_topic(server, topic, CONNECTIONS), server.used() as used:
        produced = apache_tool(
            "ProducerPerformance",
            *("--topic", topic, "--num-records", records, "--record-size", record, "--throughput", -1),
            *("--producer-props", "acks=1", f"batch.size={batch}", f"bootstrap.servers={server.bootstrap}"),
        )
        consumed = apache_tool(
            "ConsumerPerformance",
            *("--topic", topic, "--messages", records, "--bootstrap-server", server.bootstrap),
        )
    rate = re.search(r"([\d.]+) records/sec", produced.splitlines()[-1])
    if rate is None:
        raise RuntimeError(f"ProducerPerformance printed: {produced[-500:]}")
    header, row = (line.split(", ") for line in consumed.splitlines()[-2:])
    # This figure leaves out the time in which the group forms.
    fetched = float(dict(zip(header, row, strict=True))["fetch.nMsg.sec"])
    return used | {
        "produced_per_s": float(rate[1]),
        "consumed_per_s": fetched,
        "cpu_s_per_gb": used["cpu_s"] * 1e9 / (2 * records * record),
    }


def apache_tool(name: str, *arguments: object) -> str:
    """Runs a performance test of Apache Kafka 4.1.0, with the heap of Kafka's script."""
    command = ["java", "-Xmx512m", "-cp", jars("4.1.0"), f"org.apache.kafka.tools.{name}"]
    return run_program([*command, *map(str, arguments)], 300)
