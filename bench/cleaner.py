"""Compaction: Apache Kafka 3.9.1's cleaner and ours, in turn, over copies of one directory.

usage: cleaner.py [--rounds N] [--records N] [--keys N] [--directory DIR]

Kafka's figure is what its own log says its cleaner thread took for the log; ours is the time of the same compaction in
`logcore-bench-log clean`. One thread each, buffers as Kafka's defaults. Writes bench/results/cleaner.md and prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import logcore
from cluster import AdminClient, NewTopic
from servers import KAFKA_LIBS, ROOT, Server, free_port

RESULTS = Path(__file__).resolve().parent / "results" / "cleaner.md"
LOGGER = ROOT / "build" / "peers" / "slf4j-simple-1.7.36.jar"
BENCH = ROOT / "target" / "release" / "logcore-bench-log"
TOPIC = "compacted"
SEGMENT = 64 << 20
TIMEOUT = 300.0


def java(heap: str, main_class: str, config: Path) -> list[str]:
    # The logger stands first on the class path, before the silent one that the tests use.
    return [
        "java",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-XX:+UseG1GC",
        "-Dorg.slf4j.simpleLogger.log.kafka.log.LogCleaner=info",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{LOGGER}:{KAFKA_LIBS}/*",
        main_class,
        str(config),
    ]


@contextmanager
def zookeeper(directory: Path) -> Iterator[int]:
    port = free_port()
    config = directory / "zookeeper.properties"
    config.write_text(f"dataDir={directory}/zookeeper\nclientPort={port}\nadmin.enableServer=false\n")
    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    server = Server(
        "zookeeper", java("256m", main_class, config), port, directory / "zookeeper.out", kafka=False
    )
    try:
        yield port
    finally:
        server.stop()


@contextmanager
def kafka(directory: Path, zookeeper_port: int, log: Path, cleaner: bool) -> Iterator[Server]:
    port = free_port()
    config = directory / "server.properties"
    config.write_text(
        f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={directory}/kafka-logs\n"
        f"zookeeper.connect=127.0.0.1:{zookeeper_port}\nlog.cleaner.enable={str(cleaner).lower()}\n"
        "log.cleaner.backoff.ms=100\noffsets.topic.replication.factor=1\n"
    )
    server = Server("Apache Kafka 3.9.1", java("1g", "kafka.Kafka", config), port, log)
    try:
        yield server
    finally:
        server.stop()


def fill(partition: Path, records: int, keys: int) -> int:
    """Writes records of 100 B whose keys come again and again; returns the bytes of the log."""
    batch = 500
    with logcore.open(partition, segment_bytes=SEGMENT) as log:
        for start in range(0, records, batch):
            # Each key has a large prime's multiple of its last place: no order that a cleaner could gain from.
            log.append_batches(
                logcore.build_batch(
                    logcore.Record(value=b"v" * 100, key=b"%020d" % (n * 7919 % keys), timestamp=n)
                    for n in range(start, min(start + batch, records))
                )
            )
        return log.size_bytes


def wait_cleaned(server: Server, log: Path) -> float:
    """Seconds that Kafka's cleaner says it took for the log."""
    pause = threading.Event()
    end = time.monotonic() + TIMEOUT
    # "… Log cleaner thread 0 cleaned log compacted-0 (dirty section = [0, n])
    #     … MB of log processed in 5.2 seconds (…)"
    pattern = re.compile(rf"cleaned log {TOPIC}-0 .*?of log processed in ([\d.,]+) seconds", re.DOTALL)
    while time.monotonic() < end and server.process.poll() is None:
        found = pattern.search(log.read_text())
        if found:
            return float(found[1].replace(",", ""))
        pause.wait(0.2)
    raise RuntimeError(f"Kafka's cleaner did not come to its end; it said:\n{log.read_text()[-3000:]}")


def theirs(directory: Path, zookeeper_port: int, made: Path) -> tuple[float, int]:
    partition = directory / "kafka-logs" / f"{TOPIC}-0"
    shutil.rmtree(partition)
    shutil.copytree(made, partition)
    (directory / "kafka-logs" / "cleaner-offset-checkpoint").unlink(missing_ok=True)
    log = directory / "kafka.out"
    with kafka(directory, zookeeper_port, log, cleaner=True) as server:
        seconds = wait_cleaned(server, log)
    return seconds, sum(path.stat().st_size for path in partition.glob("*.log"))


def ours(directory: Path, made: Path) -> tuple[float, int]:
    partition = directory / f"{TOPIC}-0"
    shutil.copytree(made, partition)
    done = subprocess.run(
        [str(BENCH), "clean", str(partition)], capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode != 0:
        raise RuntimeError(f"logcore-bench-log clean failed: {done.stderr.strip()}")
    figures = json.loads(done.stdout)
    size = sum(path.stat().st_size for path in partition.glob("*.log"))
    shutil.rmtree(partition)
    return float(figures["seconds"]), size


def run(directory: Path, rounds: int, records: int, keys: int) -> str:
    with zookeeper(directory) as port:
        print("Apache Kafka makes the topic", flush=True)
        with kafka(directory, port, directory / "kafka.out", cleaner=False) as server:
            config = {
                "cleanup.policy": "compact",
                "segment.bytes": str(SEGMENT),
                "min.cleanable.dirty.ratio": "0.01",
            }
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1, config=config)])[
                TOPIC
            ].result(60)
        made = directory / "made"
        shutil.copytree(directory / "kafka-logs" / f"{TOPIC}-0", made)
        print(f"writing {records:,} records with {keys:,} keys", flush=True)
        size = fill(made, records, keys)
        found: dict[str, list[float]] = {"logcore": [], "Apache Kafka 3.9.1": []}
        left: dict[str, int] = {}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            seconds, left["Apache Kafka 3.9.1"] = theirs(directory, port, made)
            found["Apache Kafka 3.9.1"].append(seconds)
            seconds, left["logcore"] = ours(directory, made)
            found["logcore"].append(seconds)
    ratios = [k / o for k, o in zip(found["Apache Kafka 3.9.1"], found["logcore"], strict=True)]
    lines = [
        "# Compaction",
        "",
        f"`bench/cleaner.py`: {records:,} records of 100 B with {keys:,} keys, {size / 1e6:,.0f} MB in segments of {SEGMENT >> 20} MiB, "
        f"{os.cpu_count()} cores, on tmpfs, one cleaner thread each. Medians (minimum–maximum) of {rounds} rounds in turn.",
        "",
        "| | s | MB/s of log | MB left |",
        "|---|---|---|---|",
    ]
    for name, values in found.items():
        middle = statistics.median(values)
        lines.append(
            f"| {name} | {middle:.2f} ({min(values):.2f}–{max(values):.2f}) | {size / middle / 1e6:,.0f} | {left[name] / 1e6:,.1f} |"
        )
    lines.append("")
    lines.append(
        f"logcore ÷ Apache Kafka: {statistics.median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f}); the goal is 3."
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--records", type=int, default=4_000_000)
    options.add_argument("--keys", type=int, default=500_000)
    options.add_argument("--directory", type=Path)
    arguments = options.parse_args()
    if not LOGGER.exists():
        raise SystemExit(f"{LOGGER.name} is missing: run `make peers`")
    parent = arguments.directory or Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="logcore-cleaner-", dir=parent))
    try:
        text = run(directory, arguments.rounds, arguments.records, arguments.keys)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    RESULTS.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
